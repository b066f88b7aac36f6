import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from listed import assert_same, rare_labels

from mlt_jax import Status, estimate_all
from mlt_jax.estimator import list_masks


@pytest.fixture
def on_lists(monkeypatch):
    """Sparse labels with unobserved cells are counted as lists, whatever it costs."""
    monkeypatch.setattr(list_masks, "masked_lists_pay", lambda labels, mask: True)


def masked(seed):
    """Rare labels, selected and observed cells; which are observed depends on the class."""
    labels, selected = rare_labels(seed)
    rng = np.random.default_rng(seed)
    observed = rng.random(labels.shape) < rng.choice([0.7, 0.95, 1], labels.shape[1])
    if seed % 5 == 1:
        observed[:, 4] = labels[:, 0] == 0  # never seen with the positives of class 0
    return labels, selected, observed


def test_masked_lists_give_what_tables_give(on_lists, monkeypatch):
    solved, used = 0, []
    estimate = list_masks.estimate_masked
    monkeypatch.setattr(list_masks, "estimate_masked", lambda *a, **b: used.append(1) or estimate(*a, **b))
    for seed in range(100):
        labels, selected, observed = masked(seed)
        cells = {"selected": selected} if seed % 2 else {"unselected": ~selected}
        options = {"assume": ("general", "missing", "partial")[seed % 3], "min_selected": 5}
        expected = estimate_all(labels, selected, observed=observed, **options)
        sparse = {name: sp.csr_array(mask) for name, mask in cells.items()}
        if seed % 4 < 2:
            given = sp.csr_array(labels), {"observed": observed}
        else:
            given = sp.csr_array(np.where(observed, labels.astype(int), -1)), {"coding": "uncertain"}
        solved += assert_same(estimate_all(given[0], **given[1], **sparse, **options), expected)
    assert len(used) == 100
    assert solved > 200


def test_what_stands_at_unobserved_cells_is_ignored_and_what_is_wrong_elsewhere_is_named(on_lists):
    labels, selected, observed = masked(2)
    expected = estimate_all(labels, selected, observed=observed, min_selected=5)
    given = sp.csr_array(np.where(observed, labels, np.nan))
    assert assert_same(estimate_all(given, selected, observed=observed, min_selected=5), expected) > 3
    given[7, 3], observed[7, 3] = 3, True
    with pytest.raises(ValueError, match="labels: row 7, column 3 is 3; pass 0 or 1"):
        estimate_all(given, selected, observed=observed)


def test_masks_that_lists_do_not_serve_are_counted_in_tables(on_lists):
    labels, selected, observed = masked(2)
    for options in ({"aggregate": "mean"}, {"observed": ~observed}):
        options = {"observed": observed, "min_selected": 5} | options
        expected = estimate_all(labels, selected, **options)
        np.testing.assert_array_equal(estimate_all(sp.csr_array(labels), selected, **options).T, expected.T)


def test_eight_thousand_classes_with_unobserved_cells_need_no_table():
    rng = np.random.default_rng(0)
    n, q = 4000, 8000
    topic = rng.integers(0, 20, n)
    places = np.tile(np.arange(n), 4), np.concatenate([2 * topic, 2 * topic + 1, *rng.integers(40, q, (2, n))])
    values = np.where(np.arange(4 * n) < 3 * n, 1.0, -1.0)  # the last label of each example is unknown
    values[rng.random(4 * n) < 0.1] = -1
    labels = sp.csr_array((values, places), shape=(n, q))
    labels.data = np.clip(labels.data, -1, 1)
    hidden = sp.csr_array(((rng.random(4 * n) < 0.2).astype(int), places), shape=(n, q)) > 0
    tracemalloc.start()
    found = estimate_all(labels, unselected=hidden, coding="uncertain", max_memory=2**22)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < q**2 / 4  # bytes
    assert (np.asarray(found.status)[:40] == Status.CORRELATION).all()
