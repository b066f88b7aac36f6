"""Images as the network takes them: the released code's random training crop, and its evaluation warp."""

from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from mlt_jax.data.base import Pixels

Square = UInt8[np.ndarray, "s s 3"]

SCALES = (1.0, 0.875, 0.75, 0.66, 0.5)
MAX_DISTORT = 2  # width and height may be this many scales apart
# Where the crop lies, in quarters of what is cut off: corners, sides' middles, centre, and halfway from it to a corner.
OFFSETS = tuple((x, y) for y in range(5) for x in range(5) if x % 2 == y % 2)


class Crop(NamedTuple):
    """A part of an image, in pixels, and whether it is mirrored."""

    left: int
    top: int
    width: int
    height: int
    flip: bool


def warp(image: Pixels, size: int) -> Square:
    """The whole image at size x size, whatever its shape (bilinear): the evaluation transform."""
    return _resize(Image.fromarray(image), size)


def sample_crop(height: int, width: int, size: int, rng: np.random.Generator) -> Crop:
    """A random part of a height x width image: multi-scale crop and horizontal flip of the released code.

    Its sides are the image's shorter side times two of `SCALES`, at most two scales apart; its place is one of 13.
    A side within 2 pixels of `size` becomes `size` (where the image is that large), so that it is not resampled.
    """
    short = min(height, width)
    sides = [int(short * scale) for scale in SCALES]
    sides = [max(1, min(size, short) if abs(side - size) < 3 else side) for side in sides]
    pairs = [(i, j) for i in range(len(sides)) for j in range(len(sides)) if abs(i - j) <= MAX_DISTORT]
    i, j = pairs[rng.integers(len(pairs))]
    x, y = OFFSETS[rng.integers(len(OFFSETS))]
    crop_width, crop_height = sides[i], sides[j]
    left, top = x * ((width - crop_width) // 4), y * ((height - crop_height) // 4)
    return Crop(left, top, crop_width, crop_height, bool(rng.integers(2)))


def augment(image: Pixels, size: int, *, seed: int, epoch: int, index: int) -> Square:
    """A random crop, perhaps mirrored, at size x size: the training transform; the same for the same four numbers."""
    # Example 0 must not share the stream that shuffles the epoch: numpy reads (seed, epoch) and (seed, epoch, 0) alike.
    return _cropped(image, size, np.random.default_rng((seed, epoch, index + 1)))


def view(image: Pixels, size: int, *, number: int, seed: int) -> Square:
    """One of an image's fixed views: 0 is the whole image (`warp`), each other a training crop drawn by the seed."""
    return warp(image, size) if number == 0 else _cropped(image, size, np.random.default_rng((seed, number)))


def _cropped(image: Pixels, size: int, rng: np.random.Generator) -> Square:
    height, width, _ = image.shape
    crop = sample_crop(height, width, size, rng)
    part = image[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    pixels = _resize(Image.fromarray(part), size)
    return pixels[:, ::-1] if crop.flip else pixels


def _resize(image: Image.Image, size: int) -> Square:
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))
