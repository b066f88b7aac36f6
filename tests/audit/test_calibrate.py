import jax.numpy as jnp
import numpy as np
import pytest
from audited import N, T
from simulate import flip

from mlt_jax import audit_labels
from mlt_jax.audit.calibrate import calibrate, wrong_probability


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


def test_the_promised_number_of_wrong_flips_holds_where_T_is_estimated():
    rng = np.random.default_rng(4)
    promised, happened, surest = 0.0, 0, []
    for rho_neg, rho_pos in ((0.03, 0.4), (0.1, 0.1), (0.02, 0.2), (0.2, 0.2)):
        pi = 1 / (1 + np.exp(-rng.normal(-2, 3, (N, 4))))
        clean = (rng.random(pi.shape) < pi).astype(np.uint8)
        labels = flip(rng, clean, rho_neg, rho_pos)
        noisy = 1 / (1 + np.exp(-np.log(pi / (1 - pi)) - rng.normal(0, 1, pi.shape)))  # as a model of few data has it
        audit = audit_labels(labels, probs=noisy)
        flipped = audit.wrong > 0.9
        promised += float((1 - audit.wrong)[flipped].sum())
        happened += int((labels == clean)[flipped].sum())
        surest.append(audit.wrong.max())
    assert promised > 30
    assert 0.25 * promised < happened < promised + 2 * promised**0.5  # on the safe side: intervals are wide
    assert max(surest) < 0.995  # T is not known well enough to be surer


def test_an_uncertain_T_makes_no_cell_surer_and_a_certain_one_changes_nothing(exact):
    _, labels, pi = exact
    s, y, every = (
        jnp.asarray(np.log(pi / (1 - pi)), jnp.float32),
        jnp.asarray(labels, jnp.float32),
        jnp.ones((N, 4), bool),
    )
    rates = jnp.asarray(T[:, [0, 1], [1, 0]], jnp.float32)
    inputs = s, y, every, rates, jnp.ones(4), jnp.zeros(4)
    sure, unsure = (np.asarray(wrong_probability(*inputs, jnp.full((4, 2), error))) for error in (0.0, 0.03))
    flipped = np.where(labels == 1, T[:, 0, 1] * (1 - pi), T[:, 1, 0] * pi)
    kept = np.where(labels == 1, T[:, 1, 1] * pi, T[:, 0, 0] * (1 - pi))
    np.testing.assert_allclose(sure, flipped / (flipped + kept), atol=2e-4)
    assert unsure[sure > 0.99].max() < sure[sure > 0.99].min()
    assert np.abs(unsure - sure)[(sure > 0.2) & (sure < 0.6)].mean() < 0.03
