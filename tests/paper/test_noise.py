import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax.labels import check_binary
from mlt_jax.paper.noise import (
    PMD_TYPES,
    SETTINGS,
    corrupt,
    corrupt_pairwise,
    corrupt_pmd,
    named_transition,
    pmd_flip_probabilities,
    realised_transition,
    transition,
)


@pytest.fixture(scope="module")
def coco(real_data):
    return np.unpackbits(real_data("coco2014_train_labels.npz")["train"], axis=1)[:, :80]


@pytest.fixture(scope="module")
def voc(real_data):
    return (real_data("voc2007_labels.npz")["trainval"] >= 0).astype(np.int8)


@pytest.fixture
def simulated():
    return (np.random.default_rng(0).random((40_000, 12)) < np.linspace(0.05, 0.7, 12)).astype(np.int32)


def z_scores(clean, noisy, T):
    """Standardised gaps between realised and given flip rates, per class and clean value; counted in numpy."""
    flipped = clean != np.asarray(noisy)
    scores = []
    for value, rho in ((0, np.asarray(T)[:, 0, 1]), (1, np.asarray(T)[:, 1, 0])):
        size = (clean == value).sum(0)
        gap = (flipped & (clean == value)).sum(0) / size - rho
        scores.append(gap / np.sqrt(rho * (1 - rho) / size))
    return np.concatenate(scores)


def assert_flips_at(clean, noisy, T):
    z = z_scores(clean, noisy, T)
    assert np.abs(z).max() < 5
    # Five standard deviations of a chi-square: neither off target nor too good to be random.
    assert abs((z**2).sum() - z.size) < 5 * np.sqrt(2 * z.size)


def test_transition_puts_the_rates_where_the_convention_says():
    T = transition(np.array([0.1, 0.2]), 0.3)
    np.testing.assert_allclose(T, [[[0.9, 0.1], [0.3, 0.7]], [[0.8, 0.2], [0.3, 0.7]]], rtol=1e-6)
    assert transition(0, 0.2, 5).shape == (5, 2, 2)
    assert transition(0.1, 0.2).shape == (1, 2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-0.1, 0.2, 3), "rho_neg: ranges from -0.1"),
        ((0.1, 1.2, 3), "rho_pos: ranges from 1.2"),
        ((0.1, np.array([0.2, np.nan]), 2), "rho_pos: ranges from nan"),
        ((0.4, np.array([0.2, 0.6]), 2), "class 1 has 0.4 \\+ 0.6"),
        ((np.array([0.1, 0.1]), np.array([0.1, 0.1, 0.1])), "disagree"),
        ((np.array([0.1, 0.1]), 0.1, 3), "disagree"),
        ((np.full((2, 2), 0.1), 0.1), "rho_neg: has shape"),
    ],
)
def test_impossible_rates_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        transition(*arguments)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("MLML", (0, 0.2)), ("pml", (0.2, 0)), ("Ulf", (0.2, 0.2)), ("alf", (0.2 * 2.9365 / (80 - 2.9365), 0.2))],
)
def test_named_noise_has_the_papers_rates(kind, expected):
    T = named_transition(kind, 0.2, 80, labels_per_example=2.9365)
    np.testing.assert_allclose(T, transition(*expected, 80), atol=1e-7)


def test_settings_are_the_printed_ones_and_valid():
    assert SETTINGS["coco"][6:] == ((0.008, 0.2), (0.015, 0.4))
    assert SETTINGS["voc2007"][6:] == SETTINGS["voc2012"][6:] == ((0.017, 0.2), (0.034, 0.4))
    for pairs in SETTINGS.values():
        rates = np.array(pairs)
        assert transition(rates[:, 0], rates[:, 1]).shape == (8, 2, 2)


def test_coco_alf_rates_follow_from_its_labels_per_example(coco):
    T = named_transition("alf", 0.4, 80, labels_per_example=float(coco.sum(1).mean()))
    assert abs(T[0, 0, 1] - 0.015) < 0.0005


@pytest.mark.parametrize("bad", [None, 0.0, 20.0])
def test_alf_needs_a_sensible_number_of_labels_per_example(bad):
    with pytest.raises(ValueError, match=f"labels_per_example: {bad}"):
        named_transition("alf", 0.2, 20, labels_per_example=bad)


def test_unknown_noise_type_is_named():
    with pytest.raises(ValueError, match="kind: 'salt'"):
        named_transition("salt", 0.2, 20)


@pytest.mark.parametrize("setting", SETTINGS["coco"][4:])
def test_flips_of_real_coco_labels_match_the_rates(coco, setting):
    T = transition(*setting, 80)
    noisy = corrupt(jax.random.key(1), coco, T)
    assert noisy.dtype == coco.dtype
    assert_flips_at(coco, noisy, T)
    with pytest.raises(AssertionError):
        assert_flips_at(coco, noisy, transition(setting[0] * 1.1, setting[1] * 1.1, 80))


@pytest.mark.parametrize("setting", SETTINGS["voc2007"][:4])
def test_one_sided_noise_leaves_the_other_side_alone(voc, setting):
    noisy = np.asarray(corrupt(jax.random.key(2), voc, transition(*setting, 20)))
    spared = voc == (1 if setting[1] == 0 else 0)
    np.testing.assert_array_equal(noisy[spared], voc[spared])
    size = (~spared).sum()
    assert abs((noisy != voc)[~spared].mean() - max(setting)) < 5 * np.sqrt(max(setting) * (1 - max(setting)) / size)


def test_per_class_rates_reach_their_own_class(simulated):
    T = transition(np.linspace(0.05, 0.3, 12), np.linspace(0.4, 0.1, 12))
    noisy = corrupt(jax.random.key(3), simulated, T)
    assert_flips_at(simulated, noisy, T)
    with pytest.raises(AssertionError):
        assert_flips_at(simulated, noisy, T[::-1])


def test_flips_of_different_classes_are_independent():
    labels = np.ones((200_000, 2), bool)
    flips = ~np.asarray(corrupt(jax.random.key(4), labels, transition(0, 0.3, 2)))
    assert abs(flips.all(1).mean() - 0.09) < 5 * np.sqrt(0.09 * 0.91 / 200_000)


def test_the_key_alone_decides_and_jit_agrees(simulated):
    T = transition(0.1, 0.2, 12)
    first = corrupt(jax.random.key(0), simulated, T)
    np.testing.assert_array_equal(first, corrupt(jax.random.key(0), simulated, T))
    np.testing.assert_array_equal(first, jax.jit(corrupt)(jax.random.key(0), simulated, T))
    assert (np.asarray(first) != np.asarray(corrupt(jax.random.key(1), simulated, T))).mean() > 0.1


@pytest.mark.parametrize("bad", [-1, 2])
def test_labels_other_than_0_and_1_are_refused(bad):
    labels = np.zeros((3, 2), int)
    labels[1, 0] = bad
    with pytest.raises(ValueError, match=f"labels: row 1, column 0 is {bad}"):
        corrupt(jax.random.key(0), labels, transition(0.1, 0.1, 2))
    with pytest.raises(ValueError, match="noisy: row 1"):
        realised_transition(np.zeros((3, 2), int), labels)


def test_rows_that_are_not_probabilities_are_refused():
    with pytest.raises(ValueError, match="T: class 1 is"):
        corrupt(jax.random.key(0), np.zeros((3, 2), int), transition(0.1, 0.1, 2).at[1, 0, 0].set(0.5))


@pytest.mark.usefixtures("unchecked_shapes")
def test_wrong_shapes_are_refused():
    key, labels = jax.random.key(0), np.zeros((3, 2), int)
    with pytest.raises(ValueError, match="labels: has shape"):
        check_binary("labels", labels[0])
    with pytest.raises(ValueError, match=r"T: shape \(3, 2, 2\)"):
        corrupt(key, labels, transition(0.1, 0.1, 3))
    with pytest.raises(ValueError, match="noisy: has shape"):
        realised_transition(labels, labels[:2])
    with pytest.raises(ValueError, match="posteriors: has shape"):
        corrupt_pmd(key, labels, np.zeros((3, 3)), kind=1, level=0.1)
    with pytest.raises(ValueError, match=r"pairs: is \[1 0 0\]; pass for each of the 2 classes"):
        corrupt_pairwise(key, labels, 0.1, pairs=np.array([1, 0, 0]))


def test_pairwise_rules_on_a_hand_made_example():
    labels = np.array([[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    expected = [[0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
    np.testing.assert_array_equal(corrupt_pairwise(jax.random.key(0), labels, 1.0), expected)
    both_to_2 = corrupt_pairwise(jax.random.key(0), labels[1:2], 1.0, pairs=np.array([2, 2, 0, 0]))
    np.testing.assert_array_equal(both_to_2, [[0, 0, 1, 0]])


def test_a_shared_pair_comes_on_when_any_of_its_classes_is_mistaken():
    labels = np.tile([1, 1, 0], (1000, 1))
    noisy = np.asarray(corrupt_pairwise(jax.random.key(7), labels, 0.5, pairs=np.array([2, 2, 0])))
    np.testing.assert_array_equal(noisy[:, 2] == 1, (noisy[:, :2] == 0).any(1))
    assert abs(noisy[:, 2].mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 1000)


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.3])
def test_pairwise_moves_labels_at_the_rate_and_keeps_their_number(voc, rate):
    noisy = np.asarray(corrupt_pairwise(jax.random.key(5), voc, rate))
    can_move = (voc == 1) & (np.roll(voc, -1, axis=1) == 0)
    moved = (voc == 1) & (noisy == 0)
    assert not (moved & ~can_move).any()
    np.testing.assert_array_equal((voc == 0) & (noisy == 1), np.roll(moved, 1, axis=1))
    assert abs(moved[can_move].mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / can_move.sum())
    np.testing.assert_array_equal(noisy.sum(1), voc.sum(1))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([0, 2, 1], "pairs: class 0 is its own pair"),
        ([1, 2, 3], "pairs: is .*; pass for each of the 3 classes"),
        ([1, 2, -1], "pairs: is .*; pass for each of the 3 classes"),
        ([1.0, 2.0, 0.0], "pairs: is .*; pass for each of the 3 classes"),
    ],
)
def test_impossible_pairs_are_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        corrupt_pairwise(jax.random.key(0), np.eye(3, dtype=int), 0.1, pairs=np.array(pairs))


def test_pairwise_rates_of_none_and_all_may_be_integers(unchecked_shapes):
    labels = np.eye(3, dtype=int)
    np.testing.assert_array_equal(corrupt_pairwise(jax.random.key(0), labels, 0), labels)
    np.testing.assert_array_equal(corrupt_pairwise(jax.random.key(0), labels, 1), np.roll(labels, 1, axis=1))


def test_pairwise_rate_is_a_probability():
    with pytest.raises(ValueError, match=r"rate: 1\.5"):
        corrupt_pairwise(jax.random.key(0), np.eye(3, dtype=int), 1.5)


# Margins by hand: 0.9 - 0.3, 0.5 - 0.4, and 0.2 - 0.4 clipped to 0.
PMD_LABELS = np.array([[1, 0, 0], [1, 1, 0]])
PMD_POSTERIORS = np.array([[0.9, 0.3, 0.1], [0.5, 0.2, 0.4]])


@pytest.mark.parametrize(
    ("kind", "level", "expected"),
    [
        ("I", 0.2, (0.146008, 0.225856, 0.228137)),  # 0.32, 0.495, 0.5 times 0.6 / 1.315
        ("ii", 0.98, (0.94, 1.0, 1.0)),  # 0.784, 0.999, 1: two reach the cap, 0.784 takes the rest
        (3, 0.3, (0.212835, 0.337106, 0.350058)),  # 0.608, 0.963, 1 times 0.9 / 2.571
    ],
)
def test_pmd_probabilities_match_hand_computed_numbers(kind, level, expected):
    probabilities = np.asarray(pmd_flip_probabilities(PMD_LABELS, PMD_POSTERIORS, kind=kind, level=level))
    np.testing.assert_allclose(probabilities[PMD_LABELS == 1], expected, atol=2e-6)
    assert (probabilities[PMD_LABELS == 0] == 0).all()


def test_pmd_types_are_the_papers_polynomials():
    values = [[float(tau(jnp.float32(margin))) for margin in (0, 0.6, 1)] for tau in PMD_TYPES.values()]
    np.testing.assert_allclose(values, [[0.5, 0.32, 0], [1, 0.784, 0], [1, 0.608, 0]], atol=1e-6)


def test_certain_pmd_flips_switch_to_the_most_probable_absent_class():
    noisy = corrupt_pmd(jax.random.key(0), PMD_LABELS, PMD_POSTERIORS, kind="II", level=1.0)
    np.testing.assert_array_equal(noisy, [[0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("level", [0.1, 0.35, 0.8])
def test_pmd_level_is_reached_on_real_labels(voc, kind, level):
    rng = np.random.default_rng(0)
    posteriors = (1 / (1 + np.exp(-(4 * voc - 2 + 2 * rng.normal(size=voc.shape))))).astype(np.float32)
    probabilities = np.asarray(pmd_flip_probabilities(voc, posteriors, kind=kind, level=level))
    present = voc == 1
    assert abs(probabilities[present].mean(dtype=float) - level) < 1e-5
    noisy = np.asarray(corrupt_pmd(jax.random.key(6), voc, posteriors, kind=kind, level=level))
    gone = present & (noisy == 0)
    deviation = np.sqrt((probabilities * (1 - probabilities))[present].sum())
    assert abs(gone.sum() - level * present.sum()) < 4 * deviation
    np.testing.assert_array_equal(((voc == 0) & (noisy == 1)).sum(1), gone.any(1))
    rival = np.where(present, -1, posteriors).argmax(1)
    assert noisy[gone.any(1), rival[gone.any(1)]].all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "IV"}, "kind: 'IV'"),
        ({"kind": 4}, "kind: 4"),
        ({"level": 1.1}, "level: 1.1"),
        ({"labels": np.array([[1, 0, 0], [1, 1, 1]]), "level": 0.9}, "only 0.25 of the present labels can flip"),
        ({"posteriors": PMD_POSTERIORS + 0.5}, "posteriors: range from"),
    ],
)
def test_impossible_pmd_requests_are_refused(changes, message):
    request = {"labels": PMD_LABELS, "posteriors": PMD_POSTERIORS, "kind": "I", "level": 0.2} | changes
    with pytest.raises(ValueError, match=message):
        corrupt_pmd(
            jax.random.key(0), request["labels"], request["posteriors"], kind=request["kind"], level=request["level"]
        )


def test_realised_rates_by_hand_and_identity_where_unseen():
    clean = np.array([[1, 0, 1], [1, 0, 1], [0, 0, 1], [0, 0, 1]])
    noisy = np.array([[0, 0, 1], [1, 1, 0], [0, 0, 1], [0, 0, 1]])
    expected = [[[1, 0], [0.5, 0.5]], [[0.75, 0.25], [0, 1]], [[1, 0], [0.25, 0.75]]]
    np.testing.assert_allclose(realised_transition(clean, noisy), expected, atol=1e-7)


def test_arguments_of_another_type_are_named(unchecked_shapes):
    key, labels = jax.random.key(0), np.eye(3)
    for error, message, call in (
        (TypeError, "rho_neg: dtype <U1", lambda: transition("x", 0.1)),
        (TypeError, "num_classes: 1.5; pass", lambda: transition(0.1, 0.1, 1.5)),
        (ValueError, "kind: None; pass", lambda: named_transition(None, 0.1, 3)),
        (ValueError, "rate: nan; pass rates", lambda: named_transition("ulf", np.nan, 3)),
        (TypeError, "key: 0; pass", lambda: corrupt(0, labels, np.tile(np.eye(2), (3, 1, 1)))),
        (TypeError, "rate: 'x'; pass", lambda: corrupt_pairwise(key, labels, "x")),
        (TypeError, "level: 'x'; pass", lambda: corrupt_pmd(key, labels, labels, kind=1, level="x")),
        (ValueError, "clean: row 1 has length 1", lambda: realised_transition([[0, 1], [0]], labels)),
    ):
        with pytest.raises(error, match=message):
            call()
