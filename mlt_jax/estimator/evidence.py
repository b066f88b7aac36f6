"""Labels and scores of all classes in bins of ranks, and which classes they can identify."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from mlt_jax.estimator.curves import Bins, bin_scores
from mlt_jax.labels import Labels, as_matrix

# Fewest given positives and negatives of a class; share of false discoveries among the classes called identifiable.
_FEWEST, _SIZE = 10, 0.05


class Evidence(NamedTuple):
    """Labels and scores of all classes, prepared for the fits."""

    bins: Bins
    enough: Bool[np.ndarray, "q"]  # at least 10 given positives and negatives
    identifiable: Bool[np.ndarray, "q"]  # enough, and the scores predict the labels
    frequency: Float[np.ndarray, "q"]  # P(given = 1)


def gather(scores: Any, labels: Labels) -> Evidence:
    """Bins of all classes, and which of them can be identified.

    The scores of a class predict its labels if a given positive outranks a given negative more often than by chance
    (Mann and Whitney's test, one-sided), with at most 5 % false discoveries over the classes (Benjamini and Hochberg).
    """
    from scipy.stats import norm

    s = jnp.asarray(as_matrix(scores, labels, name="scores"))
    known = jnp.asarray(labels.observed if labels.observed is not None else np.ones(s.shape, bool))
    bins = bin_scores(s, jnp.asarray(labels.values, s.dtype), known)
    positives, total = (np.asarray(v, float) for v in (bins.positives, bins.total))
    negatives = total - positives
    count, others = positives.sum(1), negatives.sum(1)
    enough = (count >= _FEWEST) & (others >= _FEWEST)
    wins = (positives * (np.cumsum(negatives, 1) - negatives / 2)).sum(1)
    pairs, ties = count * others, (total**3).sum(1) / np.maximum(total.sum(1), 1) ** 2
    deviation = np.sqrt(np.maximum(pairs / 12 * (total.sum(1) + 1 - ties), 1e-9))
    p = np.where(enough, norm.sf((wins - pairs / 2) / deviation), np.nan)
    ordered = np.sort(p[enough])
    passed = ordered <= _SIZE * np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
    largest = ordered[passed].max() if passed.any() else -1.0
    return Evidence(bins, enough, enough & (p <= largest), count / np.maximum(total.sum(1), 1))
