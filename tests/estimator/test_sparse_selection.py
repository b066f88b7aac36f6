import numpy as np
import pytest
import scipy.sparse as sp

from mlt_jax import Status, as_labels, estimate_all, losses_from_probs, select_clean
from mlt_jax.estimator.sparse_selection import sample_cells, select_blocks, select_largest, select_sampled


@pytest.fixture(scope="module")
def data():
    """Labels of topics with 30 % missed and 1 % false ones, and losses that mostly tell which."""
    rng = np.random.default_rng(0)
    topic = rng.integers(5, size=6000)
    clean = rng.random((6000, 20)) < np.where(topic[:, None] == np.arange(20) // 4, 0.5, 0.01)
    wrong = rng.random(clean.shape) < np.where(clean, 0.3, 0.01)
    losses = np.where(wrong, rng.gamma(5, 0.4, wrong.shape), rng.gamma(2, 0.12, wrong.shape)).astype(np.float32)
    labels = (clean ^ wrong).astype(np.uint8)
    labels[:, 3] = 0  # a class without positives
    labels[9:, 4] = 0  # and one with too few
    return labels, losses


@pytest.fixture(scope="module")
def logits(data):
    labels, losses = data
    p = np.exp(-losses.astype(float))
    p = np.where(labels == 1, p, 1 - p).clip(1e-6, 1 - 1e-6)
    return (np.log(p) - np.log1p(-p)).astype(np.float32)


@pytest.mark.parametrize(("assume", "max_memory"), [("general", 40 * 6000 * 7), ("general", 1), ("missing", 2**30)])
def test_blocks_select_what_all_losses_at_once_do(data, max_memory, assume):
    labels, losses = data
    expected = ~select_clean(losses, labels, assume=assume)
    for given in (labels, sp.csr_matrix(labels)):
        left = select_blocks(given, losses=losses, assume=assume, max_memory=max_memory)
        np.testing.assert_array_equal(left.toarray(), expected)
    assert 0 < left.nnz < 0.5 * labels.size
    estimate_all(sp.csr_array(labels), unselected=left, assume=assume)


def test_a_function_and_a_file_give_the_same_as_probabilities_in_memory(data, logits, tmp_path):
    labels, _ = data
    probs = (1 / (1 + np.exp(-logits))).astype(np.float32)
    expected = ~select_clean(losses_from_probs(probs, labels), labels)
    np.save(tmp_path / "probs.npy", probs)
    on_disk = np.load(tmp_path / "probs.npy", mmap_mode="r")
    asked = []

    def scores(columns):
        asked.extend(columns.tolist())
        return logits[:, columns]

    sparse, few = sp.csr_array(labels), 40 * 6000 * 7
    np.testing.assert_array_equal(select_blocks(sparse, probs=on_disk, max_memory=few).toarray(), expected)
    by_function = select_blocks(sparse, scores, max_memory=few).toarray()
    assert (by_function != expected).sum() <= 2  # logits and probabilities are rounded apart
    assert set(asked) == set(range(20))


def test_several_epochs_come_by_block_as_well(data):
    labels, losses = data
    history = np.stack([losses, losses**2])
    expected = ~select_clean(history, labels)
    for given in (history, lambda columns: history[..., columns]):
        left = select_blocks(labels, losses=given, max_memory=60 * 6000 * 7)
        np.testing.assert_array_equal(left.toarray(), expected)


def test_the_work_space_is_bounded(data):
    labels, losses = data
    widths = []

    def read(columns):
        widths.append(len(columns))
        return losses[:, columns]

    select_blocks(labels, losses=read, max_memory=40 * 6000 * 7)
    assert widths == [1, 7, 7, 7]


def test_losses_that_are_not_stored_count_as_zero(data):
    labels, losses = data
    kept = (labels == 1) | (losses > 0.2)
    expected = ~select_clean(np.where(kept, losses, 0), labels)
    sparse = sp.coo_array((losses[kept], np.nonzero(kept)), shape=labels.shape)
    left = select_largest(sp.csr_array(labels), sparse, max_memory=2**20)  # some classes at a time
    np.testing.assert_array_equal(left.toarray(), expected)
    assert 0 < left.nnz < sparse.nnz


def test_a_sample_selects_among_what_was_looked_at_alone(data):
    labels, losses = data
    cells = sample_cells(sp.csr_array(labels), 1000, seed=1)
    looked = cells.toarray()
    assert (labels <= looked).all()
    assert 0.9 < (looked & (labels == 0)).sum(0).mean() / (6000 * (1 - np.exp(-1 / 6)) * (1 - labels.mean())) < 1.1
    expected = select_clean(losses, labels, observed=looked)
    chosen = select_sampled(labels, cells.multiply(losses))
    np.testing.assert_array_equal(chosen.toarray(), expected)


def test_rates_of_a_sample_are_centred_and_say_how_uncertain_they_are():
    rng = np.random.default_rng(3)
    topic = rng.integers(25, size=10_000)
    clean = rng.random((10_000, 100)) < np.where(topic[:, None] == np.arange(100) // 4, 0.5, 0.005)
    wrong = rng.random(clean.shape) < np.where(clean, 0.3, 0.005)
    losses = np.where(wrong, rng.gamma(5, 0.4, wrong.shape), rng.gamma(2, 0.12, wrong.shape)).astype(np.float32)
    labels = sp.csr_array((clean ^ wrong).astype(np.int8))
    cells = sample_cells(labels, 2000)
    stored = cells.multiply(losses)
    honest = estimate_all(labels, select_sampled(labels, stored), stderr=True)
    whole = estimate_all(labels, unselected=select_blocks(labels, losses=losses))
    as_clean = estimate_all(labels, unselected=cells > select_sampled(labels, stored))  # what must not be done
    assert (np.asarray(honest.status) == Status.CORRELATION).all()
    assert float(np.median(honest.rho_pos)) == pytest.approx(0.3, abs=0.1)  # of 12 such samples, 0.26 to 0.36
    assert float(np.median(as_clean.rho_pos)) < 0.1
    np.testing.assert_allclose(honest.rho_neg, whole.rho_neg, atol=0.003)
    error = np.asarray(honest.rho_pos) - 0.3
    assert (np.abs(error) < 1.96 * np.asarray(honest.stderr[:, 1])).mean() > 0.85
    assert np.median(honest.stderr[:, 1]) > 0.1
    assert np.abs(error).mean() > 2 * np.abs(np.asarray(whole.rho_pos) - 0.3).mean()


def test_lists_of_all_lengths_are_filled_up_without_a_trace():
    rng = np.random.default_rng(4)
    labels = (rng.random((500, 12)) < np.geomspace(0.01, 0.9, 12)).astype(np.uint8)
    losses = rng.gamma(2, 0.3, labels.shape).astype(np.float32)
    stored = sp.csr_array(np.where(labels == 1, losses, 0))
    expected = select_clean(losses, labels, observed=labels == 1)
    np.testing.assert_array_equal(select_sampled(labels, stored).toarray(), expected)


LABELS = np.zeros((20, 3), np.uint8)


@pytest.mark.parametrize(
    ("scores", "options", "error", "message"),
    [
        (None, {}, ValueError, "scores: nothing given; pass one of scores, probs and losses"),
        (LABELS, {"probs": LABELS}, ValueError, "scores: scores and probs given"),
        (LABELS, {"tau": 0.0}, ValueError, "tau: 0.0"),
        (np.zeros((20, 2)), {}, ValueError, r"scores: shape \(20, 2\), labels have \(20, 3\)"),
        (
            lambda columns: np.zeros((20, 9)),
            {},
            ValueError,
            r"returned shape \(20, 9\) for 1 classes; return \(20, 1\)",
        ),
        (None, {"probs": LABELS + np.array([0, 0, 2])}, ValueError, r"probs: row 0, column 2 is 2.0; pass .* \[0, 1\]"),
        (LABELS + np.array([0, np.nan, 0]), {}, ValueError, "scores: row 0, column 1 is nan; pass finite values"),
        (sp.csr_array(LABELS), {}, TypeError, "scores: sparse; make losses of it for select_largest"),
        (lambda columns: np.full((20, len(columns)), "a"), {}, TypeError, "scores: dtype <U1; pass real numbers"),
    ],
)
def test_bad_scores_are_named(scores, options, error, message):
    with pytest.raises(error, match=message):
        select_blocks(LABELS, scores, **options)


@pytest.mark.parametrize(
    ("call", "losses", "error", "message"),
    [
        (select_largest, LABELS, TypeError, "losses: not sparse"),
        (
            select_largest,
            sp.eye_array(20, 3) * -1,
            ValueError,
            "row 0, column 0 is -1.0; pass finite losses of at least 0",
        ),
        (select_sampled, sp.eye_array(20, 4), ValueError, r"losses: shape \(20, 4\), labels have \(20, 3\)"),
        (sample_cells, 0, ValueError, "negatives: 0; pass at least 1"),
    ],
)
def test_bad_losses_are_named(call, losses, error, message):
    with pytest.raises(error, match=message):
        call(LABELS, losses)


def test_unobserved_labels_are_refused():
    with pytest.raises(ValueError, match="labels: some cells are not observed"):
        select_blocks(as_labels(LABELS, observed=np.eye(20, 3, dtype=bool)), LABELS)
