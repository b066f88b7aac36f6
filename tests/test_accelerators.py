"""What runs on accelerators lowers for them, without the hardware: no call back to the host, no float64."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from mlt_jax.estimator.counts import count_arrays
from mlt_jax.estimator.crossfit import head_logits
from mlt_jax.estimator.curves import _fit_all, bin_scores
from mlt_jax.estimator.selection import _select
from mlt_jax.estimator.solve import _fast_evidence, conclude_all
from mlt_jax.models import build
from mlt_jax.paper.methods import METHODS
from mlt_jax.training.loop import compile_step
from mlt_jax.training.optimizers import make_optimizer
from mlt_jax.training.step import data_mesh, init_state, make_train_step

N, Q = 64, 4


def lowered(function, *args, **options):
    """The program for both kinds, as text, and the shapes of what it returns."""
    exported = jax.export.export(function, platforms=("cuda", "tpu"))(*args, **options)
    text = exported.mlir_module()
    assert re.findall(r"[<x]f64\b", text) == []
    assert [name for name in re.findall(r"custom_call @(\w+)", text) if "callback" in name] == []
    return text, jax.tree.unflatten(exported.out_tree, exported.out_avals)


def of(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_selection_counts_and_the_joint_rule_lower():
    losses, cells = of(jnp.float32, 5, Q, N), of(bool, Q, N)
    lowered(_select, losses, of(jnp.uint8, Q, N), cells, tau=of(jnp.float32), assume="general")
    _, tables = lowered(count_arrays, of(bool, N, Q), of(bool, N, Q))
    rank, classes = of(jnp.int32, 1, Q), of(jnp.int32, Q)
    _, (clouds, choices) = lowered(
        _fast_evidence, tables, rank, classes, aggregate="joint", assume="general", mesh=None
    )
    _, found = lowered(conclude_all, clouds, choices, None, min_selected=50)
    assert found.T.shape == (Q, 2, 2)


def test_cross_fitted_heads_and_curves_lower():
    x, y, known = of(jnp.float32, N, 8), of(jnp.float32, N, Q), of(bool, N, Q)
    lowered(head_logits, x, y, known, of(bool, N, 5), of(jnp.float32, Q, 2), of(jnp.float32))
    _, bins = lowered(bin_scores, y, y, known)
    lowered(_fit_all, bins, of(jnp.float32, 2), of(jnp.float32, 2))


def empty_batch(*count):
    batch = {"inputs": np.zeros((*count, 64, 64, 3), np.uint8), "labels": np.zeros((*count, 20), np.uint8)}
    return batch | {"index": np.zeros(count, np.int32), "weight": np.zeros(count, np.float32)}


@pytest.mark.slow
def test_the_sharded_train_step_of_resnet50_lowers_and_takes_its_states_memory():
    model, rule = build("resnet50", num_classes=20, key=jax.random.key(0), conv="lax"), make_optimizer(1e-4)
    state = init_state(jax.random.key(0), model.params, model.stats, rule)
    everywhere, cut = (NamedSharding(data_mesh(), PartitionSpec(*axes)) for axes in ((), ("data",)))

    def spec(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    batch = empty_batch(16)
    args = [jax.tree.map(lambda leaf: spec(leaf, everywhere), state)]
    args.append({name: spec(leaf, cut) for name, leaf in batch.items()})
    T = jax.ShapeDtypeStruct((20, 2, 2), jnp.float32, sharding=everywhere)
    text, (after, metrics) = lowered(compile_step(model, METHODS["Reweight"], rule), *args, T)
    assert text.count("stablehlo.convolution") > 53
    assert len(re.findall("tf.aliasing_output|jax.buffer_donor", text)) >= len(jax.tree.leaves(state.params))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert metrics["loss"].shape == ()


@pytest.mark.slow
def test_the_mapped_train_step_of_resnet50_lowers_and_sums_over_the_devices():
    devices, rule = jax.local_device_count(), make_optimizer(1e-4)
    model = build("resnet50", num_classes=20, key=jax.random.key(0), conv="lax", axis_name="data")
    state = init_state(jax.random.key(0), model.params, model.stats, rule)

    def step(state, batch, T):
        def loss(outputs, labels):
            return METHODS["Reweight"].loss(outputs, labels, T)

        return make_train_step(model.apply, loss, rule, axis_name="data")(state, batch)

    mapped = jax.pmap(step, axis_name="data", in_axes=(None, 0, None), out_axes=None)
    args = jax.eval_shape(lambda *tree: tree, state, empty_batch(devices, 2), np.zeros((20, 2, 2), np.float32))
    text, (after, metrics) = lowered(jax.jit(mapped), *args)
    # Every gradient and every layer's statistics are summed.
    assert text.count("stablehlo.all_reduce") > len(jax.tree.leaves(state.params))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert metrics["loss"].shape == ()
