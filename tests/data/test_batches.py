import threading
import warnings
from itertools import islice

import numpy as np
import pytest
from paths import DATA
from PIL import Image

from mlt_jax.data import ArrayImages, Dataset, Files, ImageError, Views, batches, load_voc, num_batches, warp

Q = 3


def labels_of(n):
    return np.random.default_rng(n).integers(0, 2, (n, Q), dtype=np.uint8)


def feature_set(n):
    features = np.arange(n * 2, dtype=np.float32).reshape(n, 2)
    return Dataset("features", tuple(map(str, range(n))), ("a", "b", "c"), labels_of(n), features=features)


@pytest.fixture
def files(tmp_path):
    """Eleven JPEGs, no two alike."""
    paths = []
    for row in range(11):
        pixels = np.random.default_rng(row).integers(0, 256, (20 + row, 30, 3), dtype=np.uint8)
        paths.append(tmp_path / f"picture{row}.jpg")
        Image.fromarray(pixels).save(paths[-1])
    return Dataset(
        "files", tuple(path.name for path in paths), ("a", "b", "c"), labels_of(11), image=Files(tuple(paths))
    )


def run(data, **options):
    return list(batches(data, **{"batch_size": 4, "epoch": 0, "seed": 0, "train": True, "size": 16, **options}))


def assert_equal(some, others):
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        for key in ("inputs", "labels", "index", "weight"):
            assert one[key].dtype == other[key].dtype
            np.testing.assert_array_equal(one[key], other[key])


def test_contract_of_a_batch(files):
    first = run(files)[0]
    assert (first["inputs"].shape, first["inputs"].dtype) == ((4, 16, 16, 3), np.uint8)
    assert (first["labels"].shape, first["labels"].dtype) == ((4, Q), np.float32)
    assert (first["index"].dtype, first["weight"].dtype) == (np.int32, np.float32)
    np.testing.assert_array_equal(first["labels"], files.labels[first["index"]])
    first = run(feature_set(11))[0]
    assert first["inputs"].dtype == np.float32
    np.testing.assert_array_equal(first["inputs"][:, 0], 2 * first["index"])


@pytest.mark.parametrize("make", [lambda files: files, lambda files: feature_set(11)], ids=["files", "features"])
def test_training_visits_other_examples_every_epoch_the_same_in_every_run(files, make):
    data = make(files)
    one = run(data)
    assert_equal(one, run(data, workers=1, prefetch=0))
    order = [
        np.concatenate([batch["index"] for batch in run(data, **where)]) for where in ({}, {"epoch": 1}, {"seed": 1})
    ]
    assert len({tuple(index) for index in order}) == 3
    for index in order:
        assert len(index) == len(set(index)) == 8


def test_evaluation_is_in_order_warped_and_padded_with_weight_zero(files):
    parts = run(files, train=False)
    assert [batch["weight"].tolist() for batch in parts] == [[1] * 4, [1] * 4, [1, 1, 1, 0]]
    index = np.concatenate([batch["index"] for batch in parts])
    np.testing.assert_array_equal(index, [*range(11), 10])
    inputs = np.concatenate([batch["inputs"] for batch in parts])
    for row in range(11):
        np.testing.assert_array_equal(inputs[row], warp(files.image(row), 16))
    np.testing.assert_array_equal(inputs[11], inputs[10])
    assert (num_batches(11, 4, train=False), num_batches(11, 4, train=True), num_batches(12, 4, train=False)) == (
        3,
        2,
        3,
    )


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("make", [lambda files: files, lambda files: feature_set(11)], ids=["files", "features"])
def test_shards_together_are_the_batches_of_one_process(files, make, train):
    data = make(files)
    whole = run(data, train=train)
    shards = [run(data, train=train, shard=(k, 4)) for k in range(4)]
    for step, batch in enumerate(whole):
        for key, value in batch.items():
            np.testing.assert_array_equal(np.concatenate([shard[step][key] for shard in shards]), value)


@pytest.mark.parametrize("train", [True, False])
def test_resuming_gives_the_same_batches_without_decoding_the_first(files, train):
    decoded = []
    watched = files._replace(image=lambda row: (decoded.append(row), files.image(row))[1])
    rest = run(watched, train=train, start=1)
    assert_equal(rest, run(files, train=train)[1:])
    assert sorted(set(decoded)) == sorted({int(i) for batch in rest for i in batch["index"]})
    assert run(files, train=train, start=99) == []


def test_decoding_runs_in_parallel_and_ahead_but_no_further(files):
    started, release = [], threading.Barrier(4, timeout=30)

    def image(row):
        started.append(row)
        if len(started) <= 4:
            release.wait()  # passes only when four images are decoded at the same time
        return files.image(row)

    stream = batches(
        files._replace(image=image), batch_size=1, epoch=0, seed=0, train=False, size=16, workers=4, prefetch=4
    )
    next(stream)
    stream.close()
    assert 4 <= len(started) <= 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mlt_jax-decode")]


def break_files(data):
    whole = data.image.paths[2].read_bytes()
    data.image.paths[2].write_bytes(whole[: len(whole) // 2])
    data.image.paths[5].unlink()
    data.image.paths[10].write_bytes(b"no picture at all")


@pytest.mark.parametrize("row", [2, 5, 10])
def test_an_unreadable_image_is_fatal_and_named(files, row):
    break_files(files)
    with pytest.raises(ImageError, match=rf"picture{row}\.jpg: cannot be read"):
        run(files.take([0, row, 1]), train=False)


def test_an_unreadable_image_is_skipped_with_weight_zero_and_counted(files):
    good = run(files, train=False)
    break_files(files)
    with pytest.warns(
        UserWarning, match=r"skipped 3 unreadable images: picture2\.jpg, picture5\.jpg, picture10\.jpg"
    ) as seen:
        parts = run(files, train=False, on_error="skip")
    assert len(seen) == 1
    weight = np.concatenate([batch["weight"] for batch in parts])
    np.testing.assert_array_equal(np.flatnonzero(weight == 0), [2, 5, 10, 11])
    for one, other in zip(parts, good, strict=True):
        rows = one["weight"] > 0
        np.testing.assert_array_equal(one["inputs"][rows], other["inputs"][rows])
        np.testing.assert_array_equal(one["index"], other["index"])
        assert (one["inputs"][~rows] == 0).all()


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "tiff"])
def test_broken_bytes_are_an_image_or_an_image_error(suffix, tmp_path):
    path, rng, messages = tmp_path / f"x.{suffix}", np.random.default_rng(0), []
    Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(path)
    whole = path.read_bytes()
    for _ in range(200):
        broken = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        broken[rng.integers(len(broken))] = rng.integers(256)
        path.write_bytes(broken)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own remarks on a broken header
            try:
                assert Files((path,))(0).ndim == 3
            except ImageError as error:
                messages.append(str(error))
    assert len(messages) > 100
    assert all(path.name in message for message in messages)


def test_nothing_is_said_where_all_images_are_good(files):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(files, on_error="skip")


def test_images_in_memory_are_taken_as_they_are_even_in_training():
    pixels = np.random.default_rng(0).integers(0, 256, (10, 12, 12, 3), dtype=np.uint8)
    data = Dataset("memory", tuple(map(str, range(10))), ("a", "b", "c"), labels_of(10), image=ArrayImages(pixels))
    for options in ({"size": None}, {"size": 12}):
        for batch in run(data, **options):
            np.testing.assert_array_equal(batch["inputs"], pixels[batch["index"]])
    batch = run(data, size=8)[0]
    np.testing.assert_array_equal(batch["inputs"][0], warp(pixels[batch["index"][0]], 8))
    np.testing.assert_array_equal(data.take([3, 1]).image(0), pixels[3])


def test_a_view_is_drawn_for_each_example_and_epoch_and_evaluation_takes_the_first():
    maps = np.arange(11 * 3, dtype=np.float16).reshape(11, 3, 1, 1, 1) + np.zeros((1, 1, 2, 2, 1), np.float16)
    data = feature_set(11)._replace(features=None, views=Views(maps, np.arange(11)))
    found = run(data, train=False)
    assert found[0]["inputs"].dtype == np.float16
    assert np.concatenate([batch["inputs"] for batch in found])[:11, 0, 0, 0].tolist() == list(range(0, 33, 3))

    def drawn(**options):
        batches = run(data, **options)
        rows, values = (np.concatenate([batch[name] for batch in batches]) for name in ("index", "inputs"))
        assert (values[:, 0, 0, 0] // 3 == rows).all()
        return dict(zip(rows.tolist(), (values[:, 0, 0, 0] % 3).tolist(), strict=True))

    once, again, later = drawn(epoch=1), drawn(epoch=1), drawn(epoch=2)
    assert once == again
    assert set(once.values()) == {0, 1, 2}
    assert any(once[row] != later[row] for row in once.keys() & later.keys())
    # In order, as the losses for estimation are read: the views that training sees.
    everything = drawn(epoch=1, train=False, augmented=True)
    assert everything.items() >= once.items()


def test_an_epoch_in_order_can_be_augmented_as_in_training(files):
    crops = {
        int(row): image
        for batch in run(files, epoch=3)
        for row, image in zip(batch["index"], batch["inputs"], strict=True)
    }
    in_order = run(files, epoch=3, train=False, augmented=True)
    rows = np.concatenate([batch["index"] for batch in in_order])[:11]
    assert rows.tolist() == list(range(11))
    found = np.concatenate([batch["inputs"] for batch in in_order])
    assert all(np.array_equal(found[row], image) for row, image in crops.items())
    assert not np.array_equal(found[0], warp(files.image(0), 16))


def test_feature_maps_keep_their_shape_and_become_float32():
    maps = np.ones((6, 2, 2, 5), np.float16)
    data = feature_set(6)._replace(features=maps)
    assert (run(data)[0]["inputs"].shape, run(data)[0]["inputs"].dtype) == ((4, 2, 2, 5), np.float32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 6, "shard": (0, 4)}, "batch_size: is 6; pass a positive multiple of the 4 processes"),
        ({"shard": (4, 4)}, r"shard: is \(4, 4\)"),
        ({"start": -1}, "start: is -1"),
        ({"on_error": "ignore"}, "on_error: 'ignore' is unknown"),
        ({"batch_size": 12}, "batch_size: is 12, and features has 11 examples"),
    ],
)
def test_wrong_arguments_are_named_before_the_first_batch(options, message):
    with pytest.raises(ValueError, match=message):
        batches(feature_set(11), **{"batch_size": 4, "epoch": 0, "seed": 0, "train": True, **options})


def test_real_jpegs_reach_the_network_size():
    if not (DATA / "VOCdevkit").exists():
        pytest.skip(f"real data VOCdevkit not found in {DATA} (set MLT_JAX_DATA)")
    data = load_voc(DATA, 2007, "trainval")
    for train in (True, False):
        (batch,) = islice(batches(data, batch_size=8, epoch=0, seed=0, train=train), 1)
        assert batch["inputs"].shape == (8, 224, 224, 3)
        assert batch["inputs"].std() > 20
