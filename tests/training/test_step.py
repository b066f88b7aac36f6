from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlt_jax import models
from mlt_jax.training import step as training
from mlt_jax.training.losses import bce
from mlt_jax.training.optimizers import make_optimizer

N, D, Q = 48, 6, 4


def apply(params, stats, inputs, train, *, axis_name=None):
    """Linear, batch norm, linear: the least network that has running statistics."""
    h = inputs @ params["in"]
    if train:
        mean, square = jnp.mean(h, 0), jnp.mean(h * h, 0)
        if axis_name:
            mean, square = jax.lax.pmean((mean, square), axis_name)
        var = square - mean**2
        stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * var}
    else:
        mean, var = stats["mean"], stats["var"]
    h = (h - mean[None]) * jax.lax.rsqrt(var + 1e-5)[None]
    return jnp.maximum(h, 0) @ params["out"], stats


@pytest.fixture
def start():
    first, second = jax.random.split(jax.random.key(0))
    params = {"in": jax.random.normal(first, (D, 8)), "out": jax.random.normal(second, (8, Q))}
    return params, {"mean": jnp.zeros(8), "var": jnp.ones(8)}


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    return {
        "inputs": rng.normal(size=(N, D)).astype(np.float32),
        "labels": (rng.random((N, Q)) < 0.3).astype(np.float32),
        "index": np.arange(N, dtype=np.int32),
        "weight": np.ones(N, np.float32),
    }


OPTIMIZER = make_optimizer(1e-2, clip=10.0)


def after(step, state, batch, steps=3):
    for _ in range(steps):
        state, metrics = step(state, batch)
    return state, metrics


def assert_close(found, expected, tolerance=1e-5):
    jax.tree.map(partial(np.testing.assert_allclose, atol=tolerance, rtol=tolerance), found, expected)


def arrays(state):
    return state.params, state.stats, state.opt_state, state.step


def test_updates_are_identical_under_jit_a_sharded_mesh_and_pmap(start, batch):
    state = training.init_state(jax.random.key(1), *start, OPTIMIZER)
    plain = jax.jit(training.make_train_step(apply, bce, OPTIMIZER))
    single, metrics = after(plain, state, batch)

    mesh = training.data_mesh()
    assert mesh.size == 8
    placed = training.place(mesh, batch)
    assert len(placed["inputs"].sharding.device_set) == 8
    sharded, sharded_metrics = after(plain, training.replicate(mesh, state), placed)
    assert_close(arrays(sharded), arrays(single))
    assert_close(sharded_metrics, metrics)

    mapped = training.make_train_step(partial(apply, axis_name="data"), bce, OPTIMIZER, axis_name="data")
    cut = {name: x.reshape(8, N // 8, *x.shape[1:]) for name, x in batch.items()}
    spread, spread_metrics = after(jax.pmap(mapped, axis_name="data", in_axes=(None, 0), out_axes=None), state, cut)
    assert_close(arrays(spread), arrays(single))
    assert_close(spread_metrics, metrics)


def test_updates_of_a_real_network_are_identical_under_jit_a_sharded_mesh_and_pmap():
    rng = np.random.default_rng(0)
    batch = {
        "inputs": rng.integers(0, 256, (N, 24, 24, 3), dtype=np.uint8),
        "labels": (rng.random((N, Q)) < 0.3).astype(np.float32),
        "index": np.arange(N, dtype=np.int32),
        "weight": np.ones(N, np.float32),
    }
    sgd = optax.sgd(1e-2, momentum=0.9)  # Adam would turn the sign of a rounding error into a whole step
    net, mapped_net = (models.build("small", num_classes=Q, key=jax.random.key(0), axis_name=a) for a in (None, "data"))
    state = training.init_state(jax.random.key(1), net.params, net.stats, sgd)
    plain = jax.jit(training.make_train_step(net.apply, bce, sgd))
    single, _ = after(plain, state, batch)
    mesh = training.data_mesh()
    sharded, _ = after(plain, training.replicate(mesh, state), training.place(mesh, batch))
    assert_close(arrays(sharded), arrays(single))
    mapped = training.make_train_step(mapped_net.apply, bce, sgd, axis_name="data")
    cut = {name: x.reshape(8, N // 8, *x.shape[1:]) for name, x in batch.items()}
    spread, _ = after(jax.pmap(mapped, axis_name="data", in_axes=(None, 0), out_axes=None), state, cut)
    assert_close(arrays(spread), arrays(single))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), single.params, state.params)
    assert max(jax.tree.leaves(moved)) > 1e-3


def test_accumulated_gradients_are_those_of_the_whole_batch(start, batch):
    frozen = lambda params, stats, inputs, train: apply(params, stats, inputs, False)  # noqa: E731
    state = training.init_state(jax.random.key(1), *start, OPTIMIZER)
    whole, metrics = after(training.make_train_step(frozen, bce, OPTIMIZER), state, batch)
    parts, part_metrics = after(training.make_train_step(frozen, bce, OPTIMIZER, accumulate=4), state, batch)
    assert_close(arrays(parts), arrays(whole))
    assert_close(part_metrics, metrics)
    with pytest.raises(ValueError, match="accumulate: 5 does not divide the batch of 48"):
        training.make_train_step(frozen, bce, OPTIMIZER, accumulate=5)(state, batch)


def test_statistics_move_through_the_parts_of_an_accumulated_batch(start, batch):
    state = training.init_state(jax.random.key(1), *start, OPTIMIZER)
    found, _ = training.make_train_step(apply, bce, OPTIMIZER, accumulate=2)(state, batch)
    stats = start[1]
    for part in (batch["inputs"][::2], batch["inputs"][1::2]):
        _, stats = apply(start[0], stats, jnp.asarray(part), True)
    assert_close(found.stats, stats)


def test_rows_of_weight_zero_change_nothing(start, batch):
    frozen = lambda params, stats, inputs, train: apply(params, stats, inputs, False)  # noqa: E731
    state = training.init_state(jax.random.key(1), *start, OPTIMIZER)
    step = training.make_train_step(frozen, bce, OPTIMIZER)
    short = {name: x[:40] for name, x in batch.items()}
    padded = batch | {"weight": (np.arange(N) < 40).astype(np.float32)}
    assert_close(arrays(step(state, padded)[0]), arrays(step(state, short)[0]))


def test_loss_is_the_mean_over_examples_and_classes_and_the_norm_is_cut(start, batch):
    optimizer = optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(1.0))
    state = training.init_state(jax.random.key(1), *start, optimizer)
    new, metrics = training.make_train_step(apply, bce, optimizer)(state, batch)
    logits, _ = apply(*start, batch["inputs"], True)
    np.testing.assert_allclose(metrics["loss"], jnp.mean(bce(logits, batch["labels"])), rtol=1e-5)
    assert metrics["gradient_norm"] > 1e-3
    moved = optax.tree.norm(jax.tree.map(jnp.subtract, new.params, state.params))
    np.testing.assert_allclose(moved, 1e-3, rtol=1e-2)


def test_resident_epoch_equals_its_steps_one_by_one(start, batch):
    state = training.init_state(jax.random.key(1), *start, OPTIMIZER)
    step = training.make_train_step(apply, bce, OPTIMIZER)
    rows = np.random.default_rng(1).permutation(N).astype(np.int32).reshape(4, 12)
    epoch = training.make_resident_epoch(step)
    found, losses = epoch(state, batch["inputs"], batch["labels"], rows, np.ones((4, 12), np.float32))
    expected = []
    for chosen in rows:
        state, metrics = step(state, {name: x[chosen] for name, x in batch.items()})
        expected.append(metrics["loss"])
    assert_close(arrays(found), arrays(state))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_streamed_epoch_reports_every_step_and_its_state(start, batch):
    mesh = training.data_mesh()
    state = training.replicate(mesh, training.init_state(jax.random.key(1), *start, OPTIMIZER))
    seen = []
    last = training.stream_epoch(
        jax.jit(training.make_train_step(apply, bce, OPTIMIZER)),
        state,
        [batch] * 3,
        mesh=mesh,
        on_step=lambda state, loss: seen.append((int(state.step), loss)),
    )
    assert [step for step, _ in seen] == [1, 2, 3]
    assert seen[2][1] < seen[0][1]
    assert int(last.step) == 3


def test_a_loss_that_is_not_finite_raises_with_its_step_and_rows(start, batch):
    mesh = training.data_mesh()
    state = training.replicate(mesh, training.init_state(jax.random.key(1), *start, OPTIMIZER))
    bad = batch | {"inputs": batch["inputs"] * np.float32(np.nan), "index": batch["index"] + 100}
    step = jax.jit(training.make_train_step(apply, bce, OPTIMIZER))
    with pytest.raises(training.NonFiniteLoss, match="not finite at step 2") as caught:
        training.stream_epoch(step, state, [batch, bad, batch], mesh=mesh, on_step=lambda state, loss: None)
    assert caught.value.step == 2
    np.testing.assert_array_equal(caught.value.rows, np.arange(100, 100 + N))


def test_predictions_come_back_whole_with_their_rows(start, batch):
    mesh = training.data_mesh()
    predict = training.make_predict(apply, mesh)
    logits, index, weight = predict(*training.replicate(mesh, start), training.place(mesh, batch))
    np.testing.assert_allclose(logits, apply(*start, batch["inputs"], False)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(index, batch["index"])
    np.testing.assert_array_equal(weight, batch["weight"])
