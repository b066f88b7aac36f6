import jax.numpy as jnp
import numpy as np
import pytest
from simulate import t_error

from mlt_jax import Status, estimate, estimate_from_scores, noisy_sides
from mlt_jax.estimator.curves import fit_curves, side_test
from mlt_jax.paper.noise import SETTINGS


def scored(rng, *, n=5000, q=40, rho_neg=0.1, rho_pos=0.2):
    """Scores and noisy labels of q independent classes whose clean posterior is logistic in the score."""
    scores = 3 * rng.normal(size=(n, q)) - 2
    clean = rng.random((n, q)) < 1 / (1 + np.exp(-scores))
    chance = rng.random((n, q))
    labels = np.where(clean, chance >= rho_pos, chance < rho_neg).astype(np.uint8)
    return scores.astype(np.float32), labels


def all_known(scores):
    return jnp.ones(scores.shape, bool)


def test_curves_recover_the_rates_and_their_errors():
    rng = np.random.default_rng(0)
    scores, labels = scored(rng, q=100)
    curve = fit_curves(jnp.asarray(scores), jnp.asarray(labels, jnp.float32), all_known(scores))
    error = np.asarray(curve.rates) - [0.1, 0.2]
    np.testing.assert_allclose(error.mean(0), 0, atol=0.01)
    covered = (np.abs(error) <= 1.96 * np.asarray(curve.stderr)).mean(0)
    assert ((covered >= 0.88) & (covered <= 1)).all()
    np.testing.assert_allclose(np.asarray(curve.stderr).mean(0), error.std(0), rtol=0.25)


def test_equal_rates_move_together_and_different_ones_stay_apart():
    rng = np.random.default_rng(1)
    scores, labels = scored(rng)
    alone, shared = (estimate_from_scores(scores, labels, share=share) for share in (False, True))
    assert t_error(shared, 0.1, 0.2) < 0.6 * t_error(alone, 0.1, 0.2)
    rates = np.where(np.arange(40) < 20, 0.05, 0.4)
    scores, labels = scored(rng, rho_neg=0.05, rho_pos=rates)
    found = estimate_from_scores(scores, labels)
    assert np.abs(np.asarray(found.rho_pos) - rates).mean() < 0.03
    assert (np.asarray(found.status) == Status.POSTERIOR).all()
    inside = np.abs(np.asarray(found.rho_pos) - rates) <= 1.96 * np.asarray(found.stderr[:, 1])
    assert inside.mean() > 0.8


def test_residual_is_one_where_the_curve_is_right_and_large_where_it_is_not():
    rng = np.random.default_rng(2)
    scores, labels = scored(rng, n=20_000, q=8)
    assert 0.6 < float(estimate_from_scores(scores, labels).residual.mean()) < 1.5
    wrong = np.where(np.abs(scores) < 1, 1 - labels, labels)  # no monotone curve goes through that
    assert float(estimate_from_scores(scores, wrong).residual.mean()) > 5


def test_sides_without_noise_are_told_from_sides_with():
    rng = np.random.default_rng(3)
    for rates, clean_side in (((0.0, 0.2), 0), ((0.1, 0.0), 1)):
        found = side_test(*scored(rng, q=100, n=3000, rho_neg=rates[0], rho_pos=rates[1]))
        assert (found.by_class[:, clean_side] < 0.05).mean() < 0.1
        assert (found.by_class[:, 1 - clean_side] < 0.05).mean() > 0.9
        assert found.overall[clean_side] > 0.001 > found.overall[1 - clean_side]


def test_p_values_of_a_clean_side_are_spread_as_stated():
    rng = np.random.default_rng(7)
    tests = [side_test(*scored(rng, q=10, n=2000, rho_neg=0.0, rho_pos=0.3)) for _ in range(40)]
    overall = np.array([found.overall[0] for found in tests])
    assert (overall < 0.05).mean() <= 0.15
    assert (overall > 0.5).mean() > 0.25
    by_class = np.concatenate([found.by_class[:, 0] for found in tests])
    assert 0.005 < (by_class < 0.05).mean() < 0.09


def test_a_class_the_scores_say_nothing_about_is_left_out_of_the_test():
    rng = np.random.default_rng(8)
    scores, labels = scored(rng, q=5)
    scores[:, 0] = rng.normal(size=5000)
    found = side_test(scores, labels)
    assert np.isnan(found.by_class[0]).all()
    assert np.isfinite(found.by_class[1:]).all()
    assert (found.overall < 0.001).all()
    assert np.isnan(side_test(rng.normal(size=scores.shape), labels).overall).all()


def test_classes_that_cannot_be_told_have_a_status_and_a_valid_T():
    rng = np.random.default_rng(4)
    scores, labels = scored(rng, q=8)
    scores[:, 0] = rng.normal(size=5000)  # says nothing about label 0
    labels[:, 1] = np.arange(5000) < 9
    labels[:, 2] = 0
    found = estimate_from_scores(scores, labels)
    assert found.status.tolist()[:3] == [Status.UNIDENTIFIABLE, Status.TOO_FEW, Status.TOO_FEW]
    assert (np.asarray(found.status)[3:] == Status.POSTERIOR).all()
    assert np.isfinite(found.T).all()
    np.testing.assert_allclose(found.T[0, 1, 0], np.asarray(found.rho_pos)[3:].mean(), atol=0.05)  # the others' rates
    alone = estimate_from_scores(scores, labels, share=False)
    np.testing.assert_allclose(alone.T[0], np.eye(2), atol=1e-6)
    assert np.isnan(alone.stderr[0]).all()


def test_unobserved_cells_are_not_read():
    rng = np.random.default_rng(5)
    scores, labels = scored(rng, n=20_000, q=5)
    observed = rng.random(labels.shape) < 0.5
    hidden = np.where(observed, scores, np.nan)
    found = estimate_from_scores(hidden, np.where(observed, labels, 1), observed=observed)
    assert t_error(found, 0.1, 0.2) < 5 * 0.06


def test_two_dimensional_probs_are_taken_as_out_of_sample():
    scores, labels = scored(np.random.default_rng(6), q=5)
    probs = 1 / (1 + np.exp(-scores))
    np.testing.assert_allclose(
        estimate(labels, probs=probs).T, estimate_from_scores(scores, labels).T, atol=5e-3
    )  # probs are cut at 1e-6
    np.testing.assert_allclose(noisy_sides(labels, probs=probs).overall, side_test(scores, labels).overall, atol=1e-3)
    with pytest.raises(ValueError, match=r"probs: shape \(5, 5000, 5\)"):
        noisy_sides(labels, probs=np.repeat(probs[None], 5, 0))


@pytest.mark.slow
def test_blind_on_real_features_beats_what_the_paper_printed_when_told(real_data):
    data, known = real_data("voc2007_features.npz"), real_data("voc2007_labels.npz")
    place = {name: row for row, name in enumerate(known["trainval_names"])}
    clean = known["trainval"][[place[name] for name in data["names"]]] >= 0
    printed = {(0.2, 0.0): 0.36, (0.6, 0.0): 1.17, (0.2, 0.2): 3.1, (0.034, 0.4): 1.85}
    for rates, told in printed.items():
        assert rates in SETTINGS["voc2007"]
        chance = np.random.default_rng(0).random(clean.shape)
        labels = np.where(clean, chance >= rates[1], chance < rates[0]).astype(np.uint8)
        found = estimate(labels, features=data["features"].astype(np.float32))
        assert t_error(found, *rates) < told
