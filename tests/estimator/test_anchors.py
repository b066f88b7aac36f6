import numpy as np
import pytest

from mlt_jax import dual_t, estimate, t_estimator


@pytest.fixture
def small():
    probs = np.array([[0.95, 0.5], [0.9, 0.6], [0.1, 0.7], [0.05, 0.8]])
    return probs, np.array([[1, 1], [0, 1], [0, 0], [1, 1]])


def test_t_estimator_reads_the_surest_examples(small):
    T = t_estimator(*small)
    np.testing.assert_allclose(T[0], [[0.95, 0.05], [0.05, 0.95]], rtol=1e-6)
    np.testing.assert_allclose(T[1], [[0.5, 0.5], [0.2, 0.8]], rtol=1e-6)


def test_97_percent_passes_over_the_top():
    probs = np.linspace(0, 1, 101)[:, None]
    T = t_estimator(probs, np.zeros((101, 1), int), quantile=0.97)
    # The 97th percentile of 0 .. 1 is 0.97; the surest example below it is 0.96, and the mirror image.
    np.testing.assert_allclose(T[0], [[0.96, 0.04], [0.04, 0.96]], atol=1e-6)


def test_equal_posteriors_have_an_anchor_all_the_same():
    T = t_estimator(np.full((10, 1), 0.3), np.zeros((10, 1), int), quantile=0.97)
    np.testing.assert_allclose(T[0], [[0.7, 0.3], [0.7, 0.3]], rtol=1e-6)


def test_dual_t_by_hand(small):
    T = dual_t(*small)
    # Class 0: predicted 1 has noisy 1, 0; predicted 0 has 0, 1. Class 1: predicted 0 has 1; predicted 1 has 1, 0, 1.
    np.testing.assert_allclose(T[0], np.array([[0.95, 0.05], [0.05, 0.95]]) @ np.full((2, 2), 0.5), rtol=1e-6)
    np.testing.assert_allclose(T[1], np.array([[0.5, 0.5], [0.2, 0.8]]) @ np.array([[0, 1], [1 / 3, 2 / 3]]), rtol=1e-6)


def test_a_value_never_predicted_keeps_the_anchor_row():
    T = dual_t(np.array([[0.1], [0.2]]), np.array([[0], [1]]))
    np.testing.assert_allclose(T[0], np.array([[0.9, 0.1], [0.8, 0.2]]) @ np.array([[0.5, 0.5], [0, 1]]), rtol=1e-6)


def test_unobserved_cells_are_no_anchors(small):
    probs, labels = small
    observed = np.ones((4, 2), bool)
    observed[0, 0] = observed[3, 0] = False
    T = t_estimator(probs, labels, observed=observed)
    np.testing.assert_allclose(T[0], [[0.9, 0.1], [0.1, 0.9]], rtol=1e-6)
    T = dual_t(probs, labels, observed=observed)
    np.testing.assert_allclose(T[0], np.array([[0.9, 0.1], [0.1, 0.9]]) @ np.array([[1, 0], [1, 0]]), rtol=1e-6)


def test_rows_sum_to_one_on_real_probabilities(golden):
    gold = golden(1)
    probs, labels = gold["probs"][-1], gold["labels"][:, gold["columns"]]
    for quantile in (None, 0.97):
        for T in (t_estimator(probs, labels, quantile=quantile), dual_t(probs, labels, quantile=quantile)):
            np.testing.assert_allclose(T.sum(2), 1, atol=1e-6)
            assert float(T.min()) >= 0


def test_bad_input_is_named(small):
    probs, labels = small
    with pytest.raises(ValueError, match=r"probs: shape \(1, 4, 2\); pick one epoch"):
        t_estimator(probs[None], labels)
    with pytest.raises(ValueError, match=r"quantile: 1\.5"):
        dual_t(probs, labels, quantile=1.5)
    with pytest.raises(ValueError, match="observed: class 1 has no observed label"):
        dual_t(probs, labels, observed=np.array([[1, 0]] * 4))


def test_estimate_gives_the_baselines_by_name(small):
    probs, labels = small
    np.testing.assert_array_equal(estimate(labels, probs=probs, method="t").T, t_estimator(probs, labels))
    found = estimate(labels, probs=probs, method="dual-t")
    np.testing.assert_array_equal(found.T, dual_t(probs, labels))
    assert np.isfinite(found.prior).all()


def test_arguments_of_another_type_are_named(unchecked_shapes):
    with pytest.raises(ValueError, match="probs: row 1 has length 1, row 0 2"):
        t_estimator([[0.1, 0.2], [0.1]], np.eye(2))
    with pytest.raises(TypeError, match="quantile: list; pass a number strictly between 0 and 1"):
        dual_t(np.full((2, 2), 0.5), np.eye(2), quantile=[0.97])
