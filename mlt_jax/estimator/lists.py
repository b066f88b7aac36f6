"""The joint rule from lists of co-occurring labels: exact, and never q x q.

Of the four groups of examples of a class (see `line`), three are small: its positives that are stored in the mask, its
other positives, and the stored negatives. The labels found in them are short lists. The fourth group, the rest, has the
remaining labels: let `x_g` be how often each label is 1 in group g and `m` in all n examples, then the rest has
`m - x_0 - x_1 - x_2`. The cloud of a class needs inner products of `d_g = x_g - n_g m / n` with weights
`w_i = 1 / (share_i (1 - share_i))`:

    d_g . d_h = sum_i w_i x_g x_h - (n_g sum_i w_i m x_h + n_h sum_i w_i m x_g) / n + n_g n_h sum_i w_i m^2 / n^2

Its sums over x run over the lists only, its last one is the same for all classes but for the class itself, and the
`d_g` of the four groups sum to 0, which gives those of the rest. A label that is in no list of the class differs
between S+ and S- by an amount that only its count decides: one search in the sorted counts finds how many differ
significantly.

The lists are irregular, so this is scipy's sparse product and NumPy in float64, over blocks of classes that fit the
cache, in a thread per core; the clouds are then solved by JAX like those of tables.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int64, Shaped
from tqdm import tqdm

from mlt_jax.estimator import line
from mlt_jax.estimator.counts import Tables, check_inputs
from mlt_jax.estimator.solve import conclude_all
from mlt_jax.estimator.sparse_counts import SparseLabels, SparseMask
from mlt_jax.estimator.uncertainty import gradients
from mlt_jax.labels import as_labels
from mlt_jax.transition import Status, TransitionEstimate, as_transition, check_assume

# Three counts in one 64-bit number, so that one product counts all three lists.
_BITS = 21
MOST_POSITIVES = 2**_BITS - 1
_ONE = np.array([1, 1 << _BITS, 1 << 2 * _BITS], np.int64)
_PAY = 0.25  # pairs that lists add up in the time that tables take for one of q x q
_PAIRS_AT_ONCE = 2**17  # whose lists fit the cache
_ERROR_BYTES = 160  # and `list_errors` for each class of a block and each label, and each example
_BYTES_PER_PAIR = 160  # what a block holds at most for each pair of labels in an example


class Lists(NamedTuple):
    """Counts of co-occurring labels of q classes, the result of `count_lists`.

    The three lists of a class are of its positives that are not stored in the mask, its stored positives and its
    stored negatives.
    """

    counts: Any  # csr_array (q, q) of int64: row j, column i has how often i is 1 in each list of j, 21 bits each
    sizes: Int64[np.ndarray, "q 3"]  # examples of the three lists
    partner: Int64[np.ndarray, "q"]  # positives of each class
    total: int  # examples
    selected: bool  # whether the mask stores the selected cells; else the unselected

    def merge(self, other: "Lists") -> "Lists":
        """Lists of both data sets together (from two batches, or two machines)."""
        if len(self.partner) != len(other.partner):
            raise ValueError(f"other: has {len(other.partner)} classes, these lists have {len(self.partner)}")
        if self.selected != other.selected:
            raise ValueError("other: lists of selected cells, these of unselected ones; count both the same way")
        partner = self.partner + other.partner
        _check_positives(partner)
        sizes, total = self.sizes + other.sizes, self.total + other.total
        return Lists(self.counts + other.counts, sizes, partner, total, self.selected)


def _check_positives(partner: np.ndarray) -> None:
    """Raises ValueError where a class has more positives than a list can count."""
    if (most := int(partner.max())) > MOST_POSITIVES:
        raise ValueError(f"labels: class {int(partner.argmax())} has {most} positives; lists count to {MOST_POSITIVES}")


class Cells(NamedTuple):
    """The cells whose labels are listed."""

    by_class: Any  # csr_array (q, n) of int64: in which list of the class the example is, 1 in the digits of `_ONE`
    by_example: Any  # csr_array (n, q) of int64 ones, the labels
    work: Int64[np.ndarray, "q+1"]  # pairs of labels that the classes before each one have
    selected: bool


def list_cells(labels: SparseLabels, mask: SparseMask) -> Cells:
    """What `count_lists` and `list_clouds` work on."""
    y = labels.by_example
    stored = sp.csr_array((2 * mask.cells.data, *_pattern(mask.cells)), shape=y.shape)
    kind = (y + stored).tocsc()  # 1: positive, 2: stored, 3: both
    code = _ONE[np.array([0, 0, 2, 1])][kind.data]
    by_class = sp.csr_array((code, kind.indices, kind.indptr), shape=kind.shape[::-1])
    by_example = sp.csr_array((np.ones(y.nnz, np.int64), y.indices, y.indptr), shape=y.shape)
    once = sp.csr_array((np.ones(kind.nnz, np.int8), *_pattern(by_class)), shape=by_class.shape)
    work = np.concatenate([np.zeros(1, np.int64), np.cumsum(once @ np.diff(y.indptr).astype(np.int64))])
    return Cells(by_class, by_example, work, mask.selected)


def lists_pay(labels: SparseLabels, mask: SparseMask) -> bool:
    """Whether lists take less time than tables: by the pairs of labels, and of a label with a stored cell, that occur.

    False where a class has more positives than a list can count.
    """
    given, stored = (np.diff(m.indptr).astype(np.int64) for m in (labels.by_example, mask.cells))
    q = labels.by_example.shape[1]
    few = np.bincount(labels.by_example.indices, minlength=q).max() <= MOST_POSITIVES
    return bool(few and given @ (given + stored) <= _PAY * q**2)


def count_lists(labels: Any, selected: Any = None, *, unselected: Any = None, max_memory: int = 2**30) -> Lists:
    """Lists of all q classes, exact; those of other examples may be merged with them.

    Args:
      labels: (n, q), scipy.sparse or any form that `as_labels` takes; all cells observed.
      selected: (n, q), True where the label is taken as clean, sparse or dense.
      unselected: (n, q), its complement, in place of `selected`; give the smaller one. Lists of `selected` cells and of
        `unselected` ones do not merge.
      max_memory: bytes of work space besides labels and lists.

    Raises:
      ValueError: arrays that are not as described, or a class with more than 2**21 - 1 positives.
    """
    given = labels if hasattr(labels, "tocsc") else sp.csr_array(as_labels(labels).values)
    cells = list_cells(*check_inputs(given, selected, unselected, observed=None, coding="01"))
    n, q = cells.by_example.shape
    partner = np.bincount(cells.by_example.indices, minlength=q)
    _check_positives(partner)
    counts, sizes = zip(*_by_block(cells, lambda _, counts, sizes: (counts, sizes), max_memory), strict=True)
    return Lists(sp.vstack(counts, format="csr"), np.concatenate(sizes), partner, n, cells.selected)


def estimate_from_lists(
    lists: Lists, *, assume: str = "general", fallback: Any = None, min_selected: int = 50
) -> TransitionEstimate:
    """Transition matrices of all q classes by the joint rule; `stderr` is NaN, as it needs the labels.

    The options, and the errors raised, are those of `estimate_all`.
    """
    check_assume(assume)
    return _conclude(list_clouds(lists, assume=assume), fallback, min_selected)


def estimate_listed(
    labels: SparseLabels,
    mask: SparseMask,
    *,
    assume: str,
    fallback: Any,
    min_selected: int,
    stderr: bool,
    max_memory: int,
) -> TransitionEstimate:
    """`estimate_all` by the joint rule from lists, which never exist for all classes at once."""
    check_assume(assume)
    cells = list_cells(labels, mask)
    found = _conclude(list_clouds(cells, assume=assume, max_memory=max_memory), fallback, min_selected)
    if not stderr:
        return found
    known = np.flatnonzero(found.status == Status.CORRELATION)
    errors = np.full((len(found.status), 2), np.nan)
    errors[known] = list_errors(cells, known, assume=assume, max_memory=max_memory)
    return found._replace(stderr=jnp.asarray(errors, found.T.dtype))


def _conclude(clouds: line.Cloud, fallback: Any, min_selected: int) -> TransitionEstimate:
    dtype = jnp.result_type(float)
    other = None if fallback is None else as_transition(fallback, len(clouds.size), name="fallback")
    cast: Any = [np.asarray(x, dtype) for x in clouds]
    return conclude_all(line.Cloud(*cast), None, other, min_selected=min_selected)


def list_clouds(source: Cells | Lists, *, assume: str, max_memory: int = 2**30) -> line.Cloud:
    """Clouds of all classes, as `line.group_cloud` makes them of tables; float64."""
    if isinstance(source, Lists):
        return _clouds(_common(source.partner, source.total, source.selected, assume), 0, source.counts, source.sizes)
    n, q = source.by_example.shape
    partner = np.bincount(source.by_example.indices, minlength=q)
    _check_positives(partner)
    parts = _by_block(source, partial(_clouds, _common(partner, n, source.selected, assume)), max_memory)
    whole: Any = map(np.concatenate, zip(*parts, strict=True))
    return line.Cloud(*whole)


def _by_block(cells: Cells, use: Callable[[int, Any, np.ndarray], Any], max_memory: int) -> list[Any]:
    """`use(first, counts, sizes)` of the rows of `Lists` from class `first` on, for blocks of classes in order."""
    threads = os.cpu_count() or 1
    q = len(cells.work) - 1
    at_once = min(_PAIRS_AT_ONCE, max(1, max_memory // (_BYTES_PER_PAIR * threads)))
    starts = np.unique(np.searchsorted(cells.work[:-1], np.arange(0, max(cells.work[-1], 1), at_once)))
    starts = starts[starts < q]

    def one(first: int, end: int) -> Any:
        place = cells.by_class.indptr[first : end + 1]
        part = slice(place[0], place[-1])
        listed = cells.by_class.data[part], cells.by_class.indices[part], place - place[0]
        rows = sp.csr_array(listed, shape=(end - first, cells.by_class.shape[1]))
        return use(first, rows @ cells.by_example, _sizes(rows))

    pool = ThreadPoolExecutor(threads)
    try:
        tasks = pool.map(one, starts.tolist(), [*starts[1:].tolist(), q])
        return list(_bar(tasks, len(starts)))
    finally:
        pool.shutdown(cancel_futures=True)  # on Ctrl-C, too, no block is begun any more


def _sizes(rows: Any) -> Int64[np.ndarray, "rows 3"]:
    """Examples in the three lists of some classes, rows of `Cells.by_class`."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.data)])
    return np.stack(_unpacked(np.diff(total[rows.indptr])), axis=1)


def _bar(blocks: Any, total: int) -> Any:
    return tqdm(blocks, total=total, desc="classes", unit="block", delay=2, leave=False, disable=None)


def _unpacked(packed: Int64[np.ndarray, "..."]) -> list[np.ndarray]:
    return [packed & MOST_POSITIVES, packed >> _BITS & MOST_POSITIVES, packed >> 2 * _BITS]


class _Common(NamedTuple):
    """What the clouds of all classes share."""

    partner: Float[np.ndarray, "q"]  # m
    weight: Float[np.ndarray, "q"]  # w, 0 for a label that is always or never 1
    weighted: Float[np.ndarray, "q"]  # w m
    spread: Float[np.ndarray, "q"]  # 1 / sqrt(w)
    reach: Float[np.ndarray, "q"]  # m sqrt(w), sorted
    total: int
    place: list[int]  # see `_place`
    assume: str


def _common(partner: np.ndarray, total: int, selected: bool, assume: str) -> _Common:
    m = partner.astype(float)
    varied = m * (total - m)
    weight = np.where(varied > 0, float(total) ** 2 / np.maximum(varied, 1), 0)
    spread = np.where(varied > 0, np.sqrt(varied) / total, np.inf)
    return _Common(m, weight, weight * m, spread, np.sort(m / spread), total, _place(selected, assume), assume)


def _place(selected: bool, assume: str) -> list[int]:
    """Which group each of the three lists is, and the rest: S+, S-, U+, U- are 0 to 3."""
    positive = [0, 2] if assume == "missing" or not selected else [2, 0]
    return [*positive, *([1, 3] if selected and assume != "partial" else [3, 1])]


def _clouds(common: _Common, first: int, counts: Any, sizes: Int64[np.ndarray, "rows 3"]) -> line.Cloud:
    """Clouds of the classes from `first` on.

    Sums first include the class as its own partner, which is in its lists as often as these are long, and then lose it.
    """
    n, place = common.total, common.place
    rows = len(sizes)
    classes = np.arange(first, first + rows)
    size = np.append(sizes, n - sizes.sum(1, keepdims=True), axis=1).astype(float)
    if common.assume == "missing":  # all positives count as selected
        size[:, 0], size[:, 1] = size[:, 0] + size[:, 1], 0
    if common.assume == "partial":  # all negatives do: they are the rest
        size[:, 3], size[:, 2] = size[:, 3] + size[:, 2], 0
    lists = _split(counts, common.assume)

    def per_class(values: np.ndarray, where: _List, factor: np.ndarray) -> np.ndarray:
        return sp.csr_array((values, where.indices, where.ends), shape=counts.shape) @ factor

    m, w = common.partner[classes], common.weight[classes]
    constant = ((common.weighted * common.partner).sum() - w * m**2) / n**2
    own = size[:, :3] * (np.arange(3) < 2)  # how often the class is in its own lists
    linear = [(per_class(x.counts, x, common.weighted) - w * m * own[:, g]) / n for g, x in enumerate(lists)]
    inner = np.zeros((rows, 4, 4))
    for h, x in enumerate(lists):
        for g in range(h + 1):
            product = per_class(x.counts * x.beside[g], x, common.weight) - w * own[:, g] * own[:, h]
            centred = product + size[:, g] * size[:, h] * constant - size[:, g] * linear[h] - size[:, h] * linear[g]
            inner[:, g, h] = inner[:, h, g] = centred
    inner[:, 3, :3] = inner[:, :3, 3] = -inner[:, :3, :3].sum(1)
    inner[:, 3, 3] = inner[:, :3, :3].sum((1, 2))
    order = np.argsort(place)
    size, inner = size[:, order], inner[:, order][:, :, order]

    per = 1 / np.maximum(size, 1)
    gain = size[:, 0] * size[:, 1] / np.maximum(size[:, 0] + size[:, 1], 1)
    contrast = gain * (
        inner[:, 0, 0] * per[:, 0] ** 2 - 2 * inner[:, 0, 1] * per[:, 0] * per[:, 1] + inner[:, 1, 1] * per[:, 1] ** 2
    )
    root = np.sqrt(per)
    gram = np.where((size > 0)[:, :, None] & (size > 0)[:, None], inner * root[:, :, None] * root[:, None], 0)
    dimension = (common.weight > 0).sum() - (common.weight[classes] > 0)
    partners = _differing(common, classes, counts, lists, order, size)
    found: Any = (size, size, gram, dimension.astype(float), contrast, partners)
    return line.Cloud(*found)


class _List(NamedTuple):
    """One of the three lists of some classes: csr, rows in the order of the classes."""

    counts: Float[np.ndarray, "k"]
    indices: Shaped[np.ndarray, "k"]
    ends: Shaped[np.ndarray, "rows+1"]
    at: Any  # where its pairs are among those of all lists
    beside: list[np.ndarray]  # counts of the same pairs in the lists up to this one


def _split(counts: Any, assume: str) -> list[_List]:
    """The three lists; most pairs are in one of them only."""
    first = (counts.data & MOST_POSITIVES).astype(float)
    lists = [_List(first, counts.indices, counts.indptr, slice(None), [first])]
    for g in (1, 2):
        at = np.flatnonzero(counts.data & MOST_POSITIVES << g * _BITS)
        if assume == "missing" and g == 1:
            first[at] += counts.data[at] >> _BITS & MOST_POSITIVES
        if (assume, g) in (("missing", 1), ("partial", 2)):
            at = at[:0]
        packed = counts.data[at]
        ends = np.searchsorted(at, counts.indptr).astype(counts.indptr.dtype)
        x, y = (each.astype(float) for each in (packed >> g * _BITS & MOST_POSITIVES, packed >> _BITS & MOST_POSITIVES))
        beside = [first[at], *([x] if g == 1 else [np.zeros_like(x) if assume == "missing" else y, x])]
        lists.append(_List(x, counts.indices[at], ends, at, beside))
    return lists


def _differing(
    common: _Common,
    classes: np.ndarray,
    counts: Any,
    lists: list[_List],
    order: np.ndarray,
    size: Float[np.ndarray, "rows 4"],
) -> Float[np.ndarray, "rows"]:
    """How many partners of each class differ between S+ and S- at 95 %; these are the lists `order[:2]`, 3 is the rest.

    The difference is in units of S-'s share of one example: `ratio` is how many of them one of S+ has.
    """
    number = np.diff(counts.indptr)
    ratio = np.maximum(size[:, 1], 1) / np.maximum(size[:, 0], 1)
    gain = size[:, 0] * size[:, 1] / np.maximum(size[:, 0] + size[:, 1], 1)
    least = np.sqrt(line.CHI2_95 / np.maximum(gain, 1e-30)) * np.maximum(
        size[:, 1], 1
    )  # where nothing was counted: none
    rest = order[1] == 3  # S- has the labels that no list has, too
    m = common.partner[counts.indices]
    if rest:
        gap = lists[0].counts - m
        for x in lists[1:]:
            gap[x.at] += x.counts
    else:
        gap = np.zeros(len(m))
        gap[lists[order[1]].at] -= lists[order[1]].counts
    chosen = lists[order[0]]
    gap[chosen.at] += chosen.counts * np.repeat(ratio, np.diff(chosen.ends))
    limit = common.spread[counts.indices]
    limit *= np.repeat(least, number)

    def per_class(true: np.ndarray) -> np.ndarray:
        return np.diff(np.searchsorted(np.flatnonzero(true), counts.indptr))

    own = size[:, 0] * ratio > least * common.spread[classes]
    found = per_class(np.abs(gap, out=gap) > limit) - own
    if rest:
        found += len(common.reach) - np.searchsorted(common.reach, least, side="right") - per_class(m > limit)
    return found.astype(float)


def list_errors(
    cells: Cells, classes: Int64[np.ndarray, "k"], *, assume: str, max_memory: int = 2**30
) -> Float[np.ndarray, "k 2"]:
    """Standard errors of (rho_neg, rho_pos) of some classes, as by `uncertainty.standard_errors`.

    The derivatives by the counts of all labels are those of a block of classes at a time. The influence of an example
    is first computed as if it were in the rest group of all classes, a sparse product with the labels; then those of
    the listed cells are replaced. Time is that of (labels given) x (classes asked for).
    """
    n, q = cells.by_example.shape
    at_once = int(np.clip(max_memory // (_ERROR_BYTES * (q + n)), 1, max(len(classes), 1)))
    partner = np.bincount(cells.by_example.indices, minlength=q)
    labels = sp.csr_array((np.ones(len(cells.by_example.data), np.float32), *_pattern(cells.by_example)), shape=(n, q))
    found = []
    for start in _bar(range(0, len(classes), at_once), -(-len(classes) // at_once)):
        part = classes[start : start + at_once]
        block = np.resize(part, at_once)  # the last one repeats classes, to compile once
        rows = cells.by_class[block]
        tables = _tables(cells, rows, partner)
        ranks = jnp.arange(q)[None]
        slopes = gradients(tables, ranks, jnp.asarray(block), aggregate="joint", assume=assume)
        per_one, per_example = map(np.asarray, slopes)
        found.append(_influence(cells, labels, rows, per_one, per_example, assume)[: len(part)])
    return np.sqrt(np.concatenate([np.zeros((0, 2)), *found]))


def _pattern(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    return matrix.indices, matrix.indptr


def _tables(cells: Cells, rows: Any, partner: np.ndarray) -> Tables:
    """The tables of some classes, rows of `Cells.by_class`."""
    n = cells.by_example.shape[0]
    other, stored, negative = (x.astype(np.int32) for x in _unpacked((rows @ cells.by_example).toarray()))
    sizes = [x[:, None].astype(np.int32) for x in _sizes(rows).T]
    both, total_both = other + stored, sizes[0] + sizes[1]
    if cells.selected:
        pos, neg, total_pos, total_neg = stored, negative, sizes[1], sizes[2]
    else:
        pos, neg = other, partner.astype(np.int32) - both - negative
        total_pos, total_neg = sizes[0], n - total_both - sizes[2]
    totals = np.full((1, 1), n, np.int32), total_both, total_pos, total_neg
    return Tables(*map(jnp.asarray, (both, pos, neg, partner.astype(np.int32)[None], *totals)))


def _influence(
    cells: Cells, labels: Any, rows: Any, per_one: np.ndarray, per_example: np.ndarray, assume: str
) -> Float[np.ndarray, "rows 2"]:
    """Sums of the squared influences of all examples on the two rates of some classes."""
    k, _, _, q = per_one.shape
    place = _place(cells.selected, assume)
    if assume == "missing":
        place = [0, 0, *place[2:]]
    if assume == "partial":
        place = [*place[:2], 1, 1]
    rest = labels @ np.ascontiguousarray(per_one[:, :, place[3]].reshape(2 * k, q).T)
    rest += per_example[:, :, place[3], 0].reshape(2 * k)
    total = np.einsum("nk,nk->k", rest, rest, dtype=float).reshape(k, 2)
    row = np.repeat(np.arange(k), np.diff(rows.indptr))
    group = np.array(place)[np.searchsorted(_ONE, rows.data)]
    gathered = labels[rows.indices]
    for rate in range(2):
        first = ((2 * row + rate) * 4 + group) * q  # where the derivatives of the cell's class and group begin
        slopes = per_one.reshape(-1)[np.repeat(first, np.diff(gathered.indptr)) + gathered.indices]
        listed = sp.csr_array((slopes, *_pattern(gathered)), shape=gathered.shape).sum(1)
        listed += per_example[row, rate, group, 0]
        change = listed.astype(float) ** 2 - rest[rows.indices, 2 * row + rate].astype(float) ** 2
        total[:, rate] += np.bincount(row, change, minlength=k)
    return total
