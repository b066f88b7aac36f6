"""What the estimator from label correlations makes of real labels, with noise that is put in: three tables of the docs.

    python experiments/correlations.py --data DIR

DIR holds the label files of VOC, COCO, EURLex and Delicious (.npz); rows of what is missing are left out. No features,
no training: what is right is known, and selected without error. Prints Markdown; minutes on 2 cores.

1. `rules`: T errors of the five rules at the paper's eight settings. Selected are all right labels ("unbiased"), or a
   random half of them, so that being unselected proves nothing ("half").
2. `partners`: large label sets; the pairwise rules with all partners and with those that occur together with the class.
3. `sampled`: what is lost where only a sample of the negatives was looked at; simulated labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp
import tyro

from mlt_jax.estimator import AGGREGATES, Status, count, estimate_all, estimate_from_tables
from mlt_jax.estimator.lists import count_lists, estimate_from_lists
from mlt_jax.estimator.sparse_selection import sample_cells, select_sampled
from mlt_jax.paper import noise
from mlt_jax.paper import printed as paper
from mlt_jax.training.metrics import transition_error

SETTINGS = [tuple(map(float, column.strip("()").split(","))) for column in paper.tables()["est_VOC2007"].columns]
SHARE = 0.9  # of the examples: what the paper estimates T from
RATES = (0.002, 0.3)  # rho_neg, rho_pos of the simulated labels


@dataclass(frozen=True)
class Options:
    """What is measured."""

    data: Path
    """folder with the label files"""
    tables: tuple[str, ...] = ("rules", "partners", "sampled")
    """which of the three"""
    seeds: int = 5
    """of VOC; COCO and the large sets have one"""
    examples: int = 20_000
    """simulated, for `sampled`"""
    classes: int = 400
    """of them"""


def voc_and_coco(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Clean labels by name."""
    for name in ("voc2007", "voc2012"):
        if (folder / f"{name}_labels.npz").exists():
            with np.load(folder / f"{name}_labels.npz", allow_pickle=False) as archive:
                yield name, (archive["trainval"] >= 0).astype(np.uint8)
    if (folder / "coco2014_train_labels.npz").exists():
        with np.load(folder / "coco2014_train_labels.npz", allow_pickle=False) as archive:
            yield "coco", np.unpackbits(archive["train"], axis=1)[:, : len(archive["classes"])]


def rules(options: Options) -> str:
    """T errors by rule, summed over classes and settings, means over seeds."""
    columns: dict[str, dict[str, float]] = {}
    worst: list[str] = []
    for name, labels in voc_and_coco(options.data):
        seeds = 1 if name == "coco" else options.seeds
        for share, word in ((1.0, "unbiased"), (0.5, "half")):
            found = np.zeros((len(AGGREGATES), len(SETTINGS), seeds))
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                clean = labels[rng.permutation(len(labels))[: int(SHARE * len(labels))]]
                for s, (rho_neg, rho_pos) in enumerate(SETTINGS):
                    T = noise.transition(rho_neg, rho_pos, clean.shape[1])
                    given = np.asarray(noise.corrupt(jax.random.key(seed), clean, T))
                    selected = (given == clean) & (rng.random(clean.shape) < share)
                    tables = count(given, selected)
                    for r, rule in enumerate(AGGREGATES):
                        estimate = estimate_from_tables(tables, aggregate=rule)
                        found[r, s, seed] = transition_error(estimate.T, T)
            sums = found.sum(1).mean(1)
            columns[f"{name} {word}"] = dict(zip(AGGREGATES, sums, strict=True))
            if share == 1.0:
                theirs = paper.tables()[{"coco": "est_MSCOCO"}.get(name, f"est_{name.upper()}")]
                for s, column in enumerate(theirs.columns):
                    gold = theirs.value("T_error", "Our estimator gold", column)
                    printed = np.inf if gold is None else gold.mean
                    if found[0, s].mean() > 1.2 * printed:
                        worst.append(f"{name} {column} {found[0, s].mean():.2f} against {printed:.2f}")
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for rule in AGGREGATES:
        lines.append(f"| `{rule}` | " + " | ".join(f"{column[rule]:.1f}" for column in columns.values()) + " |")
    return "\n".join([*lines, "", f"`joint` is behind the printed gold row by more than 20 % at {'; '.join(worst)}."])


def hidden_noise(rng: np.random.Generator, clean: Any) -> tuple[Any, Any]:
    """Given labels of sparse clean ones, 30 % missed and 0.05 % of the other cells given, and the unselected cells.

    Unselected are all wrong cells, a tenth of the right positives and as many negatives as there are wrong cells.
    """
    n, q = clean.shape
    kept = clean.copy()
    kept.data = (rng.random(clean.nnz) < 0.7).astype(np.int8)
    missed = (clean - kept) > 0
    extra = cells_at_random(rng, clean.shape, int(0.0005 * n * q)) > clean
    given = ((kept + extra.astype(np.int8)) > 0).astype(np.int8)
    doubted = kept.copy()
    doubted.data = kept.data * (rng.random(kept.nnz) < 0.1)
    others = cells_at_random(rng, clean.shape, missed.nnz + extra.nnz) > given
    return given, (missed + extra + (doubted > 0) + others) > 0


def cells_at_random(rng: np.random.Generator, shape: tuple[int, int], number: int) -> Any:
    """About so many cells."""
    places = [rng.integers(0, size, number) for size in shape]
    return (sp.csr_array((np.ones(number, np.int8), places), shape=shape) > 0).astype(np.int8)


def partners(options: Options) -> str:
    """Errors on large sets, of the classes that have an estimate by every rule."""
    columns = ("joint", "medoid, all partners", "medoid, together", "residual, all", "residual, together")
    lines = [f"| sum of the errors of rho_neg / rho_pos | {' | '.join(columns)} |", "|---" * 6 + "|"]
    for title, name in (("EURLex", "eurlex4k_train_labels"), ("Delicious", "delicious_labels")):
        path = options.data / f"{name}.npz"
        if not path.exists():
            continue
        with np.load(path, allow_pickle=False) as parts:
            clean = (sp.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=parts["shape"]) > 0).astype(
                np.int8
            )
        given, unselected = hidden_noise(np.random.default_rng(0), clean)
        together = {"num_partners": clean.shape[1] - 1, "key": jax.random.key(0)}
        asked: list[dict[str, Any]] = [{"aggregate": "joint"}]
        asked += [{"aggregate": rule} | more for rule in ("medoid", "residual") for more in ({}, together)]
        lists = count_lists(given, unselected=unselected)
        found = [estimate_from_lists(lists, **each) for each in asked]
        use = np.all([np.asarray(each.status) == Status.CORRELATION for each in found], axis=0)
        true = wrong_rates(clean, given)[use]
        rates = [np.stack([each.rho_neg, each.rho_pos], 1)[use] for each in found]
        texts = (" / ".join(f"{error:.2g}" for error in np.abs(each - true).sum(0)) for each in rates)
        lines.append(f"| {title}, {use.sum()} classes | {' | '.join(texts)} |")
        change = [np.abs(rates[k] - rates[k + 1]).max() for k in (1, 3)]
        print(f"{title}: a rate changes by up to {change[0]:.2f} (medoid) and {change[1]:.2f} (residual)")
    return "\n".join(lines)


def wrong_rates(clean: Any, given: Any) -> np.ndarray:
    """The rates that came about, (q, 2), of sparse labels."""
    positives, both, ones = (np.asarray(x.sum(0), float) for x in (clean, clean.multiply(given), given))
    return np.stack([(ones - both) / (clean.shape[0] - positives), 1 - both / np.maximum(positives, 1)], 1)


def sampled(options: Options) -> str:
    """Errors where the negatives that were looked at are a sample."""
    n, q = options.examples, options.classes
    rng = np.random.default_rng(0)
    topic = rng.integers(0, q // 8, (n, 1)) == np.arange(q) // 8  # eight labels of a topic go together
    clean = (rng.random((n, q)) < np.where(topic, 0.5, 0.003)).astype(np.uint8)
    T = noise.transition(*RATES, q)
    given = np.asarray(noise.corrupt(jax.random.key(0), clean, T))
    labels = sp.csr_array(given.astype(np.int8))
    logits = np.where(clean == 1, 3, -3) + rng.normal(size=clean.shape)
    losses = np.logaddexp(0, np.where(given == 1, -logits, logits)).astype(np.float32)
    lines = ["| negatives looked at | rho_neg | rho_pos | standard error of rho_pos | rho_pos if the others counted as "
             "clean (median) |", "|---" * 5 + "|"]  # fmt: skip
    for share in (1.0, 0.4, 0.1, 0.025):
        looked = sample_cells(labels, int(share * n))
        clean_cells = select_sampled(labels, looked.multiply(losses))
        found = estimate_all(labels, clean_cells, stderr=True)
        known = np.asarray(found.status) == Status.CORRELATION
        errors = [np.abs(np.asarray(rate)[known] - true).mean()
                  for rate, true in zip((found.rho_neg, found.rho_pos), RATES, strict=True)]  # fmt: skip
        naive = ""
        if share < 1:
            doubted = (looked.astype(bool).astype(np.int8) - clean_cells.astype(np.int8)) > 0
            naive = f"{np.median(estimate_all(labels, unselected=doubted).rho_pos):.2f}"
        stderr = np.asarray(found.stderr)[known, 1]
        lines.append(f"| {share:.3g} | {errors[0]:.4f} | {errors[1]:.2f} | {np.median(stderr):.2f} | {naive} |")
        print(f"{share}: {known.sum()} of {q} classes have an estimate, {np.isinf(stderr).sum()} an infinite error")
    return "\n".join([f"{given.mean():.2%} given positives", "", *lines])


def main(options: Options) -> None:
    """Prints the tables."""
    for name in options.tables:
        print(f"## {name}\n\n{dict(rules=rules, partners=partners, sampled=sampled)[name](options)}\n", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Options))
