"""How examples reach the device: all of them once, or batch by batch. Both see the same batches in the same order.

A feed trains one epoch (`train`: the state after batches `start` and on), predicts (`predict`: logits of all examples
in evaluation mode), and puts a tree where the steps want it (`put`).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from mlt_jax import data as datasets
from mlt_jax.data import Dataset
from mlt_jax.training.step import (
    Apply,
    NonFiniteLoss,
    TrainState,
    data_mesh,
    make_predict,
    make_resident_epoch,
    place,
    replicate,
    stream_epoch,
)  # fmt: skip

# Numbers of features that are predicted from at once: 64 MB.
_PREDICTED = 1 << 24
# Feature sets in device memory: those of one task, to train, validate and test on.
_KEPT = 3

# step(state, batch, T) -> (state, metrics)
Step = Callable[..., tuple[TrainState, dict[str, jax.Array]]]
# (state, or None where nobody wanted it; batches of this epoch done; sum of the losses since the last call)
Report = Callable[[TrainState | None, int, float], None]


class Resident:
    """Features in device memory; an epoch is one jitted scan, so `report` hears only of its end."""

    def __init__(self, apply: Apply, *, batch_size: int, kept: dict | None = None) -> None:
        # `kept`: feeds of several networks can share what is in device memory.
        self._batch_size = batch_size
        self._predict = jax.jit(lambda params, stats, inputs: apply(params, stats, inputs, False)[0])
        self._epochs: dict[Step, Callable] = {}
        self._kept: dict[int, tuple[np.ndarray, jax.Array]] = {} if kept is None else kept

    def put(self, tree: PyTree) -> PyTree:
        """A copy of the tree on the default device: steps take a state's memory."""
        return jax.tree.map(jnp.copy, tree)

    def train(
        self, step: Step, state: TrainState, T: Any, data: Dataset, *, epoch: int, seed: int, start: int,
        report: Report, wanted: Callable[[], bool] | None = None,
    ) -> TrainState:  # fmt: skip
        """The state after batches `start` and on of an epoch."""
        if step not in self._epochs:
            self._epochs[step] = _scan_with(step)
        plan = list(_plan(data, self._batch_size, epoch=epoch, seed=seed, start=start))
        rows, weight = (np.stack([batch[name] for batch in plan]) for name in ("index", "weight"))
        labels = jnp.asarray(data.labels, jnp.float32)
        state, losses = self._epochs[step](state, T, self._inputs(data), labels, rows, weight)
        values = np.asarray(losses, float)
        if not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            raise NonFiniteLoss(int(state.step) - len(values) + bad + 1, rows[bad])
        report(state, start + len(values), float(values.sum()))
        return state

    def predict(
        self, params: PyTree, stats: PyTree, data: Dataset, *, drawn: tuple[int, int] | None = None
    ) -> Float[np.ndarray, "n q"]:
        """Logits of all examples; features have no views to be drawn."""
        inputs = self._inputs(data)
        size = max(1, _PREDICTED // (inputs[0].size or 1))
        return np.concatenate([self._predict(params, stats, inputs[k : k + size]) for k in range(0, len(inputs), size)])

    def _inputs(self, data: Dataset) -> jax.Array:
        assert data.features is not None
        key = id(data.features)  # no other array has it while this one is kept
        found = self._kept.pop(key, None)
        if found is None:
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            _check_fits(4 * data.features.size, jax.local_devices()[0].memory_stats())
            found = data.features, jnp.asarray(data.features, jnp.float32)
        self._kept[key] = found  # the last used is the last to go
        return found[1]


def _plan(data: Dataset, batch_size: int, *, epoch: int, seed: int, start: int) -> Iterator[datasets.Batch]:
    """The batches of all processes, as everybody draws them, with rows and weights but without images and features."""
    bare = data._replace(image=None, views=None, features=np.zeros((len(data.ids), 0), np.float32))
    return iter(datasets.batches(bare, batch_size=batch_size, epoch=epoch, seed=seed, train=True, start=start))


def _check_fits(size: int, stats: dict[str, int] | None) -> None:
    """ValueError where so many bytes do not fit beside what is on the device; CPUs have no statistics."""
    free = None if not stats or "bytes_limit" not in stats else stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    if free is not None and size > free:
        raise ValueError(
            f"features: {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free on the device; pass methods without maps, "
            "fewer examples, or run on CPUs (JAX_PLATFORMS=cpu)"
        )


def _scan_with(step: Step) -> Callable:
    @partial(jax.jit, donate_argnums=0)
    def epoch(state: TrainState, T: Any, *rest: jax.Array) -> tuple[TrainState, jax.Array]:
        return make_resident_epoch(lambda state, batch: step(state, batch, T))(state, *rest)

    return epoch


class Streamed:
    """Batches read, decoded and sent while the device works, over all devices of all processes."""

    def __init__(self, apply: Apply, *, batch_size: int, **options: Any) -> None:
        self._mesh = data_mesh()
        self._options = options | {"batch_size": batch_size, "shard": (jax.process_index(), jax.process_count())}
        self._predict = make_predict(apply, self._mesh)
        if batch_size % self._mesh.size:
            raise ValueError(f"batch_size: {batch_size}; pass a multiple of the {self._mesh.size} devices")

    def put(self, tree: PyTree) -> PyTree:
        """The tree on every device."""
        return replicate(self._mesh, tree)

    def train(
        self, step: Step, state: TrainState, T: Any, data: Dataset, *, epoch: int, seed: int, start: int,
        report: Report, wanted: Callable[[], bool] = lambda: True,
    ) -> TrainState:  # fmt: skip
        """The state after batches `start` and on of an epoch; `wanted`: whether `report` is to get it in between."""
        done = start
        T = self.put(T)

        def on_step(state: TrainState | None, loss: float) -> None:
            nonlocal done
            done += 1
            report(state, done, loss)

        stream = datasets.batches(data, epoch=epoch, seed=seed, train=True, start=start, **self._options)
        try:
            return stream_epoch(
                lambda state, batch: step(state, batch, T), state, stream, mesh=self._mesh, on_step=on_step,
                wanted=wanted,
            )  # fmt: skip
        except NonFiniteLoss as error:  # the rows of all processes
            batch = next(_plan(data, self._options["batch_size"], epoch=epoch, seed=seed, start=done))
            raise NonFiniteLoss(error.step, batch["index"]) from error

    def predict(
        self, params: PyTree, stats: PyTree, data: Dataset, *, drawn: tuple[int, int] | None = None
    ) -> Float[np.ndarray, "n q"]:
        """Logits of all examples, the same in every process; `drawn`: of the crops that this seed and epoch draw."""
        logits, pending = np.zeros(data.labels.shape, np.float32), None

        def keep(found: Any) -> None:
            part, index, weight = map(np.asarray, found)
            logits[index[weight > 0]] = part[weight > 0]

        # A batch is read back when the next one is under way, so that the device does not wait.
        seed, epoch = drawn or (0, 0)
        options = self._options | {"augmented": drawn is not None}
        for batch in datasets.batches(data, epoch=epoch, seed=seed, train=False, **options):
            found = self._predict(params, stats, place(self._mesh, batch))
            if pending is not None:
                keep(pending)
            pending = found
        if pending is not None:
            keep(pending)
        return logits


Feed = Resident | Streamed
