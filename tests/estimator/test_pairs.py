import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import unbiased

from mlt_jax import count, estimate_all, estimate_from_tables, estimate_pair
from mlt_jax.estimator.pairs import medoid


def test_one_pair_by_hand():
    # prior 0.4, rho_neg 0.1, rho_pos 0.2, a = 0.3, b = 0.8
    m_j, m_i = 0.4 * 0.8 + 0.6 * 0.1, 0.4 * 0.8 + 0.6 * 0.3
    e = 0.4 * 0.8 * 0.8 + 0.6 * 0.1 * 0.3
    pair = jax.jit(estimate_pair)(*map(jnp.float32, (m_j, m_i, e, 0.3, 0.8)))
    np.testing.assert_allclose(pair[:3], [0.1, 0.2, 0.4], atol=1e-6)
    assert bool(pair.defined)


def test_exact_systems_give_T():
    rng = np.random.default_rng(0)
    prior, rho_neg, rho_pos = rng.uniform(0.05, 0.95, 500), *rng.uniform(0, 0.45, (2, 500))
    a = rng.uniform(0.02, 0.6, 500)
    b = a + rng.uniform(0.1, 0.35, 500)
    a, b = np.where(rng.random(500) < 0.5, (a, b), (b, a))  # partners that come with the class, and without it
    kept, false = prior * (1 - rho_pos), (1 - prior) * rho_neg
    with jax.enable_x64(True):
        shares = kept + false, prior * b + (1 - prior) * a, kept * b + false * a, a, b
        pair = estimate_pair(*map(jnp.asarray, shares))
    np.testing.assert_allclose(pair[:3], [rho_neg, rho_pos, prior], atol=1e-10)
    assert np.asarray(pair.defined).all()


@pytest.mark.parametrize(
    "args",
    [(0.38, 0.5, 0.2, 0.3, 0.3), (0.38, 0.3, 0.274, 0.3, 0.8), (0.38, 0.8, 0.274, 0.3, 0.8)],
    ids=["uncorrelated", "prior 0", "prior 1"],
)
def test_a_vanishing_denominator_is_flagged_and_has_finite_gradients(args):
    pair = estimate_pair(*map(jnp.float32, args))
    assert not bool(pair.defined)
    assert np.isfinite(jnp.stack(pair[:3])).all()
    gradient = jax.grad(lambda *x: estimate_pair(*x).rho_neg, argnums=(0, 1, 2, 3, 4))(*map(jnp.float32, args))
    assert np.isfinite(gradient).all()


def test_medoid_is_the_brute_force_one():
    rng = np.random.default_rng(3)
    labels, selected = unbiased(rng, n=2000, q=15)
    tables = count(labels, selected)
    p = tables.probabilities()
    pair = estimate_pair(*(jnp.broadcast_to(x, (15, 15)) for x in p))
    rates = np.stack([pair.rho_neg, pair.rho_pos], 2)
    rates = np.where((rates < 0) & (rates > -0.3 / 15), 0, rates)
    valid = np.asarray(pair.defined & (pair.prior >= 0) & (pair.prior <= 1)) & ~np.eye(15, dtype=bool)
    valid &= ((rates >= 0) & (rates <= 1)).all(2) & (rates.sum(2) < 1)
    found = estimate_from_tables(tables, aggregate="medoid")
    np.testing.assert_array_equal(found.partners, valid.sum(1))
    for j in range(15):
        candidates = rates[j, valid[j]]
        best = candidates[np.abs(candidates[:, None] - candidates[None]).sum((1, 2)).argmin()]
        np.testing.assert_allclose([found.rho_neg[j], found.rho_pos[j]], best, atol=1e-5)  # float32


@pytest.mark.parametrize("weighted", [False, True])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_cutting_planes_find_the_medoid(weighted, seed):
    rng = np.random.default_rng(seed)
    points = rng.beta(*rng.uniform(0.2, 3, 2), (2, 50)).astype(np.float32)
    points[:, 40:] = points[:, :10]  # ties
    valid = rng.random(50) < rng.uniform(0.05, 1)
    weight = (rng.random(50) if weighted else valid).astype(np.float32)
    chosen = int(jax.jit(medoid)(*map(jnp.asarray, (points, weight, valid))))
    if not valid.any():
        return
    spread = (weight * np.abs(points[:, :, None].astype(float) - points[:, None])).sum((0, 2))
    assert valid[chosen]
    assert spread[chosen] <= spread[valid].min() * (1 + 1e-5) + 1e-6


def test_first_takes_the_first_valid_partner():
    labels, selected = unbiased(np.random.default_rng(0), n=20_000, q=4)
    found = estimate_all(labels, selected, aggregate="first")
    p = count(labels, selected).probabilities()
    pair = estimate_pair(*(jnp.broadcast_to(x, (4, 4)) for x in p))
    j = int(np.argmax(found.partners))
    assert int(found.partners[j]) >= 2
    in_order = [[float(pair.rho_neg[j, i]), float(pair.rho_pos[j, i])] for i in range(4) if i != j]
    valid = [max(0, rho_neg) for rho_neg, _ in in_order if -0.3 / 4 < rho_neg < 1]
    assert float(found.rho_neg[j]) == pytest.approx(valid[0], abs=1e-5)
    keys = map(jax.random.key, range(24))
    shuffled = {float(estimate_all(labels, selected, aggregate="first", key=key).rho_neg[j]) for key in keys}
    assert len(shuffled) == int(found.partners[j])


def test_frequencies_that_are_none_are_named():
    right = {"m_j": 0.5, "m_i": 0.5, "e": 0.3, "a": 0.2, "b": 0.8}
    for error, message, wrong in (
        (TypeError, "a: dtype object", {"a": None}),
        (ValueError, "e: nan; pass probabilities", {"e": np.nan}),
        (ValueError, r"b: ndarray of shape \(2,\); pass probabilities", {"b": np.array([0.5, 1.5])}),
        (ValueError, r"m_j, m_i, e, a, b: shapes \[\(2,\), \(3,\)\]", {"e": np.zeros(2), "a": np.zeros(3)}),
    ):
        with pytest.raises(error, match=message):
            estimate_pair(**right | wrong)
