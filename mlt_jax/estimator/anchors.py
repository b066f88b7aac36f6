"""Transition matrices from anchor points: the paper's baselines T-estimator and Dual-T.

Both read T off the most confident predictions of a classifier of the *noisy* labels. The paper's released code takes,
for each class, the epoch with the least validation loss; pass the probabilities of that epoch.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mlt_jax.arguments import check_number
from mlt_jax.labels import Labels, as_labels, as_matrix, num_axes


def t_estimator(
    probs: Any, labels: Any, *, quantile: float | None = None, observed: Any = None, coding: str = "01"
) -> Float[Array, "q 2 2"]:
    """T whose row v is the predicted noisy posterior of the anchor point: the example with the largest P(noisy = v).

    Args:
      probs: (n, q) predicted P(noisy_j = 1).
      labels: (n, q), any form that `as_labels` takes; only which cells are observed is used.
      quantile: skip examples at or above this quantile of P(noisy = v); 0.97 is the paper's "97 %", None skips none.

    Raises:
      ValueError: probs of several epochs, a class without observed labels, or a quantile outside (0, 1).

    References:
      Patrini et al., "Making deep neural networks robust to label noise", CVPR 2017.
    """
    p, known, _ = _check(probs, labels, observed, coding)
    return jnp.asarray(_anchor_rows(p, known, quantile), jnp.result_type(float))


def dual_t(
    probs: Any, labels: Any, *, quantile: float | None = None, observed: Any = None, coding: str = "01"
) -> Float[Array, "q 2 2"]:
    """T-estimator's T times the frequencies of P(noisy | predicted), with `probs > 0.5` as predictions.

    Arguments and errors as in `t_estimator`. P(noisy = v | predicted = v) is 1 where v is never predicted.

    References:
      Yao et al., "Dual T: reducing estimation error for transition matrix in label-noise learning", NeurIPS 2020.
    """
    p, known, values = _check(probs, labels, observed, coding)
    predicted = np.stack([p <= 0.5, p > 0.5]) & known
    given = np.stack([values == 0, values == 1]) & known
    joint = np.einsum("anq,bnq->qab", predicted.astype(np.float64), given.astype(np.float64))
    size = joint.sum(2, keepdims=True)
    frequency = np.where(size > 0, joint / np.maximum(size, 1), np.eye(2))
    return jnp.asarray(_anchor_rows(p, known, quantile) @ frequency, jnp.result_type(float))


def _check(probs: Any, labels: Any, observed: Any, coding: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checked probabilities (float64), observed cells and 0/1 labels, each (n, q)."""
    if num_axes(probs) == 3:
        raise ValueError(f"probs: shape {np.shape(probs)}; pick one epoch, (n, q): the least validation loss is usual")
    checked: Labels = as_labels(labels, coding=coding, observed=observed)
    known = checked.observed if checked.observed is not None else np.ones(checked.values.shape, bool)
    if not known.any(axis=0).all():
        raise ValueError(f"observed: class {int((~known.any(axis=0)).argmax())} has no observed label; leave it out")
    return as_matrix(probs, checked, name="probs", low=0, high=1).astype(np.float64), known, checked.values


def _anchor_rows(p: np.ndarray, known: np.ndarray, quantile: float | None) -> np.ndarray:
    """T (q, 2, 2) whose row v is the posterior of the anchor point of v."""
    if quantile is not None:
        remedy = "a number strictly between 0 and 1, such as 0.97, or None"
        check_number("quantile", quantile, lambda x: 0 < x < 1, remedy)
    posterior = np.where(known, np.stack([1 - p, p]), np.nan)  # [v, example, class]
    candidates = np.where(known, posterior, -1)
    if quantile is not None:
        cut = np.nanquantile(posterior, quantile, axis=1, keepdims=True, method="higher")
        # All at or above the cut means that all are equal: then any example is the anchor.
        below = np.where(posterior < cut, posterior, -1)
        candidates = np.where((below >= 0).any(axis=1, keepdims=True), below, candidates)
    anchor = np.take_along_axis(posterior, candidates.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.stack([np.stack([anchor[0], 1 - anchor[0]], -1), np.stack([1 - anchor[1], anchor[1]], -1)], 1)
