"""Scores of predictions and of estimated transition matrices, as fractions; tables print them in percent."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from mlt_jax.labels import dense

Ignore = Bool[np.ndarray, "n q"] | None


def average_precision(
    scores: Float[np.ndarray, "n q"], labels: Shaped[np.ndarray, "n q"], ignore: Ignore = None
) -> Float[np.ndarray, "q"]:
    """Non-interpolated average precision of each class, (q,); NaN for a class without a positive.

    Mean over the positives of the precision among all examples scored at least as high: tied scores count together, as
    in scikit-learn's `average_precision_score`. Cells of `ignore` are left out of the ranking.
    """
    n, q = scores.shape
    order = np.argsort(-scores, axis=0, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=0)
    counted = np.ones((n, q), bool) if ignore is None else ~np.take_along_axis(ignore, order, axis=0)
    positive = counted & (np.take_along_axis(labels, order, axis=0) > 0)
    ends_tie = np.vstack([ranked[1:] != ranked[:-1], np.ones((1, q), bool)])
    end = np.where(ends_tie, np.arange(n)[:, None], n)
    end = np.minimum.accumulate(end[::-1], axis=0)[::-1]
    hits, seen = (np.take_along_axis(np.cumsum(x, axis=0), end, axis=0) for x in (positive, counted))
    total = positive.sum(axis=0)
    summed = np.where(positive, hits / np.maximum(seen, 1), 0.0).sum(axis=0)
    return np.where(total > 0, summed / np.maximum(total, 1), np.nan)


def f1_scores(
    probs: Float[np.ndarray, "n q"], labels: Shaped[np.ndarray, "n q"], ignore: Ignore = None
) -> dict[str, float]:
    """OP, OR, OF1 over all cells and CP, CR, CF1 from class means, predictions being `probs > 0.5`.

    CF1 is the F1 of the mean precision and the mean recall. Cells of `ignore` count neither as
    labels nor as predictions. A class that is never predicted has precision 0, one that never occurs recall 0.
    """
    counted = True if ignore is None else ~ignore
    predicted, present = (probs > 0.5) & counted, (labels > 0) & counted
    hits, guesses, truths = (x.sum(axis=0).astype(float) for x in (predicted & present, predicted, present))

    def triple(letter: str, precision: float, recall: float) -> dict[str, float]:
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        return {f"{letter}P": float(precision), f"{letter}R": float(recall), f"{letter}F1": float(f1)}

    overall = triple("O", hits.sum() / max(guesses.sum(), 1), hits.sum() / max(truths.sum(), 1))
    per_class = triple("C", np.mean(hits / np.maximum(guesses, 1)), np.mean(hits / np.maximum(truths, 1)))
    return overall | per_class


def evaluate(
    probs: Float[np.ndarray, "n q"], labels: Shaped[np.ndarray, "n q"], ignore: Ignore = None
) -> dict[str, float]:
    """mAP (mean over the classes that have a positive), OP, OR, OF1, CP, CR and CF1, each in [0, 1]."""
    precisions = average_precision(probs, labels, ignore)
    present = ~np.isnan(precisions)
    mean = float(precisions[present].mean()) if present.any() else float("nan")
    return {"mAP": mean} | f1_scores(probs, labels, ignore)


def transition_error(T: Any, true_T: Any) -> float:
    """The paper's "sum of estimation error": sum over classes of |d rho_neg| + |d rho_pos|; T is (q, 2, 2)."""
    found, true = dense(T, "T").astype(float), dense(true_T, "true_T").astype(float)
    if found.shape != true.shape or found.shape[1:] != (2, 2):
        raise ValueError(f"T: has shape {found.shape}, true_T {true.shape}; pass two arrays (q, 2, 2)")
    off_diagonal = np.abs(found - true)[:, [0, 1], [1, 0]]
    return float(off_diagonal.sum())


def wilcoxon_greater(ours: Any, theirs: Any) -> float:
    """p-value of the one-sided Wilcoxon signed-rank test that `ours` is greater, over pairs; NaN without a difference.

    Pairs without a difference are left out. It gives the paper's printed p-values from its printed scores.
    """
    from scipy.stats import wilcoxon

    difference = np.asarray(ours, float) - np.asarray(theirs, float)
    if not np.any(difference):
        return float("nan")
    return float(wilcoxon(difference, alternative="greater").pvalue)
