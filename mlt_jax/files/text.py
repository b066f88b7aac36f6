"""Text with a separator (CSV, TSV): its encoding and separator are found, or asked for in one line."""

import codecs
import csv
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from mlt_jax.outputs import unguarded

# Longer marks first: that of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
_ZEROS = "is no CSV in UTF-8, it has bytes 0; pass --encoding utf-16-le where it is UTF-16"
_SEPARATORS, _LOOKED_AT = ",;\t|", 100


class Text(NamedTuple):
    """A header and the lines below it, all of equal length, and how the file writes them."""

    header: list[str]
    rows: list[list[str]]
    separator: str
    encoding: str
    guarded: bool  # whether a mark guards a formula in it
    line_end: str


def read_text(path: Path, *, separator: str | None = None, encoding: str | None = None) -> Text:
    """The cells of a text file; without the marks that guard formulas, see `outputs.guarded`.

    Args:
      separator: one character, or "tab", where the first line has it. By default the comma, or whichever of ; tab |
        cuts all lines into equally many cells where the comma does not; in .tsv files the tab.
      encoding: as Python names it, of a file that has no mark of UTF-8, UTF-16 or UTF-32 and is not plainly UTF-8, so
        that one option serves files of several origins. By default UTF-8.
    """
    text, encoding = _decoded(path, encoding)
    if separator is not None and (separator := {"tab": "\t", "\\t": "\t"}.get(separator, separator)) in ("", '"'):
        raise ValueError(f"--separator: {separator!r} cannot separate cells; pass one character, or tab")
    if separator is not None and len(separator) > 1:
        raise ValueError(f"--separator: {separator!r} is {len(separator)} characters; pass one, or tab")
    try:
        separator = separator if separator and separator in text.partition("\n")[0] else None
        separator = separator or ("\t" if path.suffix.lower() == ".tsv" else _found_separator(text))
        given = [row for row in csv.reader(StringIO(text, newline=""), delimiter=separator) if row]
    except csv.Error as error:
        raise ValueError(f"{path}: is no CSV in {encoding} ({error})") from None
    rows = [list(map(unguarded, row)) for row in given]
    if len(rows) < 2:
        raise ValueError(f"{path}: has {len(rows)} lines; pass a header with the class names and a line per example")
    header = [cell.strip() for cell in rows[0]]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            named = {"\t": "tab"}.get(separator, separator)
            hint = f'cells are separated by "{named}", --separator passes another'
            raise ValueError(f"{path}: line {number} has {len(row)} cells, the header {len(header)}; {hint}")
    line_end = "\r\n" if text.partition("\n")[0].endswith("\r") else "\n"
    return Text(header, rows[1:], separator, encoding, rows != given, line_end)


def csv_rows(path: Path, **options: Any) -> tuple[list[str], list[list[str]]]:
    """The header and the lines below it, all of equal length; options of `read_text`."""
    header, rows, *_ = read_text(path, **options)
    return header, rows


def _decoded(path: Path, encoding: str | None) -> tuple[str, str]:
    """The text and its encoding."""
    raw = path.read_bytes()
    if encoding is not None:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise ValueError(f"--encoding: {encoding!r} is unknown; pass utf-8, utf-16, cp1252 or the like") from None
    marked = next((name for mark, name in _MARKS.items() if raw.startswith(mark)), None)
    used = marked or ("utf-8" if encoding is None or _is_utf8(raw) else encoding)
    try:
        text = raw.decode(used)
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise ValueError(f"{path}: is not written in {used} ({error}); pass another --encoding") from None
        if b"\0" in raw:
            raise ValueError(f"{path}: {_ZEROS}") from None
        place = f"byte 0x{raw[error.start]:02x} in line {raw[: error.start].count(10) + 1}"
        advice = "pass --encoding cp1252 where Excel on Windows wrote it, or save it as UTF-8"
        raise ValueError(f"{path}: is no CSV in UTF-8 ({place}); {advice}") from None
    if "\0" in text and encoding is None:
        raise ValueError(f"{path}: {_ZEROS}")
    if "\ufeff" in text.lstrip("\ufeff") or "\0" in text:
        raise ValueError(f"{path}: is no CSV in UTF-8 or {used}, but something else; pass a text file")
    return text, used


def _is_utf8(raw: bytes) -> bool:
    """Whether the bytes say so themselves: letters beyond ASCII that other encodings make only by rare chance."""
    try:
        return not raw.isascii() and b"\0" not in raw and bool(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def _found_separator(text: str) -> str:
    """The comma, unless another character cuts the first lines into equally many cells and it does not."""
    lines = [line for line in text[: 1 << 20].splitlines()[:_LOOKED_AT] if line.strip()]
    widths = {mark: {len(row) for row in csv.reader(lines, delimiter=mark)} for mark in _SEPARATORS}
    return next((mark for mark, width in widths.items() if len(width) == 1 and width != {1}), ",")
