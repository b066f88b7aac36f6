"""The one-line door: labels and a classifier's losses or probabilities in, transition matrices out."""

from typing import Any

import numpy as np

from mlt_jax.estimator.anchors import dual_t, t_estimator
from mlt_jax.estimator.correlations import estimate_all
from mlt_jax.estimator.crossfit import cross_val_logits, principal_components
from mlt_jax.estimator.curves import SideTest, estimate_from_scores, side_test
from mlt_jax.estimator.selection import losses_from_probs, select_clean
from mlt_jax.labels import Labels, as_labels, as_logits
from mlt_jax.transition import TransitionEstimate, apply_assumption, from_matrices


def estimate(
    labels: Any,
    *,
    losses: Any = None,
    probs: Any = None,
    features: Any = None,
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
      features: (n, d), one row per example from any network; nothing else is needed then.
      method: `"auto"` trains cross-fitted heads on `features`, or takes (n, q) `probs` as *out-of-sample* predictions,
        and reads T off the curves of given label against score (see `asymptotes`), told nothing. With losses, or probs
        of several epochs, which are in-sample, it is `"recipe"`, the paper's way: select small-loss labels (see
        `select_clean`), then solve the co-occurrence systems (see `estimate_all`), with Dual-T of the last epoch's
        `probs`, if given, for classes without an estimate. `"dual-t"` and `"t"` are the baselines (see `anchors`).
      assume, aggregate, tau, min_selected: for the recipe; quantile: for the baselines and the fallback.
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    if losses is None and probs is None and features is None:
        raise ValueError("losses: neither losses nor probs nor features were given; pass one, from any framework")
    if method not in ("auto", "recipe", "dual-t", "t"):
        raise ValueError(f'method: {method!r}; pass "auto", "recipe", "dual-t" or "t"')
    if method == "auto" and features is not None:
        return estimate_from_scores(scores_from_features(features, checked), checked)
    if method == "auto" and losses is None and np.ndim(probs) == 2:
        return estimate_from_scores(as_logits(probs, checked), checked)
    if losses is None and probs is None:
        raise ValueError(f"losses: method={method!r} reads losses or probs, not features; pass one of them")
    last = None if probs is None else probs[-1] if np.ndim(probs) == 3 else probs
    if method in ("t", "dual-t"):
        if last is None:
            raise ValueError(f"probs: method={method!r} reads predicted probabilities; pass probs, (n, q)")
        T = (dual_t if method == "dual-t" else t_estimator)(last, checked, quantile=quantile)
        return from_matrices(apply_assumption(T, assume), checked)
    if losses is None:
        losses = losses_from_probs(probs, checked)
    return estimate_all(
        checked,
        select_clean(losses, checked, tau=tau, assume=assume),
        aggregate=aggregate,
        assume=assume,
        fallback=None if last is None else apply_assumption(dual_t(last, checked, quantile=quantile), assume),
        min_selected=min_selected,
        stderr=True,
    )


def noisy_sides(
    labels: Any, *, probs: Any = None, features: Any = None, observed: Any = None, coding: str = "01"
) -> SideTest:
    """P-values of "no given positive is wrong" (rho_neg = 0) and "no given negative is" (rho_pos = 0).

    `overall` (2,) is for all classes together, `by_class` (q, 2) for each; see `asymptotes.side_test`. Below 0.001 the
    side has noise; otherwise nothing speaks against `assume="missing"`, or `assume="partial"`.
    labels, out-of-sample (n, q) probs or (n, d) features: as in `estimate`.
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    if features is not None:
        return side_test(scores_from_features(features, checked), checked)
    if np.ndim(probs) != 2:
        raise ValueError(f"probs: shape {np.shape(probs)}; pass (n, q) out-of-sample predictions, or features")
    return side_test(as_logits(probs, checked), checked)


def scores_from_features(features: Any, labels: Labels, *, seed: int = 0, share: bool = True) -> np.ndarray:
    """Logits (n, q) of the clean labels: cross-fitted heads, a first T, cross-fitted heads corrected by it."""
    x = principal_components(features, len(labels.values))
    first = estimate_from_scores(cross_val_logits(x, labels, seed=seed), labels, share=share)
    return cross_val_logits(x, labels, seed=seed, T=first.T)
