"""Features of a frozen backbone: computed once, kept on disk, and found again by a hash of what they depend on."""

import hashlib
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree
from tqdm import tqdm

from mlt_jax import data as datasets
from mlt_jax.data import ArrayImages, Dataset
from mlt_jax.data.batches import num_batches
from mlt_jax.models import Model

BATCH = 32


def with_features(
    data: Dataset,
    model: Model,
    folder: str | Path,
    *,
    size: int | None = None,
    maps: bool = False,
    dtype: str = "float16",
    batch_size: int = BATCH,
    workers: int | None = None,
    on_error: str = "raise",
) -> Dataset:
    """The data set with the model's features in place of its images: (n, d), or (n, h, w, d) if `maps`.

    Images are warped, not cropped.

    Args:
      folder: where the features are kept as npy, under `cache_key`; a killed run leaves no half file.
      size: side of the images in pixels; by default 224.
      dtype: of the file, "float16" or "float32".
      on_error: "raise", or "skip" to leave out examples that cannot be read.
    """
    if model.features is None:
        raise ValueError(f"model: {model.name!r} has no backbone to take features from; pass a ResNet")
    if dtype not in ("float16", "float32"):
        raise ValueError(f'dtype: {dtype!r}; pass "float16" or "float32"')
    path = Path(folder) / f"{cache_key(data, model, size=size, maps=maps, dtype=dtype)}.npy"
    if not path.exists():
        found = _compute(data, model, size, maps, batch_size, workers, on_error).astype(dtype)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.part")
        with draft.open("wb") as file:
            np.save(file, found, allow_pickle=False)
        os.replace(draft, path)
    features = np.load(path, allow_pickle=False).astype(np.float32)
    readable = np.isfinite(features).all(axis=tuple(range(1, features.ndim)))
    kept = data._replace(image=None, features=features)
    return kept if readable.all() else kept.take(np.flatnonzero(readable))


def cache_key(data: Dataset, model: Model, *, size: int | None, maps: bool, dtype: str) -> str:
    """A hash of all that the features depend on: weights, preprocessing, transform, and which images."""
    total = hashlib.blake2b(digest_size=12)
    facts = (model.name, model.preprocess, "warp", size, maps, dtype, data.name, data.ids)
    total.update(repr(facts).encode())
    if isinstance(data.image, ArrayImages):
        total.update(np.ascontiguousarray(data.image.pixels).data)
    for path, leaf in jax.tree_util.tree_leaves_with_path(_backbone(model.params, model.stats)):
        total.update(jax.tree_util.keystr(path).encode())
        total.update(np.ascontiguousarray(leaf).data)
    return total.hexdigest()


def _backbone(*trees: PyTree) -> list[PyTree]:
    """Without the head: its weights are random where the classes are new, and no feature depends on them."""
    return [{name: leaf for name, leaf in tree.items() if name != "head"} for tree in trees]


def _compute(
    data: Dataset, model: Model, size: int | None, maps: bool, batch_size: int, workers: int | None, on_error: str
) -> Float[np.ndarray, "n ..."]:
    """Features of all examples, NaN for one that could not be read."""
    assert model.features is not None
    extract = jax.jit(lambda params, stats, inputs: model.features(params, stats, inputs, maps=maps))  # type: ignore[misc]
    batches = datasets.batches(
        data, batch_size=batch_size, epoch=0, seed=0, train=False, size=size, workers=workers, on_error=on_error
    )
    found: np.ndarray | None = None
    total = num_batches(len(data.ids), batch_size, train=False)
    for batch in tqdm(batches, total=total, desc=f"features of {data.name}", unit="batch", disable=None):
        part = np.asarray(extract(model.params, model.stats, jnp.asarray(batch["inputs"])))
        if found is None:
            found = np.full((len(data.ids), *part.shape[1:]), np.nan, np.float32)
        read = batch["weight"] > 0
        found[batch["index"][read]] = part[read]
    assert found is not None
    return found
