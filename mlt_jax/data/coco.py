"""COCO from its `instances_*.json` and image folders, as unpacked from the official archives."""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np

from mlt_jax.data.base import Dataset, Files, check_split

SPLITS = ("train", "val")


def load_coco(root: str | Path, split: str, *, year: str | int = 2014) -> Dataset:
    """COCO with one label per class of which the image has an annotated object; in 2014, 82,081 / 40,137 examples.

    Classes are in alphabetical order, images in that of their names. Images without annotation are left out; objects
    marked as crowds count.

    Args:
      root: the folder with `annotations/instances_train2014.json` and so on, and with the image folders `train2014` and
        `val2014` (or `images/train2014`).
      split: "train" or "val".
    """
    check_split(split, SPLITS, "COCO")
    path, folder = _find(Path(root).expanduser(), f"{split}{year}", year)
    with path.open() as file:
        content = json.load(file)
    names = {category["id"]: category["name"] for category in content["categories"]}
    classes = tuple(sorted(names.values()))
    column = {key: classes.index(name) for key, name in names.items()}
    annotated = {annotation["image_id"] for annotation in content["annotations"]}
    files = {image["id"]: image["file_name"] for image in content["images"] if image["id"] in annotated}
    order = sorted(files, key=files.__getitem__)
    row = {key: position for position, key in enumerate(order)}
    labels = np.zeros((len(order), len(classes)), np.uint8)
    for annotation in content["annotations"]:
        labels[row[annotation["image_id"]], column[annotation["category_id"]]] = 1
    ids = tuple(files[key] for key in order)
    return Dataset(f"coco{year}/{split}", ids, classes, labels, image=Files(tuple(folder / name for name in ids)))


def holds(root: Path, split: str) -> bool:
    """Whether `load_coco` would find labels and images of this split."""
    with suppress(FileNotFoundError):
        return bool(_find(root, f"{split}2014", 2014))
    return False


def _find(root: Path, part: str, year: str | int) -> tuple[Path, Path]:
    """(json of the labels, folder of the images)."""
    path = _first(
        root / "annotations" / f"instances_{part}.json",
        root / f"instances_{part}.json",
        hint=f"download annotations_trainval{year}.zip from https://cocodataset.org/#download and unpack it in {root}, "
        "or leave it out: all of it is then fetched",
    )
    folder = _first(
        root / part,
        root / "images" / part,
        hint=f"download {part}.zip from https://cocodataset.org/#download and unpack it in {root}",
    )
    return path, folder


def _first(*paths: Path, hint: str) -> Path:
    for path in paths:
        if path.exists():
            return path
    raise FileNotFoundError(f"data_dir: neither {' nor '.join(map(str, paths))} is there; {hint}")
