import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import ROOT

from mlt_jax.paper.noise import corrupt, transition
from mlt_jax.paper.theory import (
    assumption_4_holds,
    correlation_table,
    estimation_error_bound,
    generalization_bound,
    hoeffding_threshold,
    observed_pair,
    observed_triple,
    second_solution_pair,
    second_solution_triple,
    selection_bias,
    sensitivity,
    solve_known_correlation,
    solve_three_labels,
)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def coco(real_data):
    return np.unpackbits(real_data("coco2014_train_labels.npz")["train"], axis=1)[:, :80]


@pytest.fixture(scope="module")
def printed():
    path = ROOT / "mlt_jax" / "paper" / "printed.json"
    rows = next(table for table in json.loads(path.read_text())["tables"] if table["id"] == "validation_coco")["rows"]
    return np.array([[value["mean"] for value in row["values"]] for row in rows]), [row["bold"] for row in rows]


def random_models(count, *, correlation=0.05):
    """(T, prior, M_i, M_k) of `count` random models, strictly inside, partners correlated at least so much."""
    rng = np.random.default_rng(0)
    rho_neg = rng.uniform(0.02, 0.45, count)
    rho_pos = rng.uniform(0.02, 0.45, count)
    T = np.stack([1 - rho_neg, rho_neg, rho_pos, 1 - rho_pos], 1).reshape(-1, 2, 2)
    a = rng.uniform(0.02, 0.45, (2, count))
    b = rng.uniform(a + correlation, 0.98)
    b, a = np.where(rng.random((2, count)) < 0.5, (b, a), (a, b))
    M_i, M_k = np.stack([1 - a, a, 1 - b, b], 2).reshape(2, -1, 2, 2)
    return T, rng.uniform(0.05, 0.95, count), M_i, M_k


def assert_probabilities(*arrays):
    for array in arrays:
        assert np.min(array) >= 0
        assert np.max(array) <= 1


def test_coco_labels_reproduce_the_papers_160_frequencies(coco, printed):
    table = correlation_table(coco)
    ours = np.stack([table.absent_given_absent[49], table.absent_given_present[49]], axis=1)
    assert printed[0].shape == (80, 2)
    assert np.abs(ours - printed[0]).max() <= 0.0005 + 1e-6
    np.testing.assert_array_equal(ours[49], [1, 0])


def test_hoeffding_threshold_marks_the_papers_bold_classes(coco, printed):
    table = correlation_table(coco)
    threshold = hoeffding_threshold(table.n0, table.n1)[49]
    assert (int(table.n0[49]), int(table.n1[49])) == (36907, 45174)
    assert abs(threshold - 0.014669) < 1e-6
    marked = np.abs(table.difference[49]) > threshold
    np.testing.assert_array_equal(marked, printed[1])
    assert marked.sum() == 46 + 1


def test_hoeffding_threshold_by_hand_and_in_simulation():
    assert (
        abs(hoeffding_threshold(200, 800, confidence=0.9) - (np.sqrt(np.log(40) / 400) + np.sqrt(np.log(40) / 1600)))
        < 1e-6
    )
    draws = np.random.default_rng(0).binomial([[200], [800]], 0.5, (2, 20_000)) / [[200], [800]]
    assert (np.abs(draws[0] - draws[1]) > float(hoeffding_threshold(200, 800, confidence=0.9))).mean() < 0.1


@pytest.mark.parametrize("confidence", [0, 1, 1.5, float("nan")])
def test_confidence_is_a_probability(confidence):
    with pytest.raises(ValueError, match=f"confidence: is {confidence}; pass a probability"):
        hoeffding_threshold(10, 10, confidence=confidence)


def test_correlation_table_by_hand_flags_constant_classes():
    table = correlation_table(np.array([[1, 1, 0, 1], [1, 0, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1]]))
    np.testing.assert_array_equal(table.defined, [True, True, False, False])
    np.testing.assert_allclose(table.absent_given_absent[0], [1, 0, 1, 0])
    np.testing.assert_allclose(table.absent_given_present[0], [0, 0.5, 1, 0])
    np.testing.assert_allclose(table.difference[0], [1, -0.5, 0, 0])
    np.testing.assert_allclose(table.absent_given_present[1], [2 / 3, 0, 1, 0], rtol=1e-6)
    np.testing.assert_array_equal(table.difference[2:], 0)
    assert all(np.isfinite(field).all() for field in table)


def test_two_noisy_labels_have_a_second_explanation(x64):
    T, prior, M, _ = random_models(2000)
    T1, prior1, M1 = jax.vmap(second_solution_pair)(T, prior, M)
    assert_probabilities(T1, prior1, M1)
    np.testing.assert_allclose(T1.sum(2), 1, atol=1e-12)
    np.testing.assert_allclose(M1.sum(2), 1, atol=1e-12)
    observe = jax.vmap(observed_pair)
    np.testing.assert_allclose(observe(T1, prior1, M1), observe(T, prior, M), atol=1e-12)
    change = np.abs(T1 - T).max(axis=(1, 2))
    np.testing.assert_allclose(change, np.maximum(T[:, 0, 1], T[:, 1, 0]) / 2, atol=1e-12)
    assert change.min() > 0.01


@pytest.mark.parametrize(("T", "prior"), [(transition(0.3, 0.1), 0.02), (transition(0, 0.2), 0.97)])
def test_second_explanation_in_float32_with_rare_or_one_sided_classes(T, prior):
    M = jnp.array([[0.99, 0.01], [0.02, 0.98]])
    T1, prior1, M1 = second_solution_pair(T[0], prior, M, shrink=0.1)
    assert_probabilities(T1, prior1, M1)
    np.testing.assert_allclose(observed_pair(T1, prior1, M1), observed_pair(T[0], prior, M), atol=1e-6)
    assert np.abs(T1 - T[0]).max() > 0.1


def test_observed_pair_by_hand():
    E = observed_pair(transition(0.1, 0.2)[0], 0.4, jnp.array([[0.7, 0.3], [0.5, 0.5]]))
    # 0.6 * 0.9 * 0.7 + 0.4 * 0.2 * 0.5, and so on.
    np.testing.assert_allclose(E, [[0.418, 0.202], [0.202, 0.178]], atol=1e-6)


def test_three_noisy_labels_without_independence_have_a_second_explanation(x64):
    T, prior, _, _ = random_models(2000)
    tables = np.random.default_rng(1).dirichlet(np.ones(4), (2000, 2)).reshape(-1, 2, 2, 2)
    T1, prior1, tables1 = jax.vmap(second_solution_triple)(T, prior, tables)
    assert_probabilities(T1, prior1, tables1)
    np.testing.assert_allclose(tables1.sum(axis=(2, 3)), 1, atol=1e-12)
    observe = jax.vmap(observed_triple)
    np.testing.assert_allclose(observe(T1, prior1, tables1), observe(T, prior, tables), atol=1e-12)
    assert np.abs(T1 - T).max(axis=(1, 2)).min() > 0.01


def test_second_explanation_of_independent_partners_makes_them_dependent(x64):
    T, prior, M_i, M_k = random_models(500)
    _, _, tables = jax.vmap(second_solution_triple)(T, prior, np.einsum("nci,nck->ncik", M_i, M_k))
    assert np.abs(np.linalg.det(tables)).max(axis=1).min() > 1e-5


@pytest.mark.parametrize(
    ("T", "shrink", "message"),
    [
        (np.eye(2), 0.5, "T: rates"),
        (np.full((2, 2), 0.5), 0.5, "T: rates"),
        (transition(0.1, 0.1)[0], 1.0, "shrink: "),
    ],
)
def test_no_second_explanation_is_promised_outside_assumption_1(T, shrink, message):
    with pytest.raises(ValueError, match=message):
        second_solution_pair(T, 0.5, np.eye(2), shrink=shrink)


def test_three_labels_with_independent_partners_identify_everything(x64):
    T, prior, M_i, M_k = random_models(2000)
    joint = jax.vmap(observed_triple)(T, prior, np.einsum("nci,nck->ncik", M_i, M_k))
    for found, true in zip(jax.vmap(solve_three_labels)(joint), (T, prior, M_i, M_k), strict=True):
        np.testing.assert_allclose(found, true, atol=1e-6)


def test_three_labels_in_float32_identify_T_to_two_thousandths_when_well_conditioned():
    T, prior, M_i, M_k = random_models(2000, correlation=0.2)
    joint = jax.vmap(observed_triple)(T, prior, np.einsum("nci,nck->ncik", M_i, M_k))
    found = jax.vmap(solve_three_labels)(joint)
    assert found[0].dtype == jnp.float32
    for ours, true in zip(found, (T, prior, M_i, M_k), strict=True):
        np.testing.assert_allclose(ours, true, atol=2e-3)


def test_known_correlation_identifies_T_and_prior(x64):
    T, prior, M, _ = random_models(2000)
    E = jax.vmap(observed_pair)(T, prior, M)
    found, found_prior = jax.jit(jax.vmap(solve_known_correlation))(E, M)
    np.testing.assert_allclose(found, T, atol=1e-9)
    np.testing.assert_allclose(found_prior, prior, atol=1e-9)
    np.testing.assert_allclose(
        found_prior, (M[:, 0, 0] - E[:, 0, 0] - E[:, 1, 0]) / (M[:, 0, 0] - M[:, 1, 0]), atol=1e-9
    )


def closed_form_rates(e00, e01, e10, lost, gained):
    """rho_neg and rho_pos as printed in the proof of Theorem 5."""
    rho_neg = (e10 - (1 - e01 - e00) * lost) / (e10 + e00 - lost)
    return np.array([rho_neg, (e00 - (e00 + e01) * (1 - gained)) / (e10 + e00 + gained - 1)])


def test_sensitivity_is_the_largest_finite_difference_of_the_proofs_closed_forms(x64):
    T, prior, M, _ = random_models(50)
    E = np.asarray(jax.vmap(observed_pair)(T, prior, M))
    theta = np.stack([E[:, 0, 0], E[:, 0, 1], E[:, 1, 0], M[:, 1, 0], M[:, 0, 1]])
    np.testing.assert_allclose(closed_form_rates(*theta), [T[:, 0, 1], T[:, 1, 0]], atol=1e-9)
    steps = 1e-6 * np.eye(5)[:, :, None]
    slopes = [(closed_form_rates(*(theta + step)) - closed_form_rates(*(theta - step))) / 2e-6 for step in steps]
    np.testing.assert_allclose(jax.vmap(sensitivity)(E, M), np.abs(slopes).max(axis=(0, 1)), rtol=1e-5)


THEOREM_5 = {"sensitivity": 2.0, "bias": 0.01, "n": 10_000, "selected_ratio": 0.1}


@pytest.mark.parametrize(
    ("num_partners", "confidence", "expected"),
    [
        # v = 3 / 40000 + 1 / 2000 = 5.75e-4. Chebyshev: 0.16 + 8 sqrt(2 v / (19 * 0.05)) = 0.16 + 0.278341.
        (19, 0.95, 0.438341),
        # R = 1e6, delta = 1e-4; Bernstein: 8 sqrt(2 v log(40000) / 1e6) + 8 log(40000) / 3e6 = 0.000883 + 0.000028.
        (1_000_000, 0.9999, 0.160911),
    ],
)
def test_theorem_5_takes_the_lesser_of_its_two_tails(num_partners, confidence, expected):
    bound = estimation_error_bound(**THEOREM_5, num_partners=num_partners, confidence=confidence)
    assert abs(bound - expected) < 2e-6


def test_theorem_5_covers_the_simulated_error_of_one_partner_many_times_over():
    rng, n = np.random.default_rng(0), 20_000
    T, prior, M = transition(0.1, 0.2)[0], 0.3, jnp.array([[0.8, 0.2], [0.3, 0.7]])
    E = observed_pair(T, prior, M)
    bound = estimation_error_bound(
        sensitivity=sensitivity(E, M), bias=0.0, n=n, selected_ratio=0.3 * 0.8, num_partners=1, confidence=0.9
    )
    # Cells (clean_j, noisy_j, noisy_i); examples whose label is right are selected, so that selection is unbiased.
    cells = np.einsum("c,cj,ci->cji", [0.7, 0.3], T, M)
    counts = rng.multinomial(n, (cells / cells.sum()).ravel(), 500).reshape(-1, 2, 2, 2)
    right = counts[:, [0, 1], [0, 1]].astype(np.float32)
    found, _ = jax.vmap(solve_known_correlation)(
        (counts.sum(1) / n).astype(np.float32), right / right.sum(2, keepdims=True)
    )
    errors = np.abs(np.asarray(found) - np.asarray(T)).sum(axis=(1, 2))
    assert (errors <= float(bound)).mean() >= 0.9
    assert 60 < float(bound) / errors.mean() < 76


def test_theorem_6_by_hand_with_and_without_the_missing_factor():
    given = {"n": 10_000, "num_classes": 2, "lipschitz": 1.0, "loss_bound": 3.0, "input_bound": 2.0}
    T = transition(np.array([0.2, 0.0]), np.array([0.1, 0.5]))
    # U = 1 / (1 - 0.5) = 2; 2 * 2 * 2 * (sqrt(4 log 2) + 1) * 1.5 * 2 / 100 = 0.639626; 6 sqrt(log(20) / 20000).
    tail = 0.073431
    corrected = generalization_bound(**given, weight_norms=[1.5, 2.0], T=T, confidence=0.95)
    assert abs(corrected - (2 * 0.639626 + tail)) < 1e-5
    as_printed = generalization_bound(**given, weight_norms=[1.5, 2.0], T=T, confidence=0.95, as_printed=True)
    assert abs(as_printed - (0.639626 + tail)) < 1e-5


def test_theorem_6_wants_a_matrix_per_class():
    with pytest.raises(ValueError, match=r"T: has shape \(2, 2, 2\); pass \(3, 2, 2\)"):
        generalization_bound(
            n=10,
            num_classes=3,
            lipschitz=1,
            loss_bound=1,
            input_bound=1,
            weight_norms=[1.0],
            T=transition(0.1, 0.1, 2),
            confidence=0.9,
        )


def test_selection_bias_by_hand():
    clean = np.array([[1, 1], [1, 0], [0, 1], [0, 0], [0, 0]])
    noisy = np.array([[1, 1], [1, 0], [0, 1], [1, 0], [0, 0]])
    selected = np.array([[0, 1], [0, 1], [1, 1], [1, 0], [0, 0]], bool)
    delta_0, delta_1 = selection_bias(noisy, clean, selected)
    # Class 0: example 2 is the selected negative (1 against 1/3), example 3, wrongly, the positive (1 against 1/2).
    # Class 1: negative: example 1 (1 against 2/3 of examples 1, 3, 4); positives: 0 and 2, as in the whole.
    np.testing.assert_allclose(delta_0, [[0, 2 / 3], [1 / 3, 0]], atol=1e-6)
    np.testing.assert_allclose(delta_1, [[0, 1 / 2], [0, 0]], atol=1e-6)


def test_selection_bias_is_unknown_where_nothing_was_selected():
    labels = np.array([[1, 0], [0, 1], [1, 1]])
    delta_0, delta_1 = selection_bias(labels, labels, np.array([[1, 0]] * 3, bool))
    assert np.isnan(delta_0[1, 0])
    assert np.isnan(delta_1[1, 0])
    np.testing.assert_allclose([delta_0[0, 1], delta_1[0, 1]], 0)


def test_selection_by_true_labels_is_unbiased_and_by_a_partner_is_not(coco):
    common = coco[:, coco.sum(0) > 4000]
    noisy = np.asarray(corrupt(jax.random.key(0), common, transition(0.1, 0.2, common.shape[1])))
    right = noisy == common
    fair = selection_bias(noisy, common, right & (np.random.default_rng(0).random(common.shape) < 0.5))
    assert max(np.abs(delta).max() for delta in fair) < 0.04
    unfair = selection_bias(noisy, common, right & (noisy[:, :1] == 0))
    assert np.abs(unfair[0][1:, 0]).min() > 0.05


def test_assumption_4_compares_with_the_mean_of_the_estimates():
    T = transition(0.125, 0.25, 3)
    estimates = jnp.stack([transition(rho_neg, 0.25, 3) for rho_neg in (0.125, 0.375)])
    aggregated = transition(np.array([0.125, 0.25, 0.375]), 0.25)
    np.testing.assert_array_equal(assumption_4_holds(estimates, T, aggregated), [True, True, False])
