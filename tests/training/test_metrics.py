import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from mlt_jax.paper.noise import transition
from mlt_jax.training import metrics


@pytest.fixture(params=[False, True], ids=["distinct", "tied"])
def predictions(request):
    rng = np.random.default_rng(0)
    probs = rng.random((300, 7))
    labels = (rng.random((300, 7)) < 0.2 + 0.5 * probs).astype(np.uint8)
    return (np.round(probs, 1) if request.param else probs), labels


def test_average_precision_equals_scikit_learns(predictions):
    probs, labels = predictions
    expected = [average_precision_score(labels[:, j], probs[:, j]) for j in range(7)]
    np.testing.assert_allclose(metrics.average_precision(probs, labels), expected, rtol=1e-12)


def test_average_precision_by_hand():
    # Ranks 1, 3 and 4 are positive: (1/1 + 2/3 + 3/4) / 3.
    scores = np.array([[0.9], [0.8], [0.7], [0.6], [0.1]])
    labels = np.array([[1], [0], [1], [1], [0]])
    np.testing.assert_allclose(metrics.average_precision(scores, labels), [(1 + 2 / 3 + 3 / 4) / 3])
    # Without the negative of rank 2 the positives lead.
    ignore = np.array([[False], [True], [False], [False], [False]])
    np.testing.assert_allclose(metrics.average_precision(scores, labels, ignore), [1.0])


def test_ignored_cells_are_as_if_absent(predictions):
    probs, labels = predictions
    ignore = np.random.default_rng(1).random(labels.shape) < 0.3
    expected = [average_precision_score(labels[~m, j], probs[~m, j]) for j, m in enumerate(ignore.T)]
    np.testing.assert_allclose(metrics.average_precision(probs, labels, ignore), expected, rtol=1e-12)


def test_overall_scores_equal_scikit_learns_micro_and_class_scores_its_macro(predictions):
    probs, labels = predictions
    found, predicted = metrics.f1_scores(probs, labels), probs > 0.5
    for name, score, average in [
        ("OP", precision_score, "micro"), ("OR", recall_score, "micro"), ("OF1", f1_score, "micro"),
        ("CP", precision_score, "macro"), ("CR", recall_score, "macro"),
    ]:  # fmt: skip
        assert found[name] == pytest.approx(score(labels, predicted, average=average))
    assert found["CF1"] == pytest.approx(2 * found["CP"] * found["CR"] / (found["CP"] + found["CR"]))
    assert found["CF1"] != pytest.approx(f1_score(labels, predicted, average="macro"))


def test_f1_leaves_ignored_cells_out():
    probs, labels = np.array([[0.9], [0.9]]), np.array([[1], [1]])
    found = metrics.f1_scores(probs, labels, np.array([[False], [True]]))
    assert (found["OP"], found["OR"]) == (1.0, 1.0)
    assert metrics.f1_scores(probs, 1 - labels, np.array([[True], [True]]))["OP"] == 0


def test_nothing_predicted_gives_zero_and_an_empty_class_is_left_out_of_mAP():
    labels = np.array([[1, 0], [0, 0]])
    found = metrics.evaluate(np.array([[0.4, 0.3], [0.2, 0.1]]), labels)
    assert (found["OF1"], found["CF1"], found["mAP"]) == (0.0, 0.0, 1.0)


def test_transition_error_sums_both_rates_over_classes():
    found = metrics.transition_error(transition(np.array([0.1, 0.3]), 0.2), transition(0.2, 0.1, 2))
    assert found == pytest.approx(0.1 + 0.1 + 0.1 + 0.1)
    with pytest.raises(ValueError, match="T: has shape"):
        metrics.transition_error(np.eye(2), transition(0.2, 0.1))


def test_matrices_that_are_no_numbers_are_named():
    T = transition(0.1, 0.2)
    with pytest.raises(TypeError, match="true_T: dtype <U1"):
        metrics.transition_error(T, "x")
