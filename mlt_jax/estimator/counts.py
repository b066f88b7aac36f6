"""Counts of co-occurring labels: over all examples (E) and over the examples selected as clean (M), for all pairs.

Every table is indexed `[j, i]`: class j, whose noise is estimated, and partner i, the other class of the pair.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt8

from mlt_jax.arguments import shown
from mlt_jax.labels import Labels, as_labels, as_mask, check_coding

# A float32 sum of ones is exact up to here, so each product of this many rows is; the products are added as integers.
_EXACT_ROWS = 2**24 - 1
_CHUNK_CELLS = 2**25
# Two counts of so many rows fit a float32; so many cells at a time fit the cache.
_PACKED_BITS = 12
_PACKED_ROWS = 2**_PACKED_BITS - 1
_PACKED_CELLS = 2**18
# What a cell takes to become sparse and a pair of labels to be added to a list, in units of 1500 multiplications.
_CELL_TIME, _PAIR_TIME = 0.05, 3.0
_SAMPLE = 2**12


# How often each partner is 1 in the four groups of examples of a class, see `Tables.groups`.
Groups = list[Array] | Float[Array, "4 q"]


class Tables(NamedTuple):
    """Integer counts for all pairs; totals are `(q, 1)`, or `(q, q)` when some cells are unobserved.

    With a mask, only examples where both labels of the pair are observed count for that pair; the diagonal has the
    class's own observed examples.
    """

    both: Int[Array, "q q"]  # noisy_j = 1 and noisy_i = 1
    pos: Int[Array, "q q"]  # selected_j, noisy_j = 1 and noisy_i = 1
    neg: Int[Array, "q q"]  # selected_j, noisy_j = 0 and noisy_i = 1
    partner: Int[Array, "#q q"]  # noisy_i = 1
    total: Int[Array, "#q #p"]  # examples
    total_both: Int[Array, "q #p"]  # noisy_j = 1
    total_pos: Int[Array, "q #p"]  # selected_j, noisy_j = 1
    total_neg: Int[Array, "q #p"]  # selected_j, noisy_j = 0

    def merge(self, other: "Tables") -> "Tables":
        """Tables of both data sets together (from two batches, or two machines)."""
        if not isinstance(other, Tables):
            raise TypeError(f"other: {shown(other)}; pass the `Tables` that `count` returns")
        if self.both.shape != other.both.shape:
            raise ValueError(f"other: has {len(other.both)} classes, these tables have {len(self.both)}")
        if self.total_both.shape != other.total_both.shape:  # only one of them has unobserved cells
            self, other = (Tables(*(jnp.broadcast_to(x, self.both.shape) for x in each)) for each in (self, other))
        n = int(np.max(self.total)) + int(np.max(other.total))
        if n >= 2**31:
            raise ValueError(f"other: together {n} examples; counts are 32-bit, keep them below 2**31")
        return Tables(*(a + b for a, b in zip(self, other, strict=True)))

    def update(self, labels: Any, selected: Any, **kwargs: Any) -> "Tables":
        """These tables plus one more batch; arguments as in `count`."""
        return self.merge(count(labels, selected, **kwargs))

    def groups(self) -> tuple[list[Array], list[Array]]:
        """How often noisy_i = 1 in each of four disjoint groups of examples, and the sizes of the groups.

        Groups of class j: selected positives, selected negatives, unselected positives, unselected negatives. They are
        lists of four, because stacking them would copy the tables.
        """
        ones = [self.pos, self.neg, self.both - self.pos, self.partner - self.both - self.neg]
        unselected = self.total - self.total_both - self.total_neg
        return ones, [self.total_pos, self.total_neg, self.total_both - self.total_pos, unselected]

    def probabilities(self) -> "Probabilities":
        """The frequencies in the paper's systems of equations (labels pro_two_labels and pro_condition).

        Of unobserved cells they know nothing: with a mask they are those of the examples where both are observed.
        """
        dtype = jnp.result_type(float)

        def ratio(count: Array, total: Array) -> Array:
            return count.astype(dtype) / jnp.maximum(total, 1).astype(dtype)

        return Probabilities(
            m_j=ratio(self.total_both, self.total),
            m_i=ratio(self.partner, self.total),
            e=ratio(self.both, self.total),
            a=ratio(self.neg, self.total_neg),
            b=ratio(self.pos, self.total_pos),
        )


def own_sizes(totals: Float[Array, "4 #q"]) -> Float[Array, "4"]:
    """Sizes of a class's four groups over its own observed examples; no partner is observed with more of them."""
    return jnp.max(totals, axis=1)


def group_means(ones: Groups, totals: Float[Array, "4 #q"]) -> tuple[list[Array], Bool[Array, "#q"]]:
    """How often each partner is 1 in the four groups of a class, and which partners were observed in all of them.

    With a mask, a mean is over the examples where the partner is observed. If being observed depends on the clean label
    of the class, or on the partner's own, these are another mixture than the whole unselected group: of U+, clean
    positives are the share theta o(S+) / o(U+), where o is how often the partner is observed. So the mean of U+ is put
    o(U+) / o(S+) times as far from that of S-, and that of U- o(U-) / o(S-) times as far from that of S+. That leaves
    the line, and the shares on it, as if all were observed: whether being observed depends on the clean label of the
    class and on the partner's, or on the given label of the class, or on nothing.
    """
    per_example = 1 / jnp.maximum(totals, 1)
    mean = [ones[g] * per_example[g] for g in range(4)]
    if totals.shape[1] == 1:
        return mean, jnp.ones(1, bool)
    size = own_sizes(totals)
    seen = [totals[g] / jnp.maximum(size[g], 1) for g in range(4)]
    for unselected, same, other in ((2, 0, 1), (3, 1, 0)):
        stretch = seen[unselected] / jnp.where(seen[same] > 0, seen[same], 1)
        mean[unselected] = mean[other] + stretch * (mean[unselected] - mean[other])
    return mean, jnp.all((totals > 0) | (size == 0)[:, None], axis=0)


class Probabilities(NamedTuple):
    """Frequencies for all pairs `[j, i]`, the arguments of `estimate_pair`."""

    m_j: Float[Array, "q #p"]  # P(noisy_j = 1)
    m_i: Float[Array, "#q q"]  # P(noisy_i = 1)
    e: Float[Array, "q q"]  # P(noisy_j = 1, noisy_i = 1)
    a: Float[Array, "q q"]  # P(noisy_i = 1 | clean_j = 0), over the selected
    b: Float[Array, "q q"]  # P(noisy_i = 1 | clean_j = 1), over the selected


def count(
    labels: Any, selected: Any = None, *, unselected: Any = None, observed: Any = None, coding: str = "01"
) -> Tables:
    """Tables of all q x q pairs, exact for n < 2**31.

    These are matrix products such as `Y'Y`, `(S*Y)'Y` and `(S*(1-Y))'Y` of labels Y and selection S.

    Args:
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`; scipy.sparse labels with coding
        "01" and all cells observed are counted without making them dense.
      selected: (n, q), True where the label is taken as clean.
      unselected: (n, q), its complement, in place of `selected`; with sparse labels give the smaller one, as sparse.

    Raises:
      ValueError: both or neither of `selected` and `unselected`, or arrays that are not as described.
    """
    return count_checked(*check_inputs(labels, selected, unselected, observed=observed, coding=coding))


def check_inputs(
    labels: Any, selected: Any, unselected: Any, *, observed: Any, coding: str, masked: bool = False
) -> tuple[Any, Any]:
    """`Labels` and the bool mask (n, q) of selected cells; `SparseLabels`, `SparseMask` where that is cheaper.

    Sparse labels stay sparse, and dense ones that are nearly all zero become it: both give the same counts. Those with
    unobserved cells stay sparse only if `masked` says that the caller can count them so.
    """
    if (selected is None) == (unselected is None):
        both = "neither is given" if selected is None else "both are given"
        raise ValueError(f"selected, unselected: {both}; pass one of them, (n, q)")
    check_coding(coding)
    if hasattr(labels, "tocsc") and observed is None and coding == "01":
        from mlt_jax.estimator import sparse_counts as sparse  # scipy.sparse is only needed here

        sparse_labels = sparse.as_sparse_labels(labels)
        return sparse_labels, sparse.as_sparse_mask(selected, unselected, sparse_labels)
    if hasattr(labels, "tocsc") and masked:
        from mlt_jax.estimator import sparse_counts as sparse

        known = sparse.as_masked_labels(labels, observed, coding=coding)
        if known is not None:
            return known, sparse.as_sparse_mask(selected, unselected, known)
    name, given = ("selected", selected) if unselected is None else ("unselected", unselected)
    if observed is None and coding == "01" and _are_bytes(labels, given):
        found = _as_sparse(labels, given, name)
        if found is not None:
            return found
    checked = as_labels(labels, coding=coding, observed=observed)
    given = as_mask(given, checked, name=name)
    found = _as_sparse(checked.values, given, name) if checked.observed is None else None
    if found is not None:
        return found
    mask = given if unselected is None else ~given
    return checked, mask if checked.observed is None else mask & checked.observed


def _are_bytes(labels: Any, mask: Any) -> bool:
    """Whether these are (n, q) NumPy arrays of a byte per cell, which need no conversion."""
    fit = all(isinstance(x, np.ndarray) and x.ndim == 2 and x.size for x in (labels, mask))
    return fit and labels.shape == mask.shape and labels.dtype == np.uint8 and mask.dtype == bool


def _as_sparse(values: UInt8[np.ndarray, "n q"], given: Bool[np.ndarray, "n q"], name: str) -> tuple[Any, Any] | None:
    """Dense labels that are nearly all zero, and their mask, as sparse ones; None where that is slower.

    Or where a label is neither 0 nor 1: a whole pass over them to check that first would take as long as reading them.
    """
    if not _nearly_empty(values, given):
        return None
    from mlt_jax.estimator import sparse_counts as sparse

    return sparse.from_dense(values, given, selected=name == "selected")


def _nearly_empty(values: UInt8[np.ndarray, "n q"], mask: Bool[np.ndarray, "n q"]) -> bool:
    """Whether dense labels are counted faster as sparse ones, by times that were measured on a CPU."""
    n, q = values.shape
    step = -(-n // _SAMPLE)  # a sample of the rows tells enough
    given, stored = (np.count_nonzero(x[::step].copy().view(bool)) * step for x in (values, mask))
    pairs = given / n * (given + min(stored, abs(n * q - stored)))
    return bool(n * q * _CELL_TIME + min(_PAIR_TIME * pairs, q * q / 2 + pairs / 4) < n * q * q / 1500)


def count_checked(labels: Any, selected: Any) -> Tables:
    """`count` of what `check_inputs` returns."""
    if not isinstance(labels, Labels):
        from mlt_jax.estimator.sparse_counts import count_sparse

        return count_sparse(labels, selected)
    if labels.observed is None and jax.default_backend() == "cpu":
        return _count_packed(labels.values, selected)
    n, q = labels.values.shape
    rows = max(1, min(_EXACT_ROWS, _CHUNK_CELLS // q))
    arrays = (labels.values, selected) if labels.observed is None else (labels.values, selected, labels.observed)
    parts = (count_arrays(*(x[start : start + rows] for x in arrays)) for start in range(0, n, rows))
    return reduce(Tables.merge, parts)


def _count_packed(values: UInt8[np.ndarray, "n q"], selected: Bool[np.ndarray, "n q"]) -> Tables:
    """`count` on the CPU: one float32 product counts S+ and S-, in digits of their own, and one of half the cost Y'Y.

    BLAS multiplies; a thread per core prepares the factors and takes the counts out of the products.
    """
    n, q = values.shape
    rows, step = min(n, _PACKED_ROWS), max(1, _PACKED_CELLS // q)
    code, right = np.empty((rows, q), np.float32), np.ones((rows, q + 1), np.float32)
    both, pos, neg = (np.zeros((q, q + 1), np.int32) for _ in range(3))  # the last column has the sizes

    def prepare(part: slice, y: np.ndarray, s: np.ndarray) -> None:
        kind = np.multiply(y[part], _PACKED_ROWS, dtype=np.uint16)
        kind += 1
        kind *= s[part].view(np.uint8)
        code[part] = kind  # S-: 1, S+: 2**_PACKED_BITS, unselected: 0
        right[part, :q] = y[part]

    def unpack(part: slice, products: np.ndarray, packed: np.ndarray) -> None:
        both[part] += products[part].astype(np.int32)
        counts = packed[part].astype(np.int32)
        pos[part] += counts >> _PACKED_BITS
        neg[part] += counts & _PACKED_ROWS

    def in_parts(work: Callable[..., None], number: int, *arrays: np.ndarray) -> None:
        list(pool.map(lambda k: work(slice(k, min(k + step, number)), *arrays), range(0, number, step)))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, n, rows):
            y, s = values[start : start + rows], selected[start : start + rows]
            in_parts(prepare, len(y), y, s)
            seen = right[: len(y)]
            in_parts(unpack, q, (seen.T @ seen)[:q], code[: len(y)].T @ seen)
    tables = (both[:, :q], pos[:, :q], neg[:, :q], both[None, :, q])
    sizes = (np.full((1, 1), n, np.int32), both[:, q:], pos[:, q:], neg[:, q:])
    return Tables(*map(jnp.asarray, (*tables, *sizes)))


@jax.jit
def count_arrays(
    y: Shaped[Array | np.ndarray, "n q"],
    s: Shaped[Array | np.ndarray, "n q"],
    o: Shaped[Array | np.ndarray, "n q"] | None = None,
    weight: Int[Array, "n"] | None = None,
) -> Tables:
    """`count` of 0/1 arrays on the device, exact below 2**24 examples; `weight` repeats examples."""
    y, s = jnp.asarray(y, bool), jnp.asarray(s, bool)
    o = None if o is None else jnp.asarray(o, bool)
    s = s if o is None else s & o
    seen = jnp.ones((len(y), 1), bool) if o is None else o
    # Without weights 8 bits are enough for the factors, on hardware that multiplies them faster; sums have 32.
    dtype = jnp.float32 if weight is not None or jax.default_backend() == "cpu" else jnp.bfloat16
    left = jnp.concatenate([y, s & y, s & ~y, seen], axis=1).astype(dtype)
    left = left if weight is None else left * weight[:, None].astype(dtype)
    right = jnp.concatenate([y, seen], axis=1).astype(dtype)
    # One product instead of eight: half the time.
    exact: dict[str, Any] = dict(precision="highest", preferred_element_type=jnp.float32)
    counts = jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())), **exact).astype(jnp.int32)
    q = y.shape[1]
    (both, total_both), (pos, total_pos), (neg, total_neg), (partner, total) = (
        (counts[rows, :q], counts[rows, q:]) for rows in map(slice, (0, q, 2 * q, 3 * q), (q, 2 * q, 3 * q, None))
    )
    return Tables(both, pos, neg, partner, total, total_both, total_pos, total_neg)
