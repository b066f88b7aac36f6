import tracemalloc

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from simulate import unbiased

from mlt_jax import TransitionEstimate, count, estimate_all
from mlt_jax.estimator import correlations
from mlt_jax.estimator import sparse_counts as sparse
from mlt_jax.estimator.counts import check_inputs
from mlt_jax.estimator.solve import partner_ranks
from mlt_jax.estimator.sparse_counts import as_sparse_labels, as_sparse_mask, count_blocks
from mlt_jax.labels import Labels

FORMS = ("csr", "csc", "coo")


def simulated(n=3000, q=40):
    return unbiased(np.random.default_rng(0), n=n, q=q, keep=0.9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", ["dense selected", "selected", "dense unselected", "unselected"])
def test_sparse_counts_are_the_dense_ones(form, given):
    labels, selected = simulated()
    expected = count(labels, selected)
    cells = selected if given.endswith(" selected") or given == "selected" else ~selected
    cells = cells if given.startswith("dense") else sp.coo_array(cells).asformat(form)
    found = count(sp.coo_array(labels).asformat(form), **{given.split()[-1]: cells})
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_places_of_64_bits_become_32():
    labels, selected = simulated()
    wide = [sp.csr_array(x) for x in (labels, selected)]
    for matrix in wide:
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    checked = as_sparse_labels(wide[0])
    for matrix in (checked.by_example, checked.by_class, as_sparse_mask(wide[1], None, checked).cells):
        assert matrix.indices.dtype == matrix.indptr.dtype == np.int32
    assert wide[0].indices.dtype == np.int64  # the caller's stays as it is
    jax.tree.map(np.testing.assert_array_equal, count(*wide), count(labels, selected))


def test_long_lists_are_added_up_in_pieces(monkeypatch):
    labels, selected = simulated()
    expected = count(labels, selected)
    add_up, classes = sparse._add_up, []

    def watched(lists, examples, columns, out):
        classes.append(len(out))
        add_up(lists, examples, columns, out)

    monkeypatch.setattr(sparse, "_add_up", watched)
    count(sp.csr_array(labels), selected)
    assert set(classes) == {40}  # all at once
    monkeypatch.setattr(sparse, "_AT_ONCE", 10_000)
    jax.tree.map(np.testing.assert_array_equal, count(sp.csr_array(labels), selected), expected)
    assert min(classes) < 5


def test_dense_labels_take_the_unselected_too():
    labels, selected = simulated()
    observed = np.random.default_rng(1).random(labels.shape) < 0.8
    for options in ({}, {"observed": observed}):
        found = count(labels, unselected=~selected, **options)
        jax.tree.map(np.testing.assert_array_equal, found, count(labels, selected, **options))


def assert_same(found, expected, atol=1e-6):
    for name in TransitionEstimate._fields:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=atol, rtol=1e-4, err_msg=name)


def test_of_a_dense_selection_the_rarer_cells_are_listed():
    labels, selected = simulated()
    checked = as_sparse_labels(sp.csr_array(labels))
    for given in (selected, ~selected):
        mask = as_sparse_mask(given, None, checked)
        assert mask.cells.nnz < 0.5 * given.size
        np.testing.assert_array_equal(mask.cells.toarray() == mask.selected, given)


@pytest.mark.parametrize("aggregate", ["joint", "medoid", "residual"])
def test_blocks_of_classes_give_what_all_at_once_gives(aggregate):
    labels, selected = simulated()
    options = {"aggregate": aggregate, "fallback": np.tile(np.eye(2), (40, 1, 1)), "min_selected": 1000}
    expected = estimate_all(labels, selected, **options)
    for max_memory in (2**30, 16 * 40 * 7):  # all, seven classes at a time
        found = estimate_all(sp.csr_array(labels), unselected=sp.csr_array(~selected), max_memory=max_memory, **options)
        assert_same(found, expected)


@pytest.mark.parametrize("aggregate", ["joint", "mean"])
def test_drawn_partners_are_the_same_in_blocks_and_drawn_for_a_block_at_a_time(aggregate, monkeypatch):
    labels, selected = simulated(q=12)
    options = {"aggregate": aggregate, "num_partners": 3, "key": jax.random.key(0)}
    expected, asked = estimate_all(labels, selected, **options), []

    def spy(q, classes, **kwargs):
        ranks = partner_ranks(q, classes, **kwargs)
        asked.append(ranks.shape)
        return ranks

    monkeypatch.setattr(correlations, "partner_ranks", spy)
    found = estimate_all(sp.csr_array(labels), selected, max_memory=16 * 12 * 5, **options)
    assert_same(found, expected)
    assert asked == [(5, 12)] * 3


def test_a_class_draws_the_same_partners_whichever_others_draw():
    options = {"aggregate": "joint", "assume": "general", "num_partners": 4, "key": jax.random.key(3)}
    ranks = np.asarray(partner_ranks(50, **options))
    np.testing.assert_array_equal(partner_ranks(50, np.array([7, 49, 7]), **options), ranks[[7, 49, 7]])
    assert ((ranks < 50).sum(1) == 4).all()
    assert (np.diag(ranks) == 50).all()
    assert len({tuple(np.flatnonzero(row < 50)) for row in ranks}) > 45  # each class its own
    assert np.bincount(np.nonzero(ranks < 50)[1], minlength=50).max() < 15  # 4 of 49 each, by chance


def test_standard_errors_of_sparse_labels_are_the_dense_ones():
    labels, selected = simulated(q=10)
    expected = estimate_all(labels, selected, stderr=True)
    assert_same(
        estimate_all(sp.csr_array(labels), unselected=sp.csr_array(~selected), stderr=True), expected, atol=1e-5
    )
    assert_same(estimate_all(sp.csr_array(labels), selected, stderr=True), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("delicious_labels", 16_105),
        ("eurlex4k_train_labels", 1500),
        pytest.param("eurlex4k_train_labels", 15_539, marks=pytest.mark.slow),
    ],
)
def test_real_sparse_sets_give_the_dense_result(real_data, name, rows):
    parts = real_data(f"{name}.npz")
    labels = sp.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=parts["shape"])
    labels = labels[:rows].astype(np.int8)
    unselected = sp.random_array(labels.shape, density=0.01, rng=np.random.default_rng(0), format="csr") != 0
    found = estimate_all(labels, unselected=unselected, min_selected=5, max_memory=2**26)
    dense = estimate_all(labels.toarray(), ~unselected.toarray(), min_selected=5)
    assert_same(found, dense, atol=1e-5)


def test_neither_labels_nor_selection_become_dense():
    rng = np.random.default_rng(0)
    n, q = 20_000, 4_000
    labels = sp.csr_array((np.ones(4 * n, np.int8), (np.repeat(np.arange(n), 4), rng.integers(0, q, 4 * n))), (n, q))
    labels = (labels > 0).astype(np.int8)
    unselected = sp.random_array((n, q), density=1e-3, rng=rng, format="csr") != 0
    tracemalloc.start()
    found = estimate_all(labels, unselected=unselected, min_selected=1, max_memory=2**24)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.T.shape == (q, 2, 2)
    assert peak < n * q  # bytes: not even one byte per cell


def test_a_block_needs_no_more_than_it_may():
    labels, selected = simulated()
    checked = as_sparse_labels(sp.csr_array(labels))
    mask = as_sparse_mask(selected, None, checked)
    blocks = [(classes, tables.both.nbytes * 3) for classes, tables in count_blocks(checked, mask, max_memory=10_000)]
    assert max(size for _, size in blocks) <= 10_000
    assert {len(classes) for classes, _ in blocks} == {15}
    assert set(np.concatenate([classes for classes, _ in blocks])) == set(range(40))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"selected": None}, "selected, unselected: neither is given"),
        ({"unselected": np.zeros((5, 3))}, "selected, unselected: both are given"),
        ({"selected": sp.csr_array((5, 2))}, r"selected: shape \(5, 2\), labels have \(5, 3\)"),
        ({"selected": np.full((5, 3), 2)}, "selected: row 0, column 0 is 2"),
        ({"selected": sp.csr_array(np.diag([1, 1, 3])[[0, 1, 2, 0, 1]])}, "selected: row 2, column 2 is 3"),
        ({"labels": sp.csr_array(np.diag([1, 4, 1])[[0, 1, 2, 0, 1]])}, "labels: row 1, column 1 is 4; pass 0 or 1"),
        ({"labels": sp.csr_array((0, 3))}, r"labels: shape \(0, 3\)"),
    ],
)
def test_bad_input_is_named(kwargs, message):
    inputs = {"labels": sp.csr_array((5, 3)), "selected": np.zeros((5, 3), bool)} | kwargs
    with pytest.raises(ValueError, match=message):
        estimate_all(inputs.pop("labels"), inputs.pop("selected"), **inputs)


@pytest.mark.parametrize("aggregate", ["joint", "medoid"])
def test_nearly_empty_dense_labels_are_counted_as_sparse_ones(aggregate):
    rng = np.random.default_rng(0)
    labels, selected = (rng.random((6000, 301)) < 0.003).astype(np.uint8), rng.random((6000, 301)) < 0.99
    for given in ({"selected": selected}, {"unselected": ~selected}):
        checked, mask = check_inputs(labels, given.get("selected"), given.get("unselected"), observed=None, coding="01")
        np.testing.assert_array_equal(checked.by_example.toarray(), labels)
        np.testing.assert_array_equal(mask.cells.toarray() == mask.selected, selected)
    found = estimate_all(labels, selected, aggregate=aggregate)
    assert_same(found, estimate_all(sp.csr_array(labels), unselected=sp.csr_array(~selected), aggregate=aggregate))
    dense, _ = check_inputs(1 - labels, selected, None, observed=None, coding="01")
    assert isinstance(dense, Labels)


@pytest.mark.parametrize("shape", [(6000, 301), (6001, 64), (63, 1000)])
@pytest.mark.parametrize("at_once", [2**10, 2**23])
def test_dense_arrays_become_sparse_piece_by_piece(shape, at_once, monkeypatch):
    monkeypatch.setattr(sparse, "_CELLS_READ", at_once)
    rng = np.random.default_rng(1)
    values, mask = (rng.random(shape) < 0.02).astype(np.uint8), rng.random(shape) < 0.9
    values[10:80] = 0  # whole pieces without a label
    labels, stored = sparse.from_dense(values, mask, selected=True)
    np.testing.assert_array_equal(labels.by_example.toarray(), values)
    np.testing.assert_array_equal(stored.cells.toarray(), ~mask)
    assert not stored.selected
    for matrix in (labels.by_example, stored.cells):
        assert matrix.has_canonical_format
        assert matrix.indices.dtype == np.int32


@pytest.mark.parametrize("wrong", [2, 3, 255])
def test_a_wrong_value_among_nearly_empty_labels_is_named(wrong):
    labels = np.zeros((6000, 301), np.uint8)
    labels[::50, ::7], labels[4321, 123] = 1, wrong
    with pytest.raises(ValueError, match=f"labels: row 4321, column 123 is {wrong}; pass 0 or 1"):
        estimate_all(labels, np.ones(labels.shape, bool))
