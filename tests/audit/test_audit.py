import numpy as np
import pandas as pd
import pytest
from simulate import flip
from sklearn.metrics import average_precision_score

import mlt_jax
from mlt_jax import (
    Status,
    TransitionEstimate,
    audit_labels,
    clean_labels,
    find_label_issues,
    importance_weights,
    issues_frame,
    label_quality,
)
from mlt_jax.audit.cleanlab import from_cleanlab_joint, to_cleanlab_joint
from mlt_jax.audit.sklearn import LabelAuditor
from mlt_jax.data import load
from mlt_jax.labels import as_labels, to_lists
from mlt_jax.paper.noise import transition

N, Q = 3000, 4  # the same in the tests of the command line and of the page, so that kernels are compiled once
RHO_NEG, RHO_POS = np.array([0.05, 0.1, 0.0, 0.3]), np.array([0.3, 0.1, 0.4, 0.0])
T = np.asarray(transition(RHO_NEG, RHO_POS))


@pytest.fixture(scope="module")
def data():
    """Clean and noisy labels, and exact P(clean = 1) of each cell."""
    rng = np.random.default_rng(0)
    pi = 1 / (1 + np.exp(-rng.normal(-1, 3, (N, Q))))
    clean = (rng.random((N, Q)) < pi).astype(np.uint8)
    return clean, flip(rng, clean, RHO_NEG, RHO_POS), pi


@pytest.fixture(scope="module")
def audit(data):
    _, labels, pi = data
    return audit_labels(labels, probs=pi, T=T, classes=list("abcd"))


def bayes(labels, pi):
    """P(wrong) by counting the two ways a given label can come about."""
    joint = np.stack([(1 - pi)[..., None] * T[:, 0], pi[..., None] * T[:, 1]])  # clean, n, q, noisy
    given = np.take_along_axis(joint, labels[None, ..., None].astype(int), axis=3)[..., 0]
    return np.where(labels == 1, given[0], given[1]) / given.sum(axis=0)


def test_exact_predictions_and_T_give_bayes_rule_in_both_directions(data, audit):
    _, labels, pi = data
    expected = bayes(labels, pi)
    assert np.abs(audit.wrong - expected).mean() < 0.01
    assert np.abs(audit.slope - 1).max() < 0.2
    assert (audit.wrong[:, 2][labels[:, 2] == 1] == 0).all()  # rho_neg is 0: no given positive is wrong
    assert (audit.wrong[:, 3][labels[:, 3] == 0] == 0).all()


def test_probabilities_of_being_wrong_are_calibrated(data, audit):
    clean, labels, _ = data
    wrong = labels != clean
    for low, high in ((0.02, 0.1), (0.1, 0.3), (0.3, 0.6), (0.6, 0.9), (0.9, 1)):
        cells = (audit.wrong > low) & (audit.wrong <= high)
        assert cells.sum() > 150
        assert abs(wrong[cells].mean() - audit.wrong[cells].mean()) < 0.06


@pytest.mark.parametrize(("slope", "offset"), [(0.5, 0.0), (2.0, 1.0), (1.0, -2.0)])
def test_predictions_that_are_over_or_underconfident_are_calibrated_through_T(data, audit, slope, offset):
    _, labels, pi = data
    logit = slope * np.log(pi / (1 - pi)) + offset
    crooked = audit_labels(labels, probs=1 / (1 + np.exp(-logit)), T=T)
    assert np.abs(crooked.wrong - audit.wrong).mean() < 0.02


def test_predictions_of_the_given_label_rank_wrong_labels_better_than_their_confidence(data):
    clean, labels, pi = data
    noisy = RHO_NEG + (1 - RHO_NEG - RHO_POS) * pi  # what a model trained on the given labels predicts
    wrong = (labels != clean).ravel()
    own = average_precision_score(wrong, audit_labels(labels, probs=noisy, T=T).wrong.ravel())
    confidence = average_precision_score(wrong, np.where(labels == 1, 1 - noisy, noisy).ravel())
    best = average_precision_score(wrong, bayes(labels, pi).ravel())
    assert own > confidence + 0.1
    assert own > best - 0.02


def test_a_class_whose_predictions_say_nothing_gets_its_base_rates(data):
    _, labels, pi = data
    probs = pi.copy()
    probs[:, 0] = np.random.default_rng(1).random(N)
    audit = audit_labels(labels, probs=probs, T=T)
    assert audit.slope[0] == 0
    assert len(np.unique(audit.wrong[:, 0])) == 2  # one for given, one for not given
    prior = float(audit.found.prior[0])
    expected = 0.3 * prior / (0.3 * prior + 0.95 * (1 - prior))
    np.testing.assert_allclose(audit.wrong[labels[:, 0] == 0, 0], expected, rtol=1e-3)


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


def test_most_suggestions_are_right(data, audit):
    clean, labels, _ = data
    mended = clean_labels(audit)
    assert (mended != clean).sum() < 0.8 * (labels != clean).sum()
    np.testing.assert_array_equal(mended != labels, audit.wrong > 0.5)
    np.testing.assert_array_equal(clean_labels(audit, threshold=0.999) != labels, audit.wrong > 0.999)


def test_quality_is_per_cell_example_and_class(data, audit):
    clean, labels, _ = data
    cell, example, by_class = (label_quality(audit, per=per) for per in ("cell", "example", "class"))
    np.testing.assert_array_equal(cell, 1 - audit.wrong)
    whole = (labels == clean).all(axis=1)
    assert abs(example.mean() - whole.mean()) < 0.02  # probability that an example has no wrong label
    np.testing.assert_allclose(by_class, (labels == clean).mean(axis=0), atol=0.02)


def test_weighted_loss_of_given_labels_is_the_loss_of_clean_ones(data, audit):
    clean, labels, _ = data
    weights = importance_weights(audit)
    predicted = np.full((N, Q), 0.02)  # any classifier: the weights must not favour one

    def loss(y):
        return -np.log(np.where(y == 1, predicted, 1 - predicted))

    off, weighted_off = (np.abs((w * loss(labels)).mean(axis=0) - loss(clean).mean(axis=0)) for w in (1, weights))
    assert weighted_off.max() < 0.15 < 0.6 < off.max()
    assert weights.max() <= 1 / 0.6 + 1e-5


def test_raw_labels_go_straight_into_every_function(data, audit):
    _, labels, pi = data
    inputs = {"probs": pi, "T": T}
    np.testing.assert_array_equal(clean_labels(labels, **inputs), clean_labels(audit))
    np.testing.assert_array_equal(find_label_issues(labels, **inputs).wrong, find_label_issues(audit).wrong)
    with pytest.raises(TypeError, match="probs: this audit is made already"):
        clean_labels(audit, probs=pi)


def test_cells_nobody_labelled_are_no_issue_and_do_not_count(data):
    _, labels, pi = data
    observed = np.random.default_rng(2).random((N, Q)) < 0.7
    audit = audit_labels(np.where(observed, labels.astype(np.int8), -1), probs=pi, T=T, coding="uncertain")
    assert (audit.wrong[~observed] == 0).all()
    assert (clean_labels(audit)[~observed] == 0).all()
    assert (importance_weights(audit)[~observed] == 0).all()
    whole = audit_labels(labels, probs=pi, T=T)
    assert np.abs(audit.wrong - whole.wrong)[observed].mean() < 0.01
    np.testing.assert_allclose(audit.clean_probs[~observed], pi[~observed], atol=0.1)
    by_class = label_quality(audit, per="class")
    np.testing.assert_allclose(by_class, label_quality(whole, per="class"), atol=0.02)


def test_T_is_estimated_where_it_is_not_told(data):
    _, labels, pi = data
    audit = audit_labels(pd.DataFrame(labels, columns=list("wxyz")), probs=pi)
    assert (np.asarray(audit.found.status) == Status.POSTERIOR).all()
    assert np.abs(np.asarray(audit.found.T) - T).max() < 0.08
    assert audit.classes == tuple("wxyz")


def test_epoch_probabilities_take_the_papers_way_to_T_and_the_last_epoch_predicts(data):
    _, labels, pi = data
    epochs = np.stack([0.5 * pi + 0.25, pi])
    audit = audit_labels(labels, probs=epochs)
    assert np.isin(np.asarray(audit.found.status), [Status.CORRELATION, Status.FALLBACK]).all()
    p = np.clip(pi, 1e-6, 1 - 1e-6)
    np.testing.assert_allclose(audit.scores, np.log(p / (1 - p)), rtol=1e-3, atol=1e-3)


def test_an_empty_class_is_audited_without_nan(data):
    _, labels, pi = data
    labels = labels.copy()
    labels[:, 0], labels[:, 1] = 0, 1
    audit = audit_labels(labels, probs=pi, T=T)
    assert np.isfinite(audit.wrong).all()


def test_features_alone_are_enough():
    rng = np.random.default_rng(3)
    features = rng.normal(size=(N, 12)).astype(np.float32)
    clean = features @ rng.normal(size=(12, 4)) > 1
    labels = flip(rng, clean, 0.05, 0.3)
    audit = audit_labels(labels, features=features)
    assert average_precision_score((labels != clean).ravel(), audit.wrong.ravel()) > 0.9
    probs = mlt_jax.cross_val_probs(features, labels)
    assert probs.shape == labels.shape
    assert ((probs >= 0) & (probs <= 1)).all()


OTHER = TransitionEstimate(*(np.ones((2, *shape), np.float32) for shape in ((2, 2), (), (2,), (), (), ())))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "probs: neither probs nor features"),
        ({"probs": np.full((N, Q), 1.5)}, "probs: row 0, column 0 is 1.5"),
        ({"probs": np.full((N, Q - 1), 0.5)}, "probs"),
        ({"probs": np.full((N, Q), 0.5), "ids": ["a"]}, "ids: 1 names, labels have 3000"),
        ({"probs": np.full((N, Q), 0.5), "T": np.eye(2)}, r"T: shape \(2, 2\)"),
        ({"probs": np.full((N, Q), 0.5), "T": OTHER}, f"T: of 2 classes, labels have {Q}"),
    ],
)
def test_bad_input_is_named(data, options, message):
    with pytest.raises(ValueError, match=message):
        audit_labels(data[1], **options)


def test_bad_options_are_named(audit):
    with pytest.raises(ValueError, match="per: 'row'"):
        label_quality(audit, per="row")
    with pytest.raises(ValueError, match=r"threshold: 1\.5"):
        find_label_issues(audit, threshold=1.5)


def test_the_joint_of_T_is_transposed_and_counts_the_given_labels(data):
    clean, labels, _ = data
    joint = to_cleanlab_joint(T, labels)
    np.testing.assert_array_equal(joint[:, 1].sum(axis=1), labels.sum(axis=0))
    np.testing.assert_array_equal(joint.sum(axis=(1, 2)), N)
    true = [[[((labels[:, j] == g) & (clean[:, j] == c)).sum() for c in (0, 1)] for g in (0, 1)] for j in range(Q)]
    assert np.abs(joint - np.array(true)).max() < 0.02 * N
    np.testing.assert_allclose(from_cleanlab_joint(joint), T, atol=0.002)
    with pytest.raises(ValueError, match=r"joint: shape \(2, 2\)"):
        from_cleanlab_joint(np.eye(2))


def test_cleanlab_takes_our_joint_and_we_take_its_labels_and_joint(data):
    pytest.importorskip("cleanlab", reason="cleanlab is not installed")
    from cleanlab.count import compute_confident_joint
    from cleanlab.multilabel_classification.filter import find_multilabel_issues_per_class

    clean, labels, pi = data
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


def test_the_scikit_learn_estimator_audits(data):
    _, labels, pi = data
    found = LabelAuditor(threshold=0.8).fit(None, labels, probs=pi)
    audit = audit_labels(labels, probs=pi)
    np.testing.assert_array_equal(found.wrong_, audit.wrong)
    np.testing.assert_array_equal(found.clean_labels_, clean_labels(audit, threshold=0.8))
    assert found.issues_.wrong.min() > 0.8


@pytest.mark.slow
def test_wrong_labels_of_real_features_are_ranked_better_than_by_confidence(real_data):
    from paths import DATA

    real_data("voc2007_features.npz")
    data = load("voc2007", features=DATA)
    assert data.features is not None
    labels = flip(np.random.default_rng(0), data.labels, 0.034, 0.4)
    audit = audit_labels(labels, features=data.features)
    wrong = (labels != data.labels).ravel()
    assert average_precision_score(wrong, audit.wrong.ravel()) > 0.78  # measured 0.807; the confidence of a head: 0.68
    assert abs(audit.wrong.sum() / wrong.sum() - 1) < 0.1
