import numpy as np
import pytest
from audited import N, Q, T

from mlt_jax import (
    audit_labels,
)
from mlt_jax.audit.cleanlab import from_cleanlab_joint, to_cleanlab_issues, to_cleanlab_joint
from mlt_jax.audit.issues import find_label_issues
from mlt_jax.labels import as_labels, to_lists


def test_the_joint_of_T_is_transposed_and_counts_the_given_labels(exact):
    clean, labels, _ = exact
    joint = to_cleanlab_joint(T, labels)
    np.testing.assert_array_equal(joint[:, 1].sum(axis=1), labels.sum(axis=0))
    np.testing.assert_array_equal(joint.sum(axis=(1, 2)), N)
    true = [[[((labels[:, j] == g) & (clean[:, j] == c)).sum() for c in (0, 1)] for g in (0, 1)] for j in range(Q)]
    assert np.abs(joint - np.array(true)).max() < 0.02 * N
    np.testing.assert_allclose(from_cleanlab_joint(joint), T, atol=0.002)
    with pytest.raises(ValueError, match=r"joint: shape \(2, 2\)"):
        from_cleanlab_joint(np.eye(2))


def test_cleanlab_takes_our_joint_and_we_take_its_labels_and_joint(exact):
    pytest.importorskip("cleanlab", reason="cleanlab is not installed")
    from cleanlab.count import compute_confident_joint
    from cleanlab.multilabel_classification.filter import find_multilabel_issues_per_class

    clean, labels, pi = exact
    lists = to_lists(as_labels(labels))
    ours = audit_labels(lists, probs=pi, T=T)
    np.testing.assert_array_equal(ours.labels.values, labels)
    np.testing.assert_array_equal(to_cleanlab_joint(T, lists), to_cleanlab_joint(T, labels))
    theirs = compute_confident_joint(lists, pi, multi_label=True)
    joint = to_cleanlab_joint(T, labels)
    assert (theirs.shape, theirs.dtype) == (joint.shape, joint.dtype)
    np.testing.assert_array_equal(theirs.sum(axis=2), joint.sum(axis=2))  # cleanlab's rows are the given labels too
    flagged = find_multilabel_issues_per_class(lists, pi, confident_joint=joint, n_jobs=1)
    by_class = flagged.sum(axis=0)
    wrong = (labels != clean).sum(axis=0)
    assert np.abs(by_class - wrong).max() < 0.35 * wrong.max()  # it removes as many as our joint says are wrong
    assert np.isfinite(audit_labels(lists, probs=pi, T=from_cleanlab_joint(theirs)).wrong).all()


def test_suspects_have_the_columns_of_datalab(audit):
    pytest.importorskip("cleanlab", reason="cleanlab is not installed")
    from cleanlab.multilabel_classification import get_label_quality_scores

    found = to_cleanlab_issues(audit, threshold=0.7)
    issues = find_label_issues(audit, threshold=0.7)
    assert list(found.columns) == ["is_label_issue", "label_score", "given_label", "predicted_label"]  # Datalab of 2.9
    assert found.is_label_issue.dtype == bool
    assert list(np.flatnonzero(found.is_label_issue)) == sorted(set(issues.example.tolist()))
    np.testing.assert_allclose(found.label_score, np.prod(1 - audit.wrong, axis=1), atol=1e-5)
    row, column = issues.example[0], issues.column[0]
    assert (column in found.given_label.iloc[row]) != (column in found.predicted_label.iloc[row])
    # cleanlab's own functions take the lists.
    p = 1 / (1 + np.exp(-audit.scores))
    scores = get_label_quality_scores(found.given_label.tolist(), p)
    assert scores[found.is_label_issue].mean() < scores[~found.is_label_issue].mean()


def test_arguments_of_another_type_are_named():
    with pytest.raises(TypeError, match="joint: 'x'; pass"):
        from_cleanlab_joint("x")
    with pytest.raises(TypeError, match="T: 'x'; pass"):
        to_cleanlab_joint("x", [[0], [1]])
