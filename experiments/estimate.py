"""T from label files, by one process or by several that each count their share of the examples.

    python experiments/estimate.py --labels labels.npz --unselected unselected.npz --out T.npz
    python experiments/estimate.py ... --coordinator 10.0.0.1:9876 --num-processes 2 --process-id 0   # and 1

Files are scipy.sparse matrices (`scipy.sparse.save_npz`) or arrays (`numpy.save`), (n, q), the same for all processes.
Under Slurm, Kubernetes or MPI the processes find each other without the last three flags.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp
import tyro

from mlt_jax import Status, count, estimate_from_tables, processes


@dataclass(frozen=True)
class Config:
    """What to read and where to write."""

    labels: Path  # 0/1, .npz (sparse) or .npy
    out: Path  # npz, see TransitionEstimate.load
    selected: Path | None = None  # the cells taken as clean,
    unselected: Path | None = None  # or those that are not
    aggregate: str = "joint"
    assume: str = "general"
    min_selected: int = 50
    coordinator: str | None = None  # host:port of process 0
    num_processes: int | None = None
    process_id: int | None = None
    timeout: int = 60  # seconds to wait for a process that does not answer


def share(path: Path | None) -> Any:
    """This process's rows of a file."""
    if path is None:
        return None
    whole = sp.load_npz(path).tocsr() if path.suffix == ".npz" else np.load(path, mmap_mode="r", allow_pickle=False)
    n, k, parts = whole.shape[0], jax.process_index(), jax.process_count()
    return whole[k * n // parts : (k + 1) * n // parts]


def main(config: Config) -> None:
    """Counts, adds up, solves, writes."""
    processes.join(config.coordinator, config.num_processes, config.process_id, timeout=config.timeout)
    tables = count(share(config.labels), share(config.selected), unselected=share(config.unselected))
    tables = processes.add_up(tables, timeout=config.timeout)
    rule: dict[str, Any] = dict(aggregate=config.aggregate, assume=config.assume, min_selected=config.min_selected)
    found = estimate_from_tables(tables, **rule)
    if processes.is_main():
        found.save(config.out)
        names = [Status(code).name for code in np.unique(found.status)]
        processes.say(f"{len(found.T)} classes ({', '.join(names)}) written to {config.out}")


if __name__ == "__main__":
    main(tyro.cli(Config))
