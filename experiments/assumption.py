"""How often `assumption_test` fires: without reason under class-dependent noise, with reason under other noise.

    python experiments/assumption.py --data DIR [--datasets voc2007 voc2012] [--seeds 0 1 2] [--components 512]

DIR holds `voc2007_features.npz` and `voc2007_labels.npz` (and those of VOC2012), and in `real/` the sets with real
noise. Class-dependent: no noise, the paper's eight settings, rates by class. Others: pairs swapped; careless raters,
who give half of all labels in 5 % of the examples; missed and false labels that become more frequent towards the
decision boundary; real labels, and the better labels of the same examples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from mlt_jax import AssumptionTest, assumption_test, cross_val_logits
from mlt_jax.data import load
from mlt_jax.estimator.crossfit import Components, principal_components
from mlt_jax.paper.noise import SETTINGS, corrupt, corrupt_pairwise, transition


@dataclass(frozen=True)
class Options:
    """Where the features are, and which of them."""

    data: Path
    """folder of the feature and label files"""
    datasets: tuple[str, ...] = ("voc2007", "voc2012")
    seeds: tuple[int, ...] = (0, 1, 2)
    components: int = 512
    """how many principal components of the VOC features; few make poor features"""


def boundary(clean: np.ndarray, logits: np.ndarray, seed: int) -> np.ndarray:
    """Labels of which 20 % of the positives are missed and 2 % of the negatives false, mostly those near logit 0."""
    near, flip = np.exp(-np.abs(logits)), np.zeros(clean.shape)
    for value, rate in ((1, 0.2), (0, 0.02)):
        group = clean == value
        factor = np.full(clean.shape[1], rate)
        for _ in range(50):  # until the mean is the rate, in spite of the limit
            chance = np.minimum(factor * near, 0.9)
            factor *= rate / ((chance * group).sum(0) / group.sum(0))
        flip = np.where(group, chance, flip)
    return clean ^ (np.random.default_rng(seed).random(clean.shape) < flip)


def simulated(clean: np.ndarray, x: Components, dataset: str, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Kind of noise and labels."""
    key, q = jax.random.key(seed), clean.shape[1]
    yield "no noise", clean
    for rates in SETTINGS[dataset]:
        yield "eight settings", np.asarray(corrupt(key, clean, transition(*rates, q)))
    by_class = np.random.default_rng(1000 + seed).uniform(0, 0.4, (q, 2))
    yield "by class", np.asarray(corrupt(key, clean, transition(*by_class.T)))
    for rate in (0.1, 0.2, 0.3):
        yield f"pairs {rate}", np.asarray(corrupt_pairwise(key, clean, rate))
    rng = np.random.default_rng(seed)
    careless = (rng.random((len(clean), 1)) < 0.05) & (rng.random(clean.shape) < 0.5)
    yield "careless raters", (clean | careless).astype(np.uint8)
    yield "towards the boundary", boundary(clean, cross_val_logits(x, clean, seed=99), seed)


def real(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and arguments of `assumption_test` of every set with real noise: given labels, and better ones."""
    for name in ("emotions_deu", "emotions_so"):
        if (folder / f"{name}.npz").exists():
            file = np.load(folder / f"{name}.npz")
            raters = file["raters"]
            for rater in np.flatnonzero((raters[:, 0] >= 0).sum(0) >= 4000):
                seen = raters[:, 0, rater] >= 0
                features = file["features"][seen].astype(np.float32)
                yield name, dict(labels=raters[seen, :, rater], coding="uncertain", features=features)
            majority = (raters == 1).sum(2) > (raters == 0).sum(2)
            yield f"{name}, majority", dict(labels=majority, features=file["features"].astype(np.float32))
    for name in ("captions_voc", "tags_flickr"):
        if (folder / f"{name}.npz").exists():
            file = np.load(folder / f"{name}.npz")
            for side, which in ((name, "noisy"), (f"{name}, better", "clean")):
                yield side, dict(labels=file[which], coding="uncertain", features=file["features"].astype(np.float32))
    if (folder / "xray_nih.npz").exists():
        file = np.load(folder / "xray_nih.npz")
        yield "xray_nih", dict(labels=file["noisy"], coding="uncertain", probs=file["probs"].astype(float).mean(0))


def report(name: str, found: list[AssumptionTest]) -> None:
    """Prints the share of classes below 0.05 and which tests fired."""
    p = np.concatenate([one.p for one in found])
    fired = [test for one in found for test in one.test]
    kinds = ", ".join(f"{fired.count(test)} {test}" for test in ("missed", "instead", "false") if test in fired)
    print(f"{name:40}{100 * (p < 0.05).mean():7.1f} % of {p.size:5}   {kinds}", flush=True)


def main(options: Options) -> None:
    """Prints a line per kind of noise: percent of classes found, of how many."""
    for dataset in options.datasets:
        data = load(dataset, features=options.data)
        clean = np.asarray(data.labels, np.uint8)
        x = principal_components(data.features, len(clean))
        x = Components(x.values[:, : options.components])
        found: dict[str, list[AssumptionTest]] = {}
        for seed in options.seeds:
            for kind, labels in simulated(clean, x, dataset, seed):
                found.setdefault(kind, []).append(assumption_test(labels, features=x, seed=seed))
        for kind, tests in found.items():
            report(f"{dataset}, {kind}", tests)
    sets: dict[str, list[AssumptionTest]] = {}
    for name, inputs in real(options.data / "real"):
        sets.setdefault(name, []).append(assumption_test(**inputs))
    for name, tests in sets.items():
        report(name, tests)


if __name__ == "__main__":
    main(tyro.cli(Options))
