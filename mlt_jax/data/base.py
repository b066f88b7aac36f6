"""What a data set is: names, classes, 0/1 labels, and a way to get each image (or feature vector)."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
from jaxtyping import Bool, Float, Float16, Float32, Int, Int32, UInt8
from PIL import Image, ImageOps

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
    views: "Views | None" = None  # kept maps of a few views of each image, which batches then take in its place

    def take(self, rows: Sequence[int] | Int[np.ndarray, " m"]) -> "Dataset":
        """The data set of these rows only, in this order."""
        rows = np.asarray(rows, int)
        return self._replace(
            ids=tuple(self.ids[row] for row in rows),
            labels=self.labels[rows],
            ignore=None if self.ignore is None else self.ignore[rows],
            image=None if self.image is None else _taken(self.image, rows),
            features=None if self.features is None else self.features[rows],
            views=None if self.views is None else Views(self.views.maps, self.views.rows[rows]),
        )


class Views(NamedTuple):
    """Maps of several views of each image, on disk: view 0 is the whole image, the others are crops."""

    maps: Float[np.ndarray, "images views h w c"]  # memory-mapped; never read as a whole
    rows: Int[np.ndarray, " n"]  # which of the images each example is

    def take(self, index: Int[np.ndarray, " b"], view: int | Int[np.ndarray, " b"]) -> Float[np.ndarray, "b h w c"]:
        """The maps of these examples and views."""
        return self.maps[self.rows[index], view]


class Batch(TypedDict):
    """What a training or evaluation step consumes."""

    # Images, features, or kept maps.
    inputs: UInt8[np.ndarray, "b s s 3"] | Float32[np.ndarray, "b ..."] | Float16[np.ndarray, "b h w c"]
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


def content_hash(data: Dataset) -> str:
    """A hash of all that a data set holds, pictures in files by their bytes: other data never has the same."""
    total = hashlib.blake2b(repr((data.name, data.ids, data.classes)).encode(), digest_size=16)
    for array in (data.labels, data.ignore, data.features):
        if array is not None:
            total.update(f"{array.dtype} {array.shape}".encode())
            total.update(np.ascontiguousarray(array).data)
    image = data.image
    if image is not None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for part in pool.map(lambda row: _content(image, row), range(len(data.ids))):
                total.update(part)
    return total.hexdigest()


def _content(image: Callable[[int], Pixels], row: int) -> bytes:
    """The hash of an image; nothing where it cannot be read."""
    try:
        return stamp(image, row).digest()
    except OSError:
        return b""


def read_image(file: Path | bytes, name: Path | str) -> Pixels:
    """The decoded RGB image of a file or of its bytes; raises ImageError with `name` in it where it cannot be read."""
    try:
        with Image.open(BytesIO(file) if isinstance(file, bytes) else file) as image:
            return np.asarray(as_rgb(image))
    except Exception as error:
        # A broken file makes Pillow raise OSError, SyntaxError, zlib.error and more, and few of them say which file.
        raise ImageError(f"image {name}: cannot be read ({type(error).__name__}: {error})") from error


class Stamp(NamedTuple):
    """What tells whether an image is the one it was: size and time are cheap to compare, the hash decides."""

    size: int
    time: int  # of the last change, in ns
    digest: Callable[[], bytes]  # 16 bytes of the content


def stamp(image: Callable[[int], Pixels], row: int) -> Stamp:
    """The stamp of an example's image; one that is not in a file of its own has time 0, and its pixels are hashed.

    Raises:
      OSError: it cannot be read.
    """
    if isinstance(image, _Rows):
        return stamp(image.image, int(image.rows[row]))
    if isinstance(image, Files):
        path = image.paths[row]
        try:
            found = path.stat()
        except OSError as error:
            raise ImageError(f"image {path}: cannot be read ({error.strerror})") from error
        return Stamp(found.st_size, found.st_mtime_ns, lambda: _digest(path.read_bytes()))
    pixels = image(row)
    return Stamp(pixels.size, 0, lambda: _digest(repr(pixels.shape).encode(), np.ascontiguousarray(pixels).data))


def _digest(*parts: bytes | memoryview) -> bytes:
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(part)
    return total.digest()


def as_rgb(image: Image.Image) -> Image.Image:
    """The picture upright (EXIF) in 8-bit RGB; deeper ones are scaled by the range they are stored with.

    Raises:
      ValueError: the range is not known: floats outside [0, 1], whole numbers of 32 bits.
    """
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode != "F" and not image.mode.startswith("I"):
        return image.convert("RGB")
    tags = getattr(image, "tag_v2", {})  # of TIFF
    values, most = np.asarray(image, np.float64), 1.0
    if image.mode.startswith("I;16") or image.format in ("PNG", "PPM"):  # both have at most 16 bits
        most = 2.0 ** tags.get(_BITS, (16,))[0] - 1
    elif image.mode == "I":
        raise ValueError("whole numbers of 32 bits have no known range; save it with 8 or 16 bits")
    if not (values.min() >= 0 and values.max() <= most):
        raise ValueError(f"its values go from {values.min():g} to {values.max():g}; save it with 8 or 16 bits, "
                         "or as floats in [0, 1]")  # fmt: skip
    if tags.get(_PHOTOMETRIC) == 0:  # 0 is white, which Pillow heeds for 8 bits only
        values = most - values
    return Image.fromarray(np.rint(values * (255 / most)).astype(np.uint8)).convert("RGB")


_BITS, _PHOTOMETRIC = 258, 262  # numbers of TIFF tags


def check_split(split: str, splits: Sequence[str], where: str) -> None:
    """Raises a ValueError that lists the splits of data set `where`, unless `split` is one of them."""
    if split not in splits:
        raise ValueError(f"split: {split!r} is unknown; {where} has {', '.join(map(repr, splits)) or 'none'}")
