import jax
import numpy as np
import pytest
from simulate import scored, t_error

from mlt_jax import Status, estimate, estimate_from_scores, noisy_sides
from mlt_jax.estimator.blind import estimate_from_blocks, plateau_weight, side_test
from mlt_jax.estimator.curves import fit_curves
from mlt_jax.estimator.evidence import gather
from mlt_jax.labels import as_labels
from mlt_jax.paper.noise import SETTINGS, corrupt_pairwise, realised_transition


def test_equal_rates_move_together_and_different_ones_stay_apart():
    rng = np.random.default_rng(1)
    scores, labels = scored(rng)
    alone, shared = (estimate_from_scores(scores, labels, share=share) for share in (False, True))
    assert t_error(shared, 0.1, 0.2) < 0.6 * t_error(alone, 0.1, 0.2)
    rates = np.where(np.arange(40) < 20, 0.05, 0.4)
    scores, labels = scored(rng, rho_neg=0.05, rho_pos=rates)
    found = estimate_from_scores(scores, labels)
    assert np.abs(np.asarray(found.rho_pos) - rates).mean() < 0.03
    assert (np.asarray(found.status) == Status.POSTERIOR).all()
    inside = np.abs(np.asarray(found.rho_pos) - rates) <= 1.96 * np.asarray(found.stderr[:, 1])
    assert inside.mean() > 0.8


def test_residual_is_one_where_the_curve_is_right_and_large_where_it_is_not():
    rng = np.random.default_rng(2)
    scores, labels = scored(rng, n=20_000, q=8)
    assert 0.6 < float(estimate_from_scores(scores, labels).residual.mean()) < 1.5
    wrong = np.where(np.abs(scores) < 1, 1 - labels, labels)  # no monotone curve goes through that
    assert float(estimate_from_scores(scores, wrong).residual.mean()) > 5


def test_sides_without_noise_are_told_from_sides_with():
    rng = np.random.default_rng(3)
    for rates, clean_side in (((0.0, 0.2), 0), ((0.1, 0.0), 1)):
        found = side_test(*scored(rng, q=100, n=4000, rho_neg=rates[0], rho_pos=rates[1]))
        assert (found.by_class[:, clean_side] < 0.05).mean() < 0.1
        assert (found.by_class[:, 1 - clean_side] < 0.05).mean() > 0.9
        assert found.overall[clean_side] > 0.001 > found.overall[1 - clean_side]


def test_p_values_of_a_side_with_next_to_no_noise_are_spread_as_stated():
    rng = np.random.default_rng(7)
    tests = [side_test(*scored(rng, q=10, n=2000, rho_neg=0.005, rho_pos=0.3)) for _ in range(40)]
    overall = np.array([found.overall[0] for found in tests])
    assert (overall < 0.05).mean() <= 0.15
    assert (overall > 0.5).mean() > 0.25
    by_class = np.concatenate([found.by_class[:, 0] for found in tests])
    assert 0.005 < (by_class < 0.05).mean() < 0.09


def test_a_class_the_scores_say_nothing_about_is_left_out_of_the_test():
    rng = np.random.default_rng(8)
    scores, labels = scored(rng, q=5)
    scores[:, 0] = rng.normal(size=5000)
    found = side_test(scores, labels)
    assert np.isnan(found.by_class[0]).all()
    assert np.isfinite(found.by_class[1:]).all()
    assert (found.overall < 0.001).all()
    assert np.isnan(side_test(rng.normal(size=scores.shape), labels).overall).all()


def test_classes_that_cannot_be_told_have_a_status_and_a_valid_T():
    rng = np.random.default_rng(4)
    scores, labels = scored(rng, q=8)
    scores[:, 0] = rng.normal(size=5000)  # says nothing about label 0
    labels[:, 1] = np.arange(5000) < 9
    labels[:, 2] = 0
    for share in (True, False):
        found = estimate_from_scores(scores, labels, share=share)
        assert found.status.tolist()[:3] == [Status.UNIDENTIFIABLE, Status.TOO_FEW, Status.TOO_FEW]
        assert (np.asarray(found.status)[3:] == Status.POSTERIOR).all()
        assert np.isfinite(found.T).all()
        np.testing.assert_allclose(found.T[0, 1, 0], np.asarray(found.rho_pos)[3:].mean(), atol=0.05)  # the others'
        np.testing.assert_allclose(found.interval()[:3], np.tile([0, 1], (3, 2, 1)), atol=1e-6)
    nothing = estimate_from_scores(rng.normal(size=scores.shape), labels)
    np.testing.assert_allclose(nothing.T, np.tile(np.eye(2), (8, 1, 1)))


def ambiguous(rng, *, n=4000, q=20):
    """Scores, the labels of one person and the majority of five others, all drawn by the chance of the score."""
    scores = 2.5 * rng.normal(size=(n, q)) - 4
    votes = rng.random((6, n, q)) < 1 / (1 + np.exp(-scores))
    return scores.astype(np.float32), votes[0].astype(np.uint8), (votes[1:].sum(0) > 2).astype(np.uint8)


def test_noise_that_prefers_ambiguous_examples_is_counted_and_its_intervals_hold():
    rng = np.random.default_rng(9)
    scores, given, clean = ambiguous(rng)
    truth = np.stack(
        [(given * (1 - clean)).sum(0) / (1 - clean).sum(0), ((1 - given) * clean).sum(0) / clean.sum(0)], 1
    )
    found = estimate_from_scores(scores, given)
    assert (np.asarray(found.status) == Status.COUNTED).all()
    rates = np.stack([found.rho_neg, found.rho_pos], 1)
    assert (np.abs(rates - truth).mean(0) < [0.05, 0.2]).all()
    interval = np.asarray(found.interval())
    inside = (truth >= interval[..., 0]) & (truth <= interval[..., 1])
    assert (inside.mean(0) >= 0.9).all()
    assert (truth[:, 1] > 0.15).all()  # where a curve that is read at its ends sees next to nothing
    ends = fit_curves(gather(scores, as_labels(given)).bins).rates
    assert np.median(ends[:, 1]) < 0.1


def test_plateaus_decide_which_model_speaks():
    rng = np.random.default_rng(10)
    for rates, heavy in (((0.1, 0.2), True), ((0.0, 0.3), True), ((0.0, 0.0), False)):
        evidence = gather(*(lambda s, y: (s, as_labels(y)))(*scored(rng, rho_neg=rates[0], rho_pos=rates[1])))
        weight = plateau_weight(fit_curves(evidence.bins), evidence.bins, evidence.identifiable)
        assert (weight > 0.9) if heavy else (weight < 0.1)


def test_who_knows_the_kind_of_noise_can_say_so():
    scores, given, _ = ambiguous(np.random.default_rng(9))
    curve, count, auto = (estimate_from_scores(scores, given, rule=rule) for rule in ("curve", "count", "auto"))
    assert (np.asarray(curve.status) == Status.POSTERIOR).all()
    assert float(np.median(curve.rho_pos)) < 0.1
    assert (np.asarray(count.status) == Status.COUNTED).all()
    np.testing.assert_allclose(count.T, auto.T, atol=1e-3)
    probs = 1 / (1 + np.exp(-scores))
    np.testing.assert_array_equal(estimate(given, probs=probs, method="curve").T, curve.T)
    with pytest.raises(ValueError, match=r"probs: method='count' reads features"):
        estimate(given, losses=probs, method="count")


def test_swapped_labels_are_estimated_and_their_intervals_hold():
    scores, clean = scored(np.random.default_rng(14), n=6000, q=10, rho_neg=0.0, rho_pos=0.0, width=6)
    present = 1 / (1 + np.exp(-scores.astype(float)))
    for rate in (0.1, 0.3):
        labels = np.asarray(corrupt_pairwise(jax.random.key(0), clean, rate))
        truth = np.asarray(realised_transition(clean, labels))[:, [0, 1], [1, 0]]
        predicted = present + rate * np.roll(present, 1, axis=1) * (1 - present)  # of the given labels
        found = estimate_from_scores(predicted, labels)
        error = np.abs(np.stack([found.rho_neg, found.rho_pos], 1) - truth)
        assert (error.mean(0) < [0.3 * truth[:, 0].mean(), 0.03]).all()
        interval = np.asarray(found.interval())
        assert ((truth >= interval[..., 0]) & (truth <= interval[..., 1])).mean() >= 0.9
        # Such scores keep the swaps out of the lower end of the curve.
        ends = fit_curves(gather(predicted, as_labels(labels)).bins).rates
        assert ends[:, 0].mean() < 0.5 * truth[:, 0].mean()


def test_labels_without_noise_have_intervals_that_reach_zero():
    scores, labels = scored(np.random.default_rng(12), rho_neg=0.0, rho_pos=0.0, width=10)
    assert (np.asarray(estimate_from_scores(scores, labels).interval())[:, :, 0] < 0.005).all()


@pytest.mark.parametrize(("assume", "rates", "side"), [("missing", (0.0, 0.3), 0), ("partial", (0.2, 0.0), 1)])
def test_what_is_assumed_is_held_by_every_way_from_scores(assume, rates, side):
    scores, labels = scored(np.random.default_rng(13), q=8, rho_neg=rates[0], rho_pos=rates[1])
    probs = 1 / (1 + np.exp(-scores))
    for found in (estimate_from_scores(scores, labels, assume=assume), estimate(labels, probs=probs, assume=assume)):
        held = np.stack([found.rho_neg, found.rho_pos], 1)
        assert (held[:, side] == 0).all()
        np.testing.assert_allclose(held[:, 1 - side], rates[1 - side], atol=0.06)
        assert (np.asarray(found.stderr)[:, side] == 0).all()
    with pytest.raises(ValueError, match="assume"):
        estimate_from_scores(scores, labels, assume="both")


def test_scores_of_any_scale_give_the_same_estimate():
    scores, labels = scored(np.random.default_rng(14), q=6)
    plain = estimate_from_scores(scores, labels)
    np.testing.assert_allclose(estimate_from_scores(3 * scores - 1, labels).T, plain.T, atol=2e-3)


def test_a_class_that_borrows_its_rates_says_so():
    rng = np.random.default_rng(15)
    scores, labels = scored(rng, q=20)
    scores[:, 0] = 0.08 * scores[:, 0] + rng.normal(size=5000)  # predicts, but reaches no end
    found = estimate_from_scores(scores, labels)
    assert int(found.status[0]) == Status.SHARED
    assert (np.asarray(found.status)[1:] == Status.POSTERIOR).all()


def test_unobserved_cells_are_not_read():
    rng = np.random.default_rng(5)
    scores, labels = scored(rng, n=20_000, q=5)
    observed = rng.random(labels.shape) < 0.5
    hidden = np.where(observed, scores, np.nan)
    found = estimate_from_scores(hidden, np.where(observed, labels, 1), observed=observed)
    assert t_error(found, 0.1, 0.2) < 5 * 0.06


def test_two_dimensional_probs_are_taken_as_out_of_sample():
    scores, labels = scored(np.random.default_rng(6), q=5)
    probs = 1 / (1 + np.exp(-scores))
    np.testing.assert_allclose(
        estimate(labels, probs=probs).T, estimate_from_scores(scores, labels).T, atol=5e-3
    )  # probs are cut at 1e-6
    np.testing.assert_allclose(noisy_sides(labels, probs=probs).overall, side_test(scores, labels).overall, atol=1e-3)
    with pytest.raises(ValueError, match=r"probs: shape \(5, 5000, 5\)"):
        noisy_sides(labels, probs=np.repeat(probs[None], 5, 0))


@pytest.mark.slow
def test_blind_on_real_features_beats_what_the_paper_printed_when_told(real_data):
    data, known = real_data("voc2007_features.npz"), real_data("voc2007_labels.npz")
    place = {name: row for row, name in enumerate(known["trainval_names"])}
    clean = known["trainval"][[place[name] for name in data["names"]]] >= 0
    printed = {(0.2, 0.0): 0.36, (0.6, 0.0): 1.17, (0.2, 0.2): 3.1, (0.034, 0.4): 1.85}
    for rates, told in printed.items():
        assert rates in SETTINGS["voc2007"]
        chance = np.random.default_rng(0).random(clean.shape)
        labels = np.where(clean, chance >= rates[1], chance < rates[0]).astype(np.uint8)
        found = estimate(labels, features=data["features"].astype(np.float32))
        assert t_error(found, *rates) < told


def test_scores_that_come_in_pieces_give_the_same_rates():
    rng = np.random.default_rng(9)
    scores, labels = scored(rng, n=400, q=300)
    whole = estimate_from_scores(scores, labels)
    checked = as_labels(labels)
    for width in (1, 70):
        pieces = (scores[:, start : start + width] for start in range(0, 300, width))
        for one, other in zip(whole, estimate_from_blocks(pieces, checked), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_arguments_of_another_type_are_named(unchecked_shapes):
    scores, labels = np.zeros((3, 2)), np.eye(3, 2)
    with pytest.raises(ValueError, match="rule: list; pass 'auto'"):
        estimate_from_scores(scores, labels, rule=["auto"])
    with pytest.raises(TypeError, match=r"share: ndarray of shape \(2,\); pass True or False"):
        estimate_from_scores(scores, labels, share=np.zeros(2))
