"""Counting sparse labels: the tables of a block of classes at a time, without ever forming n x q cells.

Row j of a table is a sum of sparse rows: of the labels of the positives of class j, or of its selected positives. For
the negatives it is simpler by partner i: the sum of the mask's rows over the positives of i. scipy sums the rows.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Int32, Int64, Shaped, UInt8, UInt64
from tqdm import tqdm

from mlt_jax.estimator.counts import Tables

_CLASSES_AT_ONCE = 256  # whose rows one thread sums at once
_AT_ONCE = 2**24  # nonzeros that are gathered at once, unless a single class has more
_CELLS_READ = 2**23  # of a dense array at once: of fewer, threads mostly wait for each other
_SAMPLE = 2**12  # rows, which tell enough of all
_BYTES_PER_PAIR = 16  # three 32-bit tables, and as much again for what is computed from them


class SparseLabels(NamedTuple):
    """Checked sparse labels of n examples and q classes, the result of `as_sparse_labels`."""

    by_example: Any  # csr_array (n, q) of int8 ones
    by_class: Any  # csc_array of the same
    unobserved: Any = None  # csr_array (n, q) of int8 ones; None when every cell is observed


class SparseMask(NamedTuple):
    """Which cells are selected: the stored ones, or all others."""

    cells: Any  # csr_array (n, q) of int8 ones
    selected: bool  # whether the stored cells are the selected ones


def as_sparse_labels(labels: Any) -> SparseLabels:
    """scipy.sparse 0/1 labels (n, q) in checked form."""
    if 0 in labels.shape or labels.ndim != 2:
        raise ValueError(f"labels: shape {labels.shape}; pass (n, q), at least one example and one class")
    by_example = _cells(labels, "labels", "0 or 1")
    return SparseLabels(by_example, by_example.tocsc())


def as_masked_labels(labels: Any, observed: Any, *, coding: str) -> SparseLabels | None:
    """scipy.sparse labels (n, q) with unobserved cells, in checked form; None where these are not the smaller part.

    Args:
      labels: 0/1, with coding "uncertain" -1 at unobserved cells; entries at cells that `observed` lacks are ignored.
      observed: (n, q) array of True where the label is known, or None.
    """
    if labels.ndim != 2 or labels.dtype.kind not in "biuf" or coding not in ("01", "uncertain"):
        return None
    given = sp.csr_array(labels.astype(np.float64).tocoo())
    given.sum_duplicates()
    hidden = sp.csr_array(
        ((given.data == -1) & (coding == "uncertain"), given.indices, given.indptr), shape=given.shape
    )
    if observed is not None:
        if hasattr(observed, "tocsc") or np.shape(observed) != given.shape:
            return None
        known = _stored(observed, "observed", given.shape)
        if known.selected:
            return None
        hidden = hidden + known.cells
    hidden = sp.csr_array(hidden > 0).astype(np.int8)
    given.data[np.isin(_places(given), _places(hidden), assume_unique=True)] = 0
    by_example = _cells(given, "labels", "0 or 1" if coding == "01" else "-1, 0 or 1")
    return SparseLabels(by_example, by_example.tocsc(), hidden if hidden.nnz else None)


def as_sparse_mask(selected: Any, unselected: Any, labels: SparseLabels) -> SparseMask:
    """The selection for sparse labels from exactly one of two (n, q) masks, sparse or dense."""
    name, given = ("selected", selected) if unselected is None else ("unselected", unselected)
    mask = _stored(given, name, labels.by_example.shape)
    mask = mask if name == "selected" else mask._replace(selected=not mask.selected)
    return mask if labels.unobserved is None else _without(mask, labels.unobserved)


def _without(mask: SparseMask, cells: Any) -> SparseMask:
    """The mask with some cells (n, q) no longer stored."""
    return mask._replace(cells=_cells(mask.cells - mask.cells.multiply(cells), "", ""))


def _places(cells: Any) -> Int64[np.ndarray, "k"]:
    """Row * q + column of the stored cells of a csr_array (n, q)."""
    n, q = cells.shape
    return np.repeat(np.arange(n) * q, np.diff(cells.indptr)) + cells.indices


def _stored(given: Any, name: str, shape: tuple[int, int]) -> SparseMask:
    """The cells that are True in a mask (n, q); of a dense one those that are False, if these are fewer."""
    given = given if hasattr(given, "tocsc") else np.asarray(given)
    if given.shape != shape:
        raise ValueError(f"{name}: shape {given.shape}, labels have {shape}; pass (n, q)")
    if hasattr(given, "tocsc"):
        return SparseMask(_cells(given, name, "True or False, or 1 or 0"), True)
    stored = bool(2 * np.count_nonzero(given) <= given.size)  # the rarer value
    pieces = []
    for start in range(0, len(given), 1024):  # a piece at a time: the whole may be large
        piece = given[start : start + 1024]
        wrong = ~np.isin(piece, (0, 1)) if given.dtype != bool else np.zeros((0, 0), bool)
        if wrong.any():
            row, column = (int(k[0]) for k in np.nonzero(wrong))
            raise ValueError(
                f"{name}: row {start + row}, column {column} is {piece[row, column]}; pass True or False, or 1 or 0"
            )
        pieces.append(sp.csr_array((piece == stored).view(np.int8)))
    return SparseMask(sp.vstack(pieces, format="csr"), stored)


def from_dense(
    values: UInt8[np.ndarray, "n q"], mask: Bool[np.ndarray, "n q"], *, selected: bool
) -> tuple[SparseLabels, SparseMask] | None:
    """Sparse form of dense labels and of a dense mask of selected, or else of unselected, cells.

    None if a label is neither 0 nor 1.
    """
    by_example = _ones(values, True)
    if by_example is None:
        return None
    sample = mask[:: 1 + len(mask) // _SAMPLE].copy()
    stored = bool(2 * np.count_nonzero(sample) <= sample.size)  # the rarer value
    return SparseLabels(by_example, by_example.tocsc()), SparseMask(_ones(mask, stored), selected == stored)


def _ones(dense: Shaped[np.ndarray, "n q"], value: bool) -> Any:
    """csr_array of int8 ones where the dense 0/1 array, a byte per cell, has this value; None if a cell is not 0 or 1.

    64 cells are looked at at once, then 8, then each. A thread per core reads rows in pieces.
    """
    n, q = dense.shape
    rows = 64 * max(1, _CELLS_READ // (64 * q))
    ones = np.uint64(0x0101010101010101)  # eight cells
    others = np.uint64(0 if value else ones)

    def piece(start: int) -> tuple[np.ndarray, np.ndarray, bool]:
        part = dense[start : start + rows]
        cells = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        if odd := -len(cells) % 64:
            cells = np.append(cells, np.full(odd, not value, np.uint8))
        words = cells.view(np.uint64)
        hits = (words != others).view(np.uint64)
        some = np.flatnonzero(hits != 0)
        some = _set_bytes(some, hits.take(some))
        differ = words.take(some)
        differ ^= others
        places = _set_bytes(some, differ)
        ends = np.searchsorted(places, q * np.arange(1 + len(part)))
        lengths = np.diff(ends)
        places -= np.repeat(q * np.arange(len(part)), lengths)
        return places.astype(np.int32), lengths, not np.bitwise_or.reduce(differ) & ~ones

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        columns, lengths, fine = zip(*pool.map(piece, range(0, n, rows)), strict=True)
    if not all(fine):
        return None
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    return _csr_of_ones(np.concatenate(columns), ends, (n, q))


def _set_bytes(places: Int64[np.ndarray, "k"], words: UInt64[np.ndarray, "k"]) -> Int64[np.ndarray, "m"]:
    """Places of the bytes that are not 0, of words of eight bytes and the places of these."""
    inside = np.flatnonzero(words.view(bool))
    found = places.take(inside >> 3)
    found <<= 3
    inside &= 7
    found += inside
    return found


def count_blocks(labels: SparseLabels, mask: SparseMask, *, max_memory: int) -> Iterator[tuple[np.ndarray, Tables]]:
    """Yields blocks of classes and the rows of their tables, which need no more than `max_memory` bytes.

    All blocks have the same size, so the last may repeat classes of the one before. All blocks share their memory: the
    tables of one are overwritten when the next is requested.
    """
    q = labels.by_example.shape[1]
    rows = int(np.clip(max_memory // (_BYTES_PER_PAIR * q), 1, q))
    buffers = [_aligned((rows, q)) for _ in range(3)]
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for start in tqdm(range(0, q, rows), desc="classes", unit="block", delay=2, leave=False, disable=None):
            first = min(start, q - rows)
            yield np.arange(first, first + rows), _count_rows(labels, mask, first, buffers, pool)
    finally:
        pool.shutdown(cancel_futures=True)  # on Ctrl-C, too, nothing is begun any more


def count_sparse(labels: SparseLabels, mask: SparseMask) -> Tables:
    """Tables of all classes at once, as by `counts.count`."""
    q = labels.by_example.shape[1]
    return next(count_blocks(labels, mask, max_memory=_BYTES_PER_PAIR * q * q))[1]


def _count_rows(
    labels: SparseLabels, mask: SparseMask, first: int, buffers: list[np.ndarray], pool: ThreadPoolExecutor
) -> Tables:
    """Rows `first` onwards of the tables, written into the buffers (rows, q)."""
    both, pos, neg = buffers
    n, q = labels.by_example.shape
    block = slice(first, first + len(both))
    by_example, by_class, cells = labels.by_example, labels.by_class, mask.cells
    if len(both) < q:
        by_example, by_class, cells = by_example[:, block], by_class[:, block], cells[:, block]
    partner = np.diff(labels.by_class.indptr).astype(np.int32)

    def fill(out: np.ndarray, examples: Any) -> list[Future]:
        return [pool.submit(_add_up, labels.by_example, examples, part, out[part]) for part in _parts(len(both))]

    def fill_negatives(part: slice) -> None:
        """Columns of `neg`, by partner: a class has many negatives, but a partner has few positives."""
        sums = np.empty((part.stop - part.start, len(both)), np.int32)
        _add_up(counted, labels.by_class, part, sums)
        if not mask.selected:
            np.subtract(partner[part, None], sums, out=sums)
        neg[:, part] = sums.T

    work = [*fill(both, by_class), stored_per_class := pool.submit(np.bincount, cells.indices, minlength=len(both))]
    stored = cells.multiply(by_example)  # the positives among the stored cells
    selected = (stored if mask.selected else by_example - stored).tocsr()  # the selected positives
    selected_by_class = selected.tocsc()
    counted = cells - stored if mask.selected else cells + selected  # the selected negatives, or all other cells
    work += fill(pos, selected_by_class) + [pool.submit(fill_negatives, part) for part in _parts(q)]
    for task in work:
        task.result()
    total_pos, number = np.diff(selected_by_class.indptr), stored_per_class.result()
    total_neg = (number if mask.selected else n - number) - total_pos
    column = [jnp.asarray(x.astype(np.int32)[:, None]) for x in (partner[block], total_pos, total_neg)]
    total = jnp.full((1, 1), n, jnp.int32)
    return Tables(*(*map(jax.device_put, buffers), jnp.asarray(partner[None]), total, *column))


def _parts(number: int) -> list[slice]:
    return [slice(start, min(start + _CLASSES_AT_ONCE, number)) for start in range(0, number, _CLASSES_AT_ONCE)]


def _add_up(rows: Any, examples: Any, columns: slice, out: Int32[np.ndarray, "columns w"]) -> None:
    """Writes `examples.T @ rows` of 0/1 matrices (csc, csr) for some columns of `examples` into `out`."""
    ends = examples.indptr[columns.start : columns.stop + 1]
    if len(out) > 1 and rows.nnz / rows.shape[0] * (ends[-1] - ends[0]) > _AT_ONCE:
        middle = len(out) // 2
        for half in (slice(0, middle), slice(middle, len(out))):
            _add_up(rows, examples, slice(columns.start + half.start, columns.start + half.stop), out[half])
        return
    gathered = rows[examples.indices[ends[0] : ends[-1]]]
    ones = np.ones(len(gathered.indices), np.int32)
    # The rows of a column's examples become one row with duplicates, which `toarray` sums.
    sp.csr_array((ones, gathered.indices, gathered.indptr[ends - ends[0]]), shape=out.shape).toarray(out=out)


def _cells(matrix: Any, name: str, allowed: str) -> Any:
    """The nonzero cells of a sparse 0/1 matrix, checked: csr_array of int8 ones without duplicates."""
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
    return _csr_of_ones(cells.indices, cells.indptr, cells.shape)


def _csr_of_ones(indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> Any:
    """csr_array of int8 ones, with 32-bit places where these are enough: products take two thirds of the time."""
    narrow = np.int32 if max(len(indices), *shape) < 2**31 else np.int64
    places = (each.astype(narrow, copy=False) for each in (indices, indptr))
    return sp.csr_array((np.ones(len(indices), np.int8), *places), shape=shape)


def _aligned(shape: tuple[int, int]) -> Int32[np.ndarray, "rows q"]:
    """An uninitialised array that `jax.device_put` takes over without a copy."""
    size = 4 * shape[0] * shape[1]
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.int32).reshape(shape)
