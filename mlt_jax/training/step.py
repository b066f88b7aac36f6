"""Training as pure functions: a state of plain pytrees, steps that map state and batch to state and metrics.

The same step runs under `jit` on one device, under `jit` on a batch sharded over a mesh, over several processes, and
under `jax.pmap(axis_name=...)`. It knows no model library: a network is `apply(params, stats, inputs, train)`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

Apply = Callable[[PyTree, PyTree, Array, bool], tuple[Array, PyTree]]
Loss = Callable[[Array, Array], Array]
Batch = Any  # a mapping: inputs, labels (b, q), index (b,), weight (b,); see `mlt_jax.data`
Metrics = dict[str, Array]


class TrainState(NamedTuple):
    """Everything that a step reads and writes."""

    params: PyTree
    stats: PyTree  # batch-norm running statistics
    opt_state: PyTree
    step: Int[Array, ""]
    key: PRNGKeyArray  # never consumed: randomness is folded in by epoch, so that any position can be taken up again


class NonFiniteLoss(FloatingPointError):
    """Raised when a loss is NaN or infinite; carries the step and the rows of its batch."""

    def __init__(self, step: int, rows: np.ndarray) -> None:
        super().__init__(f"loss: not finite at step {step}; lower the learning rate or look at the batch's examples")
        self.step, self.rows = step, rows


def init_state(key: PRNGKeyArray, params: PyTree, stats: PyTree, optimizer: optax.GradientTransformation) -> TrainState:
    """A state at step 0 with a fresh optimiser."""
    return TrainState(params, stats, optimizer.init(params), jnp.array(0, jnp.int32), key)


def make_train_step(
    apply: Apply,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    axis_name: str | None = None,
    accumulate: int = 1,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """A pure `step(state, batch) -> (state, metrics)`; metrics are scalars `loss` and `gradient_norm`.

    Args:
      loss: (logits, labels) -> one value per example and class; the step takes the mean over the classes and over the
        examples whose `weight` is 1.
      axis_name: of the `jax.pmap` around the step, if any; give the model the same name for its batch statistics.
      accumulate: into how many parts the batch is cut, gradients being summed; batch statistics are of each part.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        total = jnp.sum(batch["weight"])
        total = total if axis_name is None else jax.lax.psum(total, axis_name)
        share = batch["weight"] / jnp.maximum(total, 1)

        def objective(params: PyTree, stats: PyTree, part: dict[str, Array]) -> tuple[Array, PyTree]:
            logits, stats = apply(params, stats, part["inputs"], True)
            return jnp.sum(jnp.mean(loss(logits, part["labels"]), axis=1) * part["share"]), stats

        gradient = jax.value_and_grad(objective, has_aux=True)
        whole = {"inputs": jnp.asarray(batch["inputs"]), "labels": jnp.asarray(batch["labels"]), "share": share}
        if accumulate == 1:
            (value, stats), grads = gradient(state.params, state.stats, whole)
        else:
            (value, stats), grads = _accumulated(gradient, state, whole, accumulate)
        if axis_name is not None:
            value, grads = jax.lax.psum((value, grads), axis_name)
        with jax.numpy_dtype_promotion("standard"):  # optax promotes; strict sessions need not care
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": value, "gradient_norm": optax.tree.norm(grads)}
        return TrainState(params, stats, opt_state, state.step + 1, state.key), metrics

    return step


def _accumulated(gradient: Callable, state: TrainState, whole: dict[str, Array], parts: int) -> Any:
    """Value, statistics and gradient summed over `parts` interleaved parts of a batch, one after the other."""
    size = len(whole["share"])
    if size % parts:
        raise ValueError(f"accumulate: {parts} does not divide the batch of {size}; pass a divisor of it")
    # Every parts-th row: each part keeps the batch's sharding over devices.
    cut = {name: x.reshape(size // parts, parts, *x.shape[1:]).swapaxes(0, 1) for name, x in whole.items()}

    def add(carry: tuple, part: dict[str, Array]) -> tuple[tuple, None]:
        value, stats, grads = carry
        (more, stats), new = gradient(state.params, stats, part)
        return (value + more, stats, jax.tree.map(jnp.add, grads, new)), None

    zero = (jnp.zeros(()), state.stats, jax.tree.map(jnp.zeros_like, state.params))
    (value, stats, grads), _ = jax.lax.scan(add, zero, cut)
    return (value, stats), grads


def make_resident_epoch(
    step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]],
) -> Callable[..., tuple[TrainState, Float[Array, "steps"]]]:
    """A jitted `epoch(state, inputs, labels, rows, weight) -> (state, losses)`: one scan over data on the device.

    rows, weight: (steps, b), the examples of each batch and 0 for those that only fill the last one.
    """

    @jax.jit
    def epoch(state: TrainState, inputs: Array, labels: Array, rows: Array, weight: Array) -> tuple[TrainState, Array]:
        def one(state: TrainState, at: tuple[Array, Array]) -> tuple[TrainState, Array]:
            chosen, weight = at
            batch = {"inputs": inputs[chosen], "labels": labels[chosen], "index": chosen, "weight": weight}
            state, metrics = step(state, batch)
            return state, metrics["loss"]

        return jax.lax.scan(one, state, (rows, weight))

    return epoch


def make_predict(apply: Apply, mesh: Mesh) -> Callable[[PyTree, PyTree, Batch], tuple[Array, Array, Array]]:
    """A jitted `predict(params, stats, batch) -> (logits, index, weight)`, whole on every device and process."""

    def predict(params: PyTree, stats: PyTree, batch: Batch) -> tuple[Array, Array, Array]:
        return apply(params, stats, batch["inputs"], False)[0], batch["index"], batch["weight"]

    return jax.jit(predict, out_shardings=NamedSharding(mesh, PartitionSpec()))


def data_mesh() -> Mesh:
    """All devices of all processes on one axis, "data"."""
    return Mesh(np.asarray(jax.devices()), ("data",))


def place(mesh: Mesh, batch: Batch) -> dict[str, Array]:
    """This process's part of a batch as part of one global batch, cut over the mesh."""
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return {name: jax.make_array_from_process_local_data(sharding, x) for name, x in batch.items()}


def replicate(mesh: Mesh, tree: PyTree) -> PyTree:
    """The tree on every device of the mesh, in every process; each process passes the same values."""
    sharding = NamedSharding(mesh, PartitionSpec())

    def put(leaf: Any) -> Array:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        # A copy: steps may take its memory. Through the host: one process's array cannot be sent to another's devices.
        return jax.device_put(np.array(leaf), sharding)

    return jax.tree.map(put, tree)


def stream_epoch(
    step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]],
    state: TrainState,
    batches: Iterable[Batch],
    *,
    mesh: Mesh,
    on_step: Callable[[TrainState | None, float], None],
    wanted: Callable[[], bool] = lambda: True,
) -> TrainState:
    """The state after the batches; `on_step(state, loss)` after each. NonFiniteLoss at the first loss that is not.

    `step` is jitted and may take the state's memory. So `on_step` gets the state only after the last batch and where
    `wanted()`. Else a step's loss is read when the next one is under way, so that the device does not wait.
    """
    pending: tuple[int, Array, np.ndarray] | None = None
    for number, batch in enumerate(batches, int(state.step) + 1):
        rows = np.asarray(batch["index"])
        if pending is not None and wanted():
            on_step(state, finite_loss(*pending))
            pending = None
        state, metrics = step(state, place(mesh, batch))
        if pending is not None:
            on_step(None, finite_loss(*pending))
        pending = (number, metrics["loss"], rows)
    if pending is not None:
        on_step(state, finite_loss(*pending))
    return state


def finite_loss(step: int, loss: Array, rows: np.ndarray) -> float:
    """The loss as a float; NonFiniteLoss with the step and this process's rows if it is NaN or infinite."""
    value = float(loss)
    if not np.isfinite(value):
        raise NonFiniteLoss(step, rows)
    return value
