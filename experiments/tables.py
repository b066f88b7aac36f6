"""The paper's tables, ours beside theirs.

    python experiments/tables.py --table est_VOC2012 --features-dir DIR
    python experiments/tables.py --table all --features-dir DIR --devkit DIR --pretrained resnet50.npz

DIR holds `voc2007_features.npz`, `voc2007_labels.npz`, the same of VOC2012, `coco2014_train_labels.npz` and
`coco_features.npz`; the devkit
folder holds VOCdevkit (VOC2007's lists of train and val, and its images for AGCN and CSRA). Every run leaves one small
file: the same command goes on where it was stopped. `--help` says the rest. Exit codes are those of `run.py`.
"""

import tyro

from mlt_jax.models import cpu
from mlt_jax.paper.tables.options import Options
from mlt_jax.paper.tables.run import run
from mlt_jax.processes import exit_code, leave

if __name__ == "__main__":
    options = tyro.cli(Options)
    if cpu.alone():
        cpu.tune()
    leave(exit_code("tables.py", lambda: run(options)))
