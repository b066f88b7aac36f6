"""One run in several processes: connecting them, broadcasting from process 0, and sums over all of them."""

import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np


def join(
    coordinator: str | None, num_processes: int | None, process_id: int | None, *, timeout: int | None = None
) -> None:
    """Connects this process to the others of its run; call it before anything else of JAX.

    Args:
      coordinator, num_processes, process_id: host:port of process 0, the number of processes and this one's index. If
        all are None, a launcher (Slurm, Kubernetes, MPI) provides them; without one the process runs alone.
      timeout: seconds to wait for a process that does not connect, respond or shut down; JAX's defaults are minutes.

    Raises:
      ValueError: only some of the first three are given.
    """
    limits = ("initialization_timeout", "heartbeat_timeout_seconds", "shutdown_timeout_seconds")
    timeouts: dict[str, Any] = {} if timeout is None else dict.fromkeys(limits, timeout)
    given = (coordinator, num_processes, process_id)
    if any(value is not None for value in given):
        if None in given:
            raise ValueError(
                f"coordinator, num_processes, process_id: are {given}; pass all three, as in "
                "--coordinator host:port --num-processes 2 --process-id 0, or none of them"
            )
        jax.distributed.initialize(*given, **timeouts)
    elif _in_cluster():
        jax.distributed.initialize(**timeouts)


def _in_cluster() -> bool:
    """Whether a launcher started this process as one of several: srun, an indexed Kubernetes job, or mpirun."""
    several = any(int(os.environ.get(name, "1")) > 1 for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    return several or {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= os.environ.keys()


def exit_code(program: str, main: Callable[[], Any]) -> int:
    """Runs `main`; 0, or 2 with one line where the cause is not the program: a file, an option, the network.

    Those are errors of the operating system and what this package raises itself. Anything else is a bug and raised on.
    """
    try:
        main()
    except (OSError, ValueError, TypeError, ImportError, FloatingPointError) as error:
        raiser = traceback.extract_tb(error.__traceback__)[-1].filename
        if not isinstance(error, OSError) and Path(__file__).parent not in Path(raiser).parents:
            raise
        words = " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())
        print(f"{program}: {words}", file=sys.stderr)
        return 2
    return 0


def is_main() -> bool:
    """Whether this is process 0, the one that writes files and prints."""
    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints in process 0."""
    if is_main():
        print(text, flush=True)


def agree(value: Any) -> Any:
    """The value that process 0 passed, in every process; it must be JSON."""
    if jax.process_count() == 1:
        return value
    from jax.experimental.multihost_utils import broadcast_one_to_all

    text = np.frombuffer(json.dumps(value if is_main() else None).encode(), np.uint8)
    length = int(broadcast_one_to_all(np.array(len(text))))
    shared = broadcast_one_to_all(text if is_main() else np.zeros(length, np.uint8))
    return json.loads(np.asarray(shared).astype(np.uint8).tobytes().decode())


def add_up(tree: Any, *, timeout: float = 60) -> Any:
    """Sums over all processes of a tree of arrays, of the same shapes in each, such as `Tables`.

    Raises:
      TimeoutError: a process did not call this within `timeout` seconds of the first; end the run.
      ConnectionError: a process died during the sums; end the run.
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
    """Waits until all processes have called this."""
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
