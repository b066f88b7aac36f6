"""Batches of a data set: shuffled, decoded and transformed in parallel, the same in every run."""

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from jaxtyping import Bool, Int, Shaped, UInt8

from mlt_jax.data.base import ArrayImages, Batch, Dataset, Views
from mlt_jax.data.transforms import augment, warp


def num_batches(n: int, batch_size: int, *, train: bool) -> int:
    """How many batches one epoch over n examples has: the last, partial one is dropped in training, else padded."""
    return n // batch_size if train else -(-n // batch_size)


def batches(
    data: Dataset,
    *,
    batch_size: int,
    epoch: int,
    seed: int,
    train: bool,
    augmented: bool | None = None,
    size: int | None = None,
    workers: int | None = None,
    prefetch: int = 2,
    start: int = 0,
    shard: tuple[int, int] = (0, 1),
    on_error: str = "raise",
) -> Iterator[Batch]:
    """One epoch of batches; `inputs` are uint8 (b, size, size, 3) images, float32 features, or kept maps of views.

    Args:
      batch_size: rows of a global batch, over all processes.
      epoch, seed: what the shuffling, crops and flips are drawn from.
      train: shuffle, drop a last partial batch. Otherwise the examples come in order, and the last batch is filled with
        copies of its last row, of weight 0.
      augmented: crop and flip, or of kept maps take one view of each example by chance, else warp, or take view 0; by
        default as `train` says.
      size: side of the images; by default 224, or that of images in memory, which are never cropped or flipped.
      workers: decoding threads; by default one per core.
      prefetch: batches decoded ahead.
      start: first batch, to go on in the middle of an epoch; those before it are not decoded.
      shard: (k, m) gives process k of m its rows of every global batch, batch_size / m of them.
      on_error: what an unreadable image does: "raise" ImageError with its name, or "skip", which gives its row weight 0
        (black, with its own labels and index) and warns at the end of the epoch, with the count and the names.
    """
    n = len(data.ids)
    k, m = shard
    if batch_size < 1 or batch_size % m:
        raise ValueError(f"batch_size: is {batch_size}; pass a positive multiple of the {m} processes")
    if not 0 <= k < m:
        raise ValueError(f"shard: is {shard}; pass (k, m) with 0 <= k < m")
    if start < 0:
        raise ValueError(f"start: is {start}; pass the number of batches to leave out, 0 or more")
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error: {on_error!r} is unknown; pass "raise" or "skip"')
    if n == 0 or (train and n < batch_size):
        raise ValueError(f"batch_size: is {batch_size}, and {data.name} has {n} examples; pass a smaller batch")
    order = np.random.default_rng((seed, epoch)).permutation(n) if train else np.arange(n)
    positions = (
        np.arange(step * batch_size + k * batch_size // m, step * batch_size + (k + 1) * batch_size // m)
        for step in range(start, num_batches(n, batch_size, train=train))
    )
    plan = ((order[np.minimum(position, n - 1)], position < n) for position in positions)

    stored = data.image.pixels if isinstance(data.image, ArrayImages) else None
    augmented = train if augmented is None else augmented
    if data.views is not None:
        return _viewed(data, data.views, plan, (seed, epoch) if augmented else None)
    if data.features is not None:
        return _gathered(data, data.features, plan)
    if stored is not None and (size is None or stored.shape[1:3] == (size, size)):
        return _gathered(data, stored, plan)
    if data.image is None:
        raise ValueError(f"data: {data.name} has neither images nor features; pass a data set with one of them")
    image, side, crop = data.image, 224 if size is None else size, augmented and stored is None

    def load(index: int) -> UInt8[np.ndarray, "s s 3"]:
        if crop:
            return augment(image(index), side, seed=seed, epoch=epoch, index=index)
        return warp(image(index), side)

    return _decoded(data, load, side, plan, workers or os.cpu_count() or 1, prefetch, on_error)


_Plan = Iterator[tuple[Int[np.ndarray, " b"], Bool[np.ndarray, " b"]]]


def _gathered(data: Dataset, source: Shaped[np.ndarray, "n ..."], plan: _Plan) -> Iterator[Batch]:
    for index, real in plan:
        inputs = source[index]
        yield _batch(data, inputs if inputs.dtype == np.uint8 else inputs.astype(np.float32, copy=False), index, real)


def _viewed(data: Dataset, views: Views, plan: _Plan, drawn: tuple[int, int] | None) -> Iterator[Batch]:
    """Batches of kept maps: of the views that (seed, epoch) draws, or of view 0."""
    n, count = len(data.ids), views.maps.shape[1]
    # A third number, so that this stream is not the one that shuffles.
    chosen = np.zeros(n, int) if drawn is None else np.random.default_rng((*drawn, 1)).integers(count, size=n)
    for index, real in plan:
        yield _batch(data, views.take(index, chosen[index]), index, real)


def _decoded(
    data: Dataset,
    load: Callable[[int], UInt8[np.ndarray, "s s 3"]],
    side: int,
    plan: _Plan,
    workers: int,
    prefetch: int,
    on_error: str,
) -> Iterator[Batch]:
    failed: dict[int, OSError] = {}
    pool = ThreadPoolExecutor(workers, thread_name_prefix="mlt_jax-decode")

    def fill(inputs: UInt8[np.ndarray, "b s s 3"], row: int, index: int) -> None:
        try:
            inputs[row] = load(index)
        except OSError as error:
            if on_error == "raise":
                raise
            failed[index] = error

    def submit(index: Int[np.ndarray, " b"], real: Bool[np.ndarray, " b"]) -> _Pending:
        inputs = np.zeros((len(index), side, side, 3), np.uint8)
        # Rows that pad are copies of the one before them: that one is decoded, they are not.
        count = max(1, int(real.sum()))
        return index, real, inputs, [pool.submit(fill, inputs, row, int(index[row])) for row in range(count)]

    def collect(index: np.ndarray, real: np.ndarray, inputs: np.ndarray, futures: list[Future[None]]) -> Batch:
        for future in futures:
            future.result()
        inputs[len(futures) :] = inputs[len(futures) - 1]
        return _batch(data, inputs, index, real & ~np.isin(index, list(failed)))

    pending: deque[_Pending] = deque()
    try:
        for index, real in plan:
            pending.append(submit(index, real))
            if len(pending) > prefetch:
                yield collect(*pending.popleft())
        while pending:
            yield collect(*pending.popleft())
    finally:
        pool.shutdown(cancel_futures=True)
    if failed:
        names = ", ".join(data.ids[index] for index in sorted(failed)[:10]) + (", ..." if len(failed) > 10 else "")
        first = failed[min(failed)]
        warnings.warn(f"{data.name}: skipped {len(failed)} unreadable images: {names}. First: {first}", stacklevel=2)


_Pending = tuple[np.ndarray, np.ndarray, np.ndarray, list[Future[None]]]


def _batch(
    data: Dataset, inputs: Shaped[np.ndarray, "b ..."], index: Int[np.ndarray, " b"], real: Bool[np.ndarray, " b"]
) -> Batch:
    return Batch(
        inputs=inputs,
        labels=data.labels[index].astype(np.float32),
        index=index.astype(np.int32),
        weight=real.astype(np.float32),
    )
