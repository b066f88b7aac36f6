"""Labels and scores of all classes in bins of ranks, and which classes they can identify."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32, UInt8

from mlt_jax.estimator.curves import CLASSES_AT_ONCE, Bins, bin_scores
from mlt_jax.labels import Labels, as_labels, as_matrix, check_coding

# Fewest given positives and negatives of a class; share of false discoveries among the classes called identifiable.
_FEWEST, _SIZE = 10, 0.05


class Evidence(NamedTuple):
    """Labels and scores of all classes, prepared for the fits."""

    bins: Bins
    enough: Bool[np.ndarray, "q"]  # at least 10 given positives and negatives
    identifiable: Bool[np.ndarray, "q"]  # enough, and the scores predict the labels
    frequency: Float[np.ndarray, "q"]  # P(given = 1)


class ScoreBlock(NamedTuple):
    """Scores and labels of neighbouring classes."""

    classes: slice
    scores: Float32[np.ndarray, "n b"]
    labels: UInt8[np.ndarray, "n b"]
    known: Bool[np.ndarray, "n b"]

    def bins(self) -> Bins:
        """`bin_scores` of the block."""
        s = jnp.asarray(self.scores)
        return bin_scores(s, jnp.asarray(self.labels, s.dtype), jnp.asarray(self.known))


def as_columns(labels: Any, *, observed: Any, coding: str) -> Any:
    """`Labels`, or `SparseLabels` where scipy.sparse labels can stay sparse; `label_block` reads both."""
    check_coding(coding)
    if hasattr(labels, "tocsc") and observed is None and coding == "01":
        from mlt_jax.estimator.sparse_counts import as_sparse_labels  # scipy.sparse is only needed here

        return as_sparse_labels(labels)
    return as_labels(labels, coding=coding, observed=observed)


def label_block(labels: Any, classes: Any) -> tuple[UInt8[np.ndarray, "n b"], Bool[np.ndarray, "n b"]]:
    """Labels of some classes of what `as_columns` returns, and which of them are observed."""
    if not isinstance(labels, Labels):
        values = labels.by_class[:, classes].toarray().view(np.uint8)
        return values, np.broadcast_to(np.True_, values.shape)
    values = labels.values[:, classes]
    return values, np.broadcast_to(np.True_, values.shape) if labels.observed is None else labels.observed[:, classes]


def score_blocks(blocks: Iterable[Float32[np.ndarray, "n _"]], labels: Any) -> Iterator[ScoreBlock]:
    """Scores and labels of 256 classes at a time; `blocks` are the scores of all classes in order, in any pieces.

    Curves are fitted to as many classes together, so their numbers do not depend on the pieces.
    """
    start, waiting = 0, []

    def block(scores: Float32[np.ndarray, "n b"]) -> ScoreBlock:
        classes = slice(start, start + scores.shape[1])
        return ScoreBlock(classes, scores, *label_block(labels, classes))

    for piece in blocks:
        waiting.append(piece)
        while sum(x.shape[1] for x in waiting) >= CLASSES_AT_ONCE:
            scores = np.concatenate(waiting, axis=1)
            yield block(scores[:, :CLASSES_AT_ONCE])
            start += CLASSES_AT_ONCE
            waiting = [scores[:, CLASSES_AT_ONCE:]]
    if waiting and (scores := np.concatenate(waiting, axis=1)).shape[1]:
        yield block(scores)


def gather(scores: Any, labels: Labels) -> Evidence:
    """`judge` of all classes at once."""
    s = as_matrix(scores, labels, name="scores")
    return judge(ScoreBlock(slice(None), s, *label_block(labels, slice(None))).bins())


def judge(bins: Bins) -> Evidence:
    """Which classes can be identified from their bins.

    The scores of a class predict its labels if a given positive outranks a given negative more often than by chance
    (Mann and Whitney's test, one-sided), with at most 5 % false discoveries over the classes (Benjamini and Hochberg).
    """
    from scipy.stats import norm

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
