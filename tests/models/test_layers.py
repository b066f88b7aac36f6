from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax import models
from mlt_jax.models import layers


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [8, 9, 32])
def test_each_convolution_agrees_both_ways(size, stride, side):
    x, kernel = normal(3, side, side, 5), normal(size, size, 5, 6, seed=1)
    ways = [partial(layers.conv, stride=stride, how=how) for how in ("lax", "matmul")]
    (a, back_a), (b, back_b) = (jax.vjp(way, x, kernel) for way in ways)
    np.testing.assert_allclose(a, b, atol=1e-4)
    g = normal(*a.shape, seed=2)
    for p, q in zip(back_a(g), back_b(g), strict=True):
        np.testing.assert_allclose(p, q, atol=1e-4 * float(jnp.abs(p).max()))


@pytest.mark.parametrize("side", [8, 11])
def test_many_channels_are_convolved_in_fewer_products_with_the_same_outcome(side):
    channels = layers.TRANSFORMED
    x, kernel = normal(2, side, side, channels), normal(3, 3, channels, 300, seed=1)
    ways = [partial(layers.conv, stride=1, how=how) for how in ("lax", "matmul")]
    flops = [jax.jit(way).lower(x, kernel).cost_analysis()["flops"] for way in ways]
    assert flops[1] < 0.7 * flops[0]
    (a, back_a), (b, back_b) = (jax.vjp(way, x, kernel) for way in ways)
    for p, q in [(a, b), *zip(back_a(normal(*a.shape, seed=2)), back_b(normal(*a.shape, seed=2)), strict=True)]:
        np.testing.assert_allclose(p, q, atol=2e-5 * float(jnp.abs(p).max()))


@pytest.mark.parametrize("shape", [(5, 12), (12, 5), (7, 7)])
def test_gradients_of_pointwise_convolutions_are_those_of_the_product(shape):
    x, kernel, g = normal(2, 3, 4, shape[0]), normal(*shape, seed=1), normal(2, 3, 4, shape[1], seed=2)
    (a, back_a), (b, back_b) = (jax.vjp(way, x, kernel) for way in (layers._pointwise, jnp.matmul))
    for p, q in [(a, b), *zip(back_a(g), back_b(g), strict=True)]:
        np.testing.assert_allclose(p, q, atol=1e-5)


@pytest.mark.parametrize("classes", [3, layers.FEW])
def test_gradients_of_a_head_are_those_of_the_product(classes):
    x, kernel, g = normal(10, 7), normal(7, classes, seed=1), normal(10, classes, seed=2)
    (a, back_a), (b, back_b) = (jax.vjp(way, x, kernel) for way in (layers.linear, jnp.matmul))
    for p, q in [(a, b), *zip(back_a(g), back_b(g), strict=True)]:
        np.testing.assert_allclose(p, q, atol=1e-5)


@pytest.mark.parametrize("side", [8, 9])
def test_max_pool_agrees_both_ways(side):
    x = normal(2, side, side, 3)
    (a, back_a), (b, back_b) = (jax.vjp(partial(layers.max_pool, how=how), x) for how in ("lax", "matmul"))
    np.testing.assert_array_equal(a, b)
    assert a.shape == (2, (side + 1) // 2, (side + 1) // 2, 3)
    g = normal(*a.shape, seed=2)
    np.testing.assert_allclose(back_a(g)[0], back_b(g)[0], atol=1e-6)


def test_max_pool_gradient_is_shared_out_once_where_windows_tie():
    x = jnp.zeros((1, 6, 6, 1))
    for how in ("lax", "matmul"):
        y, back = jax.vjp(partial(layers.max_pool, how=how), x)
        np.testing.assert_allclose(back(jnp.ones_like(y))[0].sum(), y.size, rtol=1e-6)


def plain_batch_norm(x, shortcut, scale, bias, relu):
    mean, var = jnp.mean(x, (0, 1, 2), keepdims=True), jnp.var(x, (0, 1, 2), keepdims=True)
    y = (x - mean) / jnp.sqrt(var + 1e-5) * scale[None, None, None] + bias[None, None, None]
    y = y if shortcut is None else y + shortcut
    return jax.nn.relu(y) if relu else y


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("aside", [True, False])
def test_batch_norm_gradient_by_hand_is_the_automatic_one(relu, aside):
    x, shortcut = 3 * normal(4, 6, 5, 8) + 1, normal(4, 6, 5, 8, seed=1) if aside else None
    scale, bias, g = normal(8, seed=2), normal(8, seed=3), normal(4, 6, 5, 8, seed=4)
    a, back_a = jax.vjp(partial(plain_batch_norm, relu=relu), x, shortcut, scale, bias)
    b, back_b = jax.vjp(lambda *args: layers.batch_norm(*args, relu, None)[0], x, shortcut, scale, bias)
    np.testing.assert_allclose(a, b, atol=1e-5)
    for p, q in zip(jax.tree.leaves(back_a(g)), jax.tree.leaves(back_b(g)), strict=True):
        np.testing.assert_allclose(p, q, atol=1e-4)


KEY = jax.random.key(0)


def test_features_stay_as_they_are_and_maps_are_averaged_or_listed_by_position():
    maps = normal(5, 2, 3, 4)
    np.testing.assert_allclose(layers.pooled(maps), np.asarray(maps).mean((1, 2)), atol=1e-6)
    np.testing.assert_array_equal(layers.pooled(maps[:, 0, 0]), maps[:, 0, 0])
    np.testing.assert_array_equal(layers.positions(maps)[:, 4], maps[:, 1, 1])
    assert layers.positions(maps.astype(jnp.bfloat16)).dtype == jnp.float32


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("head", ["csra", "agcn"])
def test_heads_of_maps_refuse_pooled_features(head):
    model = models.build(head, num_classes=3, key=KEY, size=4)
    with pytest.raises(ValueError, match=r"^inputs: shape \(5, 4\); pass maps \(b, h, w, d\)"):
        model.apply(model.params, model.stats, np.ones((5, 4), np.float32), False)
