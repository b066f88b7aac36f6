"""Labels written back in the form in which they were read: only the cells that changed differ."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mlt_jax.files.columns import Source, Table, joined
from mlt_jax.outputs import atomic, write_csv


def write_labels(path: Path, labels: Table, values: Float[np.ndarray, "n q"]) -> None:
    """Writes `values` in the form of `labels`, into the format that the name of the file asks for.

    CSV, TSV and parquet keep every other column, the order of the columns, lists, words such as True, and where the
    labels were CSV the separator (but not in .tsv), the encoding, the ends of lines, and text that a spreadsheet would
    take for a formula; pictures in parquet are not kept. npy has numbers alone, npz `labels`, `classes` and `ids`.
    """
    kind = path.suffix.lower()
    if kind == ".npy":
        with atomic(path, "wb") as file:
            np.save(file, values)
    elif kind == ".npz":
        names = {"classes": labels.classes, "ids": labels.ids}
        named: dict[str, Any] = {name: np.array(cells) for name, cells in names.items() if cells}
        with atomic(path, "wb") as file:
            np.savez(file, labels=values, **named)
    elif kind in (".csv", ".tsv"):
        source = labels.source or Source((), [])
        header, cells = _edited(labels, values)
        rows = [[_written(column[k]) for column in cells] for k in range(len(values))]
        how: dict[str, Any] = dict(encoding=source.encoding, guard=source.guarded, line_end=source.line_end)
        write_csv(path, [header, *rows], separator="\t" if kind == ".tsv" else source.separator, **how)
    elif kind == ".parquet":
        import pandas as pd

        new = _frame(pd, labels, values)
        with atomic(path, "wb") as file:
            new.to_parquet(file, index=False)
    else:
        raise ValueError(f"--out: cannot write {kind or 'a file without extension'}; pass .csv, .npy, .npz or .parquet")


def _frame(pd: Any, labels: Table, values: Float[np.ndarray, "n q"]) -> Any:
    """The labels as a DataFrame: that of their file with the cells that changed, or numbers beside a CSV's text."""
    names, cells = _edited(labels, values)
    source = labels.source
    if source is None or source.frame is None:
        place = {} if labels.listed else {name: j for j, name in enumerate(labels.classes or ())}
        columns = zip(names, cells, strict=True)
        return pd.DataFrame({name: values[:, place[name]] if name in place else column for name, column in columns})
    frame = source.frame.copy()
    for name, new, old in zip(names, cells, source.cells, strict=True):
        if new is not old:
            series = pd.Series(new, index=frame.index, dtype=object)
            frame[name] = series if name == source.lists else series.astype(frame[name].dtype)
    return frame


def _edited(labels: Table, values: Float[np.ndarray, "n q"]) -> tuple[list[str], list[Any]]:
    """Names and cells of the columns of the file, with the cells of `values` that differ from the labels'."""
    classes = labels.classes or tuple(map(str, range(values.shape[1])))
    source = labels.source or _plain(labels, classes)
    changed = (values != labels.values) & ~(np.isnan(values) & np.isnan(labels.values))
    cells = list(source.cells)
    if source.lists is not None:
        k = source.names.index(source.lists)
        column = list(cells[k])
        for row in np.flatnonzero(changed.any(axis=1)):
            names = [classes[j] for j in np.flatnonzero(values[row] == 1)]
            text = isinstance(column[row], str)
            column[row] = joined(names, cells[k], column[row]) if text else names
        cells[k] = column if changed.any() else cells[k]
        return list(source.names), cells
    for j in np.flatnonzero(changed.any(axis=0)):
        k = source.names.index(classes[j])
        column = list(cells[k])
        for row in np.flatnonzero(changed[:, j]):
            column[row] = _word(column[row], float(values[row, j]))
        cells[k] = column
    return list(source.names), cells


def _plain(labels: Table, classes: tuple[str, ...]) -> Source:
    """Columns for a file that had none: the ids, if any, and a number per class."""
    kept = {labels.key: list(labels.ids)} if labels.ids else {}
    if labels.groups:
        kept["group"] = list(labels.groups)
    return Source((*kept, *classes), [*kept.values(), *(list(column) for column in labels.values.T)])


def _word(old: Any, value: float) -> Any:
    """The number as a cell that looks like `old`."""
    if isinstance(old, bool | np.bool_):
        return value == 1
    if isinstance(old, str) and old.strip().lower() in ("true", "false"):
        word = "true" if value == 1 else "false"
        return word.upper() if old.strip().isupper() else word.title() if old.strip()[:1].isupper() else word
    return "" if np.isnan(value) else f"{value:g}" if isinstance(old, str) else value


def _written(cell: Any) -> Any:
    """What CSV shows of a cell: nothing where it is missing, whole numbers without a point, lists as `a;b`."""
    if cell is None or (isinstance(cell, float | np.floating) and np.isnan(cell)):
        return ""
    if isinstance(cell, float | np.floating):
        return f"{cell:g}"
    return ";".join(map(str, cell)) if isinstance(cell, list | tuple | np.ndarray) else cell
