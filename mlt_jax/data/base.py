"""What a data set is: names, classes, 0/1 labels, and a way to get each image (or feature vector)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int32, UInt8
from PIL import Image

Pixels = UInt8[np.ndarray, "h w 3"]


class Dataset(NamedTuple):
    """n examples with q 0/1 labels each, as images or as features."""

    name: str  # such as "voc2012/trainval"
    ids: tuple[str, ...]  # n example names, all different
    classes: tuple[str, ...]  # q class names
    labels: UInt8[np.ndarray, "n q"]  # 0/1; what VOC marks as only difficult is 1
    ignore: Bool[np.ndarray, "n q"] | None = None  # cells that AP skips (VOC: only difficult), if there are any
    image: Callable[[int], Pixels] | None = None  # decoded RGB image of an example; None for a feature set
    features: Float[np.ndarray, "n ..."] | None = None  # (n, d), or (n, h, w, d) maps; None for an image set

    def take(self, rows: Sequence[int] | Int[np.ndarray, " m"]) -> "Dataset":
        """The data set of these rows only, in this order."""
        rows = np.asarray(rows, int)
        return self._replace(
            ids=tuple(self.ids[row] for row in rows),
            labels=self.labels[rows],
            ignore=None if self.ignore is None else self.ignore[rows],
            image=None if self.image is None else _taken(self.image, rows),
            features=None if self.features is None else self.features[rows],
        )


class Batch(TypedDict):
    """What a training or evaluation step consumes."""

    inputs: UInt8[np.ndarray, "b s s 3"] | Float32[np.ndarray, "b ..."]  # images, or features
    labels: Float32[np.ndarray, "b q"]
    index: Int32[np.ndarray, " b"]  # position of each row in the data set
    weight: Float32[np.ndarray, " b"]  # 1, or 0 for a row that only pads the batch or whose image could not be read


class ImageError(OSError):
    """An image that is missing, truncated or no image; the message names it."""


@dataclass(frozen=True)
class Files:
    """Images in files, decoded when asked for."""

    paths: tuple[Path, ...]

    def __call__(self, row: int) -> Pixels:
        """The decoded image."""
        return read_image(self.paths[row], self.paths[row])


@dataclass(frozen=True)
class ArrayImages:
    """Images in memory, all of one size; batches take them as they are, without crop and flip."""

    pixels: UInt8[np.ndarray, "n h w 3"]

    def __call__(self, row: int) -> Pixels:
        """The image."""
        return self.pixels[row]


@dataclass(frozen=True)
class _Rows:
    image: Callable[[int], Pixels]
    rows: Int[np.ndarray, " m"]

    def __call__(self, row: int) -> Pixels:
        return self.image(int(self.rows[row]))


def _taken(image: Callable[[int], Pixels], rows: Int[np.ndarray, " m"]) -> Callable[[int], Pixels]:
    return ArrayImages(image.pixels[rows]) if isinstance(image, ArrayImages) else _Rows(image, rows)


def read_image(file: Path | bytes, name: Path | str) -> Pixels:
    """The decoded RGB image of a file or of its bytes; raises ImageError with `name` in it where it cannot be read."""
    try:
        with Image.open(BytesIO(file) if isinstance(file, bytes) else file) as image:
            return np.asarray(image.convert("RGB"))
    except Exception as error:
        # A broken file makes Pillow raise OSError, SyntaxError, zlib.error and more, and few of them say which file.
        raise ImageError(f"image {name}: cannot be read ({type(error).__name__}: {error})") from error


def check_split(split: str, splits: Sequence[str], where: str) -> None:
    """Raises a ValueError that lists the splits of data set `where`, unless `split` is one of them."""
    if split not in splits:
        raise ValueError(f"split: {split!r} is unknown; {where} has {', '.join(map(repr, splits)) or 'none'}")
