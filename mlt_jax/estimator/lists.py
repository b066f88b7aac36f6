"""Estimates from lists of co-occurring labels: exact, and never q x q. The joint rule is here, others in `list_rules`.

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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int64, PRNGKeyArray, Shaped
from tqdm import tqdm

from mlt_jax.arguments import check_integer, shown
from mlt_jax.estimator import line
from mlt_jax.estimator.counts import Tables, check_inputs
from mlt_jax.estimator.list_rules import Listed, Rule, choose_listed, priorities
from mlt_jax.estimator.pairs import Choice
from mlt_jax.estimator.solve import check_rule, conclude_all
from mlt_jax.estimator.sparse_counts import SparseLabels, SparseMask
from mlt_jax.estimator.uncertainty import gradients
from mlt_jax.labels import Labels, as_labels
from mlt_jax.transition import Status, TransitionEstimate, as_transition

# Three counts in one 64-bit number, so that one product counts all three lists.
_BITS = 21
MOST_POSITIVES = 2**_BITS - 1
_ONE = np.array([1, 1 << _BITS, 1 << 2 * _BITS], np.int64)
_COMPARED = np.float32  # as tables do; counts are exact in it
_PAY = 0.25  # pairs that lists add up in the time that tables take for one of q x q
_PAIRS_AT_ONCE = 2**18  # whose lists fit the cache
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
        if not isinstance(other, Lists):
            raise TypeError(f"other: {shown(other)}; pass the `Lists` that `count_lists` returns")
        if len(self.partner) != len(other.partner):
            raise ValueError(f"other: has {len(other.partner)} classes, these lists have {len(self.partner)}")
        if self.selected != other.selected:
            raise ValueError("other: lists of selected cells, these of unselected ones; count both the same way")
        partner = self.partner + other.partner
        _check_positives(partner)
        sizes, total = self.sizes + other.sizes, self.total + other.total
        return Lists(self.counts + other.counts, sizes, partner, total, self.selected)

    def arrays(self) -> list[np.ndarray]:
        """These lists as flat arrays, to be sent to another process; `from_arrays` puts them together again."""
        counts = self.counts
        counted = [counts.data, counts.indices.astype(np.int32), np.diff(counts.indptr).astype(np.int64)]
        return [*counted, self.sizes.ravel(), self.partner, np.array([self.total, self.selected])]

    @classmethod
    def from_arrays(cls, arrays: Sequence[np.ndarray]) -> "Lists":
        """The lists that `arrays` took apart."""
        data, indices, lengths, sizes, partner, (total, selected) = arrays
        q = len(partner)
        counts = sp.csr_array((data, indices, np.append(0, np.cumsum(lengths))), shape=(q, q))
        return cls(counts, sizes.reshape(q, 3), partner, int(total), bool(selected))


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
    """What `count_lists` and `list_evidence` work on."""
    y = labels.by_example
    kind = labels.by_class.T + 2 * mask.cells.tocsc().T  # (q, n), 1: positive, 2: stored, 3: both
    by_class = sp.csr_array((_ONE[np.array([0, 0, 2, 1])][kind.data], *_pattern(kind)), shape=kind.shape)
    by_example = sp.csr_array((np.ones(y.nnz, np.int64), *_pattern(y)), shape=y.shape)
    once = sp.csr_array((np.ones(kind.nnz, np.int8), *_pattern(kind)), shape=kind.shape)
    work = np.append(0, np.cumsum(once @ np.diff(y.indptr).astype(np.int64)))
    return Cells(by_class, by_example, work, mask.selected)


def list_burden(labels: Any, mask: Any) -> Float[np.ndarray, "2"]:
    """What lists take of what they may, of the result of `check_inputs`; they are taken where both are at most 1.

    First the pairs of labels, and of a label with a stored cell, that occur: as many as take the time of tables. Then
    the positives of a class: as many as a list can count. Of several shares of the examples, add them up.
    """
    if isinstance(labels, Labels):
        return np.full(2, np.inf)
    given, stored = (np.diff(m.indptr).astype(np.int64) for m in (labels.by_example, mask.cells))
    q = labels.by_example.shape[1]
    most = np.bincount(labels.by_example.indices, minlength=q).max()
    return np.array([given @ (given + stored) / (_PAY * q**2), most / MOST_POSITIVES])


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
    checked, mask = check_inputs(given, selected, unselected, observed=None, coding="01")
    return count_checked_lists(checked, mask, max_memory=max_memory)


def count_checked_lists(labels: SparseLabels, mask: SparseMask, *, max_memory: int = 2**30) -> Lists:
    """`count_lists` of what `check_inputs` returns."""
    cells = list_cells(labels, mask)
    n, q = cells.by_example.shape
    partner = np.bincount(cells.by_example.indices, minlength=q)
    _check_positives(partner)
    counts, sizes = zip(*_by_block(cells, lambda _, counts, sizes: (counts, sizes), max_memory), strict=True)
    return Lists(sp.vstack(counts, format="csr"), np.concatenate(sizes), partner, n, cells.selected)


def estimate_from_lists(
    lists: Lists,
    *,
    aggregate: str = "joint",
    assume: str = "general",
    num_partners: int | None = None,
    key: PRNGKeyArray | None = None,
    fallback: Any = None,
    min_selected: int = 50,
    max_memory: int = 2**30,
) -> TransitionEstimate:
    """Transition matrices of all q classes; `stderr` is NaN, as it needs the labels.

    The options, and the errors raised, are those of `estimate_all`; the joint rule uses all partners.
    """
    if not isinstance(lists, Lists):
        raise TypeError(f"lists: {shown(lists)}; pass the `Lists` that `count_lists` returns")
    check_integer("min_selected", min_selected, 0)
    check_integer("max_memory", max_memory, 0)
    rule = list_rule(len(lists.partner), aggregate=aggregate, assume=assume, num_partners=num_partners, key=key)
    if aggregate == "joint" and num_partners is not None:
        raise ValueError(f"num_partners: {num_partners}; on lists the joint rule uses all partners, leave it out")
    return conclude_lists(list_evidence(lists, assume=assume, rule=rule, max_memory=max_memory), fallback, min_selected)


def list_rule(q: int, *, aggregate: str, assume: str, num_partners: int | None, key: PRNGKeyArray | None) -> Rule:
    """The rule with these options of `estimate_all`, checked."""
    check_rule(q, aggregate=aggregate, assume=assume, num_partners=num_partners, key=key)
    seed = None
    if key is not None and (num_partners is not None or aggregate == "first"):
        seed = np.ascontiguousarray(jax.random.key_data(key)).view(np.uint64)[0]
    return Rule(aggregate, num_partners, seed)


def estimate_listed(
    labels: SparseLabels,
    mask: SparseMask,
    *,
    rule: Rule,
    assume: str,
    fallback: Any,
    min_selected: int,
    stderr: bool,
    max_memory: int,
) -> TransitionEstimate:
    """`estimate_all` from lists, which never exist for all classes at once."""
    cells = list_cells(labels, mask)
    evidence = list_evidence(cells, assume=assume, rule=rule, max_memory=max_memory)
    found = conclude_lists(evidence, fallback, min_selected)
    if not stderr:
        return found
    known = np.flatnonzero(found.status == Status.CORRELATION)
    errors = np.full((len(found.status), 2), np.nan)
    errors[known] = list_errors(cells, known, assume=assume, rule=rule, max_memory=max_memory)
    return found._replace(stderr=jnp.asarray(errors, found.T.dtype))


def conclude_lists(evidence: tuple[line.Cloud, Choice | None], fallback: Any, min_selected: int) -> TransitionEstimate:
    """Estimates of all classes from what `list_evidence` gives."""
    dtype = jnp.result_type(float)
    clouds, choices = jax.tree.map(lambda x: np.asarray(x, dtype), evidence)
    other = None if fallback is None else as_transition(fallback, len(clouds.size), name="fallback")
    return conclude_all(clouds, choices, other, min_selected=min_selected)


def list_evidence(
    source: Cells | Lists, *, assume: str, rule: Rule, max_memory: int = 2**30
) -> tuple[line.Cloud, Choice | None]:
    """Clouds and choices of all classes, as `solve.gather_rows` makes them of tables; float64."""
    common = _common(source, assume)

    def of_block(first: int, counts: Any, sizes: np.ndarray) -> tuple[line.Cloud, Choice | None]:
        clouds = _clouds(common, first, counts, sizes)
        if rule.aggregate == "joint":
            return clouds, None
        return clouds, choose_listed(_listed(common, first, counts, sizes), common.partner, rule)

    return jax.tree.map(lambda *parts: np.concatenate(parts), *_by_block(source, of_block, max_memory))


def _by_block(source: Cells | Lists, use: Callable[[int, Any, np.ndarray], Any], max_memory: int) -> list[Any]:
    """`use(first, counts, sizes)` of the rows of `Lists` from class `first` on, for blocks of classes in order."""

    def one(first: int, end: int) -> Any:
        if isinstance(source, Lists):
            return use(first, rows_of(source.counts, first, end), source.sizes[first:end])
        rows = rows_of(source.by_class, first, end)
        return use(first, rows @ source.by_example, list_sizes(rows))

    return in_blocks(source.counts.indptr if isinstance(source, Lists) else source.work, one, max_memory)


def in_blocks(work: Shaped[np.ndarray, "ends"], use: Callable[[int, int], Any], max_memory: int) -> list[Any]:
    """`use(first, end)` for blocks of classes in order, a thread per core; `work` is what the classes before each have.

    A block has so many pairs of labels as fit the cache, and `max_memory`.
    """
    threads = os.cpu_count() or 1
    q = len(work) - 1
    at_once = min(_PAIRS_AT_ONCE, max(1, max_memory // (_BYTES_PER_PAIR * threads)))
    starts = np.unique(np.searchsorted(work[:-1], np.arange(0, max(work[-1], 1), at_once)))
    starts = starts[starts < q]
    pool = ThreadPoolExecutor(threads)
    try:
        tasks = pool.map(use, starts.tolist(), [*starts[1:].tolist(), q])
        return list(_bar(tasks, len(starts)))
    finally:
        pool.shutdown(cancel_futures=True)  # on Ctrl-C, too, no block is begun any more


def rows_of(matrix: Any, first: int, end: int) -> Any:
    """Rows `first` to `end` of a csr_array, without the copy that slicing makes."""
    place = matrix.indptr[first : end + 1]
    part = slice(place[0], place[-1])
    return sp.csr_array(
        (matrix.data[part], matrix.indices[part], place - place[0]), shape=(end - first, matrix.shape[1])
    )


def list_sizes(rows: Any) -> Int64[np.ndarray, "rows 3"]:
    """Examples in the three lists of some classes, rows of `Cells.by_class`."""
    k = rows.shape[0]
    row = np.repeat(np.arange(k), np.diff(rows.indptr))
    return np.bincount(3 * row + np.searchsorted(_ONE, rows.data), minlength=3 * k).reshape(k, 3)


def _bar(blocks: Any, total: int) -> Any:
    return tqdm(blocks, total=total, desc="classes", unit="block", delay=2, leave=False, disable=None)


def unpacked(packed: Int64[np.ndarray, "..."]) -> list[np.ndarray]:
    """The counts of the three lists."""
    return [packed & MOST_POSITIVES, packed >> _BITS & MOST_POSITIVES, packed >> 2 * _BITS]


class _Common(NamedTuple):
    """What the clouds of all classes share."""

    partner: Float[np.ndarray, "q"]  # m
    weight: Float[np.ndarray, "q"]  # w, 0 for a label that is always or never 1
    weighted: Float[np.ndarray, "q"]  # w m
    ones: Float[np.ndarray, "q"]  # m, in the precision of comparisons
    unit: Float[np.ndarray, "q"]  # sqrt(w), in the precision of comparisons
    reach: Float[np.ndarray, "q"]  # m sqrt(w), sorted
    total: int
    place: list[int]  # see `group_places`
    assume: str


def _common(source: Cells | Lists, assume: str) -> _Common:
    if isinstance(source, Lists):
        partner, total, selected = source.partner, source.total, source.selected
    else:
        total, q = source.by_example.shape
        partner, selected = np.bincount(source.by_example.indices, minlength=q), source.selected
    _check_positives(partner)
    m = partner.astype(float)
    varied = m * (total - m)
    weight = np.where(varied > 0, float(total) ** 2 / np.maximum(varied, 1), 0)
    ones, unit = m.astype(_COMPARED), np.sqrt(weight).astype(_COMPARED)
    place = group_places(selected, assume)
    return _Common(m, weight, weight * m, ones, unit, np.sort(ones * unit), total, place, assume)


def group_places(selected: bool, assume: str) -> list[int]:
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
    size = _all_sizes(common, sizes)
    lists = _split(counts, common.assume)

    def per_class(values: np.ndarray, where: _List, factor: np.ndarray) -> np.ndarray:
        where.pattern.data = values  # a new matrix would take longer than the product
        return where.pattern @ factor

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


def _all_sizes(common: _Common, sizes: Int64[np.ndarray, "rows 3"]) -> Float[np.ndarray, "rows 4"]:
    """Sizes of the three lists and of the rest."""
    size = np.append(sizes, common.total - sizes.sum(1, keepdims=True), axis=1).astype(float)
    if common.assume == "missing":  # all positives count as selected
        size[:, 0], size[:, 1] = size[:, 0] + size[:, 1], 0
    if common.assume == "partial":  # all negatives do: they are the rest
        size[:, 3], size[:, 2] = size[:, 3] + size[:, 2], 0
    return size


def _listed(common: _Common, first: int, counts: Any, sizes: Int64[np.ndarray, "rows 3"]) -> Listed:
    """The pairs of the classes from `first` on, for the rules over partners."""
    ones = [x.astype(float) for x in unpacked(counts.data)]
    if common.assume == "missing":
        ones[0], ones[1] = ones[0] + ones[1], np.zeros_like(ones[1])
    if common.assume == "partial":
        ones[2] = np.zeros_like(ones[2])
    ones.append(common.partner[counts.indices] - ones[0] - ones[1] - ones[2])
    order = np.argsort(common.place)
    rows = np.arange(len(sizes))
    size = _all_sizes(common, sizes)[:, order]
    row = np.repeat(rows, np.diff(counts.indptr))
    return Listed(first + rows, size, common.place[3], row, counts.indices, [ones[g] for g in order])


class _List(NamedTuple):
    """One of the three lists of some classes: csr, rows in the order of the classes."""

    counts: Float[np.ndarray, "k"]
    pattern: Any  # csr_array (rows, q), whose data are any
    at: Any  # where its pairs are among those of all lists
    beside: list[np.ndarray]  # counts of the same pairs in the lists up to this one


def _split(counts: Any, assume: str) -> list[_List]:
    """The three lists; most pairs are in one of them only."""
    first = (counts.data & MOST_POSITIVES).astype(float)
    lists = [_List(first, sp.csr_array((first, *_pattern(counts)), shape=counts.shape), slice(None), [first])]
    for g in (1, 2):
        at = np.flatnonzero(counts.data & MOST_POSITIVES << g * _BITS != 0)  # booleans are searched faster
        if assume == "missing" and g == 1:
            first[at] += counts.data[at] >> _BITS & MOST_POSITIVES
        if (assume, g) in (("missing", 1), ("partial", 2)):
            at = at[:0]
        packed = counts.data[at]
        ends = np.searchsorted(at, counts.indptr).astype(counts.indptr.dtype)
        x, y = (each.astype(float) for each in (packed >> g * _BITS & MOST_POSITIVES, packed >> _BITS & MOST_POSITIVES))
        beside = [first[at], *([x] if g == 1 else [np.zeros_like(x) if assume == "missing" else y, x])]
        lists.append(_List(x, sp.csr_array((x, counts.indices[at], ends), shape=counts.shape), at, beside))
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
    selected = np.maximum(size[:, :2], 1)
    ratio = (selected[:, 1] / selected[:, 0]).astype(_COMPARED)
    gain = size[:, 0] * size[:, 1] / np.maximum(size[:, 0] + size[:, 1], 1)
    least = np.sqrt(line.CHI2_95 / np.maximum(gain, 1e-30)) * selected[:, 1]  # where nothing was counted: none
    least = least.astype(_COMPARED)
    chosen, other, rest = lists[order[0]], order[1], order[1] == 3  # in the rest are labels that no list has, too
    m, unit = common.ones[counts.indices], common.unit[counts.indices]
    gap = -m if rest else np.zeros_like(m)
    for g, x in enumerate(lists):
        if rest or g == other:
            gap[x.at] += x.counts if rest else -x.counts
    more = chosen.counts.astype(_COMPARED)
    more *= np.repeat(ratio, np.diff(chosen.pattern.indptr))
    gap[chosen.at] += more
    gap *= unit
    limit = np.repeat(least, number)

    def per_class(true: np.ndarray) -> np.ndarray:
        return np.diff(np.searchsorted(np.flatnonzero(true), counts.indptr))

    own = size[:, 0].astype(_COMPARED) * ratio * common.unit[classes] > least
    found = per_class(np.abs(gap, out=gap) > limit) - own
    if rest:
        m *= unit
        found += len(common.reach) - np.searchsorted(common.reach, least, side="right") - per_class(m > limit)
    return found.astype(float)


def list_errors(
    cells: Cells, classes: Int64[np.ndarray, "k"], *, assume: str, rule: Rule, max_memory: int = 2**30
) -> Float[np.ndarray, "k 2"]:
    """Standard errors of (rho_neg, rho_pos) of some classes, as by `uncertainty.standard_errors`.

    The derivatives by the counts of all labels are those of a block of classes at a time. The influence of an example
    is first computed as if it were in the rest group of all classes, a sparse product with the labels; then those of
    the listed cells are replaced. Time is that of (labels given) x (classes asked for).
    """
    n, q = cells.by_example.shape
    at_once = int(np.clip(max_memory // (_ERROR_BYTES * (q + n)), 1, max(len(classes), 1)))
    common = _common(cells, assume)
    partner = common.partner.astype(np.int64)
    labels = sp.csr_array((np.ones(len(cells.by_example.data), np.float32), *_pattern(cells.by_example)), shape=(n, q))
    found = []
    for start in _bar(range(0, len(classes), at_once), -(-len(classes) // at_once)):
        part = classes[start : start + at_once]
        block = np.resize(part, at_once)  # the last one repeats classes, to compile once
        rows = cells.by_class[block]
        tables = _tables(cells, rows, partner)
        ranks = jnp.asarray(_ranks(common, block, rows @ cells.by_example, list_sizes(rows), rule))
        slopes = gradients(tables, ranks, jnp.asarray(block), aggregate=rule.aggregate, assume=assume)
        per_one, per_example = map(np.asarray, slopes)
        found.append(_influence(cells, labels, rows, per_one, per_example, assume)[: len(part)])
    return np.sqrt(np.nan_to_num(np.concatenate([np.zeros((0, 2)), *found]), nan=np.inf, posinf=np.inf))


def _ranks(common: _Common, classes: np.ndarray, counts: Any, sizes: np.ndarray, rule: Rule) -> np.ndarray:
    """The order in which some classes use their partners, as by `solve.partner_ranks`."""
    q = len(common.partner)
    if rule.seed is None:
        return np.arange(q)[None]
    listed = _listed(common, 0, counts, sizes)._replace(classes=classes)
    own, others = priorities(listed, common.partner, rule)
    order = np.repeat(others[:, None], q, axis=1)
    order[listed.row, listed.label] = own
    order[np.arange(len(classes)), classes] = np.inf
    rank = np.argsort(np.argsort(order, axis=1, kind="stable"), axis=1)
    return np.where(np.isfinite(order), rank, q)


def _pattern(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    return matrix.indices, matrix.indptr


def _tables(cells: Cells, rows: Any, partner: np.ndarray) -> Tables:
    """The tables of some classes, rows of `Cells.by_class`."""
    n = cells.by_example.shape[0]
    other, stored, negative = (x.astype(np.int32) for x in unpacked((rows @ cells.by_example).toarray()))
    sizes = [x[:, None].astype(np.int32) for x in list_sizes(rows).T]
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
    place = group_places(cells.selected, assume)
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
