"""The paper's eight noise settings on precomputed features, ours beside the paper's.

    python experiments/all_settings.py --features DIR --test-split voc2007/trainval [--seeds 0 1 2]

DIR holds `voc2012_features.npz` and `voc2012_labels.npz` (and those of VOC2007 for the test split above, a stand-in
where the test images are not at hand). A run that was stopped goes on where it was.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from mlt_jax.config import Config
from mlt_jax.paper.noise import SETTINGS
from mlt_jax.run import run

# The paper's printed T errors, rows "Our estimator" of est_VOC2007, est_VOC2012: a fine-tuned net, told the clean side.
PRINTED = {
    "voc2007": (1.63, 1.54, 0.36, 1.17, 2.94, 3.10, 2.09, 1.85),
    "voc2012": (0.83, 1.94, 0.26, 0.91, 1.74, 1.79, 0.94, 1.07),
}


@dataclass(frozen=True)
class Options:
    """Which data, and how T is estimated."""

    features: Path
    """folder of the feature and label files"""
    dataset: str = "voc2012"
    train_split: str | None = None
    test_split: str | None = None
    estimator: str = "auto"
    """auto, recipe, dual-t or t; see run.py"""
    told: bool = False
    """tell the estimator which side is free of noise, as the paper's released code does (recipe only)"""
    seeds: tuple[int, ...] = (0, 1, 2)
    workdir: Path = Path("runs/all_settings")


def main(options: Options) -> None:
    """Runs the settings one after the other and prints a row for each."""
    start, rows = time.monotonic(), []
    how = options.estimator + "-told" * options.told
    for (rho_neg, rho_pos), printed in zip(SETTINGS[options.dataset], PRINTED[options.dataset], strict=True):
        assume = "missing" if rho_neg == 0 else "partial" if rho_pos == 0 else "general"
        summary = run(
            Config(
                dataset=options.dataset,
                features=options.features,
                train_split=options.train_split,
                test_split=options.test_split,
                rho_neg=rho_neg,
                rho_pos=rho_pos,
                estimator=options.estimator,
                assume=assume if options.told else "general",
                seeds=options.seeds,
                workdir=options.workdir / f"{options.dataset}-{how}-{rho_neg:g}-{rho_pos:g}",
            )
        )
        test = summary["test"]
        cells = [
            "".join(f"{100 * test[method][score]['mean']:7.1f}" for method in ("standard", "estimated", "true"))
            for score in ("OF1", "CF1", "mAP")
        ]
        error = summary["T_error"]["T"]["mean"]
        rows.append(
            (error, printed, f"{f'({rho_neg:g}, {rho_pos:g})':14}{' |'.join(cells)} |{error:8.2f}{printed:8.2f}")
        )
    print(
        f"\n{options.dataset}, {len(options.seeds)} seeds, {time.monotonic() - start:.0f} s; each: Standard, T, true T"
    )
    print(f"{'setting':14}{'OF1':>21} |{'CF1':>21} |{'mAP':>21} |{'T error':>8}{'paper':>8}")
    for _, _, line in rows:
        print(line)
    print(f"{'sum':14}{'':67} |{sum(row[0] for row in rows):8.2f}{sum(row[1] for row in rows):8.2f}")


if __name__ == "__main__":
    main(tyro.cli(Options))
