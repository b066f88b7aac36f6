"""The counting rule on a set that it was not fitted to: each real set held out in turn.

    python experiments/held_out.py --data DIR

`mlt_jax.estimator.counting` has constants that were fitted to five sets with real noisy labels, the same on which
`real_noise.py` measures it. Here the constants of the rates, of the widths of their intervals and of P(wrong) are
fitted to four of the sets, all with the same weight, and measured on the fifth, beside the constants that are shipped.
DIR holds the sets of `real_sets.py`. Prints Markdown; a minute on 2 cores.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from real_noise import probabilities, ranked
from real_sets import Task, real_sets
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from mlt_jax import audit_labels
from mlt_jax.estimator import counting
from mlt_jax.estimator.curves import fit_curves
from mlt_jax.estimator.evidence import judge, score_blocks
from mlt_jax.labels import as_labels

CONSTANTS = ("_MISSES", "_FREQUENCY", "_CEILING", "_POS", "_EXTRAS", "_NEG", "_WRONG", "_SPREAD", "_SPREAD_SLOPE")


@dataclass(frozen=True)
class Options:
    """Where the sets are."""

    data: Path


class Known(NamedTuple):
    """What is known of one task, once its curves are fitted."""

    task: Task
    curve: Any
    bins: Any
    given_probs: np.ndarray  # (n, q) calibrated P(given = 1)
    frequency: np.ndarray  # (q,)
    cells: np.ndarray  # (n, q), what the better labels know of


def known(task: Task) -> Known:
    """Curves and calibrated predictions, which depend on no constant that is fitted here."""
    labels = as_labels(task.given, observed=task.observed)
    (block,) = score_blocks([task.scores], labels)
    bins = judge(block.bins()).bins
    audit = audit_labels(task.given, probs=probabilities(task), observed=task.observed)
    probs = 1 / (1 + np.exp(-(audit.slope * audit.scores + audit.offset)))
    frequency = (task.given * task.observed).sum(0) / np.maximum(task.observed.sum(0), 1)
    return Known(task, fit_curves(bins), bins, probs, frequency, (task.better >= 0) & task.observed & task.use)


def fitted(sets: list[list[Known]]) -> dict[str, Any]:
    """The constants, by these sets alone: least absolute errors of rates, logistic regression of wrong cells."""
    signs, truth, weight = [], [], []
    for tasks in sets:
        number = sum(int(one.task.use.sum()) for one in tasks)
        for one in tasks:
            signs.append(np.stack(counting.count_signs(one.curve, one.bins))[:, one.task.use])
            truth.append(one.task.truth[one.task.use])
            weight.append(np.full(int(one.task.use.sum()), 1 / number))
    (misses, extras, frequency, ceiling), rates, w = (
        np.concatenate(signs, 1),
        np.concatenate(truth),
        np.concatenate(weight),
    )
    logit, sigmoid = counting._logit, counting._sigmoid
    one = np.ones_like(misses)
    of_pos = np.stack([logit(misses), logit(frequency), logit(ceiling), one], 1)
    of_neg = np.stack([logit(extras), one], 1)

    def solve(x: np.ndarray, true: np.ndarray) -> np.ndarray:
        root = np.sqrt(w)[:, None]
        start = np.linalg.lstsq(root * x, root[:, 0] * logit(true, 0.002), rcond=None)[0]
        how = {"maxiter": 20_000, "maxfev": 20_000, "xatol": 1e-5, "fatol": 1e-8}

        def loss(c: np.ndarray) -> float:
            return float(w @ np.abs(sigmoid(x @ c) - true))

        return minimize(loss, start, method="Nelder-Mead", options=how).x

    pos, neg = solve(of_pos, rates[:, 1]), solve(of_neg, rates[:, 0])
    found: dict[str, Any] = dict(zip(CONSTANTS[:6], [*pos, *neg], strict=True))
    made = np.stack([sigmoid(of_neg @ neg), sigmoid(of_pos @ pos)], 1)
    off = np.arcsin(np.sqrt(made)) - np.arcsin(np.sqrt(rates))
    found["_SPREAD"], found["_SPREAD_SLOPE"] = np.sqrt((w[:, None] * off**2).sum(0) / w.sum()), np.zeros(2)
    with_constants(found)
    found["_WRONG"] = np.stack([fit_wrong(sets, value) for value in (0, 1)])
    return found


def fit_wrong(sets: list[list[Known]], value: int) -> np.ndarray:
    """Coefficients of P(wrong) for cells that are given as 0, or as 1."""
    x, wrong, weight = [], [], []
    for tasks in sets:
        size = sum(int(one.cells.sum()) for one in tasks)
        for one in tasks:
            cells = one.cells & (one.task.given == value)
            column = np.nonzero(cells)[1]
            rates = counting.count_rates(one.curve, one.bins).rates
            base = counting.base_rates(rates, one.frequency)[value]
            against = one.given_probs if value == 0 else 1 - one.given_probs
            parts = (against[cells], 1e-4), (base[column], 1e-6), (np.clip(one.frequency, 1e-4, 1 - 1e-4)[column], 1e-6)
            x.append(np.stack([counting._logit(np.asarray(part, float), least) for part, least in parts], 1))
            wrong.append((one.task.given != one.task.better)[cells])
            weight.append(np.full(len(column), 1e5 / size))
    model = LogisticRegression(C=1e6, max_iter=1000)
    model.fit(np.concatenate(x), np.concatenate(wrong), sample_weight=np.concatenate(weight))
    return np.append(model.coef_[0], model.intercept_)


def with_constants(constants: dict[str, Any]) -> None:
    """Puts them in the place of those that are shipped."""
    for name, value in constants.items():
        setattr(counting, name, value)


def measured(tasks: list[Known]) -> dict[str, Any]:
    """Errors of both rates, coverage, and the ranking of wrong cells as a multiple of self-confidence's."""
    errors, inside, wrong, ours, plain = [], [], [], [], []
    for one in tasks:
        found, use = counting.count_rates(one.curve, one.bins), one.task.use
        errors.append(np.abs(found.rates - one.task.truth)[use])
        spread = found.stderr / np.maximum(2 * np.sqrt(found.rates * (1 - found.rates)), 1e-6)
        ends = [np.arcsin(np.sqrt(found.rates)) + z * spread for z in (-1.96, 1.96)]
        low, high = (np.sin(np.clip(end, 0, np.pi / 2)) ** 2 for end in ends)
        inside.append(((one.task.truth >= low) & (one.task.truth <= high))[use])
        guess = counting.counted_wrong(one.given_probs, one.task.given, found.rates, one.frequency)
        probs = probabilities(one.task)
        wrong.append((one.task.given != one.task.better)[one.cells])
        ours.append(guess[one.cells])
        plain.append(np.where(one.task.given == 1, 1 - probs, probs)[one.cells])
    mistakes, ours_all, plain_all = map(np.concatenate, (wrong, ours, plain))
    return {
        "error": np.concatenate(errors).mean(0), "coverage": np.concatenate(inside).mean(0),
        "ranking": ranked(mistakes, ours_all) / ranked(mistakes, plain_all),
    }  # fmt: skip


def main(options: Options) -> None:
    """Prints the table."""
    sets = {name: [known(task) for task in tasks] for name, tasks in real_sets(options.data).items()}
    shipped = {name: getattr(counting, name) for name in CONSTANTS}
    results: dict[str, list[dict[str, Any]]] = {}
    for name, tasks in sets.items():
        with_constants(shipped)
        before = measured(tasks)
        with_constants(fitted([other for key, other in sets.items() if key != name]))
        results[name] = [before, measured(tasks)]
    with_constants(shipped)
    print("| | " + " | ".join(results) + " | sum |\n" + "|---" * (len(results) + 2) + "|")
    for k, words in enumerate(("shipped", "fitted to the other sets")):
        found = [pair[k] for pair in results.values()]
        errors = (f"{one['error'][0]:.3f} / {one['error'][1]:.3f}" for one in found)
        print(f"| error, {words} | {' | '.join(errors)} | {sum(one['error'].sum() for one in found):.3f} |")
        covered = (" / ".join(f"{100 * share:.0f}" for share in one["coverage"]) for one in found)
        print(f"| covered, %, {words} | {' | '.join(covered)} | |")
        ranks = (f"{one['ranking']:.2f}" for one in found)
        print(f"| ranking, of self-confidence's, {words} | {' | '.join(ranks)} | |")


if __name__ == "__main__":
    main(tyro.cli(Options))
