"""Finished runs in one compressed file: JSON lines, the first of which says under which options they were made."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlt_jax.outputs import atomic
from mlt_jax.paper.tables.plan import Cell


def read(path: Path, identity: dict[str, Any]) -> dict[Cell, dict[str, Any]]:
    """The records in the file, {} where there is none; ValueError where they were made under other options."""
    if not path.exists():
        return {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        first, *lines = (json.loads(line) for line in file)
    other = [name for name in identity if identity[name] != first.get(name)]
    if other:
        raise ValueError(f"cells: {path} holds runs with other {', '.join(other)}; pass another --cells")
    return {Cell(*(record[name] for name in Cell._fields)): record for record in lines}


def write(path: Path, identity: dict[str, Any], records: Mapping[Cell, dict[str, Any]]) -> None:
    """Writes the file whole or not at all; the same records give the same bytes."""
    lines = [identity, *(rounded(records[cell]) for cell in sorted(records))]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with atomic(path, "wb") as file:
        file.write(gzip.compress(text.encode(), mtime=0))


def rounded(record: dict[str, Any]) -> dict[str, Any]:
    """Eight decimals of a score and tenths of a second: no table can tell the difference."""
    scores = {name: round(value, 8) for name, value in record["scores"].items()}
    return record | {"scores": scores, "seconds": round(record["seconds"], 1)}
