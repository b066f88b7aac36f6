import jax.numpy as jnp
import numpy as np
import pytest
from simulate import flip

from mlt_jax.estimator.rater_models import fit_clear, fit_graded

N, RATES = 4000, np.array([[0.05, 0.3], [0.1, 0.1], [0.02, 0.5]])
PSEUDO = jnp.tile(jnp.array([0.5, 1.5]), (1, 3, 2, 1))


@pytest.fixture(scope="module")
def clear():
    """Clean labels, three independent raters' and the clear model of them."""
    rng = np.random.default_rng(0)
    clean = (rng.random((N, 1)) < 0.3).astype(np.uint8)
    y = jnp.asarray(np.stack([flip(rng, clean, *rates) for rates in RATES], 2), jnp.int8)
    return clean[:, 0], y, fit_clear(y, jnp.zeros((N, 1)), PSEUDO, scored=False)


def test_the_clear_model_finds_the_rates_and_reports_what_it_lost(clear):
    clean, _, found = clear
    np.testing.assert_allclose(found.rates[0], RATES, atol=0.05)
    covariance = np.linalg.inv(np.asarray(found.information[0], float))[:6, :6]
    error = np.sqrt(np.diag(covariance)).reshape(3, 2) * RATES * (1 - RATES)  # of rates, from that of their logits
    assert (np.abs(np.asarray(found.rates[0]) - RATES) < 3 * error).all()
    known = np.sqrt(RATES * (1 - RATES) / np.stack([np.sum(clean == 0), np.sum(clean == 1)]))
    assert (error > known).all()  # clean labels are not known, and that costs information
    # P(clean) is Bayes' rule of what the raters said.
    post = np.asarray(found.clean[0])
    assert abs(post.mean() - clean.mean()) < 0.03
    assert len(np.unique(np.round(post, 5))) == 8


def test_each_model_is_the_likelier_one_of_its_own_data(clear):
    rng = np.random.default_rng(1)
    u = rng.normal(size=(N, 1, 1))
    graded = jnp.asarray(rng.random((N, 1, 5)) < 1 / (1 + np.exp(-2.5 * u - np.linspace(-4, -1, 5))), jnp.int8)
    five = jnp.tile(PSEUDO[:, :1], (1, 5, 1, 1))
    none = jnp.zeros((N, 1))
    assert fit_graded(graded, none, scored=False).likelihood > fit_clear(graded, none, five, scored=False).likelihood
    assert fit_graded(clear[1], none, scored=False).likelihood < clear[2].likelihood


def test_a_sure_cell_gains_less_from_one_more_answer_than_a_doubtful_one(clear):
    post, gain = np.asarray(clear[2].clean[0]), np.asarray(clear[2].gain[0])
    doubtful, sure = np.abs(post - 0.5) < 0.3, np.abs(post - 0.5) > 0.49
    assert gain[sure].max() < gain[doubtful].min()
    assert gain.max() <= 1  # bit
