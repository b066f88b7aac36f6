"""The one-line door: labels and a classifier's losses or probabilities in, transition matrices out."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from mlt_jax.anchors import dual_t, t_estimator
from mlt_jax.estimator import Status, TransitionEstimate, estimate_all
from mlt_jax.labels import as_labels
from mlt_jax.selection import losses_from_probs, select_clean


def estimate(
    labels: Any,
    *,
    losses: Any = None,
    probs: Any = None,
    method: str = "auto",
    assume: str = "general",
    aggregate: str = "joint",
    tau: float = 0.5,
    quantile: float | None = None,
    min_selected: int = 50,
    observed: Any = None,
    coding: str = "01",
) -> TransitionEstimate:
    """Transition matrices of all classes with standard errors and a status, from labels and a classifier's word.

    Args:
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
      losses: (epochs, n, q) or (n, q), loss of each given label from a model trained on them, early epochs best.
      probs: the same shapes, predicted P(label = 1); losses are made of them where none are given.
      method: `"recipe"` is the paper's: select small-loss labels (see `select_clean`), then solve the co-occurrence
        systems (see `estimate_all`), with Dual-T of the last epoch's `probs`, if given, for classes without an
        estimate. `"auto"` is the same today. `"dual-t"` and `"t"` are the baselines (see `anchors`) and need `probs`.
      assume, aggregate, tau, min_selected: passed on; quantile: for the baselines and the fallback.
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    if losses is None and probs is None:
        raise ValueError("losses: neither losses nor probs were given; pass one of them, from any framework")
    last = None if probs is None else probs[-1] if np.ndim(probs) == 3 else probs
    if method in ("t", "dual-t"):
        if last is None:
            raise ValueError(f"probs: method={method!r} reads predicted probabilities; pass probs, (n, q)")
        T = (dual_t if method == "dual-t" else t_estimator)(last, checked, quantile=quantile)
        return _from_anchors(T, checked.values, checked.observed)
    if method not in ("auto", "recipe"):
        raise ValueError(f'method: {method!r}; pass "auto", "recipe", "dual-t" or "t"')
    if losses is None:
        losses = losses_from_probs(probs, checked)
    return estimate_all(
        checked,
        select_clean(losses, checked, tau=tau, assume=assume),
        aggregate=aggregate,
        assume=assume,
        fallback=None if last is None else dual_t(last, checked, quantile=quantile),
        min_selected=min_selected,
        stderr=True,
    )


def _from_anchors(T: Any, values: np.ndarray, observed: np.ndarray | None) -> TransitionEstimate:
    """An estimate that says only T: status fallback, no standard errors."""
    q = len(T)
    frequency = np.average(values, axis=0, weights=observed)
    rho_neg, rho_pos = np.asarray(T[:, 0, 1]), np.asarray(T[:, 1, 0])
    kept = 1 - rho_neg - rho_pos
    prior = np.clip((frequency - rho_neg) / np.where(np.abs(kept) > 1e-3, kept, 1), 0, 1)
    return TransitionEstimate(
        T=T,
        prior=jnp.asarray(prior, T.dtype),
        stderr=jnp.full((q, 2), jnp.nan, T.dtype),
        status=jnp.full(q, Status.FALLBACK, jnp.int32),
        partners=jnp.zeros(q, jnp.int32),
        residual=jnp.zeros(q, T.dtype),
    )
