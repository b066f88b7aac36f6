"""One run of the paper's pipeline, from noisy labels to a table. Without arguments: `digits`, made on the spot.

python experiments/run.py
python experiments/run.py --dataset=voc2012    # data and ImageNet weights are downloaded where they are not at hand

Exit codes: 0; 2 with one line where a file, an option, the disk or the network is at fault; 130 after Ctrl-C.
"""

import tyro

from mlt_jax.config import Config
from mlt_jax.models import cpu
from mlt_jax.processes import exit_code, join, leave
from mlt_jax.run import run


def main(config: Config) -> None:
    """Joins the other processes, if there are any, and runs."""
    if cpu.alone():
        cpu.tune()
    where = config.coordinator, config.num_processes, config.process_id
    join(*where, timeout=config.timeout, program="run.py")
    run(config)


if __name__ == "__main__":
    config = tyro.cli(Config)
    leave(exit_code("run.py", lambda: main(config)))
