"""How well wrong labels are found on real features: average precision of ranking flipped cells, ours and cleanlab's.

    python experiments/audit.py --data DIR [--dataset voc2012] [--settings 0 1 2 3 4 5 6 7] [--out results.json]

DIR holds `voc2012_features.npz` and `voc2012_labels.npz` (or those of VOC2007). The paper's eight noise settings, noise
drawn by the seed. Both get probabilities of the same cross-fitted heads; ours also works from the features. cleanlab
(`pip install 'mlt_jax[bench]'`; its rows are left out without it) ranks each class's labels by each of its scores, with
and without its adjustment; "hindsight" is the best of them per setting. Its T is its confident joint, normalised.
About 90 s per VOC2012 setting on 2 cores.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from mlt_jax import audit_labels, cross_val_probs, from_cleanlab_joint
from mlt_jax.data import load
from mlt_jax.labels import as_labels, to_lists
from mlt_jax.paper.noise import SETTINGS, corrupt, transition
from mlt_jax.training.metrics import average_precision, transition_error

CONFIDENCE, FEATURES, PROBS, HINDSIGHT = (
    "confidence of the label", "ours, features", "ours, probabilities", "cleanlab, hindsight",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Where the features are and what to measure."""

    data: Path
    """folder of the feature and label files"""
    dataset: str = "voc2012"
    settings: tuple[int, ...] = tuple(range(8))
    seed: int = 0
    out: Path | None = None
    """JSON file to add the measurements to"""


def ranked(wrong: np.ndarray, score: np.ndarray) -> float:
    """Average precision of finding the wrong cells by score, all cells in one ranking."""
    return float(average_precision(score.reshape(-1, 1).astype(float), wrong.reshape(-1, 1))[0])


def cleanlab_scores(labels: np.ndarray, probs: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
    """cleanlab's scores of all cells (higher: more suspect) and its T; None where it is not installed."""
    try:
        from cleanlab.count import compute_confident_joint
        from cleanlab.multilabel_classification.rank import get_label_quality_scores_per_class
    except ImportError:
        return None
    lists = to_lists(as_labels(labels))
    scores = {}
    for method in ("self_confidence", "normalized_margin", "confidence_weighted_entropy"):
        for adjust in (False, True):
            if adjust and method == "confidence_weighted_entropy":
                continue  # cleanlab has no adjustment for it
            quality = get_label_quality_scores_per_class(lists, probs, method=method, adjust_pred_probs=adjust)
            scores[f"cleanlab, {method}{', adjusted' if adjust else ''}"] = 1 - quality
    return scores, np.asarray(from_cleanlab_joint(compute_confident_joint(lists, probs, multi_label=True)))


def measure(features: np.ndarray, clean: np.ndarray, rates: tuple[float, float], key: Any) -> dict[str, dict]:
    """Average precisions and T errors of one setting."""
    T = transition(*rates, num_classes=clean.shape[1])
    labels = np.asarray(corrupt(key, clean, T))
    wrong = labels != clean
    probs = cross_val_probs(features, labels)
    ours = {FEATURES: audit_labels(labels, features=features), PROBS: audit_labels(labels, probs=probs)}
    ap = {name: ranked(wrong, audit.wrong) for name, audit in ours.items()}
    ap[CONFIDENCE] = ranked(wrong, np.where(labels == 1, 1 - probs, probs))
    error = {name: transition_error(audit.found.T, T) for name, audit in ours.items()}
    theirs = cleanlab_scores(labels, probs)
    if theirs is not None:
        their_ap = {name: ranked(wrong, score) for name, score in theirs[0].items()}
        ap |= {HINDSIGHT: max(their_ap.values())} | their_ap
        error["cleanlab"] = transition_error(theirs[1], T)
    return {"ap": ap, "T_error": error}


def million() -> float:
    """Seconds to audit 1 million cells (50,000 x 20) once T is known, compilation included."""
    rng = np.random.default_rng(0)
    probs = rng.random((50_000, 20)).astype(np.float32)
    labels = (rng.random(probs.shape) < 0.1 + 0.7 * probs).astype(np.uint8)
    T = transition(0.1, 0.2, 20)
    start = time.monotonic()
    audit_labels(labels, probs=probs, T=T)
    return time.monotonic() - start


def main(options: Options) -> None:
    """Measures the settings asked for, adds them to what `out` holds, prints all of it."""
    found = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    seconds = million()
    data = load(options.dataset, features=options.data)
    assert data.features is not None
    for s in options.settings:
        rates = SETTINGS[options.dataset][s]
        start, key = time.monotonic(), jax.random.key(8 * options.seed + s)  # other noise in each setting
        found[f"({rates[0]:g}, {rates[1]:g})"] = measure(data.features, data.labels, rates, key)
        print(f"{rates}: {time.monotonic() - start:.0f} s", flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    order = [name for a, b in SETTINGS[options.dataset] if (name := f"({a:g}, {b:g})") in found]
    for kind, total, title in (("ap", np.mean, "average precision"), ("T_error", np.sum, "summed T error")):
        print(f"\n{options.dataset}, {title:22} " + " ".join(f"{name:>11}" for name in order) + f"{total.__name__:>8}")
        for name in found[order[0]][kind]:
            row = [found[setting][kind].get(name, np.nan) for setting in order]
            print(f"{name:44}" + " ".join(f"{value:11.3f}" for value in row) + f"{total(row):8.3f}")
    print(f"\n1 million cells audited after T is known: {seconds:.1f} s")


if __name__ == "__main__":
    main(tyro.cli(Options))
