"""Several processes as one run: joining them, and handing all of them what process 0 read."""

import itertools
import json
import os
from typing import Any

import jax
import numpy as np


def join(
    coordinator: str | None, num_processes: int | None, process_id: int | None, *, timeout: int | None = None
) -> None:
    """Joins this process to the others: as told, or as Slurm, Kubernetes or MPI tell; alone where there is neither.

    Must be called before anything else of JAX is. `timeout`: seconds after which a process that does not come, is not
    heard of, or does not end with the others is given up; JAX's defaults are minutes.
    """
    limits = ("initialization_timeout", "heartbeat_timeout_seconds", "shutdown_timeout_seconds")
    patience: dict[str, Any] = {} if timeout is None else dict.fromkeys(limits, timeout)
    told = (coordinator, num_processes, process_id)
    if any(value is not None for value in told):
        if coordinator is None or num_processes is None or process_id is None:
            raise ValueError(
                f"coordinator, num_processes, process_id: are {told}; pass all three, as in "
                "--coordinator host:port --num-processes 2 --process-id 0, or none of them"
            )
        jax.distributed.initialize(coordinator, num_processes, process_id, **patience)
    elif _in_cluster():
        jax.distributed.initialize(**patience)


def _in_cluster() -> bool:
    """Whether a launcher started this process as one of several: srun, an indexed Kubernetes job, or mpirun."""
    several = any(int(os.environ.get(name, "1")) > 1 for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    return several or {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= os.environ.keys()


def is_main() -> bool:
    """Whether this is the process that writes."""
    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints in process 0."""
    if is_main():
        print(text, flush=True)


def agree(value: Any) -> Any:
    """Process 0's JSON value, in every process."""
    if jax.process_count() == 1:
        return value
    from jax.experimental.multihost_utils import broadcast_one_to_all

    text = np.frombuffer(json.dumps(value if is_main() else None).encode(), np.uint8)
    length = int(broadcast_one_to_all(np.array(len(text))))
    shared = broadcast_one_to_all(text if is_main() else np.zeros(length, np.uint8))
    return json.loads(np.asarray(shared).astype(np.uint8).tobytes().decode())


def add_up(tree: Any, *, timeout: float = 60) -> Any:
    """Sums over all processes of arrays that each of them has in the same shapes, such as counted `Tables`.

    A process that has not come here `timeout` seconds after the first did is given up with a TimeoutError, one that
    dies while sums are taken with a ConnectionError; the run is then over for all, and they should end.
    """
    count = jax.process_count()
    if count == 1:
        return tree
    _meet(timeout)
    own = [next(d for d in jax.devices() if d.process_index == k) for k in range(count)]
    mesh = jax.sharding.Mesh(np.array(own), ("process",))
    one_each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("process"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    total = jax.jit(lambda x: x.sum(axis=0, dtype=x.dtype), out_shardings=everywhere)

    def one(array: Any) -> Any:
        part = jax.device_put(np.asarray(array)[None], own[jax.process_index()])
        whole = jax.make_array_from_single_device_arrays((count, *part.shape[1:]), one_each, [part])
        return jax.device_put(np.asarray(total(whole).addressable_data(0)))

    try:
        return jax.tree.map(one, tree)
    except jax.errors.JaxRuntimeError as error:
        raise ConnectionError(
            f"a process went away while {count} processes added up their counts; see its output, then start all again "
            f"({str(error).splitlines()[0]})"
        ) from error


_meetings = itertools.count()


def _meet(timeout: float) -> None:
    """Waits until all processes are here."""
    from jax._src import distributed  # the barrier with a time-out has no public name

    client: Any = distributed.global_state.client
    try:
        client.wait_at_barrier(f"mlt_jax.add_up.{next(_meetings)}", int(1000 * timeout))
    except jax.errors.JaxRuntimeError as error:
        raise TimeoutError(
            f"process {jax.process_index()} waited {timeout:g} s for the others (of {jax.process_count()}): at least "
            "one died or is slower; see their output, then start all again, with a longer timeout if it was slow "
            f"({str(error).splitlines()[0]})"
        ) from error
