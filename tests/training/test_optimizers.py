import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlt_jax.training.optimizers import make_optimizer, with_head_rate

PARAMS = {"stem": jnp.ones(2), "head": {"kernel": jnp.ones(3)}}


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def steps(rule, gradients):
    """Parameters after one update per gradient."""
    params, state = PARAMS, rule.init(PARAMS)
    for gradient in gradients:
        updates, state = rule.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def gradient(size):
    return jax.tree.map(lambda x: jnp.full_like(x, size), PARAMS)


def test_the_rule_is_adam():
    gradients = [gradient(size) for size in (0.3, -1.0, 2.0)]
    ours, adam = (steps(rule, gradients) for rule in (make_optimizer(0.1), optax.adam(0.1)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, adam)
    np.testing.assert_allclose(steps(make_optimizer(0.1), [gradient(0.3)])["stem"], 0.9, rtol=1e-5)


def test_a_norm_beyond_the_clip_is_cut_and_one_below_is_not():
    # Five parameters: the norm of the second gradient is sqrt(5) * 4 = 8.94 and is cut to 1, that is to 1 / sqrt(5).
    gradients, cut = [gradient(0.1), gradient(4.0)], [gradient(0.1), gradient(1 / np.sqrt(5))]
    ours, expected = steps(make_optimizer(0.1, clip=1.0), gradients), steps(optax.adam(0.1), cut)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, expected)
    assert abs(ours["stem"] - steps(make_optimizer(0.1), gradients)["stem"]).max() > 1e-3


def test_the_state_has_one_form_with_and_without_a_clip():
    structures = {jax.tree.structure(make_optimizer(0.1, clip=clip).init(PARAMS)) for clip in (1.0, float("inf"))}
    assert len(structures) == 1


def test_a_head_has_its_own_rate_and_the_rest_keeps_its():
    gradients = [gradient(0.3), gradient(-1.0)]
    adam = make_optimizer(0.1)
    plain, scaled = (steps(rule, gradients) for rule in (adam, with_head_rate(adam, 10.0)))
    np.testing.assert_allclose(scaled["stem"], plain["stem"], rtol=1e-6)
    moved = scaled["head"]["kernel"] - 1, plain["head"]["kernel"] - 1
    np.testing.assert_allclose(moved[0], 10 * moved[1], rtol=1e-4)
