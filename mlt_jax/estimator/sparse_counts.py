"""Counting sparse labels: the tables of a block of classes at a time, without ever forming n x q cells.

Every table is a sum of lists: of the labels of a class's examples, of its selected examples, and (for the negatives)
of the mask's cells. Short lists are copied and added up in the cache by scipy's own loops.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Int32

from mlt_jax.estimator.counts import Tables

_CLASSES_AT_ONCE = 256  # whose lists are added up at once, by each thread
_AT_ONCE = 2**24  # numbers in the lists of more than one class, on average
_BYTES_PER_PAIR = 16  # three 32-bit tables, and room for what is made of them


class SparseLabels(NamedTuple):
    """Checked sparse labels of n examples and q classes; `as_sparse_labels` makes them."""

    by_example: Any  # csr_array (n, q) of int8 ones
    by_class: Any  # csc_array of the same


class SparseMask(NamedTuple):
    """Which cells are selected: those listed, or all others."""

    cells: Any  # csr_array (n, q) of int8 ones
    selected: bool  # whether the listed cells are the selected ones


def as_sparse_labels(labels: Any) -> SparseLabels:
    """scipy.sparse 0/1 labels (n, q) in checked form."""
    if 0 in labels.shape or labels.ndim != 2:
        raise ValueError(f"labels: shape {labels.shape}; pass (n, q), at least one example and one class")
    by_example = _cells(labels, "labels", "0 or 1")
    return SparseLabels(by_example, by_example.tocsc())


def as_sparse_mask(selected: Any, unselected: Any, labels: SparseLabels) -> SparseMask:
    """The selection that goes with sparse labels; sparse or dense, exactly one of the two is given."""
    name, given = ("selected", selected) if unselected is None else ("unselected", unselected)
    if hasattr(given, "iloc"):
        given = given.to_numpy()
    shape = labels.by_example.shape
    given = given if hasattr(given, "tocsc") else np.asarray(given)
    if given.shape != shape:
        raise ValueError(f"{name}: shape {given.shape}, labels have {shape}; pass (n, q)")
    if hasattr(given, "tocsc"):
        return SparseMask(_cells(given, name, "True or False, or 1 or 0"), name == "selected")
    listed = bool(2 * np.count_nonzero(given) <= given.size)  # the fewer, the less work
    pieces = []
    for start in range(0, len(given), 1024):  # a piece at a time: the whole may be large
        piece = given[start : start + 1024]
        wrong = ~np.isin(piece, (0, 1)) if given.dtype != bool else np.zeros((0, 0), bool)
        if wrong.any():
            row, column = (int(k[0]) for k in np.nonzero(wrong))
            raise ValueError(
                f"{name}: row {start + row}, column {column} is {piece[row, column]}; pass True or False, or 1 or 0"
            )
        pieces.append(sp.csr_array((piece == listed).view(np.int8)))
    return SparseMask(sp.vstack(pieces, format="csr"), (name == "selected") == listed)


def count_blocks(labels: SparseLabels, mask: SparseMask, *, max_memory: int) -> Iterator[tuple[np.ndarray, Tables]]:
    """Classes and the rows of their tables, in blocks whose tables need no more than `max_memory` bytes.

    All blocks have the same size, so the last may repeat classes of the one before. A block's tables hold only until
    the next is asked for: they share their memory.
    """
    q = labels.by_example.shape[1]
    rows = int(np.clip(max_memory // (_BYTES_PER_PAIR * q), 1, q))
    buffers = [_aligned((rows, q)) for _ in range(3)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, q, rows):
            first = min(start, q - rows)
            yield np.arange(first, first + rows), _count_rows(labels, mask, first, buffers, pool)


def count_sparse(labels: SparseLabels, mask: SparseMask) -> Tables:
    """All rows at once (see `cooccurrence.count`)."""
    q = labels.by_example.shape[1]
    return next(count_blocks(labels, mask, max_memory=_BYTES_PER_PAIR * q * q))[1]


def _count_rows(
    labels: SparseLabels, mask: SparseMask, first: int, buffers: list[np.ndarray], pool: ThreadPoolExecutor
) -> Tables:
    """Rows `first` onwards of the tables, into the buffers (rows, q)."""
    both, pos, neg = buffers
    n, q = labels.by_example.shape
    block = slice(first, first + len(both))
    mine, by_class, cells = labels.by_example, labels.by_class, mask.cells
    if len(both) < q:
        mine, by_class, cells = mine[:, block], by_class[:, block], cells[:, block]
    partner = np.diff(labels.by_class.indptr).astype(np.int32)

    def fill(out: np.ndarray, examples: Any) -> list[Future]:
        return [pool.submit(_add_up, labels.by_example, examples, part, out[part]) for part in _parts(len(both))]

    def fill_negatives(part: slice) -> None:
        """By partner, whose examples' cells are added up: several times fewer and longer lists than by class."""
        sums = np.empty((part.stop - part.start, len(both)), np.int32)
        _add_up(counted, labels.by_class, part, sums)
        if not mask.selected:
            np.subtract(partner[part, None], sums, out=sums)
        neg[:, part] = sums.T

    work = [*fill(both, by_class), listed_by_class := pool.submit(np.bincount, cells.indices, minlength=len(both))]
    listed = cells.multiply(mine)
    taken = (listed if mask.selected else mine - listed).tocsr()  # the selected positives
    taken_by_class = taken.tocsc()
    counted = cells - listed if mask.selected else cells + taken  # the selected negatives, or all other cells
    work += fill(pos, taken_by_class) + [pool.submit(fill_negatives, part) for part in _parts(q)]
    for one in work:
        one.result()
    total_pos, number = np.diff(taken_by_class.indptr), listed_by_class.result()
    total_neg = (number if mask.selected else n - number) - total_pos
    column = [jnp.asarray(x.astype(np.int32)[:, None]) for x in (partner[block], total_pos, total_neg)]
    total = jnp.full((1, 1), n, jnp.int32)
    return Tables(*(*map(jax.device_put, buffers), jnp.asarray(partner[None]), total, *column))


def _parts(number: int) -> list[slice]:
    return [slice(start, min(start + _CLASSES_AT_ONCE, number)) for start in range(0, number, _CLASSES_AT_ONCE)]


def _add_up(lists: Any, examples: Any, columns: slice, out: Int32[np.ndarray, "columns w"]) -> None:
    """`examples' lists` of 0/1 matrices, for some columns of `examples` (csc); lists (csr) are taken row by row."""
    ends = examples.indptr[columns.start : columns.stop + 1]
    if len(out) > 1 and lists.nnz / lists.shape[0] * (ends[-1] - ends[0]) > _AT_ONCE:
        middle = len(out) // 2
        for half in (slice(0, middle), slice(middle, len(out))):
            _add_up(lists, examples, slice(columns.start + half.start, columns.start + half.stop), out[half])
        return
    taken = lists[examples.indices[ends[0] : ends[-1]]]
    ones = np.ones(len(taken.indices), np.int32)
    sp.csr_array((ones, taken.indices, taken.indptr[ends - ends[0]]), shape=out.shape).toarray(out=out)  # they add up


def _cells(matrix: Any, name: str, allowed: str) -> Any:
    """The cells of a sparse 0/1 matrix by example, sorted, each once: csr_array of int8 ones."""
    if matrix.dtype.kind not in "biuf":
        raise TypeError(f"{name}: dtype {matrix.dtype}; pass real numbers")
    cells = sp.csr_array(matrix)
    if not cells.has_canonical_format:
        cells = sp.csr_array(matrix.astype(np.float64).tocoo())  # before summing: bools and uint8 would not add up
        cells.sum_duplicates()
    wrong = (cells.data != 0) & (cells.data != 1) if cells.dtype != bool else np.zeros(0, bool)
    if wrong.any():
        k = int(wrong.argmax())
        row = int(np.searchsorted(cells.indptr, k, side="right")) - 1
        raise ValueError(f"{name}: row {row}, column {cells.indices[k]} is {cells.data[k]:g}; pass {allowed}")
    if not cells.data.all():
        cells = cells.copy()
        cells.eliminate_zeros()
    return sp.csr_array((np.ones(cells.nnz, np.int8), cells.indices, cells.indptr), shape=cells.shape)


def _aligned(shape: tuple[int, int]) -> Int32[np.ndarray, "rows q"]:
    """An uninitialised array that `jax.device_put` takes over without a copy."""
    size = 4 * shape[0] * shape[1]
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.int32).reshape(shape)
