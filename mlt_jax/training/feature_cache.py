"""What a fixed network makes of images: computed once, kept on disk, found again by a hash of what it depends on.

Two files per cache. `KEY.npy` holds the numbers, (images, views, ...), and can be mapped into memory. `KEY.rows.npy`
has a record per image and view: size, time and hash of the image, and a checksum of its numbers. The key is a hash of
the weights, the transform and the names of the images. A number is used only where its record fits; what does not fit
is computed again: what a kill left out, and what was changed or damaged.
"""

import hashlib
import os
import shutil
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from filelock import FileLock
from jaxtyping import Bool, Float, Int, PyTree, Shaped
from tqdm import tqdm

from mlt_jax import data as datasets
from mlt_jax.data import ArrayImages, Dataset, Views, stamp, view
from mlt_jax.models import Model
from mlt_jax.outputs import atomic

BATCH = 32
_FORMAT = 2
_RECORD = np.dtype([("size", "<i8"), ("time", "<i8"), ("digest", "V16"), ("sum", "<u4"), ("done", "?")])


def with_features(data: Dataset, model: Model, folder: str | Path, *, maps: bool = False, **options: Any) -> Dataset:
    """The data set with the model's features in place of its images: (n, d), or (n, h, w, d) if `maps`.

    Images are warped, not cropped. Those that could not be read are left out, see `on_error`.

    Args:
      folder: where the features are kept.
      options: size, dtype, batch_size, workers and on_error of `kept`.
    """
    found, readable = kept(data, model, folder, at="maps" if maps else "pooled", **options)
    rows = np.flatnonzero(readable)
    whole = data if readable.all() else data.take(rows)
    return whole._replace(image=None, features=found[rows, 0].astype(np.float32))


def with_views(data: Dataset, model: Model, folder: str | Path, *, views: int = 1, **options: Any) -> Dataset:
    """The data set with maps of `views` fixed views of each image, from before the model's last stage.

    View 0 is the whole image, the others are training crops, perhaps mirrored, that the image's content draws. Images
    in memory, which are never cropped, have one.

    Args:
      folder: where the maps are kept; they are mapped into memory, not read.
      options: size, dtype, batch_size, workers and on_error of `kept`.
    """
    views = 1 if isinstance(data.image, ArrayImages) else views
    found, readable = kept(data, model, folder, at="trunk", views=views, **options)
    whole = data._replace(views=Views(found, np.arange(len(data.ids))))
    return whole if readable.all() else whole.take(np.flatnonzero(readable))


def kept(
    data: Dataset,
    model: Model,
    folder: str | Path,
    *,
    at: str = "pooled",
    views: int = 1,
    size: int | None = None,
    dtype: str = "float16",
    batch_size: int = BATCH,
    workers: int | None = None,
    on_error: str = "raise",
) -> tuple[Shaped[np.ndarray, "n views ..."], Bool[np.ndarray, " n"]]:
    """(numbers, mapped into memory; whether each image could be read), computed first where they are not kept.

    Processes that ask at once wait for the first.

    Args:
      at: "pooled", "maps" or "trunk": where the model is cut, see `Model.features`.
      views: how many of each image.
      size: side of the images in pixels; by default 224, or that of images in memory.
      dtype: of the file, "float16" or "float32"; numbers beyond float16 are kept as float32, with a warning.
      on_error: "raise", or "skip": an image that cannot be read is tried again by the next call.
    """
    if model.features is None:
        raise ValueError(f"model: {model.name!r} has no backbone to take features from; pass a ResNet")
    if dtype not in ("float16", "float32"):
        raise ValueError(f'dtype: {dtype!r}; pass "float16" or "float32"')
    if views < 1:
        raise ValueError(f"views: {views}; pass at least 1")
    if data.image is None:
        raise ValueError(f"data: {data.name} has no images; pass a data set that has")
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    extract = jax.jit(lambda params, stats, inputs: model.features(params, stats, inputs, at=at))  # type: ignore[misc]
    key = cache_key(data, model, at=at, views=views, size=size, dtype=dtype)
    try:
        with FileLock(folder / f".{key}.lock"):
            store = _Store(folder / key, data, views, np.dtype(dtype), _shape(data, model, extract, size))
            readable = store.check(data.image, on_error)
            store.fill(lambda images: np.asarray(extract(model.params, model.stats, jnp.asarray(images))), data,
                       size=size, batch_size=batch_size, workers=workers, on_error=on_error)  # fmt: skip
            return store.numbers, readable & store.records["done"].all(axis=1)
    except _Beyond as error:
        warnings.warn(f"{error}: kept as float32", stacklevel=2)
    return kept(data, model, folder, at=at, views=views, size=size, dtype="float32", batch_size=batch_size,
                workers=workers, on_error=on_error)  # fmt: skip


class _Beyond(OverflowError):
    """A number that float16 cannot hold."""


def cache_key(data: Dataset, model: Model, *, at: str, views: int, size: int | None, dtype: str) -> str:
    """A hash of weights, preprocessing, transform and the names of the images; their content is in the records."""
    total = hashlib.blake2b(digest_size=12)
    facts = (_FORMAT, model.name, model.preprocess, model.precision, at, views, size, dtype, data.name, data.ids)
    total.update(repr(facts).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(_backbone(model.params, model.stats)):
        total.update(jax.tree_util.keystr(path).encode())
        total.update(np.ascontiguousarray(leaf).data)
    return total.hexdigest()


def _backbone(*trees: PyTree) -> list[PyTree]:
    """Without the head: its weights are random where the classes are new, and no feature depends on them."""
    return [{name: leaf for name, leaf in tree.items() if name != "head"} for tree in trees]


def _shape(data: Dataset, model: Model, extract: Callable, size: int | None) -> tuple[int, ...]:
    """Of what the network makes of one image."""
    stored = data.image.pixels.shape[1:3] if isinstance(data.image, ArrayImages) else (224, 224)
    image = jax.ShapeDtypeStruct((1, *(stored if size is None else (size, size)), 3), jnp.uint8)
    return jax.eval_shape(extract, model.params, model.stats, image).shape[1:]


class _Store:
    """The two files of a cache, made where they are not there or are of another shape."""

    def __init__(self, path: Path, data: Dataset, views: int, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._path, self._records = (path.with_name(f"{path.name}{end}") for end in (".npy", ".rows.npy"))
        self._dtype, count = dtype, (len(data.ids), views)
        whole = (*count, *shape)
        if not (_is(self._path, whole, dtype) and _is(self._records, count, _RECORD)):
            needed, free = int(np.prod(whole)) * dtype.itemsize, shutil.disk_usage(path.parent).free
            if needed > free:
                raise OSError(
                    f"cache: {needed / 1e9:.1f} GB for {data.name}, {free / 1e9:.1f} GB are free in {path.parent}; "
                    "make room, or pass another --cache, fewer --views or a smaller --image-size"
                )
            # New files, never the old ones cut: another process may have them mapped. Records last: they vouch.
            self._records.unlink(missing_ok=True)
            with atomic(self._path, "wb") as file:
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": whole}
                np.lib.format.write_array_header_1_0(file, header)
                file.truncate(file.tell() + needed)
            with atomic(self._records, "wb") as file:
                np.save(file, np.zeros(count, _RECORD), allow_pickle=False)
        self.numbers = np.load(self._path, mmap_mode="r", allow_pickle=False)
        self.records = np.load(self._records, mmap_mode="r+", allow_pickle=False)

    def check(self, image: Callable, on_error: str) -> Bool[np.ndarray, " n"]:
        """Which images are there; records that do not fit their image or their numbers are no longer done."""
        there = np.ones(len(self.records), bool)
        self._digests: dict[int, bytes] = {}
        for row in range(len(self.records)):
            record = self.records[row]
            try:
                found = stamp(image, row)
                same = record["done"].any() and bool((record["size"] == found.size).all())
                if not (same and found.time and (record["time"] == found.time).all()):
                    digest = self._digests[row] = found.digest()
                    same = same and all(entry.tobytes() == digest for entry in record["digest"])
            except OSError:
                if on_error == "raise":
                    raise
                there[row] = same = False
                found = None
            if not same:
                record["done"] = False
            if found is not None:
                record["size"], record["time"] = found.size, found.time
                if row in self._digests:
                    record["digest"] = np.void(self._digests[row])
            for number in np.flatnonzero(record["done"]):
                record["done"][number] = zlib.crc32(self.numbers[row, number]) == record["sum"][number]
        return there

    def fill(self, compute: Callable, data: Dataset, *, size: int | None, batch_size: int, **options: Any) -> None:
        """Computes what is not done. Batches are always the same ones, so that the bits do not depend on kills."""
        n, views = self.records.shape
        done = self.records["done"].reshape(-1)
        starts = [at for at in range(0, n * views, batch_size) if not done[at : at + batch_size].all()]
        if not starts:
            return
        cells = np.concatenate([np.arange(at, min(at + batch_size, n * views)) for at in starts])
        rows, numbers = cells // views, cells % views
        chosen = data.take(rows)._replace(features=None, views=None)
        if views > 1:
            seeds = tuple(int.from_bytes(self.records["digest"][row, 0].tobytes(), "little") for row in rows)
            chosen = chosen._replace(image=_Crops(chosen.image, size or 224, numbers, seeds))
        batches = datasets.batches(
            chosen, batch_size=batch_size, epoch=0, seed=0, train=False, size=size, **options
        )  # fmt: skip
        start, record_bytes = self.numbers.offset, self.numbers[0, 0].nbytes
        with self._path.open("r+b") as file:
            bar = tqdm(batches, total=len(starts), desc=f"features of {data.name}", unit="batch", disable=None)
            for batch in bar:
                found = compute(batch["inputs"])
                for place in np.flatnonzero(batch["weight"]):
                    cell = int(cells[batch["index"][place]])
                    if done[cell]:
                        continue
                    value = self._narrow(found[place], data.ids[cell // views])
                    os.pwrite(file.fileno(), value.tobytes(), start + cell * record_bytes)
                    record = self.records.reshape(-1)
                    record["sum"][cell] = zlib.crc32(value.tobytes())
                    record["done"][cell] = True

    def _narrow(self, value: Float[np.ndarray, "..."], name: str) -> np.ndarray:
        if not np.isfinite(value).all():
            raise ValueError(f"features: not finite for image {name!r}; look at the weights (--pretrained)")
        if abs(value).max() > np.finfo(self._dtype).max:
            raise _Beyond(f"features: {abs(value).max():.3g} for image {name!r} is beyond float16")
        return np.ascontiguousarray(value, self._dtype)


def _is(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether the file is a whole npy of this shape and type."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return found.shape == shape and found.dtype == dtype


@dataclass(frozen=True)
class _Crops:
    """Fixed views of images, at their size."""

    image: Any
    size: int
    numbers: Int[np.ndarray, " n"]
    seeds: tuple[int, ...]

    def __call__(self, row: int) -> Any:
        """The view of an image."""
        return view(self.image(row), self.size, number=int(self.numbers[row]), seed=self.seeds[row])
