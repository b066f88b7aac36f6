import numpy as np
import pandas as pd
import pytest
from audited import RHO_NEG, RHO_POS, N, Q, T
from simulate import flip
from sklearn.metrics import average_precision_score

import mlt_jax
from mlt_jax import (
    Status,
    TransitionEstimate,
    audit_labels,
    clean_labels,
    importance_weights,
    label_quality,
)
from mlt_jax.data import load


def bayes(labels, pi):
    """P(wrong) by counting the two ways a given label can come about."""
    joint = np.stack([(1 - pi)[..., None] * T[:, 0], pi[..., None] * T[:, 1]])  # clean, n, q, noisy
    given = np.take_along_axis(joint, labels[None, ..., None].astype(int), axis=3)[..., 0]
    return np.where(labels == 1, given[0], given[1]) / given.sum(axis=0)


def test_exact_predictions_and_T_give_bayes_rule_in_both_directions(exact, audit):
    _, labels, pi = exact
    expected = bayes(labels, pi)
    assert np.abs(audit.wrong - expected).mean() < 0.01
    assert np.abs(audit.slope - 1).max() < 0.2
    assert (audit.wrong[:, 2][labels[:, 2] == 1] == 0).all()  # rho_neg is 0: no given positive is wrong
    assert (audit.wrong[:, 3][labels[:, 3] == 0] == 0).all()


def test_probabilities_of_being_wrong_are_calibrated(exact, audit):
    clean, labels, _ = exact
    wrong = labels != clean
    for low, high in ((0.02, 0.1), (0.1, 0.3), (0.3, 0.6), (0.6, 0.9), (0.9, 1)):
        cells = (audit.wrong > low) & (audit.wrong <= high)
        assert cells.sum() > 150
        assert abs(wrong[cells].mean() - audit.wrong[cells].mean()) < 0.06


def test_predictions_of_the_given_label_rank_wrong_labels_better_than_their_confidence(exact):
    clean, labels, pi = exact
    noisy = RHO_NEG + (1 - RHO_NEG - RHO_POS) * pi  # what a model trained on the given labels predicts
    wrong = (labels != clean).ravel()
    own = average_precision_score(wrong, audit_labels(labels, probs=noisy, T=T).wrong.ravel())
    confidence = average_precision_score(wrong, np.where(labels == 1, 1 - noisy, noisy).ravel())
    best = average_precision_score(wrong, bayes(labels, pi).ravel())
    assert own > confidence + 0.1
    assert own > best - 0.02


def test_cells_nobody_labelled_are_no_issue_and_do_not_count(exact):
    _, labels, pi = exact
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


def test_T_is_estimated_where_it_is_not_told(exact):
    _, labels, pi = exact
    audit = audit_labels(pd.DataFrame(labels, columns=list("wxyz")), probs=pi)
    assert (np.asarray(audit.found.status) == Status.POSTERIOR).all()
    assert np.abs(np.asarray(audit.found.T) - T).max() < 0.08
    assert audit.classes == tuple("wxyz")


def test_epoch_probabilities_take_the_papers_way_to_T_and_the_last_epoch_predicts(exact):
    _, labels, pi = exact
    epochs = np.stack([0.5 * pi + 0.25, pi])
    audit = audit_labels(labels, probs=epochs)
    assert np.isin(np.asarray(audit.found.status), [Status.CORRELATION, Status.FALLBACK]).all()
    p = np.clip(pi, 1e-6, 1 - 1e-6)
    np.testing.assert_allclose(audit.scores, np.log(p / (1 - p)), rtol=1e-3, atol=1e-3)


def test_an_empty_class_is_audited_without_nan(exact):
    _, labels, pi = exact
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


def test_seed_and_groups_reach_T_and_the_predictions():
    rng = np.random.default_rng(4)
    who = np.arange(2000) // 2
    features = rng.normal(size=(2000, 12))
    labels = flip(rng, features @ rng.normal(size=(12, 4)) > 1, 0.05, 0.3)
    one, again, other = (audit_labels(labels, features=features, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.found.T, again.found.T)
    np.testing.assert_array_equal(one.wrong, again.wrong)
    assert not np.allclose(one.found.T, other.found.T, atol=1e-5)
    grouped = audit_labels(labels, features=features, groups=who)
    np.testing.assert_array_equal(grouped.found.T, mlt_jax.estimate(labels, features=features, groups=who).T)
    expected = mlt_jax.cross_val_logits(features, labels, T=grouped.found.T, groups=who)
    np.testing.assert_allclose(grouped.scores, expected, atol=1e-5)
    with pytest.raises(ValueError, match="groups: they keep folds apart, but there are no features"):
        audit_labels(labels, probs=np.full(labels.shape, 0.5), T=T, groups=who)


OTHER = TransitionEstimate(*(np.ones((2, *shape), np.float32) for shape in ((2, 2), (), (2,), (), (), ())))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "probs: neither probs nor features"),
        ({"probs": np.full((N, Q), 1.5)}, "probs: row 0, column 0 is 1.5"),
        ({"probs": np.full((N, Q - 1), 0.5)}, r"probs: shape \(3000, 3\), labels have \(3000, 4\)"),
        ({"probs": np.full((N, Q), 0.5), "ids": ["a"]}, "ids: 1 names, labels have 3000"),
        ({"probs": np.full((N, Q), 0.5), "T": np.eye(2)}, r"T: shape \(2, 2\)"),
        ({"probs": np.full((N, Q), 0.5), "T": OTHER}, f"T: of 2 classes, labels have {Q}"),
    ],
)
def test_bad_input_is_named(exact, options, message):
    with pytest.raises(ValueError, match=message):
        audit_labels(exact[1], **options)


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


def test_noise_that_prefers_ambiguous_examples_is_ranked_at_least_as_well_as_by_confidence():
    rng = np.random.default_rng(21)
    score = 2.5 * rng.normal(size=(4000, 12)) - 4
    votes = rng.random((6, *score.shape)) < 1 / (1 + np.exp(-score))
    given, better = votes[0].astype(int), (votes[1:].sum(0) > 2).astype(int)  # one person, most of five others
    probs = 1 / (1 + np.exp(-score))
    audit = audit_labels(given, probs=probs)
    assert (np.asarray(audit.found.status) == Status.COUNTED).all()
    assert np.isfinite(audit.wrong).all()
    wrong = (given != better).ravel()
    ours, confidence = (
        average_precision_score(wrong, x.ravel()) for x in (audit.wrong, np.where(given == 1, 1 - probs, probs))
    )
    assert ours > 0.97 * confidence
    assert abs(audit.wrong.mean() - wrong.mean()) < 0.06


def test_an_audit_prints_short_and_is_saved_and_loaded_whole(audit, tmp_path):
    n, q = audit.wrong.shape
    lines = repr(audit).splitlines()
    assert lines[0].startswith(f"Audit of {n:,} examples and {q} classes; ")
    assert len(lines) == 2 + q
    assert lines[2].split()[0] == "a"
    assert audit._repr_html_().count("<tr>") == 1 + q
    hidden = audit._replace(labels=audit.labels._replace(observed=audit.wrong < 0.9, rows=tuple(range(5, 5 + n))))
    hidden.save(tmp_path / "audit.npz")
    again = mlt_jax.Audit.load(tmp_path / "audit.npz")
    for name in ("scores", "slope", "offset", "wrong"):
        np.testing.assert_array_equal(getattr(again, name), getattr(hidden, name))
    for old, new in zip((*hidden.found, *hidden.labels[:2]), (*again.found, *again.labels[:2]), strict=True):
        np.testing.assert_array_equal(old, new)
    assert again.labels[2:] == hidden.labels[2:]
    assert again.ids == hidden.ids
    (tmp_path / "junk.npz").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"junk\.npz is no audit"):
        mlt_jax.Audit.load(tmp_path / "junk.npz")


def test_arguments_of_another_type_are_named(unchecked_shapes, tmp_path):
    labels, probs = np.eye(3, 2), np.full((3, 2), 0.5)
    for error, message, call in (
        (TypeError, "ids: 3; pass a list of names", lambda: audit_labels(labels, probs=probs, ids=3)),
        (ValueError, "probs: row 1 has length 1", lambda: audit_labels([[0], [1]], probs=[[0.5, 0.5], [0.5]])),
        (ValueError, "features: 3 examples for 5 folds", lambda: audit_labels(labels, features=probs)),
    ):
        with pytest.raises(error, match=message):
            call()
    np.save(tmp_path / "audit.npy", labels)
    with pytest.raises(ValueError, match=r"path: .*audit\.npy is no audit"):
        mlt_jax.Audit.load(tmp_path / "audit.npy")
