"""Counting sparse labels: the tables of a block of classes at a time, without ever forming n x q cells.

With M the cells whose selection is written down, either the selected or the unselected ones, and V those of them that
are positives, every table follows from `Y'Y`, `V'Y` and `M'Y`: one sum of label lists per class.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Int32

from mlt_jax.cooccurrence import Tables

# Classes whose tables are worked on at once, by each thread: their rows should stay in the cache.
_CLASSES_AT_ONCE = 32
_PADDED = 3  # how many times more numbers padded label lists may hold
_BYTES_PER_PAIR = 16  # three 32-bit tables, and room for what is made of them


class SparseLabels(NamedTuple):
    """Checked sparse labels of n examples and q classes, by example and by class; `as_sparse_labels` makes them."""

    by_example: Any  # csr_array (n, q) of int32 ones
    by_class: Any  # csc_array of the same
    padded: Int32[np.ndarray, "n w"] | None  # the classes of each example, then zeros; None if that were mostly zeros


class SparseMask(NamedTuple):
    """Which cells are selected: those listed, or all others."""

    cells: Any  # csc_array, or array (n, q)
    listed: int  # cells with this value are listed: 1, or 0 in an array that is mostly 1
    selected: bool  # whether the listed cells are the selected ones


def as_sparse_labels(labels: Any) -> SparseLabels:
    """scipy.sparse 0/1 labels (n, q) in checked form."""
    if 0 in labels.shape or labels.ndim != 2:
        raise ValueError(f"labels: shape {labels.shape}; pass (n, q), at least one example and one class")
    by_class = _cells(labels, "labels", "0 or 1")
    by_class = sp.csc_array((np.ones(by_class.nnz, np.int32), by_class.indices, by_class.indptr), shape=by_class.shape)
    by_example = by_class.tocsr()
    return SparseLabels(by_example, by_class, _padded(by_example))


def _padded(by_example: Any) -> Int32[np.ndarray, "n w"] | None:
    sizes = np.diff(by_example.indptr)
    width = int(sizes.max())
    if width * len(sizes) > _PADDED * by_example.nnz:
        return None
    padded = np.zeros((len(sizes), width), np.int32)
    padded[np.arange(width) < sizes[:, None]] = by_example.indices
    return padded


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
        return SparseMask(_cells(given, name, "True or False, or 1 or 0"), 1, name == "selected")
    if given.dtype != bool:
        for start in range(0, len(given), 1024):  # a piece at a time: the whole may be large
            wrong = ~np.isin(given[start : start + 1024], (0, 1))
            if wrong.any():
                row, column = (int(k[0]) for k in np.nonzero(wrong))
                found = given[start + row, column]
                raise ValueError(
                    f"{name}: row {start + row}, column {column} is {found}; pass True or False, or 1 or 0"
                )
    listed = int(2 * np.count_nonzero(given) <= given.size)  # the fewer, the less work
    return SparseMask(given, listed, (name == "selected") == bool(listed))


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
    both, pos, neg = buffers
    rows = len(both)
    n = labels.by_example.shape[0]
    partner = np.diff(labels.by_class.indptr).astype(np.int32)
    sizes = np.empty((2, rows), np.int32)

    def fill(start: int) -> None:
        part = slice(start, min(start + _CLASSES_AT_ONCE, rows))
        block = slice(first + part.start, first + part.stop)
        positives = _columns(labels.by_class, block)
        cells = _columns(mask.cells, block, mask.listed)
        hits = cells.multiply(positives).tocsc()
        for left, out in ((positives, both), (hits, pos), (cells, neg)):
            _product(left, labels, out[part])
        sizes[:, part] = np.diff(hits.indptr), np.diff(cells.indptr)
        if mask.selected:
            neg[part] -= pos[part]
        else:
            np.subtract(both[part], pos[part], out=pos[part])
            np.subtract(partner, neg[part], out=neg[part])
            neg[part] -= pos[part]

    list(pool.map(fill, range(0, rows, _CLASSES_AT_ONCE)))
    frequency = partner[first : first + rows]
    total_pos = sizes[0] if mask.selected else frequency - sizes[0]
    total_neg = (sizes[1] if mask.selected else n - sizes[1]) - total_pos
    column = [jnp.asarray(x.astype(np.int32)[:, None]) for x in (frequency, total_pos, total_neg)]
    total = jnp.full((1, 1), n, jnp.int32)
    return Tables(*(*map(jax.device_put, buffers), jnp.asarray(partner[None]), total, *column))


def _product(left: Any, labels: SparseLabels, out: Int32[np.ndarray, "rows q"]) -> None:
    """`left' Y` of 0/1 matrices, left by columns: each column adds up the label lists of the examples it lists."""
    if labels.padded is None:
        lists = labels.by_example[left.indices]
        data, indices, ends = lists.data, lists.indices, lists.indptr[left.indptr]
    else:  # whole rows are copied several times faster than lists of different lengths
        width = labels.padded.shape[1]
        indices, ends = labels.padded[left.indices].ravel(), width * left.indptr
        data = np.ones(len(indices), np.int32)
    sp.csr_array((data, indices, ends), shape=out.shape).toarray(out=out)  # duplicates add up
    if labels.padded is not None:
        sizes = np.concatenate([[0], np.cumsum(np.diff(labels.by_example.indptr)[left.indices])])
        out[:, 0] -= (np.diff(ends) - np.diff(sizes[left.indptr])).astype(np.int32)


def _columns(cells: Any, block: slice, listed: int = 1) -> Any:
    """Some columns of a mask or of labels, as csc_array of int32 ones where they have the value `listed`."""
    if isinstance(cells, np.ndarray):
        part = np.ascontiguousarray(cells[:, block].T) == listed
        flat = np.flatnonzero(part)
        ends = np.concatenate([[0], np.cumsum(np.count_nonzero(part, axis=1))])
        rows, shape = flat % part.shape[1], part.shape[::-1]
    else:
        ends = cells.indptr[block.start : block.stop + 1]
        rows, shape = cells.indices[ends[0] : ends[-1]], (cells.shape[0], block.stop - block.start)
    rows, ends = rows.astype(np.int32, copy=False), (ends - ends[0]).astype(np.int32)
    return sp.csc_array((np.ones(len(rows), np.int32), rows, ends), shape=shape)


def _cells(matrix: Any, name: str, allowed: str) -> Any:
    """The cells of a sparse 0/1 matrix by class, sorted, each once."""
    if matrix.dtype.kind not in "biuf":
        raise TypeError(f"{name}: dtype {matrix.dtype}; pass real numbers")
    cells = sp.csc_array(matrix)
    if not cells.has_canonical_format:
        cells = sp.csc_array(matrix.astype(np.float64).tocoo())  # before summing: bools and uint8 would not add up
        cells.sum_duplicates()
    wrong = (cells.data != 0) & (cells.data != 1) if cells.dtype != bool else np.zeros(0, bool)
    if wrong.any():
        k = int(wrong.argmax())
        column = int(np.searchsorted(cells.indptr, k, side="right")) - 1
        raise ValueError(f"{name}: row {cells.indices[k]}, column {column} is {cells.data[k]:g}; pass {allowed}")
    if not cells.data.all():
        cells = cells.copy()
        cells.eliminate_zeros()
    return cells


def _aligned(shape: tuple[int, int]) -> Int32[np.ndarray, "rows q"]:
    """An uninitialised array that `jax.device_put` takes over without a copy."""
    size = 4 * shape[0] * shape[1]
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.int32).reshape(shape)
