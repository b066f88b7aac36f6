"""Columns with names -> a table: which one holds the ids, which are classes, and what words and lists in cells mean."""

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mlt_jax.outputs import is_number

ID_COLUMNS = (
    "id", "ids", "image", "images", "name", "names", "file", "filename", "path", "example", "image_id", "image_name",
    "image_path", "file_name", "file_path", "filepath", "example_id", "sample_id", "uid", "uuid", "guid", "index",
    "", "unnamed: 0",
)  # fmt: skip
_COUNTERS = ("", "unnamed: 0", "index")  # so pandas writes an index: ids only where no other column has them
LIST_COLUMNS = ("labels", "label", "tags", "tag", "classes", "class", "categories", "category", "keywords")
WORDS = {"true": 1.0, "false": 0.0} | dict.fromkeys(("", "na", "n/a", "<na>", "nan", "null", "none"), np.nan)
_YES_NO = {"yes", "no", "y", "n", "t", "f", "x", "-", "on", "off", "present", "absent", "positive", "negative"}
_ITEM = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,'"\[\]]+"""
_BRACKETS = re.compile(rf"\[\s*(?:(?:{_ITEM})(?:(?:\s*,\s*|\s+)(?:{_ITEM}))*\s*,?)?\s*\]")


class Reading(NamedTuple):
    """What a caller knows about a file; None and nothing where the file is to say."""

    classes: tuple[str, ...] | None = None  # all classes, for files that list the present ones
    groups: str | None = None  # column of groups
    id_column: str | None = None
    ignore: tuple[str, ...] = ()  # columns that are no classes
    separator: str | None = None
    encoding: str | None = None


class Source(NamedTuple):
    """A table as its file has it, so that it can be written back with only some cells changed."""

    names: tuple[str, ...]
    cells: list[Any]  # a sequence per column: text as it stands, or typed cells
    lists: str | None = None  # the column of lists, if one
    separator: str = ","
    encoding: str = "utf-8"
    frame: Any = None  # of parquet
    guarded: bool = True  # whether text that a spreadsheet would take for a formula is marked, see `outputs.guarded`
    line_end: str = "\r\n"


class Table(NamedTuple):
    """Numbers in rows and columns, with the names of both where the file has them."""

    path: Path
    values: Float[np.ndarray, "n q"]  # NaN where a cell is empty
    classes: tuple[str, ...] | None
    ids: tuple[str, ...] | None
    groups: tuple[str, ...] | None = None  # of the rows, where the file has a column of them
    key: str = "id"  # what the column of the ids is called
    listed: bool = False  # whether the file lists the names of the present classes
    source: Source | None = None


def as_table(
    path: Path, source: Source, reading: Reading, *, key: str | None = None, at: str = "line", first: int = 2
) -> Table:
    """The table that columns hold.

    Args:
      key: the column of the ids, where the file says so. By default that of `reading`; else the first with a name of
        `ID_COLUMNS`, unless it repeats 0 and 1 or has fractions; else a first column of words.
      at, first: how messages call a row, and the number of the first.
    """
    names, cells = source.names, source.cells
    columns = [k for k, name in enumerate(names) if name not in reading.ignore]
    kin = next((k for k in columns if names[k] == reading.groups), None)
    columns = [k for k in columns if k != kin]
    key_at = _key(path, names, cells, columns, reading, key)
    rest = [k for k in columns if k != key_at]
    if key_at is not None:  # a counter beside the ids is no class
        rest = [k for k in rest if names[k].lower() not in _COUNTERS or _is_class(cells[k]) or _is_text(cells[k])]

    def where(row: int) -> str:
        return f"{path}: {at} {row + first}"

    lists = _list_column(path, names, cells, rest, reading, key_at is not None)
    if lists is None:
        classes = tuple(names[k] for k in rest)
        decimal = source.separator == ";"
        numbers = [_numbers(path, where, names[k], cells[k], decimal) for k in rest]
        size = len(cells[0]) if cells else 0
        values = np.stack(numbers, 1) if numbers else np.zeros((size, 0), np.float32)
    else:
        values, classes = _from_lists(where, cells[lists], reading.classes)
        source = source._replace(lists=names[lists])
    ids, groups = (None if k is None else tuple(map(_text, cells[k])) for k in (key_at, kin))
    called = "id" if key_at is None else names[key_at]
    return Table(path, values, classes, ids, groups, called, lists is not None, source)


def split_lists(where: Any, cells: Sequence[Any], classes: tuple[str, ...] | None = None) -> list[list[str] | None]:
    """The names that each cell lists; None where the cell says that nobody labelled the example.

    A cell is a sequence, or text: `a;b`, `a|b`, `a, b`, or a list as Python, NumPy or JSON writes it.
    """
    known = set(classes or ())
    texts = [cell for cell in cells if isinstance(cell, str) and cell.strip() not in known and cell.strip()[:1] != "["]
    marks = [mark for mark in ";|," if any(mark in text for text in texts)]
    if ";" in marks and "|" in marks:
        row = next(row for row, cell in enumerate(cells) if isinstance(cell, str) and "|" in cell)
        raise ValueError(f'{where(row)} has "|", other cells ";"; separate all names by the same')
    found: list[list[str] | None] = []
    for row, cell in enumerate(cells):
        if cell is None or (isinstance(cell, float) and np.isnan(cell)):
            found.append(None)
        elif not isinstance(cell, str):
            single = not isinstance(cell, list | tuple | np.ndarray)
            found.append([_text(item) for item in ([cell] if single else cell)])
        elif (text := cell.strip()) in known:
            found.append([text])
        elif text.startswith("["):
            if not _BRACKETS.fullmatch(text):
                raise ValueError(f"{where(row)} is {text[:40]!r}, which is no list; write ['a', 'b'] or a;b")
            items = re.findall(_ITEM, text[1:-1])
            found.append([str(ast.literal_eval(item)) if item[0] in "'\"" else item for item in items])
        elif text and text.lower() in WORDS:
            found.append(None)
        else:
            found.append([name.strip() for name in (text.split(marks[0]) if marks else [text]) if name.strip()])
    return found


def joined(names: list[str], like: Sequence[Any], old: str) -> str:
    """Text that lists `names` as the column `like` does, of which `old` is one cell."""
    if any(isinstance(cell, str) and cell.strip().startswith("[") for cell in like):
        return json.dumps(names, ensure_ascii=False) if '"' in old else str(names)
    marks = [mark for mark in ";|," if any(mark in str(cell) for cell in like)]
    mark = marks[0] if marks else ";"
    return (f"{mark} " if any(f"{mark} " in str(cell) for cell in like) else mark).join(names)


def _key(
    path: Path, names: Sequence[str], cells: list[Any], columns: list[int], reading: Reading, key: str | None
) -> int | None:
    """The column of the ids."""
    for wanted in (reading.id_column, key):
        if wanted is not None and wanted in [names[k] for k in columns]:
            return next(k for k in columns if names[k] == wanted)
    usual = [k for k in columns if names[k].lower() in ID_COLUMNS and not _is_class(cells[k])]
    if usual:
        return next((k for k in usual if names[k].lower() not in _COUNTERS), usual[0])
    if reading.id_column is not None:
        some = ", ".join(names)[:80]
        raise ValueError(f'{path}: has no column "{reading.id_column}", but {some}; correct --id-column')
    first = columns[0] if columns else None
    alone = first is not None and (names[first].lower() in LIST_COLUMNS or not _is_text(cells[first]))
    return None if alone else first


def _list_column(
    path: Path, names: Sequence[str], cells: list[Any], rest: list[int], reading: Reading, keyed: bool
) -> int | None:
    """The column that lists the present classes: known by its name and content, or as the only one, of words."""
    called = [k for k in rest if names[k].lower() in LIST_COLUMNS and _may_list(cells[k])]
    lists = called or [k for k in rest if _holds_sequences(cells[k])]
    if not lists and keyed and len(rest) == 1 and _is_text(cells[rest[0]]):
        words = {str(cell).strip().lower() for cell in cells[rest[0]]}
        lists = [] if words <= _YES_NO | set(WORDS) | {"0", "1"} else rest
    if not lists and keyed and len(rest) == 1 and names[rest[0]].lower() in LIST_COLUMNS:
        if _is_flags(cells[rest[0]]) and not (reading.classes and names[rest[0]] in reading.classes):
            advice = "name it like the class, or list names of classes"
            raise ValueError(f'{path}: column "{names[rest[0]]}" holds only 0 and 1; {advice}')
        lists = [] if reading.classes and names[rest[0]] in reading.classes else rest
    if len(lists) > 1:
        both = " and ".join(f'"{names[k]}"' for k in lists[:2])
        raise ValueError(f"{path}: columns {both} hold lists; pass --ignore-columns with all but one")
    for k in rest if lists else ():
        if k != lists[0] and _is_flags(cells[k]):
            both = f'lists in column "{names[lists[0]]}" and 0/1 in column "{names[k]}"'
            raise ValueError(f"{path}: has {both}; pass --ignore-columns with what is no label")
    return lists[0] if lists else None


def _from_lists(where: Any, cells: Sequence[Any], classes: tuple[str, ...] | None) -> tuple[Any, tuple[str, ...]]:
    """(values, classes)."""
    listed = split_lists(where, cells, classes)
    classes = classes or tuple(sorted({name for names in listed for name in names or ()}))
    place = {name: k for k, name in enumerate(classes)}
    values = np.zeros((len(listed), len(classes)), np.float32)
    for row, names in enumerate(listed):
        if names is None:
            values[row] = np.nan
        for name in names or ():
            if name not in place:
                raise ValueError(f'{where(row)} lists "{name}", which is none of {", ".join(classes)[:80]}')
            values[row, place[name]] = 1
    return values, classes


def _numbers(path: Path, where: Any, name: str, cells: Any, decimal: bool) -> Float[np.ndarray, "n"]:
    """The numbers in a column; True, False and words for a missing one count, and decimal commas if `decimal`."""
    kind = getattr(getattr(cells, "dtype", None), "kind", "O")
    if kind in "biuf":
        return np.asarray(cells, np.float32)
    texts = [_text(cell) for cell in cells]
    try:
        return np.array([text or "nan" for text in texts], str).astype(np.float32)
    except ValueError:
        pass
    found = np.empty(len(texts), np.float32)
    for row, text in enumerate(texts):
        text = text.replace(",", ".") if decimal and text.count(",") == 1 else text
        value = WORDS.get(text.lower())
        if value is None and not is_number(text):
            advice = f"write a number, or pass --ignore-columns {name!r} if it is no class"
            raise ValueError(f'{where(row)}, column "{name}" is "{text}"; {advice}')
        found[row] = float(text) if value is None else value
    return found


def _text(cell: Any) -> str:
    if cell is None or (isinstance(cell, float) and np.isnan(cell)) or type(cell).__name__ in ("NAType", "NaTType"):
        return ""
    return cell.strip() if isinstance(cell, str) else str(cell)


def _holds_sequences(cells: Any) -> bool:
    return any(isinstance(cell, list | tuple | np.ndarray) for cell in cells)


def _is_text(cells: Any) -> bool:
    """Whether there are words that stand neither for a number nor for a missing one."""
    if getattr(getattr(cells, "dtype", None), "kind", "O") in "biuf":
        return False
    return any(isinstance(c, str) and not is_number(c) and c.strip().lower() not in WORDS for c in cells)


def _may_list(cells: Any) -> bool:
    return _is_text(cells) or _holds_sequences(cells)


def _is_flags(cells: Any) -> bool:
    words = {_text(cell).lower() for cell in cells}
    return words <= {"0", "1", "0.0", "1.0"} | set(WORDS) and words != {""}


def _is_class(cells: Any) -> bool:
    """Whether a column that is called like one of ids holds labels or probabilities: 0 and 1 again and again, or .7."""
    texts = {_text(cell) for cell in cells}
    repeats = len(texts) < len(cells) and _is_flags(cells)
    numbers = [float(text or 0) for text in texts if is_number(text or "0")]
    return repeats or (len(numbers) == len(texts) and not all(map(float.is_integer, numbers)))
