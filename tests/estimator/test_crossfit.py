import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from mlt_jax import cross_val_logits
from mlt_jax.estimator import crossfit
from mlt_jax.estimator.crossfit import deal_folds
from mlt_jax.labels import as_labels


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1500, 40)).astype(np.float32)
    clean = features @ rng.normal(size=(40, 3)) + rng.normal(size=(1500, 3)) > 4
    return features, clean, rng


def test_labels_are_predicted_from_features_alone(data):
    features, clean, _ = data
    logits = cross_val_logits(features, clean)
    assert logits.shape == (1500, 3)
    assert min(roc_auc_score(clean[:, j], logits[:, j]) for j in range(3)) > 0.95


def test_a_head_never_sees_its_own_examples(data):
    features, _, rng = data
    noise = rng.random((1500, 3)) < 0.3  # nothing to learn: in-sample 40 features would still fit some of it
    logits = cross_val_logits(features, noise, l2=1e-5)
    assert max(abs(roc_auc_score(noise[:, j], logits[:, j]) - 0.5) for j in range(3)) < 0.06


def test_heads_are_those_of_a_full_fit(data):
    features, clean, rng = data
    labels = clean ^ (rng.random(clean.shape) < 0.1)
    logits = cross_val_logits(features, labels, folds=3, l2=1e-3)
    fold = np.random.default_rng(0).permutation(1500) % 3
    scale = 10 / np.sqrt(features.var(0).sum())  # all 40 components are kept: a rotation, which ridge does not see
    for j in range(3):
        train = fold != 1
        head = LogisticRegression(C=1 / (1e-3 * train.sum()), tol=1e-8, max_iter=1000)
        head.fit(scale * features[train], labels[train, j])
        np.testing.assert_allclose(
            logits[~train, j], head.decision_function(scale * features[~train]), atol=0.01, rtol=0.01
        )


def test_cells_nobody_labelled_are_not_learnt_from(data):
    features, clean, rng = data
    observed = rng.random(clean.shape) < 0.7
    one = cross_val_logits(features, clean, observed=observed)
    other = cross_val_logits(features, np.where(observed, clean, ~clean), observed=observed)
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_classes_solved_in_blocks_are_the_same(data, monkeypatch):
    features, clean, _ = data
    together = cross_val_logits(features, clean)
    monkeypatch.setattr(crossfit, "_CELLS", 5 * 1500 * 2)  # two classes at a time
    np.testing.assert_allclose(cross_val_logits(features, clean), together, atol=1e-3)


def test_constant_features_and_one_valued_labels_give_finite_logits():
    logits = cross_val_logits(np.ones((50, 3)), np.stack([np.arange(50) < 25, np.ones(50, int)], 1))
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits[:, 0], 0, atol=0.6)


def test_heads_corrected_by_T_predict_the_clean_label(data):
    features, clean, rng = data
    chance = rng.random(clean.shape)
    noisy = np.where(clean, chance >= 0.4, chance < 0.1)
    plain = 1 / (1 + np.exp(-cross_val_logits(features, noisy, l2=1e-3)))
    T = np.tile([[0.9, 0.1], [0.4, 0.6]], (3, 1, 1))
    corrected = 1 / (1 + np.exp(-cross_val_logits(features, noisy, T=T, l2=1e-3)))
    assert 1 - corrected[clean].mean() < 0.5 * (1 - plain[clean].mean())
    assert corrected[~clean].mean() < plain[~clean].mean()


def test_folds_are_dealt_by_seed(data):
    features, clean, _ = data
    one, again, other = (cross_val_logits(features, clean, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("kind", [int, str, object])
def test_a_group_is_in_one_fold_and_folds_are_of_equal_size(kind):
    rng = np.random.default_rng(0)
    groups = rng.geometric(0.02, size=3000).astype(kind)  # from one example to dozens
    fold = deal_folds(3000, folds=5, seed=1, groups=groups)
    assert all(len(set(fold[groups == g])) == 1 for g in set(groups))
    assert np.ptp(np.bincount(fold)) <= 1  # there are small groups enough to even out
    np.testing.assert_array_equal(fold, deal_folds(3000, folds=5, seed=1, groups=groups))
    assert (fold != deal_folds(3000, folds=5, seed=2, groups=groups)).mean() > 0.5
    alone = deal_folds(3001, folds=5, groups=np.arange(3001))
    assert sorted(np.bincount(alone)) == [600, 600, 600, 600, 601]


def test_heads_do_not_know_the_labels_of_their_own_group(data):
    _, _, rng = data
    who = np.repeat(np.arange(300), 5)
    features = rng.normal(size=(300, 200))[who] + 0.1 * rng.normal(size=(1500, 200))  # five pictures of each person
    labels = (rng.random((300, 1)) < 0.5)[who]  # which the features say nothing about
    torn, kept = (cross_val_logits(features, labels, groups=groups, l2=3e-3) for groups in (None, who))
    assert roc_auc_score(labels, torn) > 0.9
    assert abs(roc_auc_score(labels, kept) - 0.5) < 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folds": 1}, "folds: 1; pass 2 to 1500"),
        ({"groups": np.arange(1500) % 4}, "groups: 4 distinct ones for 5 folds; pass more groups, or fewer folds"),
        ({"groups": np.arange(9)}, r"groups: shape \(9,\); pass \(1500,\)"),
        ({"groups": [*["a"] * 1499, None]}, "groups: example 1499 has none; give it an id of its own"),
        ({"groups": np.r_[np.nan, np.arange(1499)]}, "groups: example 0 has none"),
        ({"features": np.zeros((10, 4))}, r"features: shape \(10, 4\)"),
        ({"T": np.eye(2)}, r"T: shape \(2, 2\)"),
        ({"features": np.full((1500, 4), np.nan)}, "features: row 0 is not finite"),
    ],
)
def test_bad_input_is_named(data, change, message):
    features, clean, _ = data
    with pytest.raises(ValueError, match=message):
        cross_val_logits(change.pop("features", features), clean, **change)


def test_without_a_penalty_logits_of_features_that_separate_the_labels_are_finite():
    rng = np.random.default_rng(0)
    labels = (rng.random((40, 3)) < rng.choice([0.03, 0.3, 0.5], 3)).astype(np.uint8)
    features = np.where(rng.random((40, 1)) < 0.5, 1, -1) * np.array([[1.0, -1]])
    features[rng.integers(40)] = 1
    assert np.isfinite(cross_val_logits(features, labels, l2=0.0)).all()


def test_features_in_a_frame_are_matched_by_its_index():
    rng = np.random.default_rng(0)
    x, names = rng.normal(size=(60, 3)).astype(np.float32), [f"e{k}" for k in range(60)]
    labels = pd.DataFrame({"a": (x[:, 0] > 0).astype(int)}, index=names)
    frame = pd.DataFrame(x, index=names)
    expected = cross_val_logits(x, labels)
    np.testing.assert_allclose(cross_val_logits(frame.iloc[::-1], labels), expected, atol=1e-5)


def test_arguments_of_another_type_and_too_few_examples_are_named(unchecked_shapes):
    x, y = np.random.default_rng(0).normal(size=(10, 2)), np.eye(10, 3)
    for error, message, call in (
        (ValueError, "features: 3 examples for 5 folds; pass more", lambda: cross_val_logits(x[:3], y[:3])),
        (ValueError, "features: row 1 has length 1, row 0 2", lambda: cross_val_logits([[0, 1], [0]] * 5, y)),
        (ValueError, r"features: shape \(10, 0\)", lambda: cross_val_logits(x[:, :0], y)),
        (ValueError, "features: row 0 is not finite", lambda: cross_val_logits(np.full((10, 2), 1e300), y)),
        (TypeError, "folds: 2.5; pass 2 to 10", lambda: cross_val_logits(x, y, folds=2.5)),
        (ValueError, "seed: -1; pass", lambda: cross_val_logits(x, y, seed=-1)),
        (ValueError, "l2: -1; pass a number, 0 or more", lambda: cross_val_logits(x, y, l2=-1)),
        (ValueError, "groups: list; pass", lambda: cross_val_logits(x, y, groups=[[0, 1], [0]])),
        (TypeError, "groups: dtype complex128; pass", lambda: cross_val_logits(x, y, groups=np.zeros(10, complex))),
    ):
        with pytest.raises(error, match=message):
            call()


def test_the_unit_of_features_does_not_matter():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)).astype(np.float32), rng.random((50, 2)) < 0.5
    usual = cross_val_logits(x, y)
    for unit in (2.0**-100, 2.0**100):  # squares of both are beyond float32
        np.testing.assert_array_equal(cross_val_logits(x * np.float32(unit), y), usual)


def test_double_precision_gives_the_same_logits(data):
    x, labels, *_ = data
    single = cross_val_logits(x, labels)
    with jax.enable_x64(True):
        np.testing.assert_allclose(cross_val_logits(x, labels), single, atol=0.05)


def test_a_gap_among_group_names_is_no_group():
    with pytest.raises(ValueError, match="groups: example 1 has none"):
        deal_folds(4, folds=2, groups=["a", np.nan, "b", "c"])


def test_groups_in_a_series_follow_its_index(data):
    features, clean, _ = data
    names = [f"x{row}" for row in range(len(clean))]
    labels = pd.DataFrame(clean.astype(int), index=names)
    frame, groups = pd.DataFrame(features, index=names), pd.Series(np.arange(len(clean)) // 3, index=names)
    expected = cross_val_logits(features, clean.astype(int), groups=groups.to_numpy())
    order = np.random.default_rng(0).permutation(len(clean))
    found = cross_val_logits(frame.iloc[order], as_labels(labels), groups=groups.iloc[order])
    np.testing.assert_allclose(found, expected, atol=1e-4)  # sums over other orders; other folds differ by far more
    by_index = cross_val_logits(features, as_labels(labels), groups=pd.Index(groups))  # an index is but a list of ids
    np.testing.assert_array_equal(by_index, expected)
