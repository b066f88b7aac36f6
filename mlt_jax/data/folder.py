"""Any folder of images with a CSV file of labels."""

import csv
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from mlt_jax.data.base import Dataset, Files


def load_folder(root: str | Path, split: str) -> Dataset:
    """The images that `root`/`split`.csv lists, with their labels; paths in it are relative to `root`.

    The first column is `image`. Then either one 0/1 column per class, named in the header, or one column `labels` with
    the names of the classes present, separated by `;`. In the second form the classes are those of all such CSV files
    in `root`, sorted: train and test then agree.
    """
    root = Path(root).expanduser()
    path = root / f"{split}.csv"
    if not path.exists():
        found = ", ".join(sorted(other.name for other in root.glob("*.csv"))) or "no CSV file"
        raise FileNotFoundError(
            f"data_dir: {path} is missing ({root} has {found}); write one with the header `image,CLASS,CLASS,...` and "
            "0/1 below, or `image,labels` with names separated by `;`"
        )
    header, rows = _read(path)
    ids = tuple(row[0] for row in rows)
    if len(set(ids)) < len(ids):
        raise ValueError(f"{path}: lists {next(name for name in ids if ids.count(name) > 1)!r} twice; list it once")
    if header[1:] == ["labels"]:
        classes = tuple(sorted({name for other in root.glob("*.csv") for names in _named(other) for name in names}))
        labels = _from_names(_named(path), classes)
    else:
        classes, labels = tuple(header[1:]), _from_columns(path, header, rows)
    if not classes or len(set(classes)) < len(classes):
        raise ValueError(f"{path}: its classes are {classes}; name one or more classes, each once")
    return Dataset(f"{root.name}/{split}", ids, classes, labels, image=Files(tuple(root / name for name in ids)))


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    if not rows or rows[0][0] != "image":
        raise ValueError(
            f"{path}: its first line is {rows[0] if rows else 'empty'}; begin with `image,` and the classes"
        )
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise ValueError(f"{path}: row {number} has {len(row)} cells, the header {len(rows[0])}; give one for each")
    return rows[0], rows[1:]


def _named(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        if next(csv.reader(file), None) != ["image", "labels"]:
            return []
    return [[name.strip() for name in row[1].split(";") if name.strip()] for row in _read(path)[1]]


def _from_names(named: list[list[str]], classes: tuple[str, ...]) -> UInt8[np.ndarray, "n q"]:
    labels = np.zeros((len(named), len(classes)), np.uint8)
    column = {name: position for position, name in enumerate(classes)}
    for row, names in enumerate(named):
        labels[row, [column[name] for name in names]] = 1
    return labels


def _from_columns(path: Path, header: list[str], rows: list[list[str]]) -> UInt8[np.ndarray, "n q"]:
    cells = np.array([row[1:] for row in rows]).reshape(len(rows), -1)
    bad = np.argwhere((cells != "0") & (cells != "1"))
    if len(bad):
        row, column = bad[0]
        cell = str(cells[row, column])
        raise ValueError(f"{path}: row {row + 2}, column {header[column + 1]!r} is {cell!r}; write 0 or 1")
    return (cells == "1").astype(np.uint8)
