import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax.paper.cdr import keep_important, kth_largest, make_cdr


def test_cdr_follows_the_gradient_only_where_gradient_times_value_is_large():
    # |g * w|: 1, 6, 4, 0.5; a quarter noise keeps three of the four, times 3/4. The bias is no matrix: as it is.
    params = {"w": jnp.array([[1.0, 2.0], [-4.0, 0.5]]), "b": jnp.array([1.0])}
    grads = {"w": jnp.array([[1.0, -3.0], [1.0, 1.0]]), "b": jnp.array([7.0])}
    rule = keep_important(0.25)
    kept, _ = rule.update(grads, rule.init(params), params)
    assert np.allclose(kept["w"], [[0.75, -2.25], [0.75, 0.0]])
    assert kept["b"].item() == 7


def test_cdrs_threshold_is_one_for_all_kernels_and_its_rate_is_state():
    params = {"a": jnp.ones((1, 2)), "c": jnp.ones((1, 1, 1, 2)), "vector": jnp.ones(3)}
    grads = {"a": jnp.array([[4.0, 3.0]]), "c": jnp.array([2.0, 1.0]).reshape(1, 1, 1, 2), "vector": jnp.zeros(3)}
    step = jax.jit(lambda state: keep_important(0.9).update(grads, state, params)[0])
    half, none, all_noise = (step(keep_important(rate).init(params)) for rate in (0.5, 0.0, 1.0))
    assert np.allclose(half["a"], [[2.0, 1.5]])
    assert np.allclose(half["c"], 0)
    assert np.allclose(none["c"].ravel(), [2, 1])
    assert not np.any(all_noise["a"])


def test_cdrs_unimportant_weights_only_decay():
    params = {"w": jnp.array([[1.0, 2.0]])}
    rule = make_cdr(0.1, clip=10.0, noise_rate=0.5)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = rule.update({"w": jnp.array([[0.1, 3.0]])}, rule.init(params), params)
    # Adam's first step is the rate times the sign: of the decay's 1e-3 * 1 alone, and of half of 3 and the decay.
    assert updates["w"][0, 0] == pytest.approx(-0.1, rel=1e-4)
    assert updates["w"][0, 1] == pytest.approx(-0.1, rel=1e-4)


def test_cdrs_decay_is_seen_by_adam_and_so_it_is_not_plain_training():
    params = {"w": jnp.array([[1.0, -1.0]])}
    rule = make_cdr(0.1, clip=10.0, noise_rate=0.0)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = rule.update({"w": jnp.array([[-5e-4, -5e-4]])}, rule.init(params), params)
    assert updates["w"][0, 0] == pytest.approx(-0.1, rel=1e-4)  # 1e-3 - 5e-4 > 0: the decay turns the step round
    assert updates["w"][0, 1] == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("k", [1, 2, 50, 99, 100])
def test_kth_largest_is_that_of_a_sort(k):
    x = np.abs(np.random.default_rng(0).normal(size=100)).astype(np.float32)
    x[:5] = [0, 0, 1e-40, 1e30, x[7]]
    assert kth_largest(jnp.asarray(x), k) == np.sort(x)[-k]
