"""Tables in files, as the command line takes them: CSV, npy, npz or parquet, with class names and ids if any.

Whatever is wrong with a file raises a ValueError of one line that names it.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mlt_jax.arguments import shuffled
from mlt_jax.files.arrays import load_npy, load_npz
from mlt_jax.files.columns import ID_COLUMNS, Reading, Source, Table, as_table
from mlt_jax.files.records import parquet_parts, read_json, read_parquet
from mlt_jax.files.text import csv_rows, read_text
from mlt_jax.outputs import is_number

_NAMED = "pass the same examples, and --id-column where they are named in another column"


def read_table(
    path: str | Path,
    *,
    classes: tuple[str, ...] | None = None,
    groups: str | None = None,
    id_column: str | None = None,
    ignore: tuple[str, ...] = (),
    separator: str | None = None,
    encoding: str | None = None,
) -> Table:
    """The table in a file.

    CSV, TSV, parquet and JSON lines: names of columns. Ids are in the column `id_column`; else in the first that is
    called like one of `ID_COLUMNS` and does not just repeat 0 and 1; else in a first column of words; in parquet in an
    index, unless it just counts the rows. Classes are columns of 0/1, True/False or probabilities, NA or nothing where
    nobody labelled; or one column lists the present ones, `a;b`, `a|b`, `['a', 'b']` or typed. npy: the numbers alone.
    npz: `labels`, `probs` or `features` (or the only 2-d array), with `classes` and `ids` or `names` where they are
    known. json: see `files.annotations`. A folder: the parquet files of a Hugging Face data set.

    Args:
      path: of the file; its extension says what it is.
      classes: all classes, for a file that lists the present ones. By default those that occur in it, sorted.
      groups: name of the column, or array of npz, that holds the rows' groups (numbers or words); it is no class. A
        file without it has no groups.
      id_column: name of the column of ids; a file without it must have ids in a column of a usual name.
      ignore: names of columns that are no classes.
      separator, encoding: of CSV and TSV, see `read_text`.
    """
    reading = Reading(classes, groups, id_column, tuple(ignore), separator, encoding)
    path = Path(path).expanduser()
    if path.is_dir():
        return _checked(path, read_parquet(parquet_parts(path), reading, path))
    path = existing(path)
    kind = path.suffix.lower()
    if kind not in _READERS:
        raise ValueError(f"{path}: cannot read {path.suffix or 'a file without extension'}; pass {', '.join(_READERS)}")
    return _checked(path, _READERS[kind](path, reading))


def _checked(path: Path, table: Table) -> Table:
    if table.values.ndim != 2 or 0 in table.values.shape:
        one = table.source is not None and len(table.source.names) == 1
        hint = f', it has only the column "{table.source.names[0][:40]}"; is --separator right?' if one else ""  # type: ignore[union-attr]
        shape = f"has shape {table.values.shape}; pass one row per example and one column per class"
        raise ValueError(f"{path}: {shape}{hint}")
    rows, columns = table.values.shape
    named = (("ids", table.ids, rows), ("classes", table.classes, columns), ("groups", table.groups, rows))
    for what, names, size in named:
        if names is not None and len(names) != size:
            raise ValueError(f"{path}: {len(names)} {what} for {size}; pass as many")
        if names is not None and what == "groups" and "" in names:
            raise ValueError(f"{path}: row {names.index('')} has no group; give it one of its own")
        if names is not None and what != "groups" and len(set(names)) < len(names):
            twice = f'"{Counter(names).most_common(1)[0][0]}" occurs twice'
            raise ValueError(f"{path}: {what} are not distinct, {twice}; write each once")
        if names is not None and what == "ids" and "" in names:
            raise ValueError(f"{path}: row {names.index('')} has no id; give it one, or pass --id-column")
    return table


def align(table: Table, like: Table) -> Table:
    """The table with its rows and columns in the order of `like`: by name where both have names, else by position."""
    values, classes, ids = table.values, table.classes or like.classes, table.ids or like.ids
    if table.classes and like.classes:
        place = {name: k for k, name in enumerate(table.classes)}
        for name in like.classes:
            if name not in place:
                raise ValueError(f'{table.path}: column "{name}" is missing, {like.path} has it')
        for name in set(table.classes) - set(like.classes):
            raise ValueError(f'{table.path}: column "{name}" is not in {like.path}; drop it, or pass --ignore-columns')
        values, classes = values[:, [place[name] for name in like.classes]], like.classes
    if table.ids and like.ids:
        values, ids, known = values[rows_like(table, like)], like.ids, set(like.ids)
        if extra := [name for name in table.ids if name not in known]:
            raise ValueError(
                f'{table.path}: {len(extra)} ids are not in {like.path}, the first is "{extra[0]}"; {_NAMED}'
            )
    _check_order(table, like)
    if len(values) != len(like.values):
        raise ValueError(
            f"{table.path}: {len(values)} rows, {like.path} has {len(like.values)}; pass the same examples"
        )
    if values.shape[1] != like.values.shape[1]:
        raise ValueError(f"{table.path}: {values.shape[1]} columns, {like.path} has {like.values.shape[1]}")
    return table._replace(values=values, classes=classes, ids=ids, source=None)


def rows_like(table: Table, like: Table) -> list[int]:
    """The rows of `table` with the ids of `like`, in their order; both have ids."""
    place = {name: k for k, name in enumerate(table.ids or ())}
    if lost := [name for name in like.ids or () if name not in place]:
        raise ValueError(
            f'{table.path}: {len(lost)} ids of {like.path} are missing, the first is "{lost[0]}"; {_NAMED}'
        )
    return [place[name] for name in like.ids or ()]


def _check_order(table: Table, like: Table) -> None:
    """Raises where the ids of one are row numbers in another order and the other has none."""
    for one, other in ((table, like), (like, table)):
        if one.ids and not other.ids and shuffled(one.ids):
            how = f"ids are the row numbers in another order, {other.path} has no ids"
            raise ValueError(f"{one.path}: {how}; pass both with ids, or both without")


def probabilities(table: Table) -> Table:
    """The table, once it is known to hold probabilities."""
    bad = np.argwhere(~((table.values >= 0) & (table.values <= 1)))
    if len(bad):
        row, column = bad[0]
        name = f'"{table.classes[column]}"' if table.classes else str(column)
        who = f'"{table.ids[row]}"' if table.ids else f"row {row}"
        value = table.values[row, column]
        meant = "1 / (1 + exp(-x)) of logits, percentages divided by 100"
        raise ValueError(f"{table.path}: {who}, column {name} is {value:g}; pass probabilities in [0, 1]: {meant}")
    return table


def features_like(table: Table, labels: Table) -> np.ndarray:
    """The features in the order of the labels' ids, where both have them."""
    if table.ids and labels.ids:
        return table.values[rows_like(table, labels)]
    _check_order(table, labels)
    if len(table.values) != len(labels.values):
        raise ValueError(f"{table.path}: {len(table.values)} rows, {labels.path} has {len(labels.values)}")
    return table.values


def read_groups(source: str, labels: Table, **options: Any) -> tuple[str, ...]:
    """The group of each row of `labels`: from its column `source` (see `read_table`), or from the file `source`.

    The file is CSV or TSV with a header and two columns, an id, by which rows are matched, and a group; or only a group
    a line, or an npy of n numbers or words, in the order of the labels. Options of `read_text` are for this file.
    """
    if labels.groups is not None:
        return labels.groups
    path = Path(source).expanduser()
    if not path.is_file():
        raise ValueError(f'groups: "{source}" is neither a column of {labels.path} nor a file; pass one of them')
    if path.suffix.lower() == ".npy":
        return _as_many(path, tuple(map(str, load_npy(path).ravel().tolist())), labels)
    header, rows = csv_rows(path, **options)
    if len(header) > 2:
        raise ValueError(f"{path}: has {len(header)} columns; pass an id and a group, or only a group")
    key = next((k for k, name in enumerate(header) if name.lower() in ID_COLUMNS), 0)
    groups = tuple(row[-1 if key == 0 else 0].strip() for row in rows)
    if "" in groups:
        raise ValueError(f"{path}: line {groups.index('') + 2} has no group; give it one of its own")
    if len(header) == 1:
        return _as_many(path, groups, labels)
    table = Table(path, np.zeros((len(rows), 0)), None, tuple(row[key].strip() for row in rows))
    if not labels.ids:
        _check_order(table, labels)
        return _as_many(path, groups, labels)
    return tuple(groups[row] for row in rows_like(table, labels))


def _as_many(path: Path, groups: tuple[str, ...], labels: Table) -> tuple[str, ...]:
    if len(groups) != len(labels.values):
        raise ValueError(f"{path}: {len(groups)} groups, {labels.path} has {len(labels.values)} rows; pass as many")
    return groups


def read_share(path: str | Path, part: int, parts: int) -> Any:
    """The rows of share `part` of `parts` of an (n, q) matrix, as scipy.sparse (npz) or memory-mapped (npy)."""
    path = existing(path)
    try:
        if path.suffix == ".npz":
            import scipy.sparse as sp  # not needed for tables

            with path.open("rb") as file:
                whole = sp.load_npz(file).tocsr()
        else:
            whole = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # zipfile, zlib, numpy and scipy each have their own
        raise ValueError(f"{path}: is neither npz of scipy.sparse.save_npz nor npy of numpy.save ({error})") from None
    if whole.ndim != 2:
        raise ValueError(f"{path}: has shape {whole.shape}; pass one row per example and one column per class")
    n = whole.shape[0]
    return whole[part * n // parts : (part + 1) * n // parts]


def existing(path: str | Path) -> Path:
    """The path of a file that is there."""
    path = Path(path).expanduser()
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; pass a file in it")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    return path


def _read_csv(path: Path, reading: Reading) -> Table:
    text = read_text(path, separator=reading.separator, encoding=reading.encoding)
    header, rows = text.header, text.rows
    if all(map(is_number, header)) and (len(set(header)) < len(header) or not all(h.isdigit() for h in header)):
        raise ValueError(f"{path}: its first line is numbers; begin with a header that names the classes")
    cells: list[Any] = [list(column) for column in zip(*rows, strict=True)]
    how: dict[str, Any] = dict(separator=text.separator, encoding=text.encoding, guarded=text.guarded)
    return as_table(path, Source(tuple(header), cells, line_end=text.line_end, **how), reading)


def _read_npy(path: Path, reading: Reading) -> Table:
    return Table(path, _real(path, load_npy(path)), None, None)


def _read_npz(path: Path, reading: Reading) -> Table:
    arrays = load_npz(path)
    known: list[str] = [name for name in ("labels", "probs", "features") if name in arrays]
    known = known or [name for name, array in arrays.items() if array.ndim == 2]
    if len(known) != 1:
        raise ValueError(f"{path}: holds {', '.join(arrays) or 'nothing'}; name one array labels, probs or features")
    names = [arrays.get(what) for what in ("classes", "ids", "names", reading.groups or "")]
    classes, ids, also, kin = (None if x is None else tuple(map(str, x.tolist())) for x in names)
    return Table(path, _real(path, arrays[known[0]]), classes, ids or also, kin)


def _real(path: Path, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path}: has dtype {array.dtype}; pass real numbers")
    return array.astype(np.float32)


_READERS: dict[str, Callable[[Path, Reading], Table]] = {
    ".csv": _read_csv, ".tsv": _read_csv, ".npy": _read_npy, ".npz": _read_npz,
    ".parquet": lambda path, reading: read_parquet([path], reading, path),
    ".jsonl": read_json, ".ndjson": read_json, ".json": read_json, ".txt": _read_csv,
}  # fmt: skip
