import numpy as np
import pytest
from audited import N, Q, T

from mlt_jax import (
    clean_labels,
    find_label_issues,
    importance_weights,
    issues_frame,
    label_quality,
)


def test_issues_come_worst_first_with_class_given_and_suggested(audit):
    issues = find_label_issues(audit)
    assert (np.diff(issues.wrong) <= 0).all()
    assert issues.wrong.min() > 0.5
    assert len(issues.wrong) == (audit.wrong > 0.5).sum()
    frame = issues_frame(audit, most=100)
    assert list(frame.columns) == ["example", "row", "class", "given", "suggested", "p_wrong"]
    assert len(frame) == 100
    assert (frame["given"] + frame["suggested"] == 1).all()
    assert frame["class"].iloc[0] == "abcd"[issues.column[0]]
    assert frame["example"].iloc[0] == str(issues.example[0])


def test_most_suggestions_are_right(exact, audit):
    clean, labels, _ = exact
    relabelled = clean_labels(audit)
    assert (relabelled != clean).sum() < 0.8 * (labels != clean).sum()
    np.testing.assert_array_equal(relabelled != labels, audit.wrong > 0.5)
    np.testing.assert_array_equal(clean_labels(audit, threshold=0.999) != labels, audit.wrong > 0.999)


def test_quality_is_per_cell_example_and_class(exact, audit):
    clean, labels, _ = exact
    cell, example, by_class = (label_quality(audit, per=per) for per in ("cell", "example", "class"))
    np.testing.assert_array_equal(cell, 1 - audit.wrong)
    whole = (labels == clean).all(axis=1)
    assert abs(example.mean() - whole.mean()) < 0.02  # probability that an example has no wrong label
    np.testing.assert_allclose(by_class, (labels == clean).mean(axis=0), atol=0.02)


def test_weighted_loss_of_given_labels_is_the_loss_of_clean_ones(exact, audit):
    clean, labels, _ = exact
    weights = importance_weights(audit)
    predicted = np.full((N, Q), 0.02)  # any classifier: the weights must not favour one

    def loss(y):
        return -np.log(np.where(y == 1, predicted, 1 - predicted))

    off, weighted_off = (np.abs((w * loss(labels)).mean(axis=0) - loss(clean).mean(axis=0)) for w in (1, weights))
    assert weighted_off.max() < 0.15 < 0.6 < off.max()
    assert weights.max() <= 1 / 0.6 + 1e-5


def test_raw_labels_go_straight_into_every_function(exact, audit):
    _, labels, pi = exact
    inputs = {"probs": pi, "T": T}
    np.testing.assert_array_equal(clean_labels(labels, **inputs), clean_labels(audit))
    np.testing.assert_array_equal(find_label_issues(labels, **inputs).wrong, find_label_issues(audit).wrong)
    with pytest.raises(TypeError, match="probs: this audit is made already"):
        clean_labels(audit, probs=pi)


def test_bad_options_are_named(audit):
    with pytest.raises(ValueError, match="per: 'row'"):
        label_quality(audit, per="row")
    with pytest.raises(ValueError, match=r"threshold: 1\.5"):
        find_label_issues(audit, threshold=1.5)


def test_arguments_of_another_type_are_named(unchecked_shapes):
    inputs = {"probs": np.full((3, 2), 0.5), "T": np.tile(np.eye(2), (2, 1, 1))}
    for error, message, function, options in (
        (TypeError, "threshold: 'x'; pass a probability", find_label_issues, {"threshold": "x"}),
        (TypeError, "most: 1.5; pass a whole number", find_label_issues, {"most": 1.5}),
        (TypeError, "threshold: None; pass a probability", clean_labels, {"threshold": None}),
        (ValueError, "per: list; pass", label_quality, {"per": ["cell"]}),
    ):
        with pytest.raises(error, match=message):
            function(np.eye(3, 2), **inputs, **options)
