import jax.numpy as jnp
import numpy as np
import pytest
from simulate import scored

from mlt_jax.estimator import curves
from mlt_jax.estimator.curves import bin_scores, fit_curves


def bins_of(scores, labels):
    return bin_scores(jnp.asarray(scores), jnp.asarray(labels, jnp.float32), jnp.ones(scores.shape, bool))


def test_curves_recover_the_rates_and_their_errors():
    scores, labels = scored(np.random.default_rng(0), q=100)
    curve = fit_curves(bins_of(scores, labels))
    error = curve.rates - [0.1, 0.2]
    np.testing.assert_allclose(error.mean(0), 0, atol=0.015)
    covered = (np.abs(error) <= 1.96 * curve.stderr).mean(0)
    assert ((covered >= 0.85) & (covered <= 1)).all()


def test_only_the_order_of_the_scores_counts():
    scores, labels = scored(np.random.default_rng(1), q=5)
    curve = fit_curves(bins_of(scores, labels))
    for changed in (3 * scores + 7, 1 / (1 + np.exp(-scores)), np.round(scores, 2)):
        np.testing.assert_allclose(
            fit_curves(bins_of(changed.astype(np.float32), labels)).rates, curve.rates, atol=0.004
        )


def test_equal_scores_share_a_bin():
    scores = np.repeat([0.0, 1.0, 2.0], [500, 300, 200])[:, None].astype(np.float32)
    labels = (np.arange(1000) % 2)[:, None].astype(np.float32)
    total = np.asarray(bins_of(scores, labels).total[0])
    assert sorted(total[total > 0].tolist()) == [200, 300, 500]


def test_a_rate_that_the_scores_cannot_reach_has_a_large_error():
    scores, labels = scored(np.random.default_rng(2), q=10, width=0.15)  # P(clean = 1) stays between 0.08 and 0.2
    weak = fit_curves(bins_of(scores, labels))
    strong = fit_curves(bins_of(*scored(np.random.default_rng(2), q=10)))
    assert np.median(weak.stderr[:, 1]) > 0.3 > 0.1 > np.median(strong.stderr[:, 1])


@pytest.mark.parametrize(("assume", "held"), [("missing", 0), ("partial", 1)])
def test_a_held_rate_is_zero_without_error_and_costs_likelihood(assume, held):
    bins = bins_of(*scored(np.random.default_rng(3), q=8))
    free, bound = fit_curves(bins), fit_curves(bins, assume)
    assert (bound.rates[:, held] == 0).all()
    assert (bound.stderr[:, held] == 0).all()
    assert (bound.rates[:, 1 - held] > 0).all()
    assert (bound.likelihood < free.likelihood - 0.5).all()


def test_more_classes_than_are_fitted_together_give_the_same():
    scores, labels = scored(np.random.default_rng(4), n=300, q=300)
    together = fit_curves(bins_of(scores, labels))
    apart = fit_curves(bins_of(scores[:, 280:], labels[:, 280:]))
    np.testing.assert_allclose(together.rates[280:], apart.rates, atol=2e-3)


def test_a_rate_without_information_has_a_large_error_even_where_rounding_makes_it_negative(monkeypatch):
    bins = bins_of(*scored(np.random.default_rng(0), n=500, rho_neg=0.1, rho_pos=0.2)[:2])
    fitted, information = curves._fit_all(bins, jnp.ones(2), jnp.zeros(2))
    singular = jnp.eye(6).at[:2, :2].set(1.00001).at[[0, 1], [0, 1]].set(1.0)  # eigenvalue -1e-5
    monkeypatch.setattr(curves, "_fit_all", lambda *_: (fitted, jnp.broadcast_to(singular, information.shape)))
    assert (fit_curves(bins).stderr > 100).all()
