"""A small multi-label image set made on the spot: scenes of handwritten digits, with correlated labels."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image
from sklearn.datasets import load_digits

from mlt_jax.data.base import ArrayImages, Dataset, check_split

SPLITS = {"train": 6000, "test": 2000}
# Each type of scene has its own digits; neighbouring types share one, so that every digit is correlated with some.
SCENES = ((0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 0))
OWN, OTHER = 0.7, 0.08  # probability that a scene shows one of its own digits, and any other
GRID = 3  # cells a side; each holds at most one digit


def load_digits_scenes(split: str = "train", *, n: int | None = None, seed: int = 0, size: int = 24) -> Dataset:
    """n scenes of size x size pixels (grey, as RGB) with the labels "0" to "9": which digits are in them.

    One of five scene types is drawn, then each digit independently given the type, then a place in a 3 x 3 grid, a
    handwriting and a brightness for each. So digits of one type occur together and others rarely do: correlations that
    the estimator needs. Train (6,000 scenes by default) and test (2,000) are made of different handwritten digits of
    scikit-learn. The same (split, n, seed, size) gives the same bytes.
    """
    check_split(split, tuple(SPLITS), "digits")
    if not 24 <= size <= 256:
        raise ValueError(f"size: is {size}; pass 24 to 256 pixels")
    n = SPLITS[split] if n is None else n
    rng = np.random.default_rng((seed, tuple(SPLITS).index(split)))
    labels = _sample_labels(n, rng)
    cell = size // GRID
    pool = [_enlarge(drawings, cell) for drawings in digit_pool(split)]
    canvas = rng.integers(0, 32, (n, size, size), dtype=np.uint8)
    for row in range(n):
        digits = np.flatnonzero(labels[row])
        places = rng.permutation(GRID * GRID)[: len(digits)]
        for digit, place in zip(digits, places, strict=False):
            drawing = pool[digit][rng.integers(len(pool[digit]))] * rng.uniform(0.6, 1)
            top, left = cell * np.array(divmod(int(place), GRID))
            part = canvas[row, top : top + cell, left : left + cell]
            np.maximum(part, drawing.astype(np.uint8), out=part)
    pixels = np.broadcast_to(canvas[..., None], (*canvas.shape, 3))
    ids = tuple(f"{split}{seed}-{row:05d}" for row in range(n))
    return Dataset(f"digits/{split}", ids, tuple("0123456789"), labels, image=ArrayImages(pixels))


def digit_pool(split: str) -> list[Float[np.ndarray, "_ 8 8"]]:
    """The handwritten digits a split is made of, by digit, with values 0 to 255: three in four for train."""
    bunch = load_digits()
    pools = [bunch.images[bunch.target == digit] * (255 / 16) for digit in range(10)]
    return [images[(np.arange(len(images)) % 4 == 3) == (split == "test")] for images in pools]


def _sample_labels(n: int, rng: np.random.Generator) -> UInt8[np.ndarray, "n 10"]:
    chance = np.full((len(SCENES), 10), OTHER)
    for scene, digits in enumerate(SCENES):
        chance[scene, list(digits)] = OWN
    kind = rng.integers(len(SCENES), size=n)
    labels = (rng.random((n, 10)) < chance[kind]).astype(np.uint8)
    empty = np.flatnonzero(labels.sum(axis=1) == 0)
    # No scene is empty: it shows at least the middle digit of its type.
    labels[empty, np.array(SCENES)[kind[empty], 1]] = 1
    full = np.flatnonzero(labels.sum(axis=1) > GRID * GRID)
    labels[full, 9] = 0
    return labels


def _enlarge(drawings: Float[np.ndarray, "m 8 8"], side: int) -> Float[np.ndarray, "m s s"]:
    resized = [
        Image.fromarray(drawing.astype(np.float32)).resize((side, side), Image.Resampling.BILINEAR)
        for drawing in drawings
    ]
    return np.stack([np.asarray(image, float) for image in resized])
