"""Several processes as one run: joining them, and handing all of them what process 0 read."""

import json
import os
from typing import Any

import jax
import numpy as np


def join(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins this process to the others: as told, or as Slurm, Kubernetes or MPI tell; alone where there is neither.

    Must be called before anything else of JAX is.
    """
    told = (coordinator, num_processes, process_id)
    if any(value is not None for value in told):
        if coordinator is None or num_processes is None or process_id is None:
            raise ValueError(
                f"coordinator, num_processes, process_id: are {told}; pass all three, as in "
                "--coordinator host:port --num-processes 2 --process-id 0, or none of them"
            )
        jax.distributed.initialize(coordinator, num_processes, process_id)
    elif _in_cluster():
        jax.distributed.initialize()


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
