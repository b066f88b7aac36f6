import numpy as np
import pytest
from simulate import correlated_labels, flip

from mlt_jax import RaterStatus, ask_next, estimate_raters, rater_array
from mlt_jax.estimator.raters import Raters

N, Q, R = 1500, 4, 5


def raters_of(rng, clean, rho_neg, rho_pos, gap=0.0):
    """Judgements (n, q, raters) with the rates (raters, q), some of them missing."""
    labels = np.stack([flip(rng, clean, a, b) for a, b in zip(rho_neg, rho_pos, strict=True)], 2).astype(np.int8)
    return np.where(rng.random(labels.shape) < gap, -1, labels).astype(np.int8)


@pytest.fixture(scope="module")
def clear():
    """Present or absent labels, raters that err independently, the true rates, and scores."""
    rng = np.random.default_rng(0)
    score = rng.normal(-1, 2, (N, Q))
    clean = (rng.random(score.shape) < 1 / (1 + np.exp(-score))).astype(np.uint8)
    truth = np.stack([rng.uniform(0.01, 0.15, (R, Q)), rng.uniform(0.05, 0.5, (R, Q))], 2)
    return clean, raters_of(rng, clean, truth[..., 0], truth[..., 1], gap=0.3), truth, 2 * score


@pytest.fixture(scope="module")
def opinions():
    """Labels of degrees: strict and lenient raters divided on the doubtful examples."""
    rng = np.random.default_rng(1)
    u = rng.normal(size=(N, Q, 1))
    logit = np.linspace(-4, -1, R) + 2.5 * u
    yes = 1 / (1 + np.exp(-logit))
    return (yes.mean(2) > 0.5).astype(np.uint8), (rng.random(yes.shape) < yes).astype(np.int8)


@pytest.fixture(scope="module")
def found(clear):
    return estimate_raters(clear[1])


def rates(found):
    return np.stack([found.rho_neg, found.rho_pos], 2)


def finite(found: Raters):
    assert all(np.isfinite(value).all() for value in found)
    np.testing.assert_allclose(found.T.sum(3), 1, atol=1e-5)
    assert found.T.min() > 0
    assert found.stderr.min() > 0
    return True


def test_T_consensus_and_prior_of_independent_raters(clear, found):
    clean, labels, truth, _ = clear
    assert finite(found)
    assert not found.graded.any()
    assert (found.status == RaterStatus.ESTIMATED).all()
    assert np.abs(rates(found) - truth).mean() < 0.03
    np.testing.assert_allclose(found.prior, clean.mean(0), atol=0.03)
    majority = (labels == 1).sum(2) > (labels == 0).sum(2)
    wrong = (found.consensus != clean).mean()
    assert wrong < 0.85 * (majority != clean).mean()
    assert abs((1 - found.right).mean() - wrong) < 0.01  # as sure as it is right


def test_intervals_cover_the_true_rates(clear, found):
    low, high = np.moveaxis(found.interval(), 3, 0)
    inside = (low <= clear[2]) & (clear[2] <= high)
    assert inside.mean() >= 0.85  # of 40; the share over many draws is in docs/raters.md
    assert (high - low).mean() < 0.2


def test_scores_are_one_more_rater(clear, found):
    clean, labels, truth, scores = clear
    more = estimate_raters(labels, scores=scores)
    assert (more.consensus != clean).mean() < 0.9 * (found.consensus != clean).mean()
    assert np.abs(rates(more) - truth).mean() < np.abs(rates(found) - truth).mean()
    assert more.stderr.mean() < found.stderr.mean()
    np.testing.assert_allclose(more.slope, 0.5, atol=0.1)  # the scores are twice the logits
    noise = np.random.default_rng(2).normal(size=scores.shape)
    np.testing.assert_allclose(estimate_raters(labels, scores=noise).clean_probs, found.clean_probs, atol=0.15)


def test_gaps_are_minus_1_or_nan_or_a_mask(clear, found):
    labels = clear[1]
    as_nan = estimate_raters(np.where(labels < 0, np.nan, labels))
    masked = estimate_raters(np.where(labels < 0, 7, labels), observed=labels >= 0)
    for other in (as_nan, masked):
        np.testing.assert_array_equal(other.T, found.T)
        np.testing.assert_array_equal(other.judged, labels >= 0)


def test_opinions_are_found_to_be_graded(opinions):
    clean, labels = opinions
    found = estimate_raters(labels)
    assert finite(found)
    assert found.graded.all()
    assert found.evidence.min() > 10
    clear = estimate_raters(labels, model="clear")
    assert not clear.graded.any()
    assert (found.consensus != clean).mean() < 0.6 * (clear.consensus != clean).mean()
    truth = np.stack([[labels[clean[:, j] == 0, j].mean(0), 1 - labels[clean[:, j] == 1, j].mean(0)] for j in range(Q)])
    off = np.abs(rates(found) - truth.transpose(2, 0, 1))
    assert off.mean() < 0.5 * np.abs(rates(clear) - truth.transpose(2, 0, 1)).mean()
    assert (off < 2.5 * found.stderr).mean() > 0.85
    assert (np.diff(found.rho_pos, axis=0) < 0).all()  # the raters are ordered from strict to lenient
    np.testing.assert_allclose(found.yes_probs.mean(0), labels.mean((0, 2)), atol=0.01)


def test_a_rater_with_few_judgements_gets_the_rates_of_the_others():
    rng = np.random.default_rng(3)
    clean = correlated_labels(rng, n=N, q=Q)
    labels = raters_of(rng, clean, np.full((R, Q), 0.05), np.full((R, Q), 0.3))
    labels[8:, :, 0] = -1
    labels[:, 1, 1] = -1
    found = estimate_raters(labels)
    assert finite(found)
    assert (found.status[0] == RaterStatus.POOLED).all()
    assert found.status[1, 1] == RaterStatus.NOT_JUDGED
    np.testing.assert_allclose(rates(found)[0], np.tile([0.05, 0.3], (Q, 1)), atol=0.1)
    np.testing.assert_allclose(rates(found)[1, 1], rates(found)[2:, 1].mean(0), atol=0.02)
    assert (found.stderr[0] > 1.5 * found.stderr[2]).all()


def test_a_class_that_is_never_present_has_a_status_and_no_nan(clear):
    labels = clear[1].copy()
    labels[:, 2] = np.where(labels[:, 2] < 0, -1, 0)
    found = estimate_raters(labels)
    assert finite(found)
    assert (found.status[:, 2] == RaterStatus.TOO_FEW).all()
    assert found.consensus[:, 2].sum() == 0
    assert found.prior[2] < 0.01
    assert found.alpha[2] == 0
    assert found.stderr[:, 2, 1].min() > 0.1


@pytest.mark.parametrize(("raters", "columns"), [(1, 1), (2, R)])
def test_one_or_two_raters_say_that_they_do_not_identify_T(clear, raters, columns):
    labels = np.where(np.arange(columns) < raters, clear[1][:, :, :columns], -1)  # the others never judged
    found = estimate_raters(labels)
    assert finite(found)
    assert (found.status[:raters] == RaterStatus.UNIDENTIFIABLE).all()
    assert (found.status[raters:] == RaterStatus.NOT_JUDGED).all()
    assert found.stderr[:raters].min() > 0.28
    agreed = (labels[:, :, :raters] == labels[:, :, :1]).all(2) & (labels[:, :, 0] >= 0)
    np.testing.assert_array_equal(found.consensus[agreed], labels[:, :, 0][agreed])


def test_raters_without_common_examples_do_not_identify_T(clear):
    mine = np.arange(N)[:, None] % R == np.arange(R)
    found = estimate_raters(np.where(mine[:, None], clear[1], -1))
    assert finite(found)
    assert (found.status == RaterStatus.UNIDENTIFIABLE).all()


def test_cells_that_nobody_judged_have_the_prior(clear):
    labels = clear[1].copy()
    labels[:10] = -1
    found = estimate_raters(labels)
    np.testing.assert_allclose(found.clean_probs[:10], np.tile(found.prior, (10, 1)), atol=0.01)
    assert not found.judged[:10].any()


def test_alpha_is_krippendorffs():
    labels = np.full((N, Q, R), -1, np.int8)
    # By hand: the values 1 1 | 0 0 | 0 1 | 1 1 0, and a cell with a single one, which does not count.
    labels[:5, 0, :3] = [[1, 1, -1], [0, 0, -1], [0, 1, -1], [1, 1, 0], [1, -1, -1]]
    labels[:4, 1] = [[0], [1], [0], [1]]
    found = estimate_raters(labels)
    observed, expected = 2 * 1 + 2 * 2 * 1 / 2, 2 * 5 * 4 / 8
    np.testing.assert_allclose(found.alpha, [1 - observed / expected, 1, 0, 0])
    np.testing.assert_allclose(found.alpha_overall, 1 - observed / (expected + 2 * 10 * 10 / 19))


def test_the_next_question_goes_to_the_best_rater_about_the_most_doubtful_cell(clear, found):
    asked = ask_next(found, most=200)
    assert len(asked.gain) == 200
    assert (np.diff(asked.gain) <= 0).all()
    assert not found.judged[asked.example, asked.column, asked.rater].any()
    assert found.right[asked.example, asked.column].mean() < 0.8 < found.right.mean()
    # The mutual information of a binary channel, and nobody who is left would tell more.
    i, j, r, gain = (x[0] for x in asked)
    p, (no, yes) = found.clean_probs[i, j].astype(float), found.T[:, j, :, 1].T.astype(float)

    def entropy(x):
        return -x * np.log2(x) - (1 - x) * np.log2(1 - x)

    told = entropy(p * yes + (1 - p) * no) - p * entropy(yes) - (1 - p) * entropy(no)
    np.testing.assert_allclose(gain, told[r], atol=1e-4)
    assert told[r] >= told[~found.judged[i, j]].max() - 1e-4


def test_answers_that_were_asked_for_help_more_than_others(clear, found):
    clean, labels, truth, _ = clear
    rng = np.random.default_rng(4)
    answers = raters_of(rng, clean, truth[..., 0], truth[..., 1])
    asked = ask_next(found)
    assert len(asked.gain) == (~found.judged).any(2).sum()  # one question for every cell that somebody is left for
    error = []
    for chosen in (np.arange(400), rng.permutation(len(asked.gain))[:400]):
        cell = tuple(x[chosen] for x in asked[:3])
        more = labels.copy()
        more[cell] = answers[cell]
        error.append((estimate_raters(more).consensus != clean).mean())
    assert error[0] < error[1] - 0.005


def test_costs_and_absent_raters_count(found):
    assert set(ask_next(found, available=[0, 0, 1, 0, 1]).rater) == {2, 4}
    cheap = ask_next(found, cost=[1, 1, 1, 1, 1e-3])
    left = ~found.judged[cheap.example, cheap.column, 4]
    assert (cheap.rater[left] == 4).mean() > 0.9
    with pytest.raises(ValueError, match=r"cost: .* pass positive numbers"):
        ask_next(found, cost=[1, 1, 0, 1, 1])
    with pytest.raises(ValueError, match=r"available: shape \(2,\); pass one value for each of the 5 raters"):
        ask_next(found, available=[True, False])


def test_long_tables_become_arrays():
    table = {
        "example": ["b", "a", "a", "a", "b"],
        "class": ["dog", "cat", "dog", "cat", "cat"],
        "rater": [7, 7, 7, 9, 9],
        "label": [1, 0, None, 1, 1],
    }
    read = rater_array(table)
    assert (read.examples, read.classes, read.raters) == (("a", "b"), ("cat", "dog"), (7, 9))
    np.testing.assert_array_equal(read.labels, [[[0, 1], [-1, -1]], [[-1, 1], [1, -1]]])
    ordered = rater_array(table, examples=["b", "a", "c"], classes=["dog", "cat"])
    np.testing.assert_array_equal(ordered.labels[:2], read.labels[::-1, ::-1])
    assert (ordered.labels[2] == -1).all()
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table).rename(columns={"rater": "who"})
    np.testing.assert_array_equal(rater_array(frame, rater="who").labels, read.labels)


@pytest.mark.parametrize(
    ("column", "row", "value", "said"),
    [
        ("label", 1, 2, "row 1 has label 2; pass 0 or 1"),
        ("rater", 3, 7, "row 1, 7 judges 'a', 'cat' twice and differently; keep one"),
        ("example", 0, "z", "row 0, column \"example\" is 'z', not among the names"),
    ],
)
def test_wrong_long_tables_are_refused(column, row, value, said):
    table = {"example": list("baaab"), "class": list("dcdcc"), "rater": [7, 7, 7, 9, 9], "label": [1, 0, 1, 1, 1]}
    table["class"] = [{"c": "cat", "d": "dog"}[c] for c in table["class"]]
    table[column][row] = value
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        rater_array(table, examples=["a", "b"])
    with pytest.raises(ValueError, match='column "who" is missing'):
        rater_array(table, rater="who")


def test_names_that_are_no_list_are_refused():
    table = {"example": ["a"], "class": ["cat"], "rater": [7], "label": [1]}
    with pytest.raises(ValueError, match=r"examples: ndarray of shape \(4, 0\); pass a list of names"):
        rater_array(table, examples=np.zeros((4, 0)))
    with pytest.raises(ValueError, match="classes: 5; pass a list of names"):
        rater_array(table, classes=5)


def test_wrong_input_is_named(clear, unchecked_shapes):
    labels = clear[1]
    with pytest.raises(ValueError, match=r"labels: shape \(1500, 4\)"):
        estimate_raters(labels[:, :, 0])
    wrong = labels.copy()
    wrong[3, 1, 2] = 5
    with pytest.raises(ValueError, match="labels: row 3, column 1, rater 2 is 5; pass 0 or 1"):
        estimate_raters(wrong)
    with pytest.raises(ValueError, match=r"observed: shape \(2,\)"):
        estimate_raters(labels, observed=[1, 0])
    with pytest.raises(ValueError, match=r"scores: shape \(3, 3\)"):
        estimate_raters(labels, scores=np.zeros((3, 3)))
    scores = np.zeros((N, Q))
    scores[7, 2] = np.inf
    with pytest.raises(ValueError, match="scores: row 7, column 2 is inf; pass finite logits"):
        estimate_raters(labels, scores=scores)
    with pytest.raises(ValueError, match=r"scores: row 0, column 0 is 3e\+38; pass finite logits, at most 1e\+09"):
        estimate_raters(labels, scores=np.full((N, Q), 3e38))
    with pytest.raises(ValueError, match="model: 'best'"):
        estimate_raters(labels, model="best")


def test_emotions_are_graded_and_other_raters_agree_with_the_consensus(real_data):
    labels = real_data("real/emotions_deu.npz")["raters"]
    labels = labels[np.random.default_rng(0).permutation(len(labels))[:N]][:, [0, 2, 3, 4]]

    def log_loss(p, out):
        yes, no = (out == 1).sum(2), (out == 0).sum(2)
        p = np.clip(p, 1e-3, 1 - 1e-3)
        return -np.log(np.where(yes > no, p, 1 - p))[yes != no].mean()

    loss = []
    for half in ([0, 3, 6, 1, 8], [2, 4, 5, 7, 9]):  # each half of the raters predicts the majority of the other
        inside, out = labels[:, :, half], np.delete(labels, half, 2)
        found, clear = estimate_raters(inside), estimate_raters(inside, model="clear")
        assert found.graded.sum() >= 3
        share = (inside == 1).sum(2) / (inside >= 0).sum(2)
        loss.append([log_loss(p, out) for p in (found.clean_probs, clear.clean_probs, share)])
    ours, dawid_skene, votes = np.mean(loss, axis=0)
    assert ours < 0.8 * min(dawid_skene, votes)


def test_arguments_of_another_type_are_named(unchecked_shapes):
    found = estimate_raters(np.zeros((2, 1, 2), int))
    table = {"example": [0], "class": [0], "rater": [0], "label": [1]}
    for error, message, call in (
        (TypeError, "found: None; pass the result of", lambda: ask_next(None)),
        (TypeError, "most: 'x'; pass a whole number", lambda: ask_next(found, most="x")),
        (TypeError, "cost: dtype <U1", lambda: ask_next(found, cost=["a", "b"])),
        (ValueError, "level: 1.5; pass", lambda: found.interval(1.5)),
        (TypeError, "table: None; pass a DataFrame", lambda: rater_array(None)),
        (TypeError, "rater: list; pass the name of a column", lambda: rater_array(table, rater=["rater"])),
        (ValueError, "model: list; pass", lambda: estimate_raters(np.zeros((2, 1, 2)), model=["auto"])),
        (ValueError, "labels: row 1 has length 1", lambda: estimate_raters([[0, 1], [0]])),
    ):
        with pytest.raises(error, match=message):
            call()


def test_empty_names_in_a_long_table_are_refused_and_names_of_two_kinds_are_taken():
    table = {"example": [0, 1, 1], "class": ["a", "a", "a"], "rater": ["r", "r", 7], "label": [1, 0, 1]}
    found = rater_array(table)
    assert found.raters == (7, "r")
    np.testing.assert_array_equal(estimate_raters(found).consensus, estimate_raters(found.labels).consensus)
    for gap in (None, float("nan")):
        with pytest.raises(ValueError, match='table: row 1, column "rater" is empty'):
            rater_array(table | {"rater": ["r", gap, "s"]})
