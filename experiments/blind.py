"""Noise rates from features alone, under simulated noise: ours and what each ingredient buys; error and coverage.

    python experiments/blind.py --data DIR [--dataset voc2007] [--seeds 0 1 2] [--ablation | --stress]

DIR holds `voc2007_features.npz` and `voc2007_labels.npz` (or those of VOC2012), or `coco_features.npz`. Noise: the
paper's eight settings, rates that differ by class (uniform on [0, 0.4], each side), and pair-wise noise (against the
rates that came about). Results are kept in `--workdir`, a file per noise and seed; what is there is not computed again.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import mlt_jax
from mlt_jax import Status, TransitionEstimate, cross_val_logits, estimate_from_scores
from mlt_jax.data import Dataset, load
from mlt_jax.estimator.blind import SideTest, side_test
from mlt_jax.estimator.crossfit import Components, head_logits, principal_components
from mlt_jax.paper.noise import SETTINGS, corrupt_pairwise, realised_transition, transition
from mlt_jax.paper.noise import corrupt as corrupt_labels
from mlt_jax.paper.printed import tables
from mlt_jax.training.records import write_json
from mlt_jax.transition import as_matrices


@dataclass(frozen=True)
class Options:
    """Where the features are."""

    data: Path
    """folder of the feature and label files"""
    dataset: str = "voc2007"
    seeds: tuple[int, ...] = (0, 1, 2)
    ablation: bool = False
    """also the rows that leave an ingredient out or add one; doubles the time"""
    stress: bool = False
    """only poor features and few examples instead"""
    workdir: Path = Path("runs/blind")
    minutes: float = float("inf")
    """begin no more after so many"""


def noises(dataset: str) -> list[str]:
    """Names of the kinds of noise."""
    return [f"({a:g}, {b:g})" for a, b in SETTINGS[dataset]] + ["by class"] + [f"pairs {r}" for r in (0.1, 0.2, 0.3)]


def corrupt(clean: np.ndarray, noise: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy labels (n, q) and the true rates (q, 2)."""
    key, q = jax.random.key(seed), clean.shape[1]
    if noise.startswith("pairs"):
        labels = np.asarray(corrupt_pairwise(key, clean, float(noise.split()[1])))
        return labels, np.asarray(realised_transition(clean, labels))[:, [0, 1], [1, 0]]
    if noise == "by class":
        rates = np.random.default_rng(1000 + seed).uniform(0, 0.4, (q, 2))
    else:
        rates = np.tile(np.array(noise.strip("()").split(","), float), (q, 1))
    return np.asarray(corrupt_labels(key, clean, transition(*rates.T))), rates


def quantile_anchors(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Rates (q, 2): share of given positives in the lower half by score, of negatives at the top.

    The top is a sixth of the positives there would be with those rates, found by going round.
    """
    n, q = scores.shape
    ranked = np.take_along_axis(labels, scores.argsort(0), 0)
    rho_neg = ranked[: n // 2].mean(0)
    rho_pos = np.zeros(q)
    for _ in range(20):
        positives = np.clip((labels.mean(0) - rho_neg) / np.maximum(1 - rho_neg - rho_pos, 0.05), 0, 1) * n
        top = np.maximum(positives / 6, 20).astype(int)
        rho_pos = np.array([1 - ranked[n - top[j] :, j].mean() for j in range(q)])
    return np.stack([rho_neg, rho_pos], 1)


def with_other_labels(x: Components, labels: np.ndarray, seed: int, T: Any) -> np.ndarray:
    """Scores of heads that also see the given labels of the other classes."""
    own = []
    for j in range(labels.shape[1]):
        inputs = np.concatenate([np.asarray(x.values), np.delete(labels, j, axis=1)], 1)
        own.append(cross_val_logits(inputs, labels[:, j : j + 1], seed=seed, T=T[j : j + 1], components=1000))
    return np.concatenate(own, 1)


def as_rates(found: TransitionEstimate) -> np.ndarray:
    """(q, 2) rho_neg, rho_pos."""
    return np.stack([found.rho_neg, found.rho_pos], 1)


def rows(x: Components, labels: np.ndarray, seed: int, ablation: bool) -> Iterator[tuple[str, Any]]:
    """Each row's name and estimate; x are the features' principal components."""
    n, q = labels.shape
    scores = cross_val_logits(x, labels, seed=seed)
    yield "sides", side_test(scores, labels)
    ours = estimate_from_scores(scores, labels)
    yield "ours", ours
    yield "ours, each class alone", estimate_from_scores(scores, labels, share=False)
    corrected = cross_val_logits(x, labels, seed=seed, T=ours.T)
    yield "ours, heads corrected by T", estimate_from_scores(corrected, labels)
    anchors = as_matrices(jnp.asarray(quantile_anchors(scores, labels)))
    yield "quantile anchors", ours._replace(T=anchors, stderr=jnp.full((q, 2), jnp.nan))
    if not ablation:
        return
    y, everyone = jnp.asarray(labels, jnp.float32), jnp.ones((n, 1), bool)
    seen = head_logits(x.values, y, jnp.ones((n, q), bool), everyone, jnp.zeros((q, 2)), 0.03)[:, 0]
    yield "ours, heads not cross-fitted", estimate_from_scores(np.asarray(seen), labels)
    yield "ours, other labels as inputs", estimate_from_scores(with_other_labels(x, labels, seed, ours.T), labels)


def measure(options: Options, data: Dataset, x: Components, noise: str, seed: int) -> dict[str, Any]:
    """Rates, standard errors and status of every row under one noise, and the p-values of both sides."""
    labels, truth = corrupt(data.labels, noise, seed)
    result: dict[str, Any] = {"truth": truth.tolist(), "rows": {}}
    for name, found in rows(x, labels, seed, options.ablation):
        if isinstance(found, SideTest):
            result["sides"] = {key: value.tolist() for key, value in found._asdict().items()}
            continue
        fields = {"rates": as_rates(found), "interval": np.asarray(found.interval())}
        fields |= {name: np.asarray(getattr(found, name)) for name in ("stderr", "status")}
        result["rows"][name] = {key: value.tolist() for key, value in fields.items()}
    return result


def report(dataset: str, results: dict[tuple[str, int], dict[str, Any]]) -> None:
    """Prints a table of errors and one of coverage, means over the seeds that are there."""
    names = noises(dataset)
    print(f"\n{dataset}: sum over classes of |error of rho_neg| + |error of rho_pos|, mean over seeds")
    print(f"{'':29}" + "".join(f"{name:>12}" for name in [*names[:8], "sum of 8", *names[8:]]))
    for name in ("Our estimator", "Our estimator gold"):
        printed = tables()["est_MSCOCO" if dataset == "coco" else f"est_{dataset.replace('voc', 'VOC')}"]
        row = [value.mean for one in printed.rows if one.method == name for value in one.values]
        print(f"{f'paper: {name}':29}" + "".join(f"{value:12.2f}" for value in [*row, sum(row)]))
    ways = list(dict.fromkeys(way for result in results.values() for way in result["rows"]))
    error: dict[str, dict[str, list[Any]]] = {way: {name: [] for name in names} for way in ways}
    covered: dict[str, dict[str, list[Any]]] = {way: {name: [] for name in names} for way in ways}
    for (noise, _), result in results.items():
        for way, row in result["rows"].items():
            truth, interval, stderr = np.array(result["truth"]), np.array(row["interval"]), np.array(row["stderr"])
            off = np.abs(np.array(row["rates"]) - truth)
            held = (truth >= interval[..., 0] - 1e-6) & (truth <= interval[..., 1] + 1e-6)
            error[way][noise].append(off.sum())
            covered[way][noise].append(np.where(np.isfinite(stderr), held, np.nan))
    for way in ways:
        mean = [np.mean(error[way][name]) if error[way][name] else np.nan for name in names]
        print(f"{way:29}" + "".join(f"{value:12.2f}" for value in [*mean[:8], sum(mean[:8]), *mean[8:]]))
    print(f"\n{dataset}: percent of the true rates inside 95 % intervals, rho_neg / rho_pos")
    for way in ways:
        cells = []
        for group in ([*names[:8]], names[8:9], names[9:]):
            inside = [cover for name in group for cover in covered[way][name]]
            share = np.nanmean(inside, axis=(0, 1)) if inside and np.isfinite(inside).any() else [np.nan] * 2
            cells.append(f"{100 * share[0]:8.1f} / {100 * share[1]:5.1f}")
        print(f"{way:29} eight settings{cells[0]}   by class{cells[1]}   pairs{cells[2]}")


def report_sides(dataset: str, results: dict[tuple[str, int], dict[str, Any]]) -> None:
    """Prints how often sides with and without noise were called noisy, over the eight settings."""
    print(f"\n{dataset}: called noisy, of the sides of the eight settings")
    kept = [result for (noise, _), result in results.items() if noise in noises(dataset)[:8]]
    noisy = np.concatenate([np.array(result["truth"])[0] > 0 for result in kept])
    overall = np.concatenate([result["sides"]["overall"] for result in kept])
    by_class = np.concatenate([np.array(result["sides"]["by_class"]).T for result in kept])
    for name, side in (("without noise", ~noisy), ("with noise", noisy)):
        print(
            f"{name:14} classes at 0.05: {100 * (by_class[side] < 0.05).mean():5.1f} %, overall at 0.05, 0.01, 0.001: "
            + ", ".join(f"{int((overall[side] < level).sum())}" for level in (0.05, 0.01, 0.001))
            + f" of {int(side.sum())}"
        )


def stress(data: Dataset, components: Components) -> None:
    """Prints what comes of poor features and of few examples, at (0.2, 0.2), seed 0; doing nothing has error 8."""
    labels, truth = corrupt(data.labels, "(0.2, 0.2)", 0)
    n, x = len(labels), np.asarray(components.values)
    few = np.random.default_rng(0).permutation(n)[: n // 10]
    cases = {
        "all 512 components": (x, labels),
        "the first 32": (x[:, :32], labels),
        "the first 8": (x[:, :8], labels),
        "noise": (np.random.default_rng(0).normal(size=(n, 32)), labels),
        "a tenth of the examples": (x[few], labels[few]),
    }
    for name, (inputs, given) in cases.items():
        found = mlt_jax.estimate(given, features=inputs)
        off, status = np.abs(as_rates(found) - truth), np.asarray(found.status)
        interval = np.asarray(found.interval())
        inside = (truth >= interval[..., 0]) & (truth <= interval[..., 1])
        counts = ", ".join(f"{(status == s).sum()} {s.name.lower()}" for s in Status if (status == s).any())
        print(f"{name:24} error {off.sum():5.2f}, covered {100 * inside.mean():5.1f} %, {counts}", flush=True)


def main(options: Options) -> None:
    """Measures what is not there yet and prints the tables."""
    begin = time.monotonic()
    data = load(options.dataset, features=options.data)  # of COCO a part, 33,347 images of train2014
    x = principal_components(data.features, len(data.ids))
    if options.stress:
        return stress(data, x)
    options.workdir.mkdir(parents=True, exist_ok=True)
    results = {}
    for seed in options.seeds:
        for noise in noises(options.dataset):
            name = f"{options.dataset} {noise} {seed}{' ablation' if options.ablation else ''}.json"
            path = options.workdir / name.replace(" ", "_")
            if not path.exists() and (time.monotonic() - begin) < 60 * options.minutes:
                write_json(path, measure(options, data, x, noise, seed))
                print(f"{time.monotonic() - begin:6.0f} s  {path.name}", flush=True)
            if path.exists():
                results[noise, seed] = json.loads(path.read_text())
    report(options.dataset, results)
    report_sides(options.dataset, results)


if __name__ == "__main__":
    main(tyro.cli(Options))
