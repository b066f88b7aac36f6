import numpy as np
import pytest

from mlt_jax.audit.propose import Decisions, check_decisions, propose_cells, read_inputs


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    score = rng.normal(-2, 2, (2000, 3)).astype(np.float32)
    return (rng.random(score.shape) < 1 / (1 + np.exp(-score))).astype(np.uint8), score


@pytest.mark.parametrize("per", ["class", "all"])
def test_proposed_cells_stand_for_all_cells_and_number_the_budget(data, per):
    labels, score = data
    observed = np.random.default_rng(1).random(labels.shape) < 0.8
    proposal = propose_cells(labels, score, 100, per=per, observed=observed)
    assert len(proposal.example) == (300 if per == "class" else 100)
    assert np.isclose((1 / proposal.probability).sum(), observed.sum())
    assert observed[proposal.example, proposal.column].all()
    assert len(set(zip(proposal.example, proposal.column, strict=True))) == len(proposal.example)
    assert np.array_equal(proposal.given, labels[proposal.example, proposal.column])


def test_a_cell_is_drawn_as_often_as_its_probability_says(data):
    labels, score = data[0][:300, :1], data[1][:300, :1]
    times, probability = np.zeros(300), np.zeros(300)
    for seed in range(400):
        proposal = propose_cells(labels, score, 40, seed=seed)
        times[proposal.example] += 1
        probability[proposal.example] = proposal.probability
    z = (times / 400 - probability) / np.sqrt(np.maximum(probability * (1 - probability), 1e-9) / 400)
    unsure = probability < 1
    assert (times[~unsure & (probability > 0)] == 400).all()
    assert abs(z[unsure].mean()) < 0.2
    assert 0.8 < z[unsure].std() < 1.2


def test_the_most_suspicious_cells_are_taken_for_certain(data):
    labels, score = data
    wrong = np.random.default_rng(2).random(labels.shape)
    proposal = propose_cells(labels, score, 100, per="all", suspects=0.2, wrong=wrong)
    sure = proposal.probability == 1
    assert sure.sum() == 20
    assert proposal.wrong[sure].min() >= np.sort(wrong.ravel())[-20] - 1e-6


def test_scores_that_point_to_a_mistake_are_drawn_more_often(data):
    labels, score = data
    proposal = propose_cells(labels, score, 100, suspects=0)
    off = proposal.given == 0
    drawn = score[proposal.example, proposal.column][off]
    assert drawn.mean() > score[labels == 0].mean() + 0.3


def test_suspects_may_be_all_of_a_small_budget(data):
    labels, score = data
    for given in (labels, 0 * labels):  # of both kinds, of one
        proposal = propose_cells(given, score, 2, suspects=0.97)
        assert len(proposal.example) == 6
        assert (proposal.probability == 1).all()


@pytest.mark.parametrize("budget", [2, 3, 5, 17])
def test_a_small_budget_still_stands_for_all_cells(data, budget):
    for per in ("class", "all"):
        proposal = propose_cells(*data, budget, per=per)
        assert np.isclose((1 / proposal.probability).sum(), data[0].size)


def test_a_budget_beyond_all_cells_takes_each_once(data):
    proposal = propose_cells(data[0][:20], data[1][:20], 50)
    assert len(proposal.example) == 60
    assert (proposal.probability == 1).all()


def test_decisions_are_read_off_a_matrix_or_a_vector(data):
    labels, score = data
    proposal = propose_cells(labels, score, 20)
    by_matrix = proposal.decide(1 - labels)
    assert np.array_equal(by_matrix.label, 1 - proposal.given)
    assert np.array_equal(proposal.decide(by_matrix.label).label, by_matrix.label)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"budget": 1}, "budget: 1"), ({"per": "row"}, "per: 'row'"), ({"suspects": 1.0}, "suspects: 1.0")],
)
def test_odd_options_are_named(data, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        propose_cells(*data, **{"budget": 10} | options)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        (([0], [5], [1], [1.0]), "column 5.* outside the labels"),
        (([0], [0], [2], [1.0]), "another label than 0, 1 or -1"),
        (([0], [0], [1], [0.0]), "probability outside"),
        (([0, 0], [0, 0], [1, 1], [1.0, 1.0]), "occurs twice"),
        (([0, 1], [0, 0], [1], [1.0]), "parts of length"),
    ],
)
def test_decisions_that_do_not_fit_are_refused(data, parts, complaint):
    labels, _, known = read_inputs(*data, None, "01")
    with pytest.raises(ValueError, match=rf"decisions: .*{complaint}"):
        check_decisions(Decisions(*map(np.array, parts)), labels, known)


def test_arguments_of_another_type_are_named(unchecked_shapes):
    labels, scores = np.eye(6, 2), np.zeros((6, 2))
    checked, _, known = read_inputs(labels, scores, None, "01")
    proposal = propose_cells(labels, scores, 4)
    for error, message, call in (
        (TypeError, "budget: 2.5; pass 2 or more", lambda: propose_cells(labels, scores, 2.5)),
        (TypeError, "suspects: 'x'; pass a share", lambda: propose_cells(labels, scores, 4, suspects="x")),
        (ValueError, "seed: -1; pass", lambda: propose_cells(labels, scores, 4, seed=-1)),
        (TypeError, "decisions: None; pass `Decisions`", lambda: check_decisions(None, checked, known)),
        (
            TypeError,
            "decisions: not all are numbers",
            lambda: check_decisions(Decisions(["x"], [0], [0], [1]), checked, known),
        ),
        (
            ValueError,
            "decisions: entry 0 .* is not in whole",
            lambda: check_decisions(Decisions([0.5], [0], [0], [1]), checked, known),
        ),
        (ValueError, r"labels: shape \(3,\); pass", lambda: proposal.decide(np.zeros(3))),
        (ValueError, "labels: not all are 0, 1 or -1", lambda: proposal.decide(np.full((6, 2), np.nan))),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_frame_whose_order_a_proposal_does_not_know_is_refused():
    pandas = pytest.importorskip("pandas")
    labels = np.random.default_rng(0).integers(0, 2, (300, 2))
    proposal = propose_cells(labels, np.random.default_rng(1).normal(size=labels.shape), 20)
    with pytest.raises(TypeError, match=r"labels: a DataFrame.*pass \.loc"):
        proposal.decide(pandas.DataFrame(labels))
