import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from paths import ROOT
from PIL import Image

from mlt_jax.data import Dataset, Files, load_digits_scenes, view, warp
from mlt_jax.models import build
from mlt_jax.training import feature_cache as module
from mlt_jax.training.feature_cache import cache_key, kept, with_features, with_views

N, VIEWS = 9, 3


@pytest.fixture(scope="module")
def data():
    return load_digits_scenes("train", n=40, size=24)


def model(seed=0, **more):
    return build("small", num_classes=10, key=jax.random.key(seed), **more)


def write(path, seed):
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 36, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def images(tmp_path):
    """A data set of image files."""
    paths = tuple(tmp_path / f"{row}.png" for row in range(N))
    for row, path in enumerate(paths):
        write(path, row)
    return Dataset("tiny", tuple(map(str, range(N))), ("a",), np.zeros((N, 1), np.uint8), image=Files(paths))


@pytest.fixture
def counted(monkeypatch):
    """How many images and views were computed."""
    found = SimpleNamespace(count=0)
    narrow = module._Store._narrow

    def watched(*args):
        found.count += 1
        return narrow(*args)

    monkeypatch.setattr(module._Store, "_narrow", watched)
    return found


def views_of(images, tmp_path, net=None, **options):
    made = with_views(images, net or model(), tmp_path / "cache", views=VIEWS, size=32, batch_size=4, **options)
    return np.array(made.views.maps)


def test_features_are_the_models_and_a_second_call_reads_them(data, tmp_path, counted):
    net = model()
    found = with_features(data, net, tmp_path, dtype="float32", batch_size=16)
    assert found.image is None
    assert found.ids == data.ids
    expected = net.features(net.params, net.stats, data.image.pixels)
    np.testing.assert_allclose(found.features, expected, rtol=1e-4, atol=1e-5)
    assert counted.count == 40
    again = with_features(data, net, tmp_path, dtype="float32", batch_size=16)
    np.testing.assert_array_equal(again.features, found.features)
    assert counted.count == 40


def test_maps_have_a_place_for_each_position(data, tmp_path):
    net = model()
    maps = with_features(data, net, tmp_path, maps=True, dtype="float32").features
    pooled = with_features(data, net, tmp_path, dtype="float32").features
    assert maps.ndim == 4
    np.testing.assert_allclose(maps.mean(axis=(1, 2)), pooled, rtol=1e-4, atol=1e-5)


def test_the_key_depends_on_weights_transform_and_names_but_not_on_the_head(data):
    base = {"at": "pooled", "views": 1, "size": None, "dtype": "float16"}
    first, same, other = model(0), model(0), model(1)
    key = cache_key(data, first, **base)
    assert key == cache_key(data, same, **base)
    head = same._replace(params=same.params | {"head": jax.tree.map(lambda x: x + 1, same.params["head"])})
    assert key == cache_key(data, head, **base)
    changed = [
        cache_key(data, other, **base),
        cache_key(data, model(0, dtype="bfloat16"), **base),
        cache_key(data, first, **base | {"size": 32}),
        cache_key(data, first, **base | {"at": "maps"}),
        cache_key(data, first, **base | {"views": 2}),
        cache_key(data, first, **base | {"dtype": "float32"}),
        cache_key(data.take(np.arange(39)), first, **base),
        cache_key(data.take(np.arange(40)[::-1]), first, **base),
    ]
    assert len({key, *changed}) == 9


def test_views_are_the_warp_and_crops_and_the_tail_continues_them_to_the_whole_networks_logits(images, tmp_path):
    net, tail = model(), model(tail=True)
    maps = views_of(images, tmp_path, net)
    assert (maps.shape, maps.dtype) == ((N, VIEWS, 4, 4, 64), np.float16)
    whole = np.stack([warp(images.image(row), 32) for row in range(N)])
    expected = net.apply(net.params, net.stats, whole, False)[0]
    found = tail.apply(tail.params, tail.stats, maps[:, 0], False)[0]
    np.testing.assert_allclose(found, expected, atol=2e-3 * float(abs(expected).max()))
    seed = int.from_bytes(np.load(next((tmp_path / "cache").glob("*.rows.npy")))["digest"][3, 0].tobytes(), "little")
    crop = view(images.image(3), 32, number=2, seed=seed)
    assert not np.array_equal(crop, whole[3])
    expected = net.features(net.params, net.stats, crop[None], at="trunk")[0]
    np.testing.assert_allclose(maps[3, 2], expected, rtol=1e-3, atol=1e-3)


# Fills a cache as a run does, and kills its own process with SIGKILL before the number it is told.
KILLER = """
import os, signal, sys
import jax, numpy as np
from pathlib import Path
from mlt_jax.data import Dataset, Files
from mlt_jax.models import build
from mlt_jax.training import feature_cache as module
left, folder = int(sys.argv[1]), Path(sys.argv[2])
narrow = module._Store._narrow
def watched(*args):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return narrow(*args)
module._Store._narrow = watched
paths = tuple(folder / f"{row}.png" for row in range(9))
data = Dataset("tiny", tuple(map(str, range(9))), ("a",), np.zeros((9, 1), np.uint8), image=Files(paths))
net = build("small", num_classes=10, key=jax.random.key(0))
module.with_views(data, net, folder / "killed", views=3, size=32, batch_size=4)
"""


def test_a_cache_that_was_killed_goes_on_at_its_image_and_ends_with_the_same_bytes(images, tmp_path, counted):
    net, options = model(), {"views": VIEWS, "size": 32, "batch_size": 4}
    with_views(images, net, tmp_path / "whole", **options)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    words = [sys.executable, "-c", KILLER, "14", str(tmp_path)]
    assert subprocess.run(words, env=environment, timeout=300).returncode == -signal.SIGKILL
    counted.count = 0
    with_views(images, net, tmp_path / "killed", **options)
    assert counted.count == N * VIEWS - 14
    for path in (tmp_path / "whole").glob("*.npy"):
        assert path.read_bytes() == (tmp_path / "killed" / path.name).read_bytes()


def test_a_changed_image_is_computed_again_and_a_touched_one_is_not(images, tmp_path, counted):
    before = views_of(images, tmp_path)
    os.utime(images.image.paths[2], ns=(1, 1))
    assert np.array_equal(views_of(images, tmp_path), before)
    assert counted.count == N * VIEWS
    write(images.image.paths[5], 100)
    after = views_of(images, tmp_path)
    assert counted.count == (N + 1) * VIEWS
    assert np.flatnonzero((after != before).any(axis=(1, 2, 3, 4))).tolist() == [5]


def test_damaged_files_are_rebuilt(images, tmp_path, counted):
    before = views_of(images, tmp_path)
    numbers, records = (next((tmp_path / "cache").glob(pattern)) for pattern in ("*[!s].npy", "*.rows.npy"))
    content = bytearray(numbers.read_bytes())
    content[-10] ^= 1
    for damage, computed in (
        (lambda: numbers.write_bytes(content), 1),
        (lambda: numbers.write_bytes(content[:500]), N * VIEWS),
        (lambda: numbers.write_bytes(b""), N * VIEWS),
        (lambda: records.write_bytes(records.read_bytes()[:-20]), N * VIEWS),
        (lambda: np.save(numbers, before[:3]), N * VIEWS),  # other rows
    ):
        counted.count = 0
        damage()
        assert np.array_equal(views_of(images, tmp_path), before)
        assert counted.count == computed


def test_an_image_that_was_skipped_is_back_when_it_is_repaired(images, tmp_path):
    path = images.image.paths[4]
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    options = {"size": 32, "batch_size": 4, "on_error": "skip"}
    with pytest.warns(UserWarning, match="skipped 1 unreadable"):
        found = with_features(images, model(), tmp_path / "cache", **options)
    assert found.ids == (*"0123", *"5678")
    assert found.features.shape == (8, 128)
    path.unlink()
    with pytest.warns(UserWarning, match="skipped 1 unreadable"):
        assert with_views(images, model(), tmp_path / "cache", **options).ids == found.ids
    with pytest.raises(OSError, match=r"4\.png: cannot be read"):
        with_features(images, model(), tmp_path / "cache", size=32)
    path.write_bytes(whole)
    again = with_features(images, model(), tmp_path / "cache", **options)
    assert again.ids == images.ids
    np.testing.assert_array_equal(again.features[[0, 1, 2, 3, 5, 6, 7, 8]], found.features)


def test_numbers_beyond_float16_are_kept_as_float32(data, tmp_path):
    net, few = model(), data.take(range(3))
    huge = net._replace(features=lambda *args, at: 1e6 * net.features(*args, at=at))
    with pytest.warns(UserWarning, match=r"beyond float16: kept as float32"):
        found = with_features(few, huge, tmp_path)
    expected = 1e6 * np.asarray(net.features(net.params, net.stats, few.image.pixels))
    np.testing.assert_allclose(found.features, expected, rtol=1e-3, atol=10)
    broken = net._replace(features=lambda *args, at: np.nan * net.features(*args, at=at))
    with pytest.raises(ValueError, match=f"features: not finite for image '{few.ids[0]}'"):
        with_features(few, broken, tmp_path / "other")


def test_what_does_not_fit_on_the_disk_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"cache: 0\.0 GB for .*, 0\.0 GB are free in"):
        with_features(data, model(), tmp_path)
    assert not list(tmp_path.glob("*.npy"))


def test_wrong_options_are_refused(data, tmp_path):
    with pytest.raises(ValueError, match="model: 'linear' has no backbone"):
        with_features(data, build("linear", num_classes=10, key=jax.random.key(0), size=4), tmp_path)
    with pytest.raises(ValueError, match="views: 0; pass at least 1"):
        kept(data, model(), tmp_path, views=0)
    with pytest.raises(ValueError, match="dtype: 'int8'; pass"):
        with_features(data, model(), tmp_path, dtype="int8")
