import jax.numpy as jnp
import numpy as np
import pytest
from audited import N, T

from mlt_jax import audit_labels
from mlt_jax.audit.calibrate import calibrate


@pytest.mark.parametrize(("slope", "offset"), [(0.5, 0.0), (2.0, 1.0), (1.0, -2.0)])
def test_predictions_that_are_over_or_underconfident_are_calibrated_through_T(exact, audit, slope, offset):
    _, labels, pi = exact
    logit = slope * np.log(pi / (1 - pi)) + offset
    crooked = audit_labels(labels, probs=1 / (1 + np.exp(-logit)), T=T)
    assert np.abs(crooked.wrong - audit.wrong).mean() < 0.02


def test_a_class_whose_predictions_say_nothing_gets_its_base_rates(exact):
    _, labels, pi = exact
    probs = pi.copy()
    probs[:, 0] = np.random.default_rng(1).random(N)
    audit = audit_labels(labels, probs=probs, T=T)
    assert audit.slope[0] == 0
    assert len(np.unique(audit.wrong[:, 0])) == 2  # one for given, one for not given
    prior = float(audit.found.prior[0])
    expected = 0.3 * prior / (0.3 * prior + 0.95 * (1 - prior))
    np.testing.assert_allclose(audit.wrong[labels[:, 0] == 0, 0], expected, rtol=1e-3)


@pytest.mark.parametrize("prior", [0.05, 0.08], ids=["of the population", "of other data"])
def test_scores_that_say_nothing_pass_for_predictions_in_at_most_5_percent(prior):
    rng = np.random.default_rng(0)
    n, q, rates = 500, 1000, np.float32([0.02, 0.2])
    clean, chance = rng.random((n, q)) < 0.05, rng.random((n, q))
    labels = jnp.asarray(np.where(clean, chance >= rates[1], chance < rates[0]), jnp.float32)
    scores = jnp.asarray(rng.normal(-1, 0.5, (n, q)), jnp.float32)
    every = jnp.ones((n, q), bool)
    slope, offset = calibrate(scores, labels, every, jnp.tile(rates, (q, 1)), jnp.full(q, prior, jnp.float32))
    predicts = np.asarray(slope) > 0
    assert 0.005 < predicts.mean() <= 0.05
    np.testing.assert_allclose(offset[~predicts], np.log(prior / (1 - prior)), rtol=1e-4)


def test_scores_that_say_a_little_are_used():
    rng = np.random.default_rng(1)
    scores = rng.normal(-1, 0.5, (2000, 200))
    labels = rng.random(scores.shape) < 1 / (1 + np.exp(-scores))
    arrays = (jnp.asarray(x, jnp.float32) for x in (scores, labels))
    slope, _ = calibrate(*arrays, jnp.ones(scores.shape, bool), jnp.zeros((200, 2)), jnp.full(200, 0.27))
    assert (np.asarray(slope) > 0).mean() > 0.99
