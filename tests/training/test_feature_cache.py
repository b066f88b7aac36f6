import jax
import numpy as np
import pytest

from mlt_jax.data import load_digits_scenes
from mlt_jax.models import build
from mlt_jax.training.feature_cache import cache_key, with_features


@pytest.fixture(scope="module")
def data():
    return load_digits_scenes("train", n=40, size=24)


def model(seed=0, **more):
    return build("small", num_classes=10, key=jax.random.key(seed), **more)


def test_features_are_the_models_and_a_second_call_reads_them(data, tmp_path, monkeypatch):
    net = model()
    found = with_features(data, net, tmp_path, dtype="float32", batch_size=16)
    assert found.image is None
    assert found.ids == data.ids
    expected = net.features(net.params, net.stats, data.image.pixels)
    np.testing.assert_allclose(found.features, expected, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr("mlt_jax.training.feature_cache._compute", None)
    again = with_features(data, net, tmp_path, dtype="float32", batch_size=16)
    np.testing.assert_array_equal(again.features, found.features)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npy"]


def test_maps_have_a_place_for_each_position(data, tmp_path):
    net = model()
    maps = with_features(data, net, tmp_path, maps=True, dtype="float32").features
    pooled = with_features(data, net, tmp_path, dtype="float32").features
    assert maps.ndim == 4
    np.testing.assert_allclose(maps.mean(axis=(1, 2)), pooled, rtol=1e-4, atol=1e-5)


def test_the_key_depends_on_weights_transform_and_images_but_not_on_the_head(data):
    base = {"size": None, "maps": False, "dtype": "float16"}
    first, same, other = model(0), model(0), model(1)
    key = cache_key(data, first, **base)
    assert key == cache_key(data, same, **base)
    head = same._replace(params=same.params | {"head": jax.tree.map(lambda x: x + 1, same.params["head"])})
    assert key == cache_key(data, head, **base)
    changed = [
        cache_key(data, other, **base),
        cache_key(data, first, **base | {"size": 32}),
        cache_key(data, first, **base | {"maps": True}),
        cache_key(data, first, **base | {"dtype": "float32"}),
        cache_key(data.take(np.arange(39)), first, **base),
        cache_key(data.take(np.arange(40)[::-1]), first, **base),
    ]
    assert len({key, *changed}) == 7


def test_a_model_without_a_backbone_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match="model: 'linear' has no backbone"):
        with_features(data, build("linear", num_classes=10, key=jax.random.key(0), size=4), tmp_path)
