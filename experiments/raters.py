"""Several raters, real and simulated: ours, majority vote, Dawid-Skene of crowd-kit and CROWDLAB of cleanlab.

    python experiments/raters.py --data DIR [--seeds 0 1 2] [--parts real rates simulated]

DIR holds `voc2007_labels.npz`, `voc2007_features.npz`, and `real/` with `emotions_so.npz` (4,800 posts, 6 emotions, 3
raters) and `emotions_deu.npz` (5,407 posts, 6 emotions, 10 raters with gaps): `raters` (n, q, raters), -1 for gaps, and
`features`. A peer that is not installed is left out, with a word. Scores are cross-fitted to the majority vote.

real: a consensus is made of some raters and compared with the others (SO: each rater in turn is left out; DEU: of
five raters who judged everything three, and two of the rest, make it). Accuracy, log loss and average precision are
against the majority of those left out; the log loss of their single labels is by P(one more rater says 1). There is no
truth.

rates: T from a half of the examples against "each rater versus the majority of the others" on the other half. That is
no truth either: the majority of the others is wrong at times, and so it cannot be matched by an estimate of T.

simulated: raters with known T on VOC2007 labels, rates uniform on [0.01, 0.15] and [0.05, 0.5]; and raters of known
strictness on graded labels. Error of the rates, wrong consensus, and how many 95 % intervals cover.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro

from mlt_jax import cross_val_logits, estimate_raters

# Simulated: number of raters, share of missing judgements.
PANELS = (3, 0.0), (3, 0.3), (5, 0.5)


@dataclass(frozen=True)
class Options:
    """Where the data are, and how much of it."""

    data: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    parts: tuple[str, ...] = ("real", "rates", "simulated")


class Answer(NamedTuple):
    """What a method says."""

    clean: np.ndarray  # (n, q), P(clean = 1)
    yes: np.ndarray  # (n, q), P(one more rater says 1)
    rates: np.ndarray  # (raters, q, 2)
    covers: Any = None  # (raters, q, 2, 2), ends of 95 % intervals


def votes(labels: np.ndarray) -> np.ndarray:
    """The share of yes, (n, q); 1/2 where nobody judged."""
    yes, no = (labels == 1).sum(2), (labels == 0).sum(2)
    return np.where(yes + no > 0, yes / np.maximum(yes + no, 1), 0.5)


def rates_against(labels: np.ndarray, truth: np.ndarray, known: Any = True) -> np.ndarray:
    """Rates (raters, q, 2) of each rater against 0/1 labels (n, q) where `known`."""
    present, absent = ((truth == k)[:, :, None] & (labels >= 0) & np.asarray(known) for k in (1, 0))
    wrong = [(absent & (labels == 1)).sum(0), (present & (labels == 0)).sum(0)]
    return np.stack([w / np.maximum(t.sum(0), 1) for w, t in zip(wrong, (absent, present), strict=True)], 2).swapaxes(
        0, 1
    )


def through(clean: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """P(one more rater says 1) by the mean rates of the raters."""
    mean = rates.mean(0)
    return clean * (1 - mean[:, 1]) + (1 - clean) * mean[:, 0]


def ours(labels: np.ndarray, scores: np.ndarray | None, model: str = "auto") -> Answer:
    """Of `mlt_jax.estimate_raters`."""
    found = estimate_raters(labels, scores=scores, model=model)
    return Answer(found.clean_probs, found.yes_probs, np.stack([found.rho_neg, found.rho_pos], 2), found.interval())


def majority(labels: np.ndarray) -> Answer:
    """The share of votes as a probability."""
    clean = votes(labels)
    rates = rates_against(labels, clean > 0.5)
    return Answer(clean, through(clean, rates), rates)


def crowd_kit(labels: np.ndarray) -> Answer:
    """Its `DawidSkene`, once per class, since it knows no multi-label tasks."""
    import pandas as pd
    from crowdkit.aggregation import DawidSkene

    n, q, raters = labels.shape
    clean, rates = np.zeros((n, q)), np.zeros((raters, q, 2))
    for j in range(q):
        task, worker = np.nonzero(labels[:, j] >= 0)
        table = pd.DataFrame({"task": task, "worker": worker, "label": labels[task, j, worker]})
        fitted = DawidSkene(n_iter=100)
        found = fitted.fit_predict_proba(table)
        clean[found.index, j] = found[1]
        error = fitted.errors_.reindex(pd.MultiIndex.from_product([range(raters), (0, 1)])).fillna(0)
        rates[:, j] = np.stack([error[0].to_numpy()[1::2], error[1].to_numpy()[::2]], 1)
    return Answer(clean, through(clean, rates), rates)


def crowdlab(labels: np.ndarray, scores: np.ndarray) -> Answer:
    """cleanlab's `get_label_quality_multiannotator`, once per class; it has no T, so that of its consensus is taken."""
    from cleanlab.multiannotator import get_label_quality_multiannotator

    clean = np.zeros(labels.shape[:2])
    for j in range(labels.shape[1]):
        p = 1 / (1 + np.exp(-scores[:, j].astype(float)))
        given = np.where(labels[:, j] < 0, np.nan, labels[:, j])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_label_quality_multiannotator(
                given,
                np.stack([1 - p, p], 1),
                verbose=False,
                return_detailed_quality=False,
                return_annotator_stats=False,
            )["label_quality"]
        quality = found["consensus_quality_score"].to_numpy()
        clean[:, j] = np.where(found["consensus_label"] == 1, quality, 1 - quality)
    return Answer(clean, clean, rates_against(labels, clean > 0.5))


def answers(labels: np.ndarray, scores: np.ndarray | None) -> Iterator[tuple[str, Answer]]:
    """Every method by name; those with scores last."""
    yield "majority vote", majority(labels)
    try:
        yield "crowd-kit Dawid-Skene", crowd_kit(labels)
    except ImportError:
        print("crowd-kit is not installed and so not compared")
    yield "ours, clear", ours(labels, None, "clear")
    yield "ours", ours(labels, None)
    if scores is not None:
        yield "cleanlab CROWDLAB, scores", crowdlab(labels, scores)
        yield "ours, clear, scores", ours(labels, scores, "clear")
        yield "ours, scores", ours(labels, scores)


def log_loss(p: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Per label, p clipped to [0.001, 0.999]."""
    p = np.clip(p, 1e-3, 1 - 1e-3)
    return -np.log(np.where(label == 1, p, 1 - p))


def show(title: str, columns: tuple[str, ...], rows: dict[str, list[list[float]]]) -> None:
    """Prints means over repetitions."""
    print(f"\n{title}\n{'':26}" + "".join(f"{column:>18}" for column in columns))
    for name, values in rows.items():
        print(f"{name:26}" + "".join(f"{value:18.4f}" for value in np.mean(values, axis=0)), flush=True)


def scores_of(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Out-of-sample logits of the majority vote."""
    return cross_val_logits(features.astype(np.float32), (votes(labels) > 0.5).astype(np.uint8))


def splits(name: str, seeds: tuple[int, ...]) -> Iterator[list[int]]:
    """Raters who make the consensus; the others are left out."""
    if name == "emotions_so":
        yield from ([r for r in range(3) if r != out] for out in range(3))
        return
    for seed in seeds:
        rng = np.random.default_rng(seed)
        yield [*rng.permutation([0, 3, 4, 6, 7])[:3].tolist(), *rng.permutation([1, 2, 5, 8, 9])[:2].tolist()]


def real(options: Options, name: str) -> None:
    """A consensus of some raters against the others."""
    from sklearn.metrics import average_precision_score

    file = np.load(options.data / "real" / f"{name}.npz", allow_pickle=False)
    labels, rows = file["raters"], dict[str, list[list[float]]]()
    for inside in splits(name, options.seeds):
        out = np.delete(labels, inside, 2)
        share = votes(out)
        known = share != 0.5
        for method, answer in answers(labels[:, :, inside], scores_of(file["features"], labels[:, :, inside])):
            truth = share > 0.5
            precision = [average_precision_score(truth[k, j], answer.clean[k, j]) for j, k in enumerate(known.T)]
            right = ((answer.clean > 0.5) == truth)[known].mean()
            single = log_loss(np.broadcast_to(answer.yes[:, :, None], out.shape), out)[out >= 0].mean()
            loss = log_loss(answer.clean, truth)[known].mean()
            rows.setdefault(method, []).append([right, loss, np.mean(precision), single])
    columns = ("accuracy", "log loss", "average precision", "log loss, single")
    show(f"{name}: consensus against raters that were left out", columns, rows)


def rates(options: Options, name: str) -> None:
    """T from a half of the examples against each rater versus the majority of the others on the other half."""
    file = np.load(options.data / "real" / f"{name}.npz", allow_pickle=False)
    labels, rows = file["raters"], dict[str, list[list[float]]]()
    for seed in options.seeds:
        half = np.random.default_rng(seed).permutation(len(labels)) % 2 == 0
        scores = scores_of(file["features"], labels)
        target, enough = np.zeros((labels.shape[2], labels.shape[1], 2)), np.zeros(labels.shape[:0:-1], bool)
        for r in range(labels.shape[2]):
            others = votes(np.delete(labels[~half], r, 2))
            seen = labels[~half][:, :, r : r + 1]
            target[r] = rates_against(seen, others > 0.5, (others != 0.5)[:, :, None])[0]
            enough[r] = ((others > 0.5) & (seen[:, :, 0] >= 0)).sum(0) >= 25
        for method, answer in answers(labels[half], scores[half]):
            off = np.abs(answer.rates - target)[enough]
            rows.setdefault(method, []).append([*off.mean(0), len(off)])
    show(f"{name}: mean |T - T against the majority of others|", ("rho_neg", "rho_pos", "rater x class"), rows)


def simulated(options: Options) -> None:
    """Known T on VOC2007 labels, and graded labels."""
    files = [np.load(options.data / f"voc2007_{what}.npz", allow_pickle=False) for what in ("labels", "features")]
    place = {name: k for k, name in enumerate(files[0]["trainval_names"])}
    clean = (files[0]["trainval"][[place[name] for name in files[1]["names"]]] >= 0).astype(np.int8)
    n, q = clean.shape
    columns = ("rho_neg off", "rho_pos off", "consensus wrong", "covered neg", "covered pos")
    for kind in ("clear", "graded"):
        for raters, gap in PANELS:
            rows: dict[str, list[list[float]]] = {}
            for seed in options.seeds:
                rng = np.random.default_rng(seed)
                if kind == "clear":
                    truth = np.stack([rng.uniform(0.01, 0.15, (raters, q)), rng.uniform(0.05, 0.5, (raters, q))], 2)
                    yes = np.where(clean[:, :, None] == 1, 1 - truth[:, :, 1].T, truth[:, :, 0].T)
                    wanted = clean
                else:
                    u, more = rng.normal(size=(n, q, 1)), 200  # most of many raters, of whom the panel is a sample
                    a, b = rng.normal(-2, 1, (q, more)), rng.uniform(1.5, 4, (q, more))
                    yes = 1 / (1 + np.exp(-a - b * u))
                    wanted, yes = (yes.mean(2) > 0.5).astype(np.int8), yes[:, :, :raters]
                    truth = np.stack(
                        [
                            (yes * (1 - wanted)[:, :, None]).sum(0) / (1 - wanted).sum(0)[:, None],
                            ((1 - yes) * wanted[:, :, None]).sum(0) / np.maximum(wanted.sum(0), 1)[:, None],
                        ],
                        2,
                    ).swapaxes(0, 1)
                labels = (rng.random(yes.shape) < yes).astype(np.int8)
                missing = rng.random((n, raters)) < gap
                missing[:, 0] &= ~missing.all(1)  # somebody judged every example, as the peers demand
                labels[np.broadcast_to(missing[:, None], labels.shape)] = -1
                scores = scores_of(files[1]["features"], labels) if kind == "clear" else None
                for method, answer in answers(labels, scores):
                    covered = [np.nan, np.nan]
                    if answer.covers is not None:
                        inside = (answer.covers[..., 0] <= truth) & (truth <= answer.covers[..., 1])
                        covered = inside.mean((0, 1)).tolist()
                    off = np.abs(answer.rates - truth).mean((0, 1))
                    rows.setdefault(method, []).append([*off, ((answer.clean > 0.5) != wanted).mean(), *covered])
            show(f"simulated, {kind} labels, {raters} raters, {gap:.0%} missing", columns, rows)


def main(options: Options) -> None:
    """Prints the tables of the parts asked for."""
    for part in options.parts:
        if part == "simulated":
            simulated(options)
        elif part in ("real", "rates"):
            for name in ("emotions_so", "emotions_deu"):
                (real if part == "real" else rates)(options, name)
        else:
            raise SystemExit(f"--parts: {part!r}; pass real, rates or simulated")


if __name__ == "__main__":
    main(tyro.cli(Options))
