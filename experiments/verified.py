"""Rates from a verified sample on real noise: error and coverage over repeated draws of the cells to decide.

    python experiments/verified.py --data DIR [--draws 200] [--budget 100] [--overall 300] [--out results.json]

DIR holds the files that `real_sets.py` lists. The decisions are the better labels of a set, where known; rates and
shares are those of the better labels. `propose_cells` draws the cells, `verified` reads them: `--budget` a class for
the rates, `--overall` in all for the share of wrong labels. "of blind" is against the error of rho_pos without any.

Then the ranking: average precision of P(wrong) on what is still undecided, before and after so many decisions on the
most suspicious cells alone (one draw per task), and after `--budget` a class on cells that were drawn.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from real_sets import Task, real_sets
from scipy.special import expit
from sklearn.metrics import average_precision_score

from mlt_jax import Decisions, audit_labels, estimate_from_scores, propose_cells, recalibrate, verified

# Too few cells with better labels: for most findings 188 X-rays have them, and the rates are those of other X-rays.
SKIPPED = "xray_nih"


@dataclass(frozen=True)
class Options:
    """What to measure."""

    data: Path
    """folder of the npz files"""
    draws: int = 200
    """per set, spread over its tasks"""
    first: int = 1000
    """seed of the first draw; the design was chosen on these sets with seeds 0 to 199"""
    budget: int = 100
    overall: int = 300
    suspects: float = 0.1
    """share of the most suspicious cells"""
    out: Path | None = None
    """JSON file to write"""


def measure(tasks: list[Task], options: Options) -> dict[str, Any]:
    """Means over the draws and classes of a set; pairs are rho_neg, rho_pos."""
    rates, shares = [], []
    blind = [estimate_from_scores(task.scores, task.given, observed=task.observed).rho_pos for task in tasks]
    missed = [np.abs(np.asarray(rho) - task.truth[:, 1])[task.use] for rho, task in zip(blind, tasks, strict=True)]
    for draw in range(options.first, options.first + options.draws):
        task = tasks[draw % len(tasks)]
        known = task.observed & (task.better >= 0)
        inputs: dict[str, Any] = {"observed": known, "seed": draw}
        proposal = propose_cells(task.given, task.scores, options.budget, suspects=options.suspects, **inputs)
        answer = verified(task.given, task.scores, proposal.decide(task.better), **inputs)
        found = np.stack([answer.found.rho_neg, answer.found.rho_pos], axis=1)[task.use]
        low, high = np.moveaxis(answer.interval[task.use], 2, 0)
        truth = task.truth[task.use]
        rates.append([np.abs(found - truth), (low <= truth) & (truth <= high), high - low])
        proposal = propose_cells(
            task.given, task.scores, options.overall, per="all", suspects=options.suspects, **inputs
        )
        answer = verified(task.given, task.scores, proposal.decide(task.better), **inputs)
        truth = (task.given != task.better)[known].mean()
        low, high = answer.share_interval
        shares.append([abs(answer.share - truth), low <= truth <= high, high - low])
    means = np.concatenate([np.asarray(draw, float) for draw in rates], axis=1).mean(axis=1)
    names = ("error", "covered", "width")
    result: dict[str, Any] = {name: value.tolist() for name, value in zip(names, means, strict=True)}
    result["blind"] = float(np.concatenate(missed).mean())
    return result | {f"share_{name}": float(v) for name, v in zip(names, np.mean(shares, axis=0), strict=True)}


SUSPECTS = (5, 20, 100, 300)


def rank(tasks: list[Task], options: Options) -> dict[str, list[float]]:
    """Average precision before and after, by what was decided; means over the tasks of a set."""
    found: dict[str, list[list[float]]] = {}
    for task in tasks[: options.draws]:
        known = task.observed & (task.better >= 0)
        wrong = audit_labels(task.given, probs=expit(np.clip(task.scores, -13, 13)), observed=task.observed).wrong
        order = np.argsort(-np.where(known, wrong, -1), axis=None)
        chosen = {f"{m} suspects": np.unravel_index(order[:m], known.shape) for m in SUSPECTS}
        drawn = propose_cells(task.given, task.scores, options.budget, observed=known, seed=options.first)
        for name, (rows, columns) in (chosen | {"drawn": (drawn.example, drawn.column)}).items():
            if name == "drawn":
                decided = drawn.decide(task.better)
                after = verified(task.given, task.scores, decided, wrong=wrong, observed=known).wrong
            else:
                decided = Decisions(rows, columns, task.better[rows, columns].astype(int), np.full(len(rows), np.nan))
                after = recalibrate(task.given, wrong, decided, observed=task.observed)
            rest = known.copy()
            rest[rows, columns] = False
            mistaken = (task.given != task.better)[rest]
            pair = [float(average_precision_score(mistaken, p[rest])) for p in (wrong, after)]
            found.setdefault(name, []).append(pair)
    return {name: np.mean(pairs, axis=0).tolist() for name, pairs in found.items()}


def main(options: Options) -> None:
    """Prints a line per set."""
    print(f"{options.budget} decisions a class; {options.overall} in all for the share; {options.draws} draws a set")
    print(f"{'':13}{'error':>15}{'of blind':>10}{'covered, %':>15}{'width':>15}   share: error covered width")
    results = {}
    for name, tasks in real_sets(options.data).items():
        if name == SKIPPED:
            continue
        begin = time.monotonic()
        results[name] = row = measure(tasks, options)
        pairs = {key: row[key] for key in ("error", "covered", "width")}
        covered = " / ".join(f"{100 * value:.1f}" for value in pairs["covered"])
        error, width = (" / ".join(f"{value:.3f}" for value in pairs[key]) for key in ("error", "width"))
        share = f"{row['share_error']:.4f}  {100 * row['share_covered']:5.1f} {row['share_width']:.4f}"
        ratio = row["error"][1] / row["blind"]
        took = time.monotonic() - begin
        print(f"{name:13}{error:>15}{ratio:10.2f}{covered:>15}{width:>15}          {share}  ({took:.0f} s)", flush=True)
    print("average precision of the undecided, before -> after")
    for name, row in results.items():
        row["ranking"] = ranking = rank(real_sets(options.data)[name], options)
        print(f"{name:13}" + "   ".join(f"{what}: {a:.3f} -> {b:.3f}" for what, (a, b) in ranking.items()), flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options))
