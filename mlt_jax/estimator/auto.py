"""Transition matrices in one call: the estimator is chosen by what is given beside the labels."""

from typing import Any

import numpy as np

from mlt_jax.arguments import check_choice, shown
from mlt_jax.estimator.anchors import dual_t, t_estimator
from mlt_jax.estimator.blind import (
    RULES,
    SideTest,
    estimate_from_blocks,
    estimate_from_scores,
    side_test,
    side_test_from_blocks,
)
from mlt_jax.estimator.correlations import estimate_all
from mlt_jax.estimator.crossfit import logit_blocks
from mlt_jax.estimator.evidence import as_columns
from mlt_jax.estimator.selection import losses_from_probs, select_clean
from mlt_jax.labels import as_labels, as_logits, num_axes
from mlt_jax.transition import TransitionEstimate, apply_assumption, check_assume, from_matrices


def estimate(
    labels: Any,
    *,  # `audit.sklearn` repeats some of these: scikit-learn reads parameters off the signature
    losses: Any = None,
    probs: Any = None,
    features: Any = None,
    method: str = "auto",
    assume: str = "general",
    aggregate: str = "joint",
    tau: float = 0.5,
    quantile: float | None = None,
    min_selected: int = 50,
    seed: int = 0,
    groups: Any = None,
    observed: Any = None,
    coding: str = "01",
) -> TransitionEstimate:
    """Transition matrices of all classes with a status, from labels and a model's losses, predictions or features.

    Args:
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
      losses: (epochs, n, q) or (n, q), loss of each given label by a model trained on them; early epochs serve best.
      probs: the same shapes, predicted P(label = 1); losses are computed from them where none are given.
      features: (n, d), a row per example from a network that was not trained on these labels; scipy.sparse labels then
        stay sparse, and nothing of size (n, q) is made.
      method: one of these.

        - `"auto"`: by scores (see `blind`) with `features`, on which heads are cross-fitted, or with (n, q) `probs`
          alone, which must then be *out-of-sample*; else, with losses or probs of several epochs, `"recipe"`;
        - `"curve"`, `"count"`: by scores, where you know what `"auto"` would guess: that noise depends on the class
          alone, or that it prefers ambiguous examples;
        - `"recipe"`: the paper's estimator. Small-loss labels are selected (`select_clean`) and the co-occurrence
          systems solved (`estimate_all`); classes without an estimate get Dual-T of the last epoch's `probs`, if given;
        - `"dual-t"`, `"t"`: the baselines Dual-T and T-estimator (`anchors`), of the last epoch's `probs`.
      assume: `"missing"` (rho_neg = 0) or `"partial"` (rho_pos = 0) where that is known; every method honours it.
      aggregate, tau, min_selected: for the recipe, see `estimate_all` and `select_clean`.
      quantile: for Dual-T and T-estimator, see `t_estimator`.
      seed, groups: of the folds in which heads on `features` are trained, see `cross_val_logits`; `groups` are n ids of
        what must not be torn apart (images of one patient, near-duplicates).

    Returns:
      `TransitionEstimate`; `stderr` is NaN by the baselines, and by the recipe for classes without its own estimate.

    Raises:
      ValueError: an unknown method, nothing given that the method needs, or groups without features.
    """
    remedy = '"auto", "curve", "count", "recipe", "dual-t" or "t"'
    check_choice("method", method, (*RULES, "recipe", "dual-t", "t"), remedy)
    by_features = method in RULES and features is not None
    checked = (as_columns if by_features else as_labels)(labels, coding=coding, observed=observed)
    check_groups(groups, features)
    if losses is None and probs is None and features is None:
        raise ValueError("losses: neither losses nor probs nor features were given; pass one, from any framework")
    if by_features:
        check_assume(assume)
        logits = logit_blocks(features, checked, seed=seed, groups=groups)
        return estimate_from_blocks(logits, checked, rule=method, assume=assume)
    if method in RULES and num_axes(probs) == 2 and (losses is None or method != "auto"):
        return estimate_from_scores(as_logits(probs, checked), checked, rule=method, assume=assume)
    if method in ("curve", "count"):
        raise ValueError(f"probs: method={method!r} reads features or out-of-sample probs (n, q); pass one of them")
    if losses is None and probs is None:
        raise ValueError(f"losses: method={method!r} reads losses or probs, not features; pass one of them")
    last = None if probs is None else probs[-1] if num_axes(probs) == 3 else probs
    if method in ("t", "dual-t"):
        if last is None:
            raise ValueError(f"probs: method={method!r} reads predicted probabilities; pass probs, (n, q)")
        T = (dual_t if method == "dual-t" else t_estimator)(last, checked, quantile=quantile)
        return from_matrices(apply_assumption(T, assume), checked)
    losses = losses_from_probs(probs, checked) if losses is None else losses
    selected = select_clean(losses, checked, tau=tau, assume=assume)
    fallback = None if last is None else apply_assumption(dual_t(last, checked, quantile=quantile), assume)
    return estimate_all(
        checked, selected, aggregate=aggregate, assume=assume, fallback=fallback, min_selected=min_selected, stderr=True
    )


def noisy_sides(
    labels: Any,
    *,
    probs: Any = None,
    features: Any = None,
    seed: int = 0,
    groups: Any = None,
    observed: Any = None,
    coding: str = "01",
) -> SideTest:
    """P-values of "no given positive is wrong" (rho_neg = 0) and "no given negative is wrong" (rho_pos = 0).

    Args:
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
      probs: (n, q) out-of-sample predictions of P(label = 1); not used if `features` are given.
      features: (n, d), a row per example from any network.
      seed, groups: of the folds of heads on `features`, as in `estimate`.

    Returns:
      `SideTest`: `by_class` (q, 2) and `overall` (2,), all classes together (see `blind.side_test`). A side whose
      value is below 0.001 has noise; otherwise `assume="missing"`, or `assume="partial"`, is not contradicted.
    """
    checked = (as_labels if features is None else as_columns)(labels, coding=coding, observed=observed)
    check_groups(groups, features)
    if features is None and num_axes(probs) != 2:
        found = f"shape {np.shape(probs)}" if num_axes(probs) else shown(probs)
        raise ValueError(f"probs: {found}; pass (n, q) out-of-sample predictions, or features")
    if features is None:
        return side_test(as_logits(probs, checked), checked)
    return side_test_from_blocks(logit_blocks(features, checked, seed=seed, groups=groups), checked)


def check_groups(groups: Any, features: Any) -> None:
    """Raises ValueError where groups are given but no features: predictions that are made already have their folds."""
    if groups is not None and features is None:
        raise ValueError("groups: they keep folds apart, but there are no features; pass features, or leave groups out")
