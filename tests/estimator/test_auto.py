import numpy as np
import pytest
import scipy.sparse as sp
from simulate import t_error, unbiased

from mlt_jax import Status, audit_labels, estimate, estimate_all, losses_from_probs, noisy_sides, select_clean
from mlt_jax.estimator import auto, crossfit, evidence


def test_estimate_selects_and_then_estimates(real_data):
    gold = real_data("golden/golden_1.npz")
    labels, probs = gold["labels"], gold["probs"].astype(np.float32)
    found = estimate(labels, probs=probs)
    selected = select_clean(losses_from_probs(probs, labels), labels)
    np.testing.assert_allclose(found.T, estimate_all(labels, selected).T, atol=1e-6)
    assert np.isfinite(found.stderr).all()


@pytest.mark.parametrize(("k", "rates", "assume"), [(1, (0.1, 0.1), "general"), (2, (0.034, 0.4), "general"),
                                                    (3, (0.0, 0.2), "missing")])  # fmt: skip
def test_joint_is_no_worse_than_the_released_rule_on_real_predictions(real_data, k, rates, assume):
    gold = real_data(f"golden/golden_{k}.npz")
    probs = gold["probs"].astype(np.float32)
    joint, residual = (
        t_error(estimate(gold["labels"], probs=probs, assume=assume, aggregate=rule), *rates)
        for rule in ("joint", "residual")
    )
    do_nothing = 20 * sum(rates)
    assert joint < 1.05 * residual
    assert joint < do_nothing


def test_classes_without_an_estimate_get_dual_t_when_probs_are_there():
    rng = np.random.default_rng(0)
    labels = (rng.random((200, 3)) < 0.5).astype(int)
    probs = np.clip(0.2 + 0.6 * labels + 0.1 * rng.normal(size=labels.shape), 0.01, 0.99)
    with_probs = estimate(labels, probs=probs, min_selected=1000, method="recipe")
    assert with_probs.status.tolist() == [Status.FALLBACK] * 3
    np.testing.assert_allclose(with_probs.T, estimate(labels, probs=probs, method="dual-t").T, atol=1e-6)
    without = estimate(labels, losses=losses_from_probs(probs, labels), min_selected=1000)
    assert without.status.tolist() == [Status.TOO_FEW] * 3


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "losses: neither losses nor probs nor features were given"),
        ({"losses": np.zeros((9, 2)), "method": "dual-t"}, "probs: method='dual-t' reads predicted probabilities"),
        ({"losses": np.zeros((9, 2)), "method": "magic"}, "method: 'magic'"),
        ({"losses": np.zeros((8, 2))}, r"losses: shape \(8, 2\), labels have \(9, 2\)"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        estimate(np.ones((9, 2), int), **kwargs)


def test_features_alone_give_rates_that_differ_by_class_and_the_side_that_is_noisy():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(6000, 30)).astype(np.float32)
    clean = features @ rng.normal(size=(30, 6)) > 5
    rho_pos = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5])
    labels = clean & (rng.random(clean.shape) >= rho_pos)
    found = estimate(labels, features=features)
    assert (np.asarray(found.status) == Status.POSTERIOR).all()
    np.testing.assert_allclose(found.rho_pos, rho_pos, atol=0.08)
    np.testing.assert_allclose(found.rho_neg, 0, atol=0.01)
    without, noisy = noisy_sides(labels, features=features).overall
    assert noisy < 0.001 < without


@pytest.fixture(scope="module")
def patients():
    """Features and labels of 600 patients with 4 images each, which all have the label that one report gave."""
    rng = np.random.default_rng(0)
    body, direction = rng.normal(size=(600, 150)), rng.normal(size=(150, 6))
    clean = body @ direction / 4 > 0.8
    chance = rng.random(clean.shape)
    given = np.where(clean, chance >= 0.3, chance < 0.1).astype(np.uint8)
    who = np.repeat(np.arange(600), 4)
    shown = 0.7 * body + clean @ (0.5 * rng.normal(size=(6, 150)))
    return (shown[who] + 0.1 * rng.normal(size=(2400, 150))).astype(np.float32), given[who], who


def test_folds_that_tear_patients_apart_hide_the_noise_and_grouped_ones_do_not(patients):
    features, labels, who = patients
    torn, kept = (estimate(labels, features=features, groups=groups) for groups in (None, who))
    assert float(torn.rho_pos.mean()) < 0.15  # a head has seen the same mistake in another image
    assert float(kept.rho_pos.mean()) == pytest.approx(0.3, abs=0.1)
    assert float(kept.rho_neg.mean()) == pytest.approx(0.1, abs=0.04)
    torn_sides, kept_sides = (noisy_sides(labels, features=features, groups=groups) for groups in (None, who))
    assert not np.allclose(torn_sides.by_class, kept_sides.by_class, rtol=0.01)


def test_folds_of_T_are_dealt_by_seed(patients):
    features, labels, who = patients
    for groups in (None, who):
        one, again, other = (estimate(labels, features=features, groups=groups, seed=seed).T for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert not np.allclose(one, other, atol=1e-4)
    sides = [noisy_sides(labels, features=features, seed=seed).by_class for seed in (0, 0, 1)]
    np.testing.assert_array_equal(sides[0], sides[1])
    assert not np.allclose(sides[0], sides[2], rtol=1e-3)


def test_groups_without_features_are_refused(patients):
    _, labels, who = patients
    probs = np.full(labels.shape, 0.5)
    for call in (estimate, noisy_sides):
        with pytest.raises(ValueError, match="groups: they keep folds apart, but there are no features"):
            call(labels, probs=probs, groups=who)


@pytest.mark.parametrize(("assume", "side"), [("missing", 0), ("partial", 1)])
def test_the_recipe_honours_an_assumption_in_its_own_estimates(assume, side):
    rng = np.random.default_rng(0)
    labels, selected = unbiased(rng, n=3000, q=4)  # both sides are noisy, so T is not the identity of itself
    losses = np.where(selected, rng.normal(0.2, 0.05, labels.shape), rng.normal(0.8, 0.1, labels.shape))
    free, held = (estimate(labels, losses=losses, assume=a) for a in ("general", assume))
    assert (np.asarray(held.status) == Status.CORRELATION).all()
    assert (np.asarray(free.T)[:, side, 1 - side] > 0.02).all()
    np.testing.assert_allclose(held.T[:, side], np.tile(np.eye(2)[side], (4, 1)), atol=2e-5)
    np.testing.assert_allclose(held.stderr[:, side], 0, atol=1e-4)
    audited = audit_labels(labels, probs=np.clip(losses, 0, 1), losses=losses, method="recipe", assume=assume)
    assert (audited.wrong[labels == 1 - side] < 1e-3).all()  # no label of that side is wrong


@pytest.mark.parametrize(("assume", "side"), [("missing", 0), ("partial", 1)])
def test_baselines_and_the_fallback_honour_an_assumption(assume, side):
    rng = np.random.default_rng(0)
    labels = (rng.random((300, 3)) < 0.4).astype(np.uint8)
    probs = np.clip(0.2 + 0.5 * labels + 0.1 * rng.random(labels.shape), 0, 1)
    fallback = {"method": "recipe", "min_selected": 300}  # too many, so that every class falls back on Dual-T
    for options in ({"method": "dual-t"}, {"method": "t"}, fallback):
        free, held = (np.asarray(estimate(labels, probs=probs, assume=a, **options).T) for a in ("general", assume))
        assert (free[:, side] != np.eye(2)[side]).any()
        np.testing.assert_array_equal(held[:, side], np.tile(np.eye(2)[side], (3, 1)))
        np.testing.assert_allclose(held[:, 1 - side], free[:, 1 - side], atol=1e-6)


def test_sparse_labels_with_features_stay_sparse_and_give_the_same_numbers(monkeypatch):
    rng = np.random.default_rng(1)
    features = rng.normal(size=(1500, 10)).astype(np.float32)
    clean = features @ rng.normal(size=(10, 12)) > 3
    labels = (clean ^ (rng.random(clean.shape) < np.where(clean, 0.3, 0.02))).astype(np.uint8)
    dense, sides = estimate(labels, features=features), noisy_sides(labels, features=features)

    def refuse(*args, **options):
        raise AssertionError("sparse labels were made dense")

    monkeypatch.setattr(auto, "as_labels", refuse)
    monkeypatch.setattr(evidence, "as_labels", refuse)
    for form in (sp.csr_matrix, sp.coo_array):
        found = estimate(form(labels), features=features)
        for one, other in zip(dense, found, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
    for one, other in zip(sides, noisy_sides(sp.csr_array(labels), features=features), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    monkeypatch.setattr(crossfit, "_CELLS", 5 * 1500 * 5)  # heads of five classes at a time
    np.testing.assert_allclose(estimate(sp.csr_array(labels), features=features).T, dense.T, atol=1e-6)


def test_features_with_wrong_sparse_labels_or_assumptions_are_named():
    labels, features = sp.csr_array(np.full((20, 2), 2)), np.zeros((20, 3))
    with pytest.raises(ValueError, match="labels: row 0, column 0 is 2; pass 0 or 1"):
        estimate(labels, features=features)
    with pytest.raises(ValueError, match="assume: 'both'"):
        estimate(labels > 0, features=features, assume="both")


def test_tiny_degenerate_labels_have_a_finite_prior():
    rng = np.random.default_rng(0)
    for _ in range(20):  # a class with no or only positives in most; one shape, compiled once
        labels = (rng.random((10, 3)) < rng.choice([0, 0.5, 1.0], size=3)).astype(np.uint8)
        selected, losses = rng.random((10, 3)) < rng.choice([0, 0.5, 1.0]), rng.random((2, 10, 3))
        for found in (estimate_all(labels, selected, min_selected=1), estimate(labels, losses=losses, min_selected=1)):
            assert np.isfinite(found.prior).all(), (labels, selected)
            np.testing.assert_allclose(found.T.sum(axis=2), 1, atol=1e-5)


def test_arguments_of_another_type_and_too_few_examples_are_named(unchecked_shapes):
    labels = np.eye(3, 2)
    for message, call in (
        ("method: list; pass", lambda: estimate(labels, losses=labels, method=["auto"])),
        ("losses: row 1 has length 1, row 0 2", lambda: estimate(labels, losses=[[0.1, 0.2], [0.1], [0.1]])),
        ("probs: list; pass", lambda: noisy_sides(labels, probs=[[0.1, 0.2], [0.1]])),
        ("features: 3 examples for 5 folds", lambda: estimate(labels, features=np.zeros((3, 2)))),
    ):
        with pytest.raises(ValueError, match=message):
            call()
