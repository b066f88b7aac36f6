"""From labels with mistakes to re-checked labels, on pictures made on the spot: the tutorial of docs/audit.md.

    python examples/digits_audit.py [FOLDER]

It writes what you would start from (labels.csv, probs.csv, images/), runs `mlt audit` on it, decides on the suspects as
you would by looking at them (here the truth is known), and applies the decisions with `mlt apply`. A minute on 2 cores.
"""

import csv
import sys
from pathlib import Path

import jax
import numpy as np
from PIL import Image

from mlt_jax import cross_val_probs
from mlt_jax.cli import main as mlt
from mlt_jax.data import load_digits_scenes
from mlt_jax.files.tables import read_table
from mlt_jax.paper.noise import corrupt, transition

SCENES, PATCH, PATCHES = 2000, 9, 400


def patch_features(pixels: np.ndarray, seed: int = 0) -> np.ndarray:
    """How well each of 400 random patches matches somewhere in each picture, (n, 400): features without a network."""
    rng = np.random.default_rng(seed)
    windows = np.lib.stride_tricks.sliding_window_view(pixels.astype(np.float32), (PATCH, PATCH), axis=(1, 2))
    flat = windows.reshape(len(pixels), -1, PATCH * PATCH)[:, ::2]

    def unit(x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / (np.linalg.norm(centred, axis=-1, keepdims=True) + 100)

    picked = flat[rng.integers(len(flat), size=20 * PATCHES), rng.integers(flat.shape[1], size=20 * PATCHES)]
    patches = unit(picked[np.argsort(-picked.std(axis=1))[: 4 * PATCHES : 4]])  # those with contrast
    return np.concatenate([(unit(part) @ patches.T).max(axis=1) for part in np.array_split(flat, 40)])


def write_csv(path: Path, values: np.ndarray, classes: tuple[str, ...], ids: tuple[str, ...]) -> None:
    """A header with the class names, then an id and the numbers of each example."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", *classes])
        table.writerows([name, *row] for name, row in zip(ids, values.tolist(), strict=True))


def write_inputs(folder: Path) -> np.ndarray:
    """The clean labels; writes labels of which some are wrong, out-of-sample predictions and pictures."""
    scenes = load_digits_scenes("train", n=SCENES)
    assert scenes.image is not None
    (folder / "images").mkdir(parents=True, exist_ok=True)
    pixels = np.stack([scenes.image(row) for row in range(SCENES)])
    for name, picture in zip(scenes.ids, pixels, strict=True):
        Image.fromarray(picture).save(folder / "images" / f"{name}.png")
    labels = np.asarray(corrupt(jax.random.key(0), scenes.labels, transition(0.02, 0.2, len(scenes.classes))))
    probs = cross_val_probs(patch_features(pixels[..., 0]), labels)
    write_csv(folder / "labels.csv", labels, scenes.classes, scenes.ids)
    write_csv(folder / "probs.csv", np.round(probs, 5), scenes.classes, scenes.ids)
    return scenes.labels


def main(folder: Path) -> None:
    """Writes the inputs, audits them, applies the decisions and prints how many wrong labels are left."""
    clean = write_inputs(folder)
    labels, probs, page = (str(folder / name) for name in ("labels.csv", "probs.csv", "report.html"))
    mlt(["audit", labels, probs, "--images", str(folder / "images"), "--out", page])
    given = read_table(labels)
    place = {name: row for row, name in enumerate(given.ids or ())}
    with (folder / "report.issues.csv").open(newline="") as file:
        suspects = list(csv.DictReader(file))
    wrong = given.values != clean
    right = [bool(wrong[place[row["example"]], int(row["class"])]) for row in suspects]
    for top in (100, len(suspects)):
        hits = 100 * np.mean(right[:top])
        print(f"of the first {top} suspects {hits:.0f} % are wrong; of all labels {100 * wrong.mean():.1f} %")
    with (folder / "decisions.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(suspects[0]))
        table.writeheader()
        table.writerows(row | {"decision": "flip" if hit else "keep"} for row, hit in zip(suspects, right, strict=True))
    mlt(["apply", labels, str(folder / "decisions.csv"), "--out", str(folder / "relabelled.csv")])
    left = (read_table(folder / "relabelled.csv").values != clean).sum()
    print(
        f"looked at {100 * len(suspects) / wrong.size:.0f} % of the labels; wrong: {wrong.sum()} before, {left} after"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("examples/out"))
