"""Images per second that the loader decodes, against what ResNet-50's forward pass takes in, on the same machine.

    python experiments/bench_loader.py --data-dir DIR          # a folder with VOCdevkit/VOC2012

Loader and network take turns for some rounds; the table has the median. A ratio of 2 means that decoding can keep up
with the forward pass on half of the cores.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import tyro

from mlt_jax import data as datasets
from mlt_jax.models import build, cpu


@dataclass(frozen=True)
class Options:
    """Which images, and how often."""

    data_dir: Path
    dataset: str = "voc2012"
    split: str = "trainval"
    batch_size: int = 32
    rounds: int = 5
    workers: int | None = None


def main(options: Options) -> None:
    """Prints the table."""
    if cpu.alone():
        cpu.tune()
    data = datasets.load(options.dataset, split=options.split, data_dir=options.data_dir)
    data = data.take(np.arange(min(len(data.ids), 10 * options.batch_size)))
    model = build("resnet50", num_classes=len(data.classes), key=jax.random.key(0))
    predict = jax.jit(lambda x: model.apply(model.params, model.stats, x, False)[0])
    inputs = np.zeros((options.batch_size, 224, 224, 3), np.uint8)
    predict(inputs).block_until_ready()

    def load(train: bool) -> int:
        stream = datasets.batches(
            data, batch_size=options.batch_size, epoch=0, seed=0, train=train, workers=options.workers
        )
        return sum(int(batch["weight"].sum()) for batch in stream)

    def forward() -> int:
        predict(inputs).block_until_ready()
        return len(inputs)

    jobs: dict[str, Callable[[], int]] = {
        "forward": forward, "loader, train": lambda: load(True), "loader, evaluation": lambda: load(False),
    }  # fmt: skip
    speeds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(options.rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            count = job()
            speeds[name].append(count / (time.perf_counter() - start))
    reference = float(np.median(speeds["forward"]))
    for name, found in speeds.items():
        print(f"{name:20}{np.median(found):8.1f} images/s   x forward: {np.median(found) / reference:.2f}")


if __name__ == "__main__":
    main(tyro.cli(Options))
