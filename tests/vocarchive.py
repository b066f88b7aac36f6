"""A small archive like VOC's."""

import io
import tarfile

import numpy as np
from PIL import Image

from mlt_jax.data.voc import CLASSES


def voc_archive(year, split, n):
    """A tar of n small images, labelled."""
    rng, folder = np.random.default_rng(n), f"VOCdevkit/VOC{year}"
    files = {}
    for k in range(n):
        picture = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(picture, "JPEG")
        files[f"{folder}/JPEGImages/{split}{k}.jpg"] = picture.getvalue()
    for name in CLASSES:
        rows = "".join(f"{split}{k} {rng.choice([-1, 1]):2d}\n" for k in range(n))
        files[f"{folder}/ImageSets/Main/{name}_{split}.txt"] = rows.encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()
