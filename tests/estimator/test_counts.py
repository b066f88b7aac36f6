import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax.estimator.counts import Tables, count, count_arrays, group_means


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    labels, selected, observed = (rng.random((300, 6)) < share for share in (0.3, 0.7, 0.8))
    return labels.astype(np.uint8), selected, observed


def by_hand(y, s, o):
    """Every count of every pair, one pair at a time."""
    q = y.shape[1]
    tables = {name: np.zeros((q, q), int) for name in Tables._fields}
    for j in range(q):
        for i in range(q):
            seen = o[:, j] & o[:, i]
            yj, yi, sj = y[seen, j] == 1, y[seen, i] == 1, s[seen, j]
            tables["both"][j, i], tables["partner"][j, i] = (yj & yi).sum(), yi.sum()
            tables["pos"][j, i], tables["neg"][j, i] = (sj & yj & yi).sum(), (sj & ~yj & yi).sum()
            tables["total"][j, i], tables["total_both"][j, i] = seen.sum(), yj.sum()
            tables["total_pos"][j, i], tables["total_neg"][j, i] = (sj & yj).sum(), (sj & ~yj).sum()
    return tables


@pytest.mark.parametrize("masked", [False, True])
def test_counts_equal_a_loop_over_pairs(batch, masked):
    y, s, o = batch
    tables = count(y, s, observed=o if masked else None)
    expected = by_hand(y, s, o if masked else np.ones_like(o))
    for name, value in tables._asdict().items():
        np.testing.assert_array_equal(np.broadcast_to(value, (6, 6)), expected[name], err_msg=name)
    assert tables.total.shape == ((6, 6) if masked else (1, 1))


def test_what_stands_in_an_unobserved_cell_does_not_count(batch):
    y, s, o = batch
    other = count(np.where(o, y, 1 - y), s | ~o, observed=o)
    for a, b in zip(count(y, s, observed=o), other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_batches_in_any_split_merge_to_the_whole(batch):
    y, s, o = batch
    whole = count(y, s)
    merged = count(y[:70], s[:70]).update(y[70:71], s[70:71]).merge(count(y[71:], s[71:]))
    for a, b in zip(whole, merged, strict=True):
        np.testing.assert_array_equal(a, b)
    # A masked and an unmasked batch, too.
    mixed = count(y[:70], s[:70], observed=np.ones_like(o[:70]) & (np.arange(6) < 9))
    mixed = mixed.merge(count(y[70:], s[70:], observed=o[70:]))
    known = np.concatenate([np.ones_like(o[:70]), o[70:]])
    for a, b in zip(count(y, s, observed=known), mixed, strict=True):
        np.testing.assert_array_equal(a, b)


def test_counts_past_the_exact_range_of_float32_are_exact():
    n = 2**24 + 3  # one more than float32 can tell apart
    y = np.ones((n, 2), np.uint8)
    y[:2, 1] = 0
    tables = count(y, np.ones((n, 2), bool))
    assert tables.both.tolist() == [[n, n - 2], [n - 2, n - 2]]
    assert tables.total.tolist() == [[n]]
    assert tables.neg.tolist() == [[0, 0], [2, 0]]


def test_groups_are_disjoint_and_complete(batch):
    y, s, o = batch
    tables = count(y, s, observed=o)
    ones, totals = map(jnp.stack, tables.groups())
    np.testing.assert_array_equal(ones.sum(0), tables.partner)
    np.testing.assert_array_equal(totals.sum(0), tables.total)
    assert int(ones.min()) >= 0
    assert int((totals - ones).min()) >= 0


def test_probabilities_are_the_frequencies(batch):
    y, s, _ = batch
    p = count(y, s).probabilities()
    assert float(p.m_j[2, 0]) == pytest.approx(y[:, 2].mean())
    assert float(p.m_i[0, 4]) == pytest.approx(y[:, 4].mean())
    assert float(p.e[2, 4]) == pytest.approx((y[:, 2] * y[:, 4]).mean())
    assert float(p.a[2, 4]) == pytest.approx(y[s[:, 2] & (y[:, 2] == 0), 4].mean())
    assert float(p.b[2, 4]) == pytest.approx(y[s[:, 2] & (y[:, 2] == 1), 4].mean())


def test_merging_other_classes_or_too_many_examples_is_an_error(batch):
    y, s, _ = batch
    tables = count(y, s)
    with pytest.raises(ValueError, match="other: has 5 classes, these tables have 6"):
        tables.merge(count(y[:, :5], s[:, :5]))
    huge = tables._replace(total=jnp.full((1, 1), 2**31 - 100, jnp.int32))
    with pytest.raises(ValueError, match="keep them below"):
        huge.merge(tables)


def test_selected_of_another_shape_is_an_error(batch):
    y, s, _ = batch
    with pytest.raises(ValueError, match=r"selected: shape \(299, 6\), labels have \(300, 6\)"):
        count(y, s[1:])


def test_means_of_groups_lie_on_the_line_whatever_is_observed_depends_on():
    """Exact counts: a partner that is on in 0.2 or 0.7 by clean label, observed by clean, given or its own label."""
    size, theta = np.array([300, 2000, 150, 500.0]), np.array([1, 0, 0.4, 0.2])  # clean positives among S+, S-, U+, U-
    given, clean, own = np.array([1, 0, 1, 0]), np.array([0, 1]), np.array([0, 1])
    on = np.array([0.2, 0.7])
    seen_if = {  # by group, clean label and the partner's label
        "nothing": np.full((4, 2, 2), 0.6),
        "given": np.broadcast_to(np.where(given == 1, 0.9, 0.2)[:, None, None], (4, 2, 2)),
        "clean": np.broadcast_to(np.where(clean == 1, 0.9, 0.2)[None, :, None], (4, 2, 2)),
        "own": np.broadcast_to(np.where(own == 1, 0.9, 0.2), (4, 2, 2)),
        "clean and own": np.broadcast_to(np.array([[0.2, 0.5], [0.4, 0.9]]), (4, 2, 2)),
    }
    share = np.stack([1 - theta, theta], 1)[:, :, None] * np.stack([1 - on, on], 1)[None]  # group, clean, partner
    seen = [size[:, None, None] * share * how for how in seen_if.values()]
    ones = np.stack([x[:, :, 1].sum(1) for x in seen], 1)
    totals = np.stack([*(x.sum((1, 2)) for x in seen), size], 1)  # the last column is the class itself
    mean, all_there = group_means(*map(jnp.asarray, (np.concatenate([ones, ones[:, :1]], 1), totals)))
    mean = np.stack(mean)[:, :5]
    found = (mean[2:] - mean[1]) / (mean[0] - mean[1])
    np.testing.assert_allclose(found, np.tile(theta[2:, None], 5), atol=1e-5)
    assert all_there.all()
    assert group_means(jnp.asarray(ones), jnp.asarray(totals[:, :5]).at[2, 3].set(0))[1].tolist() == [1, 1, 1, 0, 1]


def test_more_rows_than_one_packed_number_holds_are_counted_exactly():
    rng = np.random.default_rng(0)
    labels, selected = (rng.random((2**17 + 5000, 3)) < 0.99).astype(np.uint8), rng.random((2**17 + 5000, 3)) < 0.99
    found, expected = count(labels, selected), count_arrays(labels, selected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert int(found.pos.max()) > 2**16


def test_factors_of_16_bits_count_exactly(monkeypatch):
    rng = np.random.default_rng(0)
    labels, selected = (rng.random((3001, 5)) < 0.9).astype(np.uint8), rng.random((3001, 5)) < 0.9
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    low = jax.make_jaxpr(count_arrays)(labels, selected)
    assert "bf16" in str(low)
    found = jax.core.eval_jaxpr(low.jaxpr, low.consts, labels, selected)
    assert found[1].dtype == np.int32
    np.testing.assert_array_equal(found[1], (labels * selected).T.astype(int) @ labels)


def test_tables_merge_with_tables_alone(unchecked_shapes):
    with pytest.raises(TypeError, match="other: None; pass the `Tables`"):
        count(np.eye(3), np.ones((3, 3))).merge(None)


@pytest.mark.parametrize("n", [4095, 4096, 9000])
def test_digits_of_packed_counts_never_overflow(n):
    rng = np.random.default_rng(0)
    labels, selected = (rng.random((n, 70)) < 0.3).astype(np.uint8), rng.random((n, 70)) < 0.9
    labels[:, 0] = labels[:, 1] = selected[:, 0] = selected[:, 1] = 1  # the largest counts there are
    labels[:, 2], selected[:, 2] = 0, 1
    found = count(labels, selected)
    y, s = labels.astype(int), selected.astype(int)
    for name, group in (("both", y), ("pos", s * y), ("neg", s * (1 - y))):
        np.testing.assert_array_equal(getattr(found, name), group.T @ y)
        np.testing.assert_array_equal(getattr(found, f"total_{name}")[:, 0], group.sum(0))
    np.testing.assert_array_equal(found.partner[0], y.sum(0))
