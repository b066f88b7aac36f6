"""Counts of co-occurring labels: over all examples (E) and over the examples selected as clean (M), for all pairs.

Every table is indexed `[j, i]`: class j whose noise is in question, partner i whose label is looked at beside it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from mlt_jax.labels import Labels, as_labels, as_mask

# A float32 sum of ones is exact up to here, so each product of this many rows is; the products are added as integers.
_EXACT_ROWS = 2**24 - 1
_CHUNK_CELLS = 2**25


class Tables(NamedTuple):
    """Integer counts for all pairs; totals are `(q, 1)`, or `(q, q)` when some cells are unobserved.

    With a mask, only examples where both labels of the pair are observed count for that pair.
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
        if self.both.shape != other.both.shape:
            raise ValueError(f"other: has {len(other.both)} classes, these tables have {len(self.both)}")
        q = len(self.both)
        if self.total_both.shape != other.total_both.shape:
            self, other = _per_pair(self, q), _per_pair(other, q)
        n = int(np.max(self.total)) + int(np.max(other.total))
        if n >= 2**31:
            raise ValueError(f"other: together {n} examples; counts are 32-bit, keep them below 2**31")
        return Tables(*(a + b for a, b in zip(self, other, strict=True)))

    def update(self, labels: Any, selected: Any, **kwargs: Any) -> "Tables":
        """These tables plus one more batch; arguments as in `count`."""
        return self.merge(count(labels, selected, **kwargs))

    def groups(self) -> tuple[Int[Array, "4 rows q"], Int[Array, "4 rows #p"]]:
        """The same counts by disjoint groups of examples: how often noisy_i = 1, and out of how many.

        Groups of class j: selected positives, selected negatives, unselected positives, unselected negatives.
        """
        ones, totals = self.parts()
        return jnp.stack(ones), jnp.stack(totals)

    def parts(self) -> tuple[list[Array], list[Array]]:
        """`groups` before they are put into one array, which would have to be written and read again."""
        ones = [self.pos, self.neg, self.both - self.pos, self.partner - self.both - self.neg]
        unselected = self.total - self.total_both - self.total_neg
        return ones, [self.total_pos, self.total_neg, self.total_both - self.total_pos, unselected]

    def probabilities(self) -> "Probabilities":
        """The frequencies that enter the paper's systems (labels pro_two_labels and pro_condition)."""
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


class Probabilities(NamedTuple):
    """Frequencies for all pairs `[j, i]`; see `estimator.estimate_pair`."""

    m_j: Float[Array, "q #p"]  # P(noisy_j = 1)
    m_i: Float[Array, "#q q"]  # P(noisy_i = 1)
    e: Float[Array, "q q"]  # P(noisy_j = 1, noisy_i = 1)
    a: Float[Array, "q q"]  # P(noisy_i = 1 | clean_j = 0), over the selected
    b: Float[Array, "q q"]  # P(noisy_i = 1 | clean_j = 1), over the selected


def count(
    labels: Any, selected: Any = None, *, unselected: Any = None, observed: Any = None, coding: str = "01"
) -> Tables:
    """Tables of all q x q pairs from labels (n, q) and the mask (n, q) of the cells taken as clean, or of the others.

    Three matrix products, `Y'Y`, `(S*Y)'Y` and `(S*(1-Y))'Y`; with a mask of observed cells four more for the totals.
    scipy.sparse labels stay sparse (unless cells are unobserved); with them give the smaller of `selected` and
    `unselected`, sparse too. Counts are exact for n < 2**31.
    """
    check_selection(selected, unselected)
    if is_all_sparse(labels, observed, coding):
        from mlt_jax.estimator import sparse_counts as sparse  # scipy.sparse is not needed for the rest

        checked_sparse = sparse.as_sparse_labels(labels)
        return sparse.count_sparse(checked_sparse, sparse.as_sparse_mask(selected, unselected, checked_sparse))
    checked = as_labels(labels, coding=coding, observed=observed)
    return count_checked(checked, as_selected(selected, unselected, checked))


def is_all_sparse(labels: Any, observed: Any, coding: str) -> bool:
    """Whether labels are sparse with every cell observed, so that they can stay sparse."""
    return hasattr(labels, "tocsc") and observed is None and coding == "01"


def check_selection(selected: Any, unselected: Any) -> None:
    """Raises unless exactly one of the two is given."""
    if (selected is None) == (unselected is None):
        both = "neither is given" if selected is None else "both are given"
        raise ValueError(f"selected, unselected: {both}; pass one of them, (n, q)")


def as_selected(selected: Any, unselected: Any, labels: Labels) -> np.ndarray:
    """The (n, q) bool mask of selected cells, whichever way it was given."""
    if unselected is None:
        return as_mask(selected, labels, name="selected")
    mask = ~as_mask(unselected, labels, name="unselected")
    return mask if labels.observed is None else mask & labels.observed


def count_checked(labels: Labels, selected: np.ndarray) -> Tables:
    """`count` on inputs that went through the door already."""
    n, q = labels.values.shape
    rows = max(1, min(_EXACT_ROWS, _CHUNK_CELLS // q))
    tables = None
    for start in range(0, n, rows):
        chunk = slice(start, start + rows)
        seen = labels.observed[chunk] if labels.observed is not None else None
        part = count_arrays(labels.values[chunk], selected[chunk], seen)
        tables = part if tables is None else tables.merge(part)
    assert tables is not None  # labels are never empty
    return tables


@jax.jit
def count_arrays(
    y: Shaped[Array | np.ndarray, "n q"],
    s: Shaped[Array | np.ndarray, "n q"],
    o: Shaped[Array | np.ndarray, "n q"] | None = None,
    weight: Int[Array, "n"] | None = None,
) -> Tables:
    """`count` of 0/1 arrays in one go, for fewer than 2**24 examples; `weight` says how often each example counts."""

    y, s = jnp.asarray(y, bool), jnp.asarray(s, bool)
    o = None if o is None else jnp.asarray(o, bool)
    s = s if o is None else s & o
    seen = jnp.ones((len(y), 1), bool) if o is None else o
    left = jnp.concatenate([y, s & y, s & ~y, seen], axis=1).astype(jnp.float32)
    left = left if weight is None else left * weight[:, None].astype(jnp.float32)
    right = jnp.concatenate([y, seen], axis=1).astype(jnp.float32)
    # One product instead of eight: half the time.
    counts = jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())), precision="highest").astype(jnp.int32)
    q = y.shape[1]
    (both, total_both), (pos, total_pos), (neg, total_neg), (partner, total) = (
        (counts[rows, :q], counts[rows, q:]) for rows in map(slice, (0, q, 2 * q, 3 * q), (q, 2 * q, 3 * q, None))
    )
    return Tables(both, pos, neg, partner, total, total_both, total_pos, total_neg)


def _per_pair(tables: Tables, q: int) -> Tables:
    return Tables(*(jnp.broadcast_to(table, (q, q)) for table in tables))
