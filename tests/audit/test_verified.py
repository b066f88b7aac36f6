from itertools import pairwise

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from mlt_jax import Status, audit_labels
from mlt_jax.audit.propose import Decisions, propose_cells
from mlt_jax.audit.verified import recalibrate, refusal, verified

Q = 6


@pytest.fixture(scope="module")
def data():
    """Labels whose mistakes concentrate where the score is ambiguous: no estimate by class holds for them."""
    rng = np.random.default_rng(0)
    score = rng.normal(-2, 2, (4000, Q))
    clean = rng.random(score.shape) < 1 / (1 + np.exp(-1.5 * score))
    ambiguous = np.exp(-(score**2) / 2)
    labels = clean ^ (rng.random(score.shape) < np.where(clean, 0.6, 0.15) * ambiguous)
    return labels.astype(np.uint8), score.astype(np.float32), clean.astype(np.uint8)


def rates(labels, clean):
    wrong = labels != clean
    return np.stack([(wrong & (clean == side)).sum(0) / (clean == side).sum(0) for side in (0, 1)], axis=1)


@pytest.fixture(scope="module")
def repeated(data):
    labels, score, clean = data
    found = []
    for seed in range(30):
        decisions = propose_cells(labels, score, 100, seed=seed).decide(clean)
        found.append(verified(labels, score, decisions, seed=seed))
    return found


def test_intervals_cover_the_rates_of_noise_that_is_not_by_class(data, repeated):
    truth = rates(data[0], data[2])
    inside = np.array([(v.interval[..., 0] <= truth) & (truth <= v.interval[..., 1]) for v in repeated])
    covered = inside.mean(axis=(0, 1))
    assert ((covered > 0.9) & (covered < 0.995)).all()
    width = np.mean([v.interval[..., 1] - v.interval[..., 0] for v in repeated], axis=(0, 1))
    assert width[0] < 0.08
    assert width[1] < 0.35


def test_rates_are_near_the_truth(data, repeated):
    truth = rates(data[0], data[2])
    off = np.mean([np.abs(np.stack([v.found.rho_neg, v.found.rho_pos], 1) - truth) for v in repeated], axis=(0, 1))
    assert off[0] < 0.015
    assert off[1] < 0.06
    assert all((np.asarray(v.found.status) == Status.VERIFIED).all() for v in repeated)
    prior = np.mean([v.found.prior for v in repeated], axis=0)
    assert np.allclose(prior, data[2].mean(0), atol=0.03)


def test_the_share_of_wrong_labels_is_covered_by_300_decisions(data):
    labels, score, clean = data
    truth, found = (labels != clean).mean(), []
    for seed in range(25):
        decisions = propose_cells(labels, score, 300, per="all", seed=seed).decide(clean)
        found.append(verified(labels, score, decisions, seed=seed))
    assert 0.84 < np.mean([v.share_interval[0] <= truth <= v.share_interval[1] for v in found]) <= 1
    assert abs(np.mean([v.share for v in found]) - truth) < 0.008
    assert np.mean([np.ptp(v.share_interval) for v in found]) < 0.06


def test_four_times_the_decisions_halve_the_interval_as_foretold(data, repeated):
    labels, score, clean = data
    first = repeated[0]
    width = np.ptp(first.interval, axis=2)
    more = np.median(first.more)
    assert 150 < more < 1000
    decisions = propose_cells(labels, score, 100 + int(more), seed=1).decide(clean)
    ratio = np.ptp(verified(labels, score, decisions).interval, axis=2) / width
    assert 0.35 < np.median(ratio) < 0.65
    assert 600 < 2 * first.share_more < 6000


def test_deciding_everything_leaves_no_doubt(data):
    labels, score, clean = (array[:300] for array in data)
    found = verified(labels, score, propose_cells(labels, score, 300).decide(clean))
    assert np.allclose(found.interval, rates(labels, clean)[..., None], atol=1e-6)
    assert np.allclose(found.share_interval, (labels != clean).mean(), atol=1e-6)
    assert np.array_equal(found.wrong, (labels != clean))


def test_who_stops_early_has_still_decided_a_random_part(data):
    labels, score, clean = data
    truth, inside = rates(labels, clean), []
    for seed in range(8):
        drawn = propose_cells(labels, score, 200, seed=seed)
        right = clean[drawn.example, drawn.column].astype(int)
        right[len(right) // 2 :] = -1
        found = verified(labels, score, drawn.decide(right), seed=seed)
        assert found.decided.sum() == len(right) // 2
        inside.append((found.interval[..., 0] <= truth) & (truth <= found.interval[..., 1]))
    assert (np.mean(inside, axis=(0, 1)) > 0.85).all()


def test_the_most_suspicious_cells_alone_are_refused_for_rates_but_rank(data):
    labels, score, clean = data
    p = 1 / (1 + np.exp(np.where(labels == 1, score, -score)))
    rows, columns = np.unravel_index(np.argsort(-p, axis=None)[:400], p.shape)
    for probability in (1.0, np.nan):
        decisions = Decisions(rows, columns, clean[rows, columns], np.full(400, probability))
        assert "suspicious cells alone" in refusal(labels, decisions)
        with pytest.raises(ValueError, match=r"decisions: .*They serve the ranking"):
            verified(labels, score, decisions)
        wrong = recalibrate(labels, p, decisions)
        assert np.array_equal(wrong[rows, columns], labels[rows, columns] != clean[rows, columns])
        assert ((wrong >= 0) & (wrong <= 1)).all()


def test_few_decisions_on_suspects_keep_the_ranking_on_real_noise(real_data):
    found = real_data("real/emotions_so.npz")
    raters = found["raters"].astype(int)
    given, others = raters[:, :, 0], raters[:, :, 1:]
    right = np.where((others[:, :, 0] == others[:, :, 1]) & (others[:, :, 0] >= 0), others[:, :, 0], given)
    before = audit_labels(given, features=found["features"]).wrong
    rows, columns = np.unravel_index(np.argsort(-before, axis=None)[:20], given.shape)
    after = recalibrate(given, before, Decisions(rows, columns, right[rows, columns], np.full(20, np.nan)))
    rest = np.ones(given.shape, bool)
    rest[rows, columns] = False
    old, new = (average_precision_score((right != given)[rest], wrong[rest]) for wrong in (before, after))
    assert old > 0.3
    assert new > 0.9 * old  # a model of these decisions alone has a fifth of it


def test_decisions_correct_p_wrong_by_class_and_side(data):
    labels, score, clean = data
    before = 1 / (1 + np.exp(np.where(labels == 1, score, -score)))
    decisions = propose_cells(labels, score, 200).decide(clean)
    found = verified(labels, score, decisions, wrong=before)
    alone = verified(labels, score, decisions)
    assert np.array_equal(found.interval, alone.interval)
    open_cells, mistaken = np.ones(labels.shape, bool), labels != clean
    open_cells[decisions.example, decisions.column] = False
    old, new = (abs(wrong[open_cells].mean() - mistaken[open_cells].mean()) for wrong in (before, found.wrong))
    assert new < 0.4 * old


def test_recalibrated_probabilities_are_calibrated(data):
    labels, score, clean = data
    decisions = propose_cells(labels, score, 200).decide(clean)
    wrong, mistaken = verified(labels, score, decisions).wrong, labels != clean
    wrong_before = 1 / (1 + np.exp(np.where(labels == 1, score, -score)))
    open_cells = np.ones(labels.shape, bool)
    open_cells[decisions.example, decisions.column] = False
    edges = np.quantile(wrong[open_cells], [0, 0.5, 0.9, 1])
    for low, high in pairwise(edges):
        part = open_cells & (wrong >= low) & (wrong <= high)
        assert abs(wrong[part].mean() - mistaken[part].mean()) < 0.1
    assert abs(wrong[open_cells].mean() - mistaken[open_cells].mean()) < 0.02
    assert abs(wrong_before[open_cells].mean() - mistaken[open_cells].mean()) > 0.05


def test_a_class_with_few_decisions_says_so_and_has_the_whole_interval(data):
    labels, score, clean = data
    proposal = propose_cells(labels, score, 100)
    right = clean[proposal.example, proposal.column].astype(int)
    right[(proposal.column == 2) & (np.cumsum(proposal.column == 2) > 8)] = -1
    found = verified(labels, score, proposal.decide(right))
    assert np.asarray(found.found.status).tolist() == [7, 7, 2, 7, 7, 7]
    assert found.interval[2].tolist() == [[0, 1], [0, 1]]
    assert np.isfinite(np.asarray(found.found.T)).all()
    assert abs(float(found.found.rho_pos[2]) - rates(labels, clean)[2, 1]) < 0.15


def test_a_class_that_nobody_labelled_or_that_is_never_given_is_no_trouble(data):
    labels, score, clean = (array[:1000].copy() for array in data)
    observed = np.ones(labels.shape, bool)
    observed[:, 0], labels[:, 1] = False, 0
    decisions = propose_cells(labels, score, 60, observed=observed).decide(clean)
    found = verified(labels, score, decisions, observed=observed)
    assert np.asarray(found.found.status).tolist() == [2, 7, 7, 7, 7, 7]
    assert found.interval[0].tolist() == [[0, 1], [0, 1]]
    assert (found.interval[1] == [[0, 0], [1, 1]]).all()
    assert (found.wrong[:, 0] == 0).all()


def test_labels_without_a_mistake_have_intervals_that_begin_at_0(data):
    _, score, clean = data
    found = verified(clean, score, propose_cells(clean, score, 100).decide(clean))
    assert (found.interval[..., 0] == 0).all()
    assert (found.interval[:, 0, 1] < 0.06).all()
    assert (found.interval[:, 1, 1] > 0).all()
    assert found.share < 0.01


def test_labels_that_are_all_wrong_have_intervals_that_end_at_1(data):
    _, score, clean = data
    found = verified(1 - clean, score, propose_cells(1 - clean, score, 100).decide(clean))
    assert (found.interval[..., 1] == 1).all()
    assert (found.interval[..., 0] > 0.5).all()
    assert found.share > 0.99


def test_an_odd_level_is_named(data):
    labels, score, clean = data
    with pytest.raises(ValueError, match=r"level: 1\.5"):
        verified(labels, score, propose_cells(labels, score, 50).decide(clean), level=1.5)


def test_scores_as_large_as_they_go_give_finite_rates():
    labels = np.zeros((40, 3), np.uint8)
    scores = np.full((40, 3), -3e38)
    row, column = np.nonzero(labels == 0)
    decisions = Decisions(row, column, np.zeros(len(row), int), np.ones(len(row)))
    answer = verified(labels, scores, decisions)
    np.testing.assert_array_equal(answer.found.T, np.tile(np.eye(2), (3, 1, 1)))
    assert answer.share == 0
