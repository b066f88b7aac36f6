import os
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from listed import assert_same, rare_labels
from paths import ROOT

from mlt_jax import Status, TransitionEstimate, count, estimate_all, estimate_from_tables
from mlt_jax.estimator import lists
from mlt_jax.estimator.lists import count_lists, estimate_from_lists


@pytest.fixture
def on_lists(monkeypatch):
    """Sparse labels are counted as lists, whatever it costs."""
    monkeypatch.setattr(lists, "_PAY", np.inf)


def test_lists_give_what_tables_give(on_lists):
    solved = 0
    for seed in range(200):
        labels, selected = rare_labels(seed)
        cells = {"selected": selected} if seed % 2 else {"unselected": ~selected}
        options = {"assume": ("general", "missing", "partial")[seed % 3], "min_selected": 5}
        expected = estimate_all(labels, selected, **options)
        sparse = {name: sp.csr_array(mask) for name, mask in cells.items()}
        solved += assert_same(estimate_all(sp.csr_array(labels), **sparse, **options), expected)
    assert solved > 500


@pytest.mark.parametrize(("form", "assume"), [("unselected", "missing"), ("selected", "partial")])
def test_standard_errors_are_those_of_tables(on_lists, form, assume):
    labels, selected = rare_labels(2)
    cells = sp.csr_array(selected if form == "selected" else ~selected)
    options = {"assume": assume, "min_selected": 5, "stderr": True}
    expected = estimate_all(labels, selected, **options)
    found = estimate_all(sp.csr_array(labels), **{form: cells}, max_memory=1_000_000, **options)
    assert assert_same(found, expected) > 5
    known = np.isfinite(expected.stderr)
    np.testing.assert_array_equal(np.isfinite(found.stderr), known)


def test_two_batches_merge_to_the_lists_of_both(on_lists):
    labels, selected = rare_labels(1)
    cells = sp.csr_array(~selected)
    first, second = (count_lists(labels[rows], unselected=cells[rows]) for rows in (slice(150), slice(150, None)))
    merged, whole = first.merge(second), count_lists(sp.csr_array(labels), unselected=cells)
    assert (merged.counts != whole.counts).nnz == 0
    np.testing.assert_array_equal(merged.sizes, whole.sizes)
    found = estimate_from_lists(merged, min_selected=5)
    assert_same(found, estimate_all(labels, selected, min_selected=5))
    with pytest.raises(ValueError, match="other: lists of selected cells"):
        whole.merge(count_lists(labels, sp.csr_array(selected)))
    with pytest.raises(ValueError, match="other: has 11 classes, these lists have 12"):
        whole.merge(count_lists(labels[:, 1:], unselected=cells[:, 1:]))


def test_too_many_positives_are_refused(monkeypatch):
    labels, selected = rare_labels(5)
    monkeypatch.setattr(lists, "MOST_POSITIVES", 399)
    with pytest.raises(ValueError, match="labels: class 1 has 400 positives; lists count to 399"):
        count_lists(labels, selected)
    monkeypatch.setattr(lists, "_PAY", np.inf)
    assert estimate_all(sp.csr_array(labels), selected).T.shape == (12, 2, 2)  # by tables


def test_small_blocks_change_nothing(on_lists, monkeypatch):
    labels, selected = rare_labels(3)
    sparse = sp.csr_array(labels), sp.csr_array(selected)
    expected = estimate_all(*sparse, min_selected=5)
    blocks, count = [], lists._clouds
    monkeypatch.setattr(lists, "_clouds", lambda *each: blocks.append(each[1]) or count(*each))
    found = estimate_all(*sparse, min_selected=5, max_memory=20_000)
    assert len(set(blocks)) > 5
    for name in TransitionEstimate._fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_eight_thousand_classes_need_no_table():
    rng = np.random.default_rng(0)
    n, q = 4000, 8000
    topic = np.where(rng.random(n) < 0.5, rng.integers(0, 20, n), -1)  # half the examples have two labels of a topic
    labels = sp.coo_array((np.ones(n, np.int8), (np.arange(n), rng.integers(40, q, n))), shape=(n, q)).tocsr()
    for k in (0, 1):
        labels += sp.coo_array((topic >= 0, (np.arange(n), np.maximum(2 * topic + k, 0))), shape=(n, q)).astype(np.int8)
    hidden = labels.copy()
    hidden.data = (rng.random(labels.nnz) < 0.2).astype(np.int8)
    tracemalloc.start()
    found = estimate_all(labels, unselected=hidden)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < q**2 / 8  # bytes
    assert (np.asarray(found.status)[:40] == Status.CORRELATION).all()
    assert np.abs(found.rho_neg[:40]).max() < 0.05


@pytest.mark.parametrize("name", ["openimages214_labels", "delicious_labels", "eurlex4k_train_labels"])
def test_a_real_set_gives_what_tables_give(real_data, on_lists, name):
    parts = real_data(f"{name}.npz")
    labels = sp.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=parts["shape"])
    labels = (labels[:20_000] > 0).astype(np.int8)
    rng = np.random.default_rng(0)
    unselected = labels.copy()
    unselected.data = (rng.random(labels.nnz) < 0.2).astype(np.int8)  # and as many negatives
    density = unselected.sum() / labels.shape[0] / labels.shape[1]
    unselected = (unselected + (sp.random_array(labels.shape, density=density, rng=rng) > 0)) > 0
    found = estimate_all(labels, unselected=unselected, min_selected=5)
    expected = estimate_from_tables(count(labels, unselected=unselected), min_selected=5)
    assert assert_same(found, expected) > 50


# Says when the first block is done, then goes on slowly.
SLOW = """
import os, signal, sys, time
from mlt_jax import cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has its background jobs ignore
from mlt_jax.estimator import lists
clouds = lists._clouds
def slow(*block):
    os.write(1, b"block\\n")  # whole, whichever thread it is
    time.sleep(0.2)
    return clouds(*block)
lists._clouds, lists._PAIRS_AT_ONCE, lists._PAY = slow, 10, float("inf")
sys.exit(cli.main(sys.argv[1:]))
"""


def test_an_interrupt_ends_it_with_one_line_and_no_file(tmp_path):
    labels, selected = rare_labels(1, q=400)
    sp.save_npz(tmp_path / "labels.npz", sp.csr_array(labels))
    sp.save_npz(tmp_path / "cells.npz", sp.csr_array(labels > selected))
    words = [sys.executable, "-c", SLOW, "estimate", "labels.npz", "--unselected", "cells.npz", "--out", "T.npz"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes)
    assert process.stdout.readline() == "block\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert err == "mlt: interrupted\n"  # no bar either: this is no terminal
    assert out.count("block") < 100  # of 400
    assert not (tmp_path / "T.npz").exists()


def test_a_class_may_have_more_stored_negatives_than_a_count_has_bits():
    n = lists.MOST_POSITIVES + 11
    labels = sp.csr_array((np.ones(3, np.int8), ([0, 1, 2], [1, 1, 2])), shape=(n, 3))
    cells = sp.csr_array((np.ones(n, np.int8), (np.arange(n), np.zeros(n, int))), shape=(n, 3))
    assert count_lists(labels, unselected=cells).sizes.tolist() == [[0, 0, n], [2, 0, 0], [1, 0, 0]]


def test_what_is_no_lists_is_named(unchecked_shapes):
    with pytest.raises(TypeError, match="lists: 3; pass the `Lists`"):
        estimate_from_lists(3)
    with pytest.raises(TypeError, match="other: 3; pass the `Lists`"):
        count_lists(sp.eye_array(3), selected=sp.eye_array(3)).merge(3)
