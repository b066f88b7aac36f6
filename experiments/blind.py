"""What each ingredient of the blind estimator buys: summed T error on features, told nothing.

    python experiments/blind.py --data DIR [--dataset voc2007] [--seeds 1]

DIR holds `voc2007_features.npz` and `voc2007_labels.npz` (or those of VOC2012). The paper's eight noise settings.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from mlt_jax import cross_val_logits, estimate_from_scores
from mlt_jax.data import load
from mlt_jax.metrics import transition_error
from mlt_jax.noise import SETTINGS, transition


@dataclass(frozen=True)
class Options:
    """Where the features are."""

    data: Path
    """folder of the feature and label files"""
    dataset: str = "voc2007"
    seeds: int = 1


def main(options: Options) -> None:
    """Prints the error of each row in each setting, and how often 95 % intervals cover, mean over the seeds."""
    data = load(options.dataset, features=options.data)
    assert data.features is not None
    settings = SETTINGS[options.dataset]
    errors: dict[str, np.ndarray] = {}
    covered: dict[str, list[float]] = {}
    for s, rates in enumerate(settings):
        T = np.asarray(transition(*rates, num_classes=len(data.classes)))
        for seed in range(options.seeds):
            chance = np.random.default_rng(seed).random(data.labels.shape)
            labels = np.where(data.labels == 1, chance >= rates[1], chance < rates[0]).astype(np.uint8)
            scores = cross_val_logits(data.features, labels, seed=seed)
            for way, share in (("shared", True), ("alone", False)):
                found = estimate_from_scores(scores, labels, share=share)
                error = transition_error(found.T, T) / options.seeds
                errors.setdefault(way, np.zeros(len(settings)))[s] += error
                known = np.isfinite(found.stderr).all(axis=1)
                off = np.abs(np.stack([found.rho_neg, found.rho_pos], 1) - rates)
                inside = off <= 1.96 * np.asarray(found.stderr)
                covered.setdefault(way, []).append(float(inside[known].mean()))
        print(rates, {name: round(float(row[s]), 2) for name, row in errors.items()}, flush=True)
    print(f"{options.dataset}, {len(data.ids)} examples, {options.seeds} seeds")
    for name, row in errors.items():
        cells = " ".join(f"{error:6.2f}" for error in row)
        print(f"{name:24} {cells}  sum {row.sum():6.2f}  covered {np.mean(covered[name]):.3f}")


if __name__ == "__main__":
    main(tyro.cli(Options))
