"""Doing jobs: one after the other here, or as tasks of a Ray cluster."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from mlt_jax.models import cpu

Job = TypeVar("Job")
Result = TypeVar("Result")
RETRIES = 3  # of a task whose worker died; what it had finished is on disk


def local(jobs: Iterable[Job], run: Callable[[Job], Result], *, done: Callable[[Job, Result], None]) -> None:
    """`run` of each job in this process; `done(job, result)` after each."""
    for job in jobs:
        done(job, run(job))


def ray(
    jobs: Sequence[Job],
    run: Callable[[Job], Result],
    *,
    done: Callable[[Job, Result], None],
    lost: Callable[[Job, Exception], None],
    address: str | None = None,
    workers: int | None = None,
) -> None:
    """The same as Ray tasks; a task whose worker dies is tried again, `lost(job, error)` when that does not help.

    address: of a running cluster; by default one of `workers` cores is started here and stopped at the end.
    """
    try:
        import ray as cluster
    except ImportError as error:
        raise ImportError("launcher: ray is not installed; pip install 'mlt_jax[cluster]'") from error
    # Workers are this interpreter with this environment, wherever `uv run` or another runner is found on the way up.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    started = not cluster.is_initialized()
    if started:
        here: dict[str, Any] = {} if address else {"num_cpus": workers or os.cpu_count(), "include_dashboard": False}
        cluster.init(address=address, log_to_driver=False, **here)
    try:

        @cluster.remote(max_retries=RETRIES, num_cpus=1)
        def task(job: Job) -> Result:
            if cpu.alone():  # as `experiments/tables.py` does for its own process
                cpu.tune()
            return run(job)

        pending = {task.remote(job): job for job in jobs}
        while pending:
            for reference in cluster.wait(list(pending), num_returns=1)[0]:
                job = pending.pop(reference)
                try:
                    result = cluster.get(reference)
                except cluster.exceptions.RayError as error:
                    lost(job, error)
                else:
                    done(job, result)
    finally:
        if started:
            cluster.shutdown()
