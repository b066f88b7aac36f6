"""The networks: shapes, strides, both ways to convolve, batch norm as torch has it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax import models
from mlt_jax.models import layers
from mlt_jax.models.resnet import SHAPES, Block, How

KEY = jax.random.key(0)
PLAIN = How("lax", jnp.dtype("float32"), None)


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def images(n=2, size=64, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8))


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize(
    ("name", "parameters", "width"),
    [("resnet18", 11_689_512, 512), ("resnet34", 21_797_672, 512), ("resnet50", 25_557_032, 2048)],
)
def test_parameter_counts_are_the_published_ones(name, parameters, width):
    model = models.build(name, num_classes=1000, key=KEY)
    assert count(model.params) == parameters
    x = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.uint8)
    maps = jax.eval_shape(partial(model.features, at="maps"), model.params, model.stats, x)
    assert maps.shape == (2, 7, 7, width)
    assert jax.eval_shape(model.features, model.params, model.stats, x).shape == (2, width)
    logits, stats = jax.eval_shape(partial(model.apply, train=True), model.params, model.stats, x)
    assert (logits.shape, logits.dtype) == ((2, 1000), jnp.float32)
    assert jax.tree.map(jnp.shape, stats) == jax.tree.map(jnp.shape, model.stats)


@pytest.mark.parametrize("head", ["linear", "agcn"])
def test_a_tail_continues_the_trunk_and_only_it_has_parameters(head):
    whole, tail = (models.build("small", num_classes=3, key=KEY, head=head, tail=part) for part in (False, True))
    assert {name.split("_")[0] for name in tail.params} == {"stage4", "head"}
    assert tail.fixed[0].keys() | tail.params.keys() == whole.params.keys()
    x = images(2, 32)
    maps = whole.features(whole.params, whole.stats, x, at="trunk")
    found, expected = tail.apply(tail.params, tail.stats, maps, False), whole.apply(whole.params, whole.stats, x, False)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)
    _, stats = tail.apply(tail.params, tail.stats, maps, True)
    assert jax.tree.structure(stats) == jax.tree.structure(tail.stats)
    assert not np.array_equal(stats["stage4_block1"]["unit1"]["bn"]["mean"], np.zeros(128))
    with pytest.raises(ValueError, match="tail: of 'linear', which has no stages"):
        models.build("linear", num_classes=3, key=KEY, tail=True)


def test_versions_differ_only_in_where_the_stride_sits():
    first, half = (models.build("resnet50", num_classes=1000, key=KEY, version=v) for v in ("v1", "v1.5"))
    assert jax.tree.map(jnp.shape, first.params) == jax.tree.map(jnp.shape, half.params)
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, first.params, half.params)))
    x = images(1, 32)
    a, b = (jax.jit(m.features)(m.params, m.stats, x) for m in (first, half))
    assert a.shape == b.shape
    assert not np.allclose(a, b, rtol=1e-2)
    from flax import nnx

    for version, strides in (("v1", (2, 1, 1)), ("v1.5", (1, 2, 1))):
        options = {"bottleneck": True, "version": version, "how": PLAIN, "rngs": nnx.Rngs(0)}
        block = Block(256, 128, stride=2, **options)
        assert tuple(u.conv.stride for u in (block.unit1, block.unit2, block.unit3)) == strides
        block = Block(512, 128, stride=1, **options)
        assert tuple(u.conv.stride for u in (block.unit1, block.unit2, block.unit3)) == (1, 1, 1)


@pytest.fixture
def double():
    """Double precision: in single, rounding moves some ReLU across its kink, on one processor or the other."""
    with jax.enable_x64(True):
        yield


def in_double(model):
    return model._replace(**{
        name: jax.tree.map(lambda x: x.astype(jnp.float64), getattr(model, name)) for name in ("params", "stats")
    })  # fmt: skip


@pytest.mark.parametrize("name", ["small", "resnet50"])
def test_matmul_and_lax_give_the_same_logits_statistics_and_gradients(name, double):
    x, weight = images(4, 32).astype(np.float64), normal(4, 7, seed=1).astype(jnp.float64)

    def run(conv):
        model = in_double(models.build(name, num_classes=7, key=KEY, conv=conv, dtype=jnp.float64))

        def loss(params):
            logits, stats = model.apply(params, model.stats, x, True)
            return jnp.mean(logits * weight), (logits, stats)

        (_, (logits, stats)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(model.params)
        return jax.jit(partial(model.apply, train=False))(model.params, model.stats, x)[0], logits, stats, gradient

    for a, b in zip(jax.tree.leaves(run("lax")), jax.tree.leaves(run("matmul")), strict=True):
        assert a.dtype == b.dtype == jnp.float64
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * max(1e-3, float(jnp.abs(a).max())))


def test_running_statistics_move_by_the_rule_of_torch():
    model = models.build("small", num_classes=3, key=KEY)
    x = images(4, 32)
    _, new = jax.jit(partial(model.apply, train=True))(model.params, model.stats, x)
    z = layers.conv(model.preprocess(x), model.params["stem"]["conv"]["kernel"], stride=2, how="lax")
    z = np.asarray(z, np.float64).reshape(-1, z.shape[-1])
    np.testing.assert_allclose(new["stem"]["bn"]["mean"], 0.1 * z.mean(0), atol=1e-6)
    np.testing.assert_allclose(new["stem"]["bn"]["var"], 0.9 + 0.1 * z.var(0, ddof=1), rtol=1e-5)
    _, again = model.apply(model.params, model.stats, x, False)
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, again, model.stats)))


def test_evaluation_uses_the_running_statistics():
    model = models.build("small", num_classes=3, key=KEY)
    run = jax.jit(partial(model.apply, train=False))
    whole, _ = run(model.params, model.stats, images(4, 32))
    part, _ = run(model.params, model.stats, images(4, 32)[:2])
    np.testing.assert_allclose(whole[:2], part, atol=1e-5)


def test_pmap_with_shared_statistics_is_one_device_with_the_whole_batch(double):
    x, labels = images(16, 32), normal(16, 3).astype(jnp.float64)

    def gradient(model, params, stats, x, labels):
        def loss(params):
            logits, new = model.apply(params, stats, x, True)
            return jnp.mean((logits - labels) ** 2), new

        return jax.grad(loss, has_aux=True)(params)

    one, shared = (
        in_double(models.build("small", num_classes=3, key=KEY, axis_name=name, dtype=jnp.float64))
        for name in (None, "batch")
    )
    expected = jax.jit(partial(gradient, one))(one.params, one.stats, x, labels)

    def mapped(params, stats, x, labels):
        grads, new = gradient(shared, params, stats, x, labels)
        return jax.lax.pmean(grads, "batch"), new

    run = jax.pmap(mapped, axis_name="batch", in_axes=(None, None, 0, 0))
    found = run(shared.params, shared.stats, x.reshape(8, 2, 32, 32, 3), labels.reshape(8, 2, 3))
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        for device in (0, 7):
            np.testing.assert_allclose(a, b[device], rtol=0, atol=1e-9 * max(1.0, float(jnp.abs(a).max())))


def test_bfloat16_keeps_parameters_and_logits_float32():
    wide = models.build("small", num_classes=3, key=KEY)
    model = models.build("small", num_classes=3, key=KEY, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves((model.params, model.stats))} == {jnp.dtype("float32")}

    def run(model, train):
        return jax.jit(partial(model.apply, train=train))(model.params, model.stats, images(8, 32))

    for train in (True, False):
        (logits, stats), (expected, _) = run(model, train), run(wide, train)
        assert logits.dtype == jnp.float32
        assert {leaf.dtype for leaf in jax.tree.leaves(stats)} == {jnp.dtype("float32")}
        spread = float(jnp.std(expected))
        assert 0 < float(jnp.abs(logits - expected).max()) < 0.2 * spread
    grads = jax.grad(lambda p: model.apply(p, model.stats, images(8, 32), True)[0].sum())(model.params)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}


def test_small_learns_a_colour_in_a_few_steps():
    x = np.array(images(32, 32)) // 4
    labels = np.arange(32) % 2
    x[labels == 1, :, :, 0] += 100
    model = models.build("small", num_classes=1, key=KEY)

    @jax.jit
    def step(params, stats):
        def loss(params):
            logits, new = model.apply(params, stats, jnp.asarray(x), True)
            sign = jnp.asarray(2.0 * labels - 1, jnp.float32)
            return jnp.mean(jax.nn.softplus(-sign * logits[:, 0])), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), new, value

    params, stats, values = model.params, model.stats, []
    for _ in range(10):
        params, stats, value = step(params, stats)
        values.append(float(value))
    assert values[-1] < 0.1 < 0.4 < values[0]
    assert count(model.params) < 400_000


def test_linear_takes_features_and_maps():
    model = models.build("linear", num_classes=4, key=KEY, size=6)
    maps = normal(5, 3, 3, 6)
    logits, stats = model.apply(model.params, model.stats, jnp.mean(maps, (1, 2)), True)
    assert stats == {} == model.stats
    assert model.features is None
    np.testing.assert_allclose(model.apply(model.params, {}, maps, False)[0], logits, atol=1e-6)
    expected = np.asarray(maps).mean((1, 2)) @ np.asarray(model.params["kernel"])
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    assert models.build("linear", num_classes=4, key=KEY).params["kernel"].shape == (2048, 4)


def test_same_key_same_parameters_other_key_others():
    a, b, c = (models.build("small", num_classes=2, key=jax.random.key(k)).params for k in (1, 1, 2))
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, a, b)))
    assert not jnp.array_equal(a["stem"]["conv"]["kernel"], c["stem"]["conv"]["kernel"])
    assert not jnp.array_equal(
        a["stage1_block1"]["unit1"]["conv"]["kernel"], a["stage1_block1"]["unit2"]["conv"]["kernel"]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "vgg"}, r"name: 'vgg'; pass one of resnet18, .*linear"),
        ({"conv": "fft"}, "conv: 'fft'"),
        ({"version": "v2"}, "version: 'v2'"),
        ({"num_classes": 0}, "num_classes: 0"),
        ({"size": 8}, "size: 8; small needs at least 16"),
        ({"name": "linear", "pretrained": "x.npz"}, "no backbone"),
    ],
)
def test_wrong_arguments_are_named(change, words):
    with pytest.raises(ValueError, match=words):
        models.build(**({"name": "small", "num_classes": 2, "key": KEY} | change))


def test_every_shape_has_a_name():
    assert set(SHAPES) < set(models.names)


def test_a_resnet_takes_any_head():
    images = np.zeros((2, 32, 32, 3), np.uint8)
    for head in models.HEADS:
        model = models.build("small", num_classes=3, key=KEY, head=head)
        outputs, stats = jax.eval_shape(lambda m=model: m.apply(m.params, m.stats, images, True))
        assert jax.tree.leaves(outputs)[0].shape == (2, 3)
        assert jax.tree.structure(stats) == jax.tree.structure(model.stats)
    with pytest.raises(ValueError, match="head: 'mlp'; pass one of linear, csra"):
        models.build("small", num_classes=3, key=KEY, head="mlp")
