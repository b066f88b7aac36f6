import jax.numpy as jnp
import numpy as np

from mlt_jax.estimator.counting import count_rates, counted_wrong
from mlt_jax.estimator.curves import bin_scores, fit_curves


def counted(labels, scores):
    bins = bin_scores(jnp.asarray(scores), jnp.asarray(labels), jnp.ones(labels.shape, bool))
    return count_rates(fit_curves(bins), bins)


def test_weaker_scores_and_rarer_labels_count_as_more_misses():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(4000, 3))
    logits = np.stack([4 * base[:, 0] - 4, 2 * base[:, 1] - 2, 4 * base[:, 2] - 9], 1)  # sharp, weak, rare
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    found = counted(labels, logits.astype(np.float32))
    sharp, weak, rare = found.rates[:, 1]
    assert sharp < weak
    assert sharp < rare
    assert found.rates[0, 0] < found.rates[1, 0]
    assert ((found.rates > 0) & (found.rates < 1)).all()
    assert (found.stderr > 0).all()


def test_degenerate_classes_have_finite_rates():
    labels = np.zeros((50, 3), np.float32)
    labels[:, 1] = 1
    labels[3, 2] = 1
    found = counted(labels, np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32))
    assert np.isfinite(found.rates).all()
    assert np.isfinite(found.stderr).all()


def test_wrong_grows_with_disagreement_and_with_the_rates():
    probs = np.array([[0.1], [0.5], [0.9]])
    little, much = np.array([[0.01, 0.1]]), np.array([[0.05, 0.5]])
    frequency = np.array([0.1])
    given, absent = np.ones((3, 1), int), np.zeros((3, 1), int)
    for rates in (little, much):
        assert (np.diff(counted_wrong(probs, given, rates, frequency)[:, 0]) < 0).all()
        assert (np.diff(counted_wrong(probs, absent, rates, frequency)[:, 0]) > 0).all()
    for labels in (given, absent):
        few, many = (counted_wrong(probs, labels, rates, frequency) for rates in (little, much))
        assert (many > few).all()
        assert ((few > 0) & (many < 1)).all()


def test_the_part_of_tied_scores_that_is_below_the_cut_is_counted():
    rng = np.random.default_rng(0)
    score = rng.normal(-1, 3, (5000, 3))
    clean = rng.random(score.shape) < 1 / (1 + np.exp(-score))
    labels = (clean ^ (rng.random(clean.shape) < np.where(clean, 0.2, 0.08))).astype(np.float32)
    found = counted(labels, (score > 0.8).astype(np.float32))  # 0/1 predictions: one bin holds most negatives
    assert (found.rates[:, 0] > 0.05).all()
