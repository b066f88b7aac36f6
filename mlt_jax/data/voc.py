"""PASCAL VOC from an unpacked VOCdevkit: ImageSets/Main has the labels, JPEGImages the images; no Annotations."""

from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Int8

from mlt_jax.data.base import Dataset, Files, check_split

# fmt: off
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)
# fmt: on
SPLITS = ("train", "val", "trainval", "test")
_SITE = "http://host.robots.ox.ac.uk/pascal/VOC/"


def load_voc(root: str | Path, year: str | int, split: str) -> Dataset:
    """VOC2007 or VOC2012 (or another year) with the image-level labels of ImageSets/Main.

    A class that an image shows only as "difficult" objects (0 in ImageSets) counts as present, and its cell is in
    `ignore`: AP skips it.

    Args:
      root: the folder that holds VOCdevkit, or VOCdevkit itself.
      split: "train", "val", "trainval" or "test".
    """
    check_split(split, SPLITS, "VOC")
    folder = _find(Path(root).expanduser(), str(year))
    ids, values = _read_split(folder / "ImageSets" / "Main", split)
    image = Files(tuple(folder / "JPEGImages" / f"{name}.jpg" for name in ids))
    labels, ignore = decode_voc(values)
    return Dataset(f"voc{year}/{split}", ids, CLASSES, labels, ignore, image)


def holds(root: Path, year: str, split: str) -> bool:
    """Whether `load_voc` would find the labels of this split."""
    with suppress(FileNotFoundError):
        return (_find(root, year) / "ImageSets" / "Main" / f"{CLASSES[-1]}_{split}.txt").exists()
    return False


def decode_voc(values: Int8[np.ndarray, "n q"]) -> tuple[np.ndarray, np.ndarray | None]:
    """(labels, ignore) of VOC's 1 present, 0 only difficult, -1 absent; `ignore` is None where nothing is difficult."""
    difficult = values == 0
    return (values >= 0).astype(np.uint8), difficult if difficult.any() else None


def _find(root: Path, year: str) -> Path:
    tried = [root / "VOCdevkit" / f"VOC{year}", root / f"VOC{year}"]
    for folder in tried:
        if (folder / "ImageSets" / "Main").is_dir():
            return folder
    raise FileNotFoundError(
        f"data_dir: neither {tried[0]} nor {tried[1]} has an ImageSets/Main folder; download the archives from "
        f"{_SITE}voc{year}/ and unpack them with `tar xf` in {root}, or leave it out: they are then fetched"
    )


def _read_split(main: Path, split: str) -> tuple[tuple[str, ...], Int8[np.ndarray, "n q"]]:
    columns, ids = [], None
    for name in CLASSES:
        path = main / f"{name}_{split}.txt"
        if not path.exists():
            found = [other for other in SPLITS if (main / f"{name}_{other}.txt").exists()]
            raise FileNotFoundError(
                f"split: {path} is missing; the label files there are of {', '.join(found) or 'none'}"
            )
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        names = tuple(line[0] for line in lines)
        if ids not in (None, names):
            raise ValueError(f"{path}: lists other images than {main / f'{CLASSES[0]}_{split}.txt'}; unpack VOC again")
        ids, values = names, [line[1] if len(line) == 2 else "" for line in lines]
        if bad := set(values) - {"1", "0", "-1"}:
            raise ValueError(f"{path}: holds {min(bad)!r} where 1, 0 or -1 is expected; unpack VOC again")
        columns.append(np.array(values, np.int8))
    assert ids is not None
    return ids, np.stack(columns, axis=1)
