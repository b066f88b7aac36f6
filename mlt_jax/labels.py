"""Labels in one checked form: conversion and validation of every form of labels and masks that a user may pass."""

from collections import Counter
from itertools import chain, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float32, Shaped, UInt8

from mlt_jax.arguments import check_integer, shown, shuffled


class Labels(NamedTuple):
    """Checked labels of n examples and q classes, the result of `as_labels`."""

    values: UInt8[np.ndarray, "n q"]  # 0/1; unobserved cells are 0
    observed: Bool[np.ndarray, "n q"] | None  # None when every cell is observed
    classes: tuple[str, ...] | None  # the q class names
    rows: tuple[Any, ...] | None = None  # the n names of the examples: the index of a DataFrame, unless it just counts


Names = tuple[str, ...] | None
PRESENT, DIFFICULT, ABSENT, UNKNOWN = "present", "difficult and so present", "absent", "unknown"
CODINGS = {
    "01": {0: ABSENT, 1: PRESENT},
    "pm1": {-1: ABSENT, 1: PRESENT},
    "voc": {-1: ABSENT, 0: DIFFICULT, 1: PRESENT},
    "uncertain": {-1: UNKNOWN, 0: ABSENT, 1: PRESENT},
}
_MOST_CLASSES = 2**31  # of a list of lists: a larger index is a mistake
_LISTS = "a list of lists holds class indices, for a 0/1 matrix pass np.array(...)"


def as_labels(
    labels: Any,
    *,
    coding: str = "01",
    observed: Any = None,
    num_classes: int | None = None,
    classes: Any = None,
    name: str = "labels",
) -> Labels:
    """`Labels`, the one checked form the library works on.

    Args:
      labels: one of these.

        - (n, q) array (numpy, jax) of bool, integers or floats; a bool or uint8 0/1 array is not copied;
        - scipy.sparse (n, q), any format; explicit zeros are fine, duplicate entries are summed;
        - pandas DataFrame: its columns name the classes unless they are just 0..q-1, its index names the
          examples unless it is just 0..n-1;
        - list of lists: ALWAYS the class indices of each example (cleanlab's form), `[[0, 2], [], [1]]`, never rows
          of 0/1; a list of arrays is read the same way;
        - `Labels`, which are checked again and come back equal, whatever `coding` is.
      coding: what the numbers mean; it is never guessed. "01": 0 absent, 1 present. "pm1": -1 absent, 1 present.
        "voc": -1 absent, 0 only difficult objects, which counts as present, 1 present. "uncertain": -1 unknown (an
        unobserved cell), 0 absent, 1 present. Sparse matrices take "01" and "uncertain", lists of lists "01".
      observed: (n, q) True where the label is known; entries of `labels` elsewhere, such as NaN, are ignored.
      num_classes: q of a list of lists (default: the number of `classes`, else the largest index + 1); else checked.
      classes: q distinct names; the columns of a DataFrame must have the same names and are put in this order.
      name: what error messages call `labels`.

    Raises:
      ValueError: a wrong shape, or a value that `coding` does not have; the message names the cell and the remedy.
      TypeError: no real numbers, or no lists of class indices.
    """
    check_coding(coding)
    if num_classes is not None:
        check_integer("num_classes", num_classes, 1, _MOST_CLASSES, "at least 1")
    names = None if classes is None else _class_names(classes)
    masks, rows = [observed], None
    if isinstance(labels, Labels):
        if names is not None and labels.classes not in (None, names):
            raise ValueError(f"classes: {name} already have other class names; leave classes= out")
        coding, names, rows = "01", names or labels.classes, labels.rows
        labels, masks = labels.values, [observed, labels.observed]
    if isinstance(labels, list | tuple):
        if coding != "01":
            raise ValueError(f'coding: "{coding}" says nothing about lists of class indices; leave it out')
        grid = _from_lists(labels, len(names) if num_classes is None and names else num_classes, name)
    else:
        if _is_sparse(labels) and coding in ("pm1", "voc"):
            raise ValueError(f'coding: in "{coding}" 0 is not absent, in sparse {name} it is; pass {name}.toarray()')
        if _is_frame(labels):
            names, rows = names or _column_names(labels, name), _row_names(labels, name)
            labels = _reordered(labels, name, names)
        grid = dense(labels, name)
    if grid.ndim != 2 or 0 in grid.shape:
        raise ValueError(f"{name}: shape {grid.shape}; pass (n, q), at least one example and one class")
    q = grid.shape[1]
    if num_classes not in (None, q):
        raise ValueError(f"num_classes: {num_classes}, {name} have {q} columns; leave it out or correct it")
    if names is not None and len(names) != q:
        raise ValueError(f"classes: {len(names)} names, {name} have {q} columns; pass one name per column")
    known = [_mask(mask, "observed", grid.shape, names, rows) for mask in masks if mask is not None]
    found = _decode(grid, coding, np.logical_and.reduce(known) if known else None, names, name)
    return found._replace(rows=rows)


def as_matrix(
    array: Any, like: Labels, *, name: str, low: int | float = -np.inf, high: int | float = np.inf, lead: bool = False
) -> Float32[np.ndarray, "*epochs n q"]:
    """The (n, q) float32 matrix of finite numbers in [low, high] that goes with the labels `like`.

    Args:
      array: (n, q) of real numbers, or a DataFrame, whose columns are put in the order of the class names, its rows in
        that of the labels' index; float32 is not copied. At unobserved cells, values that are not finite or out of
        range become 0.
      lead: also accept (epochs, n, q) or a list of DataFrames; the result is (epochs, n, q), epochs = 1 for (n, q).
    """
    given = _fitted(array, name, like.values.shape, like.classes, like.rows, lead)
    with np.errstate(over="ignore"):  # too large for float32 becomes inf, which is reported below
        matrix = given.astype(np.float32, copy=False)
    fine = np.isfinite(matrix) & (matrix >= low) & (matrix <= high)
    if fine.all():
        return matrix
    allowed = "finite values" if low == -high == -np.inf else f"values in [{low:g}, {high:g}]"
    meant = ": 1 / (1 + exp(-x)) of logits, percentages divided by 100" if name == "probs" else ""
    _reject(given, ~fine, like.observed, name, like.classes, f"pass {allowed}{meant}")
    return np.where(fine, matrix, np.float32(0))


def as_logits(probs: Any, like: Labels) -> Float32[np.ndarray, "n q"]:
    """Logits (n, q) of predicted P(label = 1), clipped to [1e-6, 1 - 1e-6]."""
    p = np.clip(as_matrix(probs, like, name="probs", low=0, high=1), 1e-6, 1 - 1e-6)
    return np.log(p) - np.log1p(-p)


def as_mask(array: Any, like: Labels, *, name: str) -> Bool[np.ndarray, "n q"]:
    """The (n, q) bool mask that goes with the labels `like`; False at unobserved cells.

    `array` is (n, q) of bool or 0/1: an array, scipy.sparse, or a DataFrame, whose columns are put in class order.
    """
    return _mask(array, name, like.values.shape, like.classes, like.rows, like.observed)


def check_binary(name: str, array: ArrayLike) -> Shaped[Array, "n q"]:
    """The matrix as a jax array; ValueError unless it is (n, q) with values 0/1 (not checked under jit)."""
    given = array if isinstance(array, jax.core.Tracer) else dense(array, name)
    if given.ndim != 2:
        raise ValueError(f"{name}: has shape {given.shape}; pass a matrix (examples, classes)")
    if isinstance(given, np.ndarray):
        _reject(given, (given != 0) & (given != 1), None, name, None, "pass values 0 and 1")
    return jnp.asarray(given)


def num_axes(array: Any) -> int:
    """The number of axes, as `np.ndim`; 0 for lists of unequal length, which `as_matrix` reports."""
    try:
        return np.ndim(array)
    except ValueError:
        return 0


def to_lists(labels: Labels) -> list[list[int]]:
    """The indices of each example's present classes, ascending: cleanlab's form. Unobserved cells are not listed."""
    rows, columns = np.nonzero(labels.values)
    ends = np.searchsorted(rows, np.arange(len(labels.values) + 1)).tolist()
    flat = columns.tolist()
    return [flat[start:end] for start, end in pairwise(ends)]


def _decode(
    grid: Shaped[np.ndarray, "n q"], coding: str, observed: Bool[np.ndarray, "n q"] | None, names: Names, name: str
) -> Labels:
    if coding == "01" and (grid.dtype == bool or (grid.dtype == np.uint8 and grid.max() <= 1)):
        values = grid.view(np.uint8)
    else:
        hits = {code: grid == code for code in CODINGS[coding]}
        if sum(map(np.count_nonzero, hits.values())) < grid.size:
            allowed = " or ".join(map(str, hits)) + (f' (coding "{coding}")' if coding != "01" else "")
            others = "; or " + _explain(*(other for other in CODINGS if other != coding))
            hints = {-1: others, 0: others, "nan": ", or observed= with False where it is unknown"}
            illegal = ~np.logical_or.reduce(list(hits.values()))
            _reject(grid, illegal, observed, name, names, f"pass {allowed}", hints)
        values = (hits[1] | hits[0] if CODINGS[coding].get(0) == DIFFICULT else hits[1]).view(np.uint8)
        if CODINGS[coding].get(-1) == UNKNOWN:
            observed = ~hits[-1] if observed is None else observed & ~hits[-1]
    if observed is None or observed.all():
        return Labels(values, None, names)
    return Labels(values & observed, observed, names)


def _from_lists(rows: list[Any] | tuple[Any, ...], q: int | None, name: str) -> UInt8[np.ndarray, "n q"]:
    """The 0/1 matrix of lists of class indices; Python loops over rows only, except to report an error."""
    lists = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    for i, row in enumerate(lists):
        if not isinstance(row, list | tuple):
            raise TypeError(f"{name}: row {i} is {row!r}; pass a list of class indices per example ({_LISTS})")
    flat = list(chain.from_iterable(lists))
    row_of = np.repeat(np.arange(len(lists)), [len(row) for row in lists])
    odd = {kind for kind in set(map(type, flat)) if kind is bool or not issubclass(kind, int | np.integer)}
    if odd:
        k = next(k for k, index in enumerate(flat) if type(index) in odd)
        raise TypeError(f"{name}: row {row_of[k]} has class index {flat[k]!r}; pass integers ({_LISTS})")
    q = max(flat, default=-1) + 1 if q is None else q
    if q > _MOST_CLASSES:
        raise ValueError(f"{name}: class index {q - 1}; pass smaller ones ({_LISTS})")
    if flat and not 0 <= min(flat) <= max(flat) < q:
        k = next(k for k, index in enumerate(flat) if not 0 <= index < q)
        raise ValueError(f"{name}: row {row_of[k]} has class index {flat[k]} of {q} classes; pass 0 to {q - 1}")
    values = np.zeros((len(lists), q), np.uint8)
    values[row_of, np.array(flat, np.intp)] = 1
    if np.count_nonzero(values) != len(flat):
        i = next(i for i, row in enumerate(lists) if len(set(row)) < len(row))
        twice = next(index for index in lists[i] if lists[i].count(index) > 1)
        raise ValueError(f"{name}: row {i} repeats class index {twice}; pass it once ({_LISTS})")
    return values


def _mask(
    array: Any,
    name: str,
    shape: tuple[int, ...],
    classes: Names,
    rows: tuple[Any, ...] | None,
    observed: Bool[np.ndarray, "n q"] | None = None,
) -> Bool[np.ndarray, "n q"]:
    given = _fitted(array, name, shape, classes, rows)
    mask = given if given.dtype == bool else given == 1
    if given.dtype != bool:
        _reject(given, ~mask & (given != 0), observed, name, classes, "pass True or False, or 1 or 0")
    return mask if observed is None else mask & observed


def _fitted(
    array: Any, name: str, shape: tuple[int, ...], classes: Names, rows: tuple[Any, ...] | None, lead: bool = False
) -> np.ndarray:
    """`array` as numpy, of the labels' shape, row and column order."""
    if lead and isinstance(array, list | tuple) and any(map(_is_frame, array)):
        return np.concatenate([_fitted(epoch, name, shape, classes, rows, lead) for epoch in array])
    if _is_frame(array):
        array = in_rows(array, rows, name)
        places = tuple(map(str, range(shape[1])))
        if classes or set(_column_names(array, name) or ()) == set(places):  # column numbers order unnamed classes
            array = _reordered(array, name, classes or places)
    grid = dense(array, name)
    if grid.shape[-2:] != shape or grid.ndim not in ((2, 3) if lead else (2,)) or 0 in grid.shape:
        forms = "(n, q) or (epochs, n, q)" if lead else "(n, q)"
        raise ValueError(f"{name}: shape {grid.shape}, labels have {shape}; pass {forms}")
    return grid[None] if lead and grid.ndim == 2 else grid


def dense(array: Any, name: str) -> np.ndarray:
    """`array` as a numpy array of real numbers; missing values of DataFrames become NaN."""
    if _is_frame(array):
        return _dense_frame(array, name)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array; pass its .filled(0), with observed= the cells that are not masked")
    sparse = _is_sparse(array)
    if not sparse:
        try:
            array = np.asarray(array)
        except TypeError:
            raise TypeError(f"{name}: {shown(array)}; pass an (n, q) array of real numbers") from None
        except ValueError as error:
            lengths = [len(row) if hasattr(row, "__len__") else 0 for row in array]
            i = next((i for i, length in enumerate(lengths) if length != lengths[0]), 0)
            found = f"row {i} has length {lengths[i]}, row 0 {lengths[0]}" if i else str(error)
            raise ValueError(f"{name}: {found}; pass rows of equal length") from None
        if array.dtype.type.__module__ == "ml_dtypes":  # numpy does not count bfloat16 among the real numbers
            return array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: dtype {array.dtype}, shape {array.shape}; pass an (n, q) array of real numbers")
    if not sparse or array.ndim != 2:
        return array.toarray() if sparse else array
    csr = array.astype(np.float64).tocsr()  # float64 before summing: duplicate bools and uint8 would not add up
    csr.sum_duplicates()
    with np.errstate(invalid="ignore"):
        small = csr.data.astype(np.int8)
    if (small == csr.data).all():  # an eighth of the memory once dense
        csr = type(csr)((small, csr.indices, csr.indptr), shape=csr.shape)
    return csr.toarray()


def _dense_frame(frame: Any, name: str) -> np.ndarray:
    if 0 in frame.shape:
        return np.zeros(frame.shape)
    if any(dtype.kind == "O" for dtype in frame.dtypes):
        frame = frame.convert_dtypes()  # bools or integers beside None arrive as objects
    for column, dtype in zip(frame.columns, frame.dtypes, strict=True):
        if dtype.kind not in "biuf":
            raise TypeError(f'{name}: column "{column}" has dtype {dtype}; pass real numbers')
    if len(set(frame.dtypes)) == 1 and isinstance(frame.dtypes.iloc[0], np.dtype):
        return frame.to_numpy()
    return frame.to_numpy(dtype=np.float64, na_value=np.nan)


def _reordered(frame: Any, name: str, classes: Names) -> Any:
    """The frame with its columns in the order of `classes`; untouched where either has no names."""
    columns = _column_names(frame, name)
    if columns is None or classes is None or columns == classes:
        return frame
    place = {column: k for k, column in enumerate(columns)}
    for missing in (c for c in classes if c not in place):
        raise ValueError(f'{name}: column "{missing}" is missing; pass one column per class')
    wanted = set(classes)
    for extra in (c for c in columns if c not in wanted):
        raise ValueError(f'{name}: column "{extra}" is none of the classes; drop it')
    return frame.iloc[:, [place[c] for c in classes]]


def in_rows(frame: Any, rows: tuple[Any, ...] | None, name: str) -> Any:
    """A DataFrame with its rows in the order `rows` of the labels; untouched where one of them has no names.

    Raises:
      ValueError: other rows, or the same row numbers in another order beside an index that just counts: are its rows
        meant to be where they stand, or where they are counted?
    """
    index = _row_names(frame, name)
    if index == rows:
        return frame
    if index is None or rows is None:
        if shuffled(index or rows or ()):
            who, other = (name, "labels") if rows is None else ("labels", name)
            how = f"the index of {who} has the row numbers in another order, {other} just count"
            raise ValueError(f"{name}: {how}; pass the same index for both, or both .reset_index(drop=True)")
        return frame
    place = {key: k for k, key in enumerate(index)}
    if odd := [key for key in rows if key not in place]:
        raise ValueError(f"{name}: row {odd[0]!r} of the labels is missing; pass the same examples, or .reset_index()")
    if len(index) > len(rows):
        extra = next(key for key in index if key not in set(rows))
        raise ValueError(f"{name}: row {extra!r} is not in the labels; pass the same examples, or .reset_index()")
    return frame.iloc[[place[key] for key in rows]]


def groups_in_rows(groups: Any, rows: tuple[Any, ...] | None) -> Any:
    """Group ids with those of a pandas Series in the order of the labels' index, as `in_rows`; others as they are."""
    if not (hasattr(groups, "iloc") and hasattr(groups, "to_frame")):
        return groups
    return in_rows(groups.to_frame(), rows, "groups").iloc[:, 0].to_numpy()


def _row_names(frame: Any, name: str) -> tuple[Any, ...] | None:
    """The index of a frame, unless it just counts the rows."""
    index = frame.index.tolist()
    if index == list(range(len(index))):
        return None
    if len(set(index)) < len(index):
        twice, times = Counter(index).most_common(1)[0]
        raise ValueError(f"{name}: row {twice!r} occurs {times} times in the index; pass distinct ones")
    return tuple(index)


def _column_names(frame: Any, name: str) -> Names:
    columns = list(frame.columns)
    return None if columns == list(range(len(columns))) else _class_names(list(map(str, columns)), name)


def _class_names(names: Any, name: str = "classes") -> tuple[str, ...]:
    if isinstance(names, str) or not np.iterable(names) or not all(isinstance(entry, str) for entry in names):
        raise TypeError(f"{name}: {names!r}; pass a list of strings")
    names = tuple(map(str, names))
    if len(set(names)) < len(names):
        (twice, times), *_ = Counter(names).most_common(1)
        raise ValueError(f'{name}: class name "{twice}" occurs {times} times; pass distinct names')
    return names


def _reject(
    grid: Shaped[np.ndarray, "*epochs n q"],
    bad: Bool[np.ndarray, "*epochs n q"],
    observed: Bool[np.ndarray, "n q"] | None,
    name: str,
    classes: Names,
    remedy: str,
    hints: dict[Any, str] | None = None,
) -> None:
    """Raises for the first bad cell that is observed, if there is one; `hints` add to the remedy by value."""
    if observed is not None:
        bad = bad & observed
    if not bad.any():
        return
    *epoch, row, column = place = np.unravel_index(bad.argmax(), bad.shape)
    value = grid[place]
    where = f"epoch {epoch[0]}, " if epoch else ""
    label = f' ("{classes[column]}")' if classes else ""
    hint = (hints or {}).get("nan" if np.isnan(value) else value, "")
    raise ValueError(f"{name}: {where}row {row}, column {column}{label} is {value!s}; {remedy}{hint}")


def check_coding(coding: str) -> None:
    """Raises ValueError unless `coding` is one of `CODINGS`."""
    if not isinstance(coding, str) or coding not in CODINGS:
        raise ValueError(f"coding: {shown(coding)} is unknown; pass {_explain(*CODINGS)}")


def _explain(*codings: str) -> str:
    def meanings(coding: str) -> str:
        return ", ".join(f"{code} {meaning}" for code, meaning in CODINGS[coding].items())

    return ", ".join(f'coding="{coding}" ({meanings(coding)})' for coding in codings)


def _is_frame(array: Any) -> bool:
    return hasattr(array, "columns") and hasattr(array, "iloc")  # without importing pandas


def _is_sparse(array: Any) -> bool:
    return hasattr(array, "tocoo")
