"""Files that are written: whole or not at all, never over an input, and safe to open in a spreadsheet."""

import csv
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA = tuple("=+-@\t\r")


@contextmanager
def atomic(path: str | Path, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """A file to write, which appears at `path` when the block ends well, and not at all when it does not.

    The draft lies beside it, under a name of its own that nothing had before.
    """
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    number, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, mode, **options) as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(draft, 0o666 & ~mask)  # drafts are for their owner alone
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def check_outputs(
    outputs: Iterable[Path], inputs: Iterable[Path | None], *, ours: Any, force: bool = False, flag: str = "--out"
) -> None:
    """ValueError where an output is an input, a folder, or a file that is not `ours` (a test of it) unless `force`.

    `flag` is the option that names the outputs.
    """
    read = {path.expanduser().resolve() for path in inputs if path is not None}
    for path in (path.expanduser() for path in outputs):
        if path.resolve() in read:
            raise ValueError(f"{flag}: {path} would replace an input or another output; pass another name")
        if path.is_dir():
            raise ValueError(f"{flag}: {path} is a folder; pass the name of a file in it")
        if path.exists() and not force and not ours(path):
            raise ValueError(
                f"{flag}: {path} is there and was not written by mlt, or was filled in since; pass another, or --force"
            )


def guarded(cell: Any) -> Any:
    """The cell, with a ' before text that a spreadsheet would take for a formula; `unguarded` takes it off."""
    text = isinstance(cell, str) and cell.lstrip("'").startswith(_FORMULA)
    return f"'{cell}" if text and not is_number(cell) else cell


def unguarded(cell: str) -> str:
    """What `guarded` was given."""
    inner = cell[1:]
    return inner if cell.startswith("'") and inner.lstrip("'").startswith(_FORMULA) else cell


def write_csv(
    path: str | Path,
    rows: Iterable[Iterable[Any]],
    *,
    separator: str = ",",
    encoding: str = "utf-8",
    guard: bool = True,
    line_end: str = "\r\n",
) -> Path:
    """The path, once the rows are written there; cells are `guarded` unless they are to stay as they are."""
    with atomic(path, newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator, lineterminator=line_end)
        writer.writerows([guarded(cell) if guard else cell for cell in row] for row in rows)
    return Path(path)


def is_number(text: str) -> bool:
    """Whether the text is one number, as Python writes them."""
    try:
        float(text)
    except ValueError:
        return False
    return True
