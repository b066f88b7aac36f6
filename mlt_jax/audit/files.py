"""Tables in files, as the command line takes them: CSV, npy, npz or parquet, with class names and ids if any.

Whatever is wrong with a file raises a ValueError of one line that names it.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mlt_jax.audit.propose import Decisions
from mlt_jax.labels import Labels
from mlt_jax.outputs import atomic, is_number, unguarded, write_csv

FLIP, KEEP = ("flip", "wrong"), ("", "keep", "right")
ID_COLUMNS = ("id", "ids", "image", "images", "name", "names", "file", "filename", "path", "example")
_LISTED = "labels"


class Table(NamedTuple):
    """Numbers in rows and columns, with the names of both where the file has them."""

    path: Path
    values: Float[np.ndarray, "n q"]  # NaN where a cell is empty
    classes: tuple[str, ...] | None
    ids: tuple[str, ...] | None
    groups: tuple[str, ...] | None = None  # of the rows, where the file has a column of them
    key: str = "id"  # what the column of the ids is called
    listed: bool = False  # whether the file lists the names of the present classes


def read_table(path: str | Path, *, classes: tuple[str, ...] | None = None, groups: str | None = None) -> Table:
    """The table in a file.

    CSV, TSV and parquet: a header names the columns. The first column that is called like one of `ID_COLUMNS`, or else
    a first column that is no number, holds the ids; in parquet an index does, unless it just counts the rows. npy: the
    numbers alone. npz: `labels`, `probs` or `features` (or the only 2-d array), with `classes` and `ids` or `names`
    where they are known.

    Args:
      path: of the file; its extension says what it is.
      classes: all classes, for a CSV file of two columns, an id and `labels` with the names of the present classes
        separated by `;`. By default those that occur in the file, sorted.
      groups: name of the column of CSV, TSV or parquet, or array of npz, that holds the rows' groups (numbers or
        words); it is no class. A file without it has no groups.
    """
    path = _existing(path)
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".npy": _read_npy, ".npz": _read_npz, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path}: cannot read {path.suffix or 'a file without extension'}; pass {', '.join(readers)}")
    table = readers[path.suffix.lower()](path, classes, groups)
    if table.values.ndim != 2 or 0 in table.values.shape:
        raise ValueError(f"{path}: has shape {table.values.shape}; pass one row per example and one column per class")
    rows, columns = table.values.shape
    named = (("ids", table.ids, rows), ("classes", table.classes, columns), ("groups", table.groups, rows))
    for what, names, size in named:
        if names is not None and len(names) != size:
            raise ValueError(f"{path}: {len(names)} {what} for {size}; pass as many")
        if names is not None and what == "groups" and "" in names:
            raise ValueError(f"{path}: row {names.index('')} has no group; give it one of its own")
        if names is not None and what != "groups" and len(set(names)) < len(names):
            raise ValueError(f'{path}: {what} are not distinct, "{Counter(names).most_common(1)[0][0]}" occurs twice')
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
            raise ValueError(f'{table.path}: column "{name}" is not in {like.path}; drop it')
        values, classes = values[:, [place[name] for name in like.classes]], like.classes
    if table.ids and like.ids:
        values, ids, known = values[rows_like(table, like)], like.ids, set(like.ids)
        if extra := [name for name in table.ids if name not in known]:
            raise ValueError(f'{table.path}: {len(extra)} ids are not in {like.path}, the first is "{extra[0]}"')
    if len(values) != len(like.values):
        raise ValueError(
            f"{table.path}: {len(values)} rows, {like.path} has {len(like.values)}; pass the same examples"
        )
    if values.shape[1] != like.values.shape[1]:
        raise ValueError(f"{table.path}: {values.shape[1]} columns, {like.path} has {like.values.shape[1]}")
    return Table(table.path, values, classes, ids)


def rows_like(table: Table, like: Table) -> list[int]:
    """The rows of `table` with the ids of `like`, in their order; both have ids."""
    place = {name: k for k, name in enumerate(table.ids or ())}
    if lost := [name for name in like.ids or () if name not in place]:
        raise ValueError(f'{table.path}: {len(lost)} ids of {like.path} are missing, the first is "{lost[0]}"')
    return [place[name] for name in like.ids or ()]


def read_groups(source: str, labels: Table) -> tuple[str, ...]:
    """The group of each row of `labels`: from its column `source` (see `read_table`), or from the file `source`.

    The file is CSV or TSV with a header and two columns, an id, by which rows are matched, and a group; or only a group
    a line, or an npy of n numbers or words, in the order of the labels.
    """
    if labels.groups is not None:
        return labels.groups
    path = Path(source).expanduser()
    if not path.is_file():
        raise ValueError(f'groups: "{source}" is neither a column of {labels.path} nor a file; pass one of them')
    if path.suffix.lower() == ".npy":
        return _as_many(path, tuple(map(str, _load_npy(path).ravel().tolist())), labels)
    header, rows = _csv_rows(path)
    if len(header) > 2:
        raise ValueError(f"{path}: has {len(header)} columns; pass an id and a group, or only a group")
    key = next((k for k, name in enumerate(header) if name.lower() in ID_COLUMNS), 0)
    groups = tuple(row[-1 if key == 0 else 0].strip() for row in rows)
    if "" in groups:
        raise ValueError(f"{path}: line {groups.index('') + 2} has no group; give it one of its own")
    if len(header) == 1 or not labels.ids:
        return _as_many(path, groups, labels)
    table = Table(path, np.zeros((len(rows), 0)), None, tuple(row[key].strip() for row in rows))
    return tuple(groups[row] for row in rows_like(table, labels))


def _as_many(path: Path, groups: tuple[str, ...], labels: Table) -> tuple[str, ...]:
    if len(groups) != len(labels.values):
        raise ValueError(f"{path}: {len(groups)} groups, {labels.path} has {len(labels.values)} rows; pass as many")
    return groups


def read_decisions(path: str | Path, labels: Labels, ids: tuple[str, ...], classes: tuple[str, ...]) -> Decisions:
    """The decisions in a CSV file, as the page saves them: columns example, class, given, decision and probability.

    A decision is flip, keep or empty (undecided). Without a probability, decisions serve the ranking alone.
    """
    place = {name: k for k, name in enumerate(ids)}, {name: k for k, name in enumerate(classes)}
    rows = []
    for where, row in decision_rows(path):
        cell = find_cell(where, row, place)
        given = int(labels.values[cell])
        if row["given"] != given:
            raise ValueError(f"{where}, the label is {given}, not {row['given']:g}")
        label = -1 if not row["decision"] else 1 - given if row["decision"] in FLIP else given
        rows.append((*cell, label, row["probability"]))
    if not any(row[2] >= 0 for row in rows):
        raise ValueError(f"{path}: no cell is decided; decide some on the page, or write flip or keep")
    return Decisions(*map(np.array, zip(*rows, strict=True)))


def decision_rows(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each row of a CSV file of decisions stands, and the row: `example`, `class` and `decision` are text,
    `given`, `p_wrong` and `probability` numbers, NaN where the file has none.
    """
    path = _existing(path)
    header, lines = _csv_rows(path)
    for missing in {"example", "class", "given", "decision"} - set(header):
        raise ValueError(f'{path}: column "{missing}" is missing; pass the issues CSV or saved decisions')
    for number, line in enumerate(lines, 2):
        row: dict[str, Any] = dict(zip(header, map(str.strip, line), strict=True))
        row["decision"] = row["decision"].lower()
        if row["decision"] not in FLIP + KEEP:
            raise ValueError(f'{path}: line {number} decides "{row["decision"]}"; write flip, keep or nothing')
        for key in ("given", "p_wrong", "probability"):
            text = row.get(key, "") or "nan"
            if not is_number(text):
                raise ValueError(f'{path}: line {number}, column "{key}" is "{text}"; write a number or nothing')
            row[key] = float(text)
        yield f"{path}: line {number}", row


def find_cell(where: str, row: dict[str, Any], place: tuple[dict[str, int], dict[str, int]]) -> tuple[int, int]:
    """(row, column) of the cell that a decision is about, by the places of examples and classes."""
    example, column = row["example"], row["class"]
    if example not in place[0] or column not in place[1]:
        raise ValueError(f'{where} is about "{example}", class "{column}", which is not among the labels')
    return place[0][example], place[1][column]


def write_labels(path: Path, labels: Table, values: Float[np.ndarray, "n q"], groups: str | None) -> None:
    """Writes `values` in the form of `labels`, into the format that the name of the file asks for.

    CSV, TSV and parquet keep the ids, under the same name, the groups, and the form of a list; npy has numbers alone,
    npz `labels`, `classes` and `ids`.
    """
    classes = labels.classes or tuple(map(str, range(values.shape[1])))
    kept = {name: list(cells) for name, cells in ((labels.key, labels.ids), (groups, labels.groups)) if name and cells}
    kind = path.suffix.lower()
    if kind == ".npy":
        with atomic(path, "wb") as file:
            np.save(file, values)
    elif kind == ".npz":
        names = {"classes": labels.classes, "ids": labels.ids}
        named: dict[str, Any] = {name: np.array(cells) for name, cells in names.items() if cells}
        with atomic(path, "wb") as file:
            np.savez(file, labels=values, **named)
    elif labels.listed and kind in (".csv", ".tsv"):
        lists = [";".join(classes[j] for j in np.flatnonzero(row == 1)) for row in values]
        write_csv(path, [[*kept, _LISTED], *zip(*kept.values(), lists, strict=True)])
    elif kind in (".csv", ".tsv"):
        cells = [["" if np.isnan(value) else f"{value:g}" for value in row] for row in values]
        write_csv(path, [[*kept, *classes], *([*(c[k] for c in kept.values()), *row] for k, row in enumerate(cells))])
    elif kind == ".parquet":
        import pandas as pd

        frame = pd.DataFrame(kept | {name: values[:, j] for j, name in enumerate(classes)})
        with atomic(path, "wb") as file:
            frame.to_parquet(file, index=False)
    else:
        raise ValueError(f"--out: cannot write {kind or 'a file without extension'}; pass .csv, .npy, .npz or .parquet")


def read_share(path: str | Path, part: int, parts: int) -> Any:
    """The rows of share `part` of `parts` of an (n, q) matrix, as scipy.sparse (npz) or memory-mapped (npy)."""
    path = _existing(path)
    try:
        if path.suffix == ".npz":
            from scipy.sparse import load_npz  # not needed for tables

            whole = load_npz(path).tocsr()
        else:
            whole = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # zipfile, zlib, numpy and scipy each have their own
        raise ValueError(f"{path}: is neither npz of scipy.sparse.save_npz nor npy of numpy.save ({error})") from None
    if whole.ndim != 2:
        raise ValueError(f"{path}: has shape {whole.shape}; pass one row per example and one column per class")
    n = whole.shape[0]
    return whole[part * n // parts : (part + 1) * n // parts]


def _existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    return path


def _csv_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the lines below it, all of equal length."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            rows = [list(map(unguarded, row)) for row in csv.reader(file, delimiter=delimiter) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: is no CSV in UTF-8 ({error})") from None
    if len(rows) < 2:
        raise ValueError(f"{path}: has {len(rows)} lines; pass a header with the class names and a line per example")
    header = [cell.strip() for cell in rows[0]]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(f"{path}: line {number} has {len(row)} cells, the header {len(header)}")
    return header, rows[1:]


def _read_csv(path: Path, classes: tuple[str, ...] | None, groups: str | None) -> Table:
    header, rows = _csv_rows(path)
    kin = None
    if groups in header:
        place = header.index(groups)
        kin = tuple(row[place].strip() for row in rows)
        header, *rows = ([*row[:place], *row[place + 1 :]] for row in (header, *rows))
    if all(map(is_number, header)) and (len(set(header)) < len(header) or not all(h.isdigit() for h in header)):
        raise ValueError(f"{path}: its first line is numbers; begin with a header that names the classes")
    named = [k for k, name in enumerate(header) if name.lower() in ID_COLUMNS]
    key = named[0] if named else 0 if not all(is_number(row[0]) or not row[0].strip() for row in rows) else None
    ids = None if key is None else tuple(row[key].strip() for row in rows)
    columns = [k for k in range(len(header)) if k != key]
    names = tuple(header[k] for k in columns)
    if names == (_LISTED,) and key is not None:
        listed = _from_lists(path, [row[columns[0]] for row in rows], classes, ids)
        return listed._replace(groups=kin, key=header[key], listed=True)
    cells = np.array([[row[k].strip() or "nan" for k in columns] for row in rows]).reshape(len(rows), -1)
    return Table(path, _numbers(path, cells, names), names, ids, kin, "id" if key is None else header[key])


def _from_lists(path: Path, cells: list[str], classes: tuple[str, ...] | None, ids: Any) -> Table:
    listed = [[name.strip() for name in cell.split(";") if name.strip()] for cell in cells]
    classes = classes or tuple(sorted({name for names in listed for name in names}))
    place = {name: k for k, name in enumerate(classes)}
    values = np.zeros((len(listed), len(classes)), np.float32)
    for row, names in enumerate(listed):
        for name in names:
            if name not in place:
                raise ValueError(f'{path}: line {row + 2} lists "{name}", which is none of {", ".join(classes)[:80]}')
            values[row, place[name]] = 1
    return Table(path, values, classes, ids)


def _numbers(path: Path, cells: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    try:
        return cells.astype(np.float32)
    except ValueError:
        row, column = next(place for place in np.argwhere(np.ones(cells.shape, bool)) if not is_number(cells[*place]))
        cell = str(cells[row, column])
        raise ValueError(f'{path}: line {row + 2}, column "{names[column]}" is "{cell}"; write a number') from None


def _load_npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: is no npy file of numbers ({error})") from None


def _read_npy(path: Path, classes: tuple[str, ...] | None, groups: str | None) -> Table:
    return Table(path, _real(path, _load_npy(path)), None, None)


def _read_npz(path: Path, classes: tuple[str, ...] | None, groups: str | None) -> Table:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
    except Exception as error:  # zipfile, zlib and numpy each have their own
        raise ValueError(f"{path}: is no npz file of arrays without pickle ({error})") from None
    known = [name for name in ("labels", "probs", "features") if name in arrays]
    known = known or [name for name, array in arrays.items() if array.ndim == 2]
    if len(known) != 1:
        raise ValueError(f"{path}: holds {', '.join(arrays) or 'nothing'}; name one array labels, probs or features")
    names = [arrays.get(what) for what in ("classes", "ids", "names", groups or "")]
    classes, ids, also, kin = (None if x is None else tuple(map(str, x.tolist())) for x in names)
    return Table(path, _real(path, arrays[known[0]]), classes, ids or also, kin)


def _read_parquet(path: Path, classes: tuple[str, ...] | None, groups: str | None) -> Table:
    try:
        import pandas as pd

        frame = pd.read_parquet(path)
    except ImportError:
        raise ValueError(f"{path}: parquet needs pandas and pyarrow; pip install pandas pyarrow") from None
    except Exception as error:  # pyarrow has its own
        raise ValueError(f"{path}: is no parquet file ({error})") from None
    kin, index = None, frame.index.tolist() != list(range(len(frame)))
    if index:
        frame = frame.reset_index()
    if groups in frame.columns:
        column = frame.pop(groups)
        kin = tuple("" if missing else str(x) for x, missing in zip(column, column.isna(), strict=True))
    named = [c for c in frame.columns if str(c).lower() in ID_COLUMNS]
    first = frame.columns[:1].tolist()
    key = first if index else named[:1] or [c for c in first if frame[c].dtype.kind not in "biuf"]
    ids = tuple(map(str, frame[key[0]])) if key else None
    frame = frame.drop(columns=key)
    for column, dtype in frame.dtypes.items():
        if dtype.kind not in "biuf":
            raise ValueError(f'{path}: column "{column}" has dtype {dtype}; write numbers')
    values = frame.to_numpy(np.float32, na_value=np.nan)
    return Table(path, values, tuple(map(str, frame.columns)), ids, kin, str(key[0]) if key else "id")


def _real(path: Path, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path}: has dtype {array.dtype}; pass real numbers")
    return array.astype(np.float32)
