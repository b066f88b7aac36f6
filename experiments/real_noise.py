"""Real noisy labels: rates, intervals and rankings of every method, against better labels of the same cells.

    python experiments/real_noise.py --data DIR [--out experiments/results]

DIR holds the sets of `real_sets.py`, which says what the better labels are: agreement of people or experts, not truth.
Every method gets the same out-of-sample predictions, of ridge logistic heads on the features, or those that come with
the set. cleanlab's rows are left out where it is not installed (`pip install 'mlt_jax[bench]'`). Writes
`real_noise.json`, `real_noise.md`, `real_noise.svg` (errors) and `real_reliability.svg` (P(wrong) beside the share that
is wrong). About 2 minutes on 2 cores.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from real_sets import Task, real_sets

from mlt_jax import audit_labels, dual_t, estimate, estimate_from_scores, t_estimator
from mlt_jax.training.metrics import average_precision

# Bins of P(wrong) in which it is compared with the share that is wrong.
EDGES = (0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 1)
OURS, CLEANLAB = "ours", "cleanlab 2.9, confident joint"
COLOURS = ("#2563eb", "#9ca3af", "#d97706", "#059669", "#7c3aed", "#db2777", "#78716c")
# Fewest cells of a bin that is drawn.
FEWEST = 20


@dataclass(frozen=True)
class Options:
    """Where the sets are and where results go."""

    data: Path
    out: Path = Path("experiments/results")


def probabilities(task: Task) -> np.ndarray:
    """P(given = 1) by the scores as they are."""
    return np.clip(1 / (1 + np.exp(-task.scores.astype(float))), 1e-6, 1 - 1e-6)


def per_class(task: Task, rule: Callable[[np.ndarray, np.ndarray], tuple[float, float]]) -> np.ndarray:
    """Rates (q, 2) by a rule for the probabilities and labels of one class."""
    probs = probabilities(task)
    found = np.zeros((probs.shape[1], 2))
    for j in np.flatnonzero(task.use):
        known = task.observed[:, j]
        found[j] = rule(probs[known, j], task.given[known, j].astype(int))
    return found


def confident_joint(p: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """cleanlab's confident joint of one class, as rates."""
    from cleanlab.count import compute_confident_joint

    joint = np.asarray(compute_confident_joint(y, np.stack([1 - p, p], 1)), float)  # [given, true]
    noise = joint / joint.sum(0, keepdims=True)
    return noise[1, 0], noise[0, 1]


def best_bin(p: np.ndarray, y: np.ndarray, delta: float = 0.1) -> tuple[float, float]:
    """Best-bin estimation at both ends: the share of the odd label in the end where its bound is least."""

    def end(score: np.ndarray, odd: np.ndarray) -> float:
        ordered = odd[np.argsort(-score, kind="stable")]
        many = [max(int((ordered == v).sum()), 1) for v in (0, 1)]
        usual, strange = np.cumsum(1 - ordered) / many[0], np.cumsum(ordered) / many[1]
        slack = 1.01 * sum(np.sqrt(np.log(4 / delta) / 2 / m) for m in many)
        bound = np.where(usual > 0, (strange + slack) / np.maximum(usual, 1e-12), np.inf)
        return float(ordered[: int(np.argmin(bound)) + 1].mean())

    return end(-p, y), end(p, 1 - y)


def baseline(task: Task, matrices: Callable[..., Any]) -> np.ndarray:
    """Rates of an anchor method."""
    T = np.asarray(matrices(probabilities(task), task.given, observed=task.observed))
    return T[:, [0, 1], [1, 0]]


def as_rates(found: Any) -> np.ndarray:
    """(q, 2) rho_neg, rho_pos of a `TransitionEstimate`."""
    return np.stack([found.rho_neg, found.rho_pos], axis=1)


METHODS: dict[str, Callable[[Task], np.ndarray]] = {
    "no noise": lambda task: np.zeros_like(task.truth),
    CLEANLAB: lambda task: per_class(task, confident_joint),
    "best-bin estimation, both ends": lambda task: per_class(task, best_bin),
    "Dual-T": lambda task: baseline(task, dual_t),
    "T-estimator": lambda task: baseline(task, t_estimator),
    "the paper's recipe": lambda task: as_rates(
        estimate(task.given, probs=probabilities(task), method="recipe", observed=task.observed)
    ),
}


def ranked(wrong: np.ndarray, score: np.ndarray) -> float:
    """Average precision of finding the wrong cells by score."""
    return float(average_precision(score.reshape(-1, 1).astype(float), wrong.reshape(-1, 1))[0])


def rankings(task: Task) -> dict[str, np.ndarray]:
    """Suspicion of every cell, higher for more suspect."""
    probs, given = probabilities(task), task.given == 1
    return {
        OURS: audit_labels(task.given, probs=probs, observed=task.observed).wrong,
        "self-confidence": np.where(given, 1 - probs, probs),
    }


def reliability(wrong: np.ndarray, probability: np.ndarray) -> list[tuple[int, float, float]]:
    """Cells, mean P(wrong) and share of wrong labels in each bin of P(wrong)."""
    cell = np.clip(np.searchsorted(EDGES, probability, side="right") - 1, 0, len(EDGES) - 2)
    rows = []
    for k in range(len(EDGES) - 1):
        part = cell == k
        size = int(part.sum())
        expected, found = (float(v[part].mean()) if size else 0.0 for v in (probability, wrong))
        rows.append((size, expected, found))
    return rows


def measure(tasks: list[Task]) -> dict[str, Any]:
    """Errors of all methods, coverage and width of our intervals, and average precisions on one set."""
    errors: dict[str, list[np.ndarray]] = {}
    inside, widths, statuses, wrong = [], [], [], []
    scores: dict[str, list[np.ndarray]] = {}
    for task in tasks:
        found = estimate_from_scores(task.scores, task.given, observed=task.observed)
        answers = {OURS: as_rates(found)}
        for name, method in METHODS.items():
            try:
                answers[name] = method(task)
            except ImportError:
                print(f"{name}: not installed, left out")
        for name, answer in answers.items():
            errors.setdefault(name, []).append(np.abs(answer - task.truth)[task.use])
        interval = np.asarray(found.interval())[task.use]
        truth = task.truth[task.use]
        inside.append((truth >= interval[..., 0]) & (truth <= interval[..., 1]))
        widths.append(interval[..., 1] - interval[..., 0])
        statuses += [int(s) for s in np.asarray(found.status)[task.use]]
        cells = (task.better >= 0) & task.observed & task.use
        wrong.append((task.given != task.better)[cells])
        for name, score in rankings(task).items():
            scores.setdefault(name, []).append(score[cells])
    mistakes = np.concatenate(wrong)
    return {
        "classes": len(statuses),
        "error": {name: np.concatenate(rows).mean(0).tolist() for name, rows in errors.items()},
        "coverage": np.concatenate(inside).mean(0).tolist(),
        "width": np.concatenate(widths).mean(0).tolist(),
        "status": statuses,
        "wrong": float(mistakes.mean()),
        "reliability": reliability(mistakes, np.concatenate(scores[OURS])),
        "ranking": {name: ranked(mistakes, np.concatenate(parts)) for name, parts in scores.items()},
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown tables of errors, intervals and rankings."""
    names = list(next(iter(results.values()))["error"])
    lines = [
        "# Real noisy labels",
        "",
        "Mean absolute error of rho_neg / rho_pos against better labels (agreement of people, not truth).",
        "",
        "| | " + " | ".join(f"{s} ({r['classes']})" for s, r in results.items()) + " | sum |",
        "|---" * (len(results) + 2) + "|",
    ]
    for name in names:
        pairs = [result["error"][name] for result in results.values()]
        cells = [f"{neg:.3f} / {pos:.3f}" for neg, pos in pairs]
        lines.append(f"| {name} | {' | '.join(cells)} | {sum(map(sum, pairs)):.3f} |")
    lines += ["", "Our 95 % intervals, and average precision of ranking the wrong labels:", ""]
    lines += ["| | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "covered, %": lambda r: " / ".join(f"{100 * c:.0f}" for c in r["coverage"]),
        "mean width": lambda r: " / ".join(f"{w:.3f}" for w in r["width"]),
        "ranking, ours": lambda r: f"{r['ranking'][OURS]:.3f}",
        "ranking, self-confidence": lambda r: f"{r['ranking']['self-confidence']:.3f}",
        "share of wrong labels": lambda r: f"{r['wrong']:.3f}",
    }
    for name, cell in rows.items():
        lines.append(f"| {name} | " + " | ".join(cell(result) for result in results.values()) + " |")
    lines += ["", "Share of wrong labels (and cells) where P(wrong) is in a range:", ""]
    ranges = [f"{low:g} to {high:g}" for low, high in pairwise(EDGES)]
    lines += ["| | " + " | ".join(ranges) + " |", "|---" * (len(ranges) + 1) + "|"]
    for name, result in results.items():
        cells = [f"{share:.2f} ({size:,})" if size else "" for size, _, share in result["reliability"]]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def figure(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Bars of the summed error as SVG, a group per set."""
    names, scale, bar, left = list(next(iter(results.values()))["error"]), 220, 14, 40
    group = bar * (len(names) + 1)
    parts = []
    for g, (name, result) in enumerate(results.items()):
        x = left + g * group
        parts.append(f'<text x="{x}" y="{scale + 16}">{name}</text>')
        for k, method in enumerate(names):
            height = scale * sum(result["error"][method])
            spot = f'x="{x + k * bar}" y="{scale - height:.1f}" width="{bar - 2}" height="{height:.1f}"'
            parts.append(f'<rect {spot} fill="{COLOURS[k % len(COLOURS)]}"/>')
    for k, method in enumerate(names):
        y = scale + 36 + 16 * k
        parts.append(f'<rect x="{left}" y="{y - 10}" width="10" height="10" fill="{COLOURS[k % len(COLOURS)]}"/>')
        parts.append(f'<text x="{left + 16}" y="{y}">{method}: error of rho_neg + rho_pos</text>')
    write_svg(path, left + group * len(results), scale + 40 + 16 * len(names), parts)


def reliability_figure(results: dict[str, dict[str, Any]], path: Path) -> None:
    """A line per set: mean P(wrong) of a bin against the share that is wrong; the diagonal is what it should be."""
    side, left = 320, 40
    parts = [f'<path d="M{left} {side} L{left + side} 0" stroke="#9ca3af" stroke-dasharray="4"/>']
    parts.append(f'<path d="M{left} 0 V{side} H{left + side}" fill="none" stroke="black"/>')
    for tick in (0, 0.5, 1):
        parts.append(f'<text x="{left + side * tick - 8}" y="{side + 14}">{tick:g}</text>')
        parts.append(f'<text x="{left - 24}" y="{side - side * tick + 10 * (tick == 1)}">{tick:g}</text>')
    parts.append(f'<text x="{left}" y="{side + 30}">P(wrong), and upwards the share of labels that are wrong</text>')
    for k, (name, result) in enumerate(results.items()):
        spots = [(left + side * p, side - side * share) for size, p, share in result["reliability"] if size >= FEWEST]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[k % len(COLOURS)]}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[k % len(COLOURS)]}"/>' for x, y in spots]
        parts.append(f'<text x="{left + 12}" y="{16 + 16 * k}" fill="{COLOURS[k % len(COLOURS)]}">{name}</text>')
    write_svg(path, left + side + 20, side + 40, parts)


def write_svg(path: Path, width: int, height: int, parts: list[str]) -> None:
    """A file of a drawing."""
    head = f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
    path.write_text(f'<svg {head} font-size="11">{"".join(parts)}</svg>\n')


def main(options: Options) -> None:
    """Measures every set, prints the tables and writes them."""
    results = {}
    for name, tasks in real_sets(options.data).items():
        results[name] = measure(tasks)
        print(name, {k: [round(v, 3) for v in e] for k, e in results[name]["error"].items()}, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "real_noise.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "real_noise.md").write_text(table(results))
    figure(results, options.out / "real_noise.svg")
    reliability_figure(results, options.out / "real_reliability.svg")
    print(table(results))


if __name__ == "__main__":
    main(tyro.cli(Options))
