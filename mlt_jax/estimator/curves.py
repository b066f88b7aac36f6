"""Noise rates from out-of-sample scores, nothing told: where the noisy posterior levels off.

If noise is class-dependent, the given label depends on an example only through its clean label, so

    P(given = 1 | score) = rho_neg + (1 - rho_neg - rho_pos) P(clean = 1 | score)

whatever the score, as long as it was made without this example's label. Far down the scale the left side levels off at
rho_neg, far up at 1 - rho_pos. Anchor methods read both ends off the few most extreme examples; here the whole curve is
fitted, with a logistic `P(clean = 1 | score) = sigmoid(slope * score + offset)`: four parameters per class by maximum
likelihood, so every example counts. It needs scores whose ends are pure (the anchor assumption) and a curve that is
about logistic in the score, as the logits of a linear head are; it needs no selection, and no correlations.
A noise-free side is a curve that ends at 0, or at 1, which can be tested (`side_test`).

Classes lend each other strength: their rates are taken as drawn from a common distribution whose spread is estimated
too, so that rates that differ beyond their errors stay apart and the others move together (empirical Bayes).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mlt_jax.labels import Labels, as_labels, as_matrix
from mlt_jax.transition import Status, TransitionEstimate, as_matrices, given_probability, implied_prior

_STEPS = 40
# Starts of (logit rho_neg, logit rho_pos, log slope, offset): little or much noise on either side.
_STARTS = [(neg, pos, 0.0, 0.0) for neg in (-5.0, -1.5) for pos in (-3.0, 0.0)]
# A rate is pulled towards 0 with the weight of about one example, which only matters where the data say nothing.
_PULL = 0.05
# Scores are logits, so slopes are about 1: without that, a score that says little is read as a long way from its ends.
_SLOPE_SPREAD = 0.5
# Rates of classes are never taken to differ by less than this: part of the errors is common to them.
_LEAST_SPREAD = 0.01
# No rate is taken as surer than this: the curve is only about right.
_LEAST_ERROR = 0.005
_FEWEST, _CHI2_3_95, _BINS, _MISFIT_BINS = 10, 7.815, 1000, 20


class Bins(NamedTuple):
    """Neighbouring scores taken together, a row per class; empty bins have total 0."""

    score: Float[Array, "*q b"]  # mean
    positives: Float[Array, "*q b"]  # how many are given
    total: Float[Array, "*q b"]


class Curve(NamedTuple):
    """Fitted curves, a row per class."""

    rates: Float[Array, "*q 2"]  # rho_neg, rho_pos
    stderr: Float[Array, "*q 2"]
    slope: Float[Array, "*q"]
    offset: Float[Array, "*q"]
    predictive: Float[Array, "*q"]  # twice the log likelihood gained over a constant
    evidence: Float[Array, "*q 2"]  # twice the log likelihood lost when rho_neg, or rho_pos, is held at 0
    misfit: Float[Array, "*q"]  # chi-square per degree of freedom over 20 score bins


class SideTest(NamedTuple):
    """P-values of "no given label of this kind is wrong": first rho_neg = 0, then rho_pos = 0."""

    by_class: Float[np.ndarray, "q 2"]  # NaN where the scores do not predict the labels
    overall: Float[np.ndarray, "2"]  # of all classes together


def estimate_from_scores(
    scores: Any, labels: Any, *, share: bool = True, observed: Any = None, coding: str = "01"
) -> TransitionEstimate:
    """Transition matrices of all classes from out-of-sample logits (n, q), with standard errors.

    Args:
      scores: (n, q) logits of P(label = 1), or of P(clean label = 1), by a model that never saw the example's labels.
      labels: (n, q), any form that `as_labels` takes.
      share: let classes lend each other strength (from 4 classes on).

    Status is `POSTERIOR`; `TOO_FEW` with fewer than 10 given positives or negatives, `UNIDENTIFIABLE` where the scores
    do not predict the labels (95 %): T is then the common rates of the other classes, or the identity without them.
    `residual` is the misfit of the curve over 20 score bins, 1 being sampling noise; `partners` is 0.
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    curve, enough, told, frequency = _read(scores, checked)
    rates, stderr = np.asarray(curve.rates), np.maximum(curve.stderr, _LEAST_ERROR)
    if share and int(told.sum()) >= 4:
        rates, stderr = _share(rates, stderr, np.asarray(told))
    else:
        rates, stderr = np.where(told[:, None], rates, 0), np.where(told[:, None], stderr, np.nan)
    rates = np.clip(rates, 0, None)
    rates /= np.maximum(1, rates.sum(1, keepdims=True) / 0.99)
    T = as_matrices(jnp.asarray(rates, curve.rates.dtype))
    status = jnp.where(enough, jnp.where(told, Status.POSTERIOR, Status.UNIDENTIFIABLE), Status.TOO_FEW)
    return TransitionEstimate(
        T=T,
        prior=implied_prior(T, frequency),
        stderr=jnp.asarray(stderr, T.dtype),
        status=status.astype(jnp.int32),
        partners=jnp.zeros(len(T), jnp.int32),
        residual=jnp.where(told, curve.misfit, 0),
    )


def side_test(scores: Any, labels: Any, *, observed: Any = None, coding: str = "01") -> SideTest:
    """Is a side free of noise? P-values of "rho_neg is 0" and of "rho_pos is 0", from out-of-sample logits (n, q).

    Likelihood-ratio tests with the rate at its bound, where the statistic is 0 half of the time and else chi-square
    with 1 degree of freedom; it is divided by the misfit of the curve where that is above 1. `overall` adds the
    classes up. The curve is only about right, so take a side as noisy below 0.001 rather than below 0.05.
    """
    from scipy.stats import binom, chi2, norm  # slow to import, and only needed here

    curve, _, told_classes, _ = _read(scores, as_labels(labels, coding=coding, observed=observed))
    evidence = np.asarray(curve.evidence / jnp.maximum(curve.misfit, 1)[:, None], float)
    told = np.asarray(told_classes)
    p = np.where(evidence > 0, norm.sf(np.sqrt(evidence)), 1)
    m = int(told.sum())
    free = np.arange(1, m + 1)[:, None]
    both = (binom.pmf(free, m, 0.5) * chi2.sf(evidence[told].sum(0), free)).sum(0)
    return SideTest(np.where(told[:, None], p, np.nan), both if m else np.full(2, np.nan))


def _read(scores: Any, labels: Labels) -> tuple[Curve, Bool[Array, "q"], Bool[Array, "q"], Float[Array, "q"]]:
    """Curves; which classes have enough given labels; which also have scores that predict them; P(given = 1)."""
    s = jnp.asarray(as_matrix(scores, labels, name="scores"))
    known = jnp.asarray(labels.observed if labels.observed is not None else np.ones(s.shape, bool))
    y = jnp.asarray(labels.values, s.dtype)
    curve = fit_curves(s, y, known)
    positives, size = jnp.sum(y, axis=0), jnp.sum(known, axis=0).astype(s.dtype)
    enough = (positives >= _FEWEST) & (size - positives >= _FEWEST)
    told = enough & (curve.predictive > _CHI2_3_95) & jnp.all(jnp.isfinite(curve.stderr), axis=1)
    return curve, enough, told, positives / jnp.maximum(size, 1)


def fit_curves(scores: Float[Array, "n q"], labels: Float[Array, "n q"], known: Bool[Array, "n q"]) -> Curve:
    """Four-parameter logistic curves of all classes; scores are logits made without the example's own labels."""
    return _fit_all(bin_scores(scores, labels, known))


@jax.jit
def bin_scores(scores: Float[Array, "n q"], labels: Float[Array, "n q"], known: Bool[Array, "n q"]) -> Bins:
    """Scores in up to 1,000 bins of neighbours per class: a curve is straight within one, so the fit loses nothing."""

    def one(score: Float[Array, "n"], y: Float[Array, "n"], known: Bool[Array, "n"]) -> Bins:
        rank = jnp.argsort(jnp.argsort(jnp.where(known, score, jnp.inf)))
        size = jnp.maximum(jnp.sum(known), 1).astype(score.dtype)
        cell = jnp.where(known, (rank.astype(score.dtype) / size * _BINS).astype(jnp.int32), _BINS)
        total, positives, sums = (
            jax.ops.segment_sum(jnp.where(known, v, 0), cell, _BINS) for v in (jnp.ones_like(y), y, score)
        )
        return Bins(sums / jnp.maximum(total, 1), positives, total)

    return jax.vmap(one, in_axes=1)(scores, labels, known)


def _given(natural: Float[Array, "4"], score: Float[Array, "b"]) -> Float[Array, "b"]:
    """P(given = 1 | score) of the curve (rho_neg, rho_pos, slope, offset)."""
    rho_neg, rho_pos, slope, offset = natural
    return given_probability(jax.nn.sigmoid(slope * score + offset), rho_neg, 1 - rho_neg - rho_pos)


def _log_likelihood(given: Float[Array, "b"], bins: Bins) -> Float[Array, ""]:
    return jnp.sum(bins.positives * jnp.log(given) + (bins.total - bins.positives) * jnp.log1p(-given))


def _fit_one(bins: Bins) -> Curve:
    dtype = bins.score.dtype

    def natural(t: Float[Array, "4"], free: Float[Array, "2"]) -> Float[Array, "4"]:
        return jnp.concatenate([jax.nn.sigmoid(t[:2]) * free, jnp.exp(t[2:3]), t[3:]])

    def information(t: Float[Array, "4"], of: Any) -> tuple[Array, Array]:
        """Gradient of the log likelihood by t and its expected curvature, never indefinite."""
        given, move = of(t), jax.jacfwd(of)(t)
        weight = 1 / (given * (1 - given))
        return move.T @ (weight * (bins.positives - bins.total * given)), move.T @ (
            (weight * bins.total)[:, None] * move
        )

    def fit(free: Float[Array, "2"], start: Float[Array, "4"]) -> tuple[Float[Array, "4"], Array]:
        """Scoring steps, damped as far as they need it, from one start."""

        def pull(t: Float[Array, "4"]) -> Array:
            return _PULL * jnp.sum(jax.nn.softplus(t[:2])) + (t[2] / _SLOPE_SPREAD) ** 2 / 2

        def cost(t: Float[Array, "4"]) -> Array:
            return pull(t) - _log_likelihood(_given(natural(t, free), bins.score), bins)

        def step(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
            t, damping, best = carry
            uphill, curvature = information(t, lambda t: _given(natural(t, free), bins.score))
            curvature += jax.hessian(pull)(t)
            scale = damping * (jnp.diag(curvature) + 1e-3)
            new = t - jnp.clip(jnp.linalg.solve(curvature + jnp.diag(scale), jax.grad(pull)(t) - uphill), -1, 1)
            value = cost(new)
            better = value < best
            return (
                jnp.where(better, new, t),
                jnp.where(better, 0.3, 4.0) * damping,
                jnp.where(better, value, best),
            ), None

        (t, _, value), _ = jax.lax.scan(step, (start, jnp.array(1e-2, dtype), cost(start)), None, length=_STEPS)
        return t, value

    # The curve, and what is left of it when rho_neg, or rho_pos, is held at 0.
    free = jnp.array([[1, 1], [0, 1], [1, 0]], dtype)
    ways, values = jax.vmap(jax.vmap(fit, in_axes=(None, 0)), in_axes=(0, None))(free, jnp.asarray(_STARTS, dtype))
    best = ways[jnp.arange(3), jnp.nanargmin(values, axis=1)]
    thetas = jax.vmap(natural)(best, free)
    likelihoods = jax.vmap(lambda theta: _log_likelihood(_given(theta, bins.score), bins))(thetas)
    theta = thetas[0]
    share = jnp.sum(bins.positives) / jnp.maximum(jnp.sum(bins.total), 1)
    constant = _log_likelihood(jnp.full_like(bins.score, jnp.clip(share, 1e-6, 1 - 1e-6)), bins)
    _, curvature = information(theta, lambda theta: _given(theta, bins.score))
    # Units are scaled out first: in float32 the matrix is too badly scaled to be inverted as it is.
    unit = jnp.sqrt(jnp.maximum(jnp.diag(curvature), 1e-6))
    covariance = jnp.linalg.pinv(curvature / (unit[:, None] * unit[None]), hermitian=True)
    error = jnp.sqrt(jnp.maximum(jnp.diag(covariance)[:2], 1)) / unit[:2]
    return Curve(theta[:2], error, theta[2], theta[3], 2 * (likelihoods[0] - constant),
                 jnp.maximum(2 * (likelihoods[0] - likelihoods[1:]), 0), _misfit(theta, bins))  # fmt: skip


_fit_all = jax.jit(jax.vmap(_fit_one))


def _misfit(theta: Float[Array, "4"], bins: Bins) -> Float[Array, ""]:
    """Chi-square of the given labels against the curve in 20 score bins of equal size, per degree of freedom."""
    given = _given(theta, bins.score)
    excess, variance = (
        jnp.sum(v.reshape(_MISFIT_BINS, -1), axis=1)
        for v in (bins.positives - bins.total * given, bins.total * given * (1 - given))
    )
    return jnp.sum(excess**2 / jnp.maximum(variance, 0.5)) / (_MISFIT_BINS - 4)


def _share(rates: np.ndarray, stderr: np.ndarray, told: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rates and errors after each class has listened to the others: Paule and Mandel's spread, then shrinkage."""
    told = told[:, None]
    own = np.where(told, stderr**2, 1.0)

    def centre(spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = told / (own + spread)
        return (weight * rates).sum(0) / weight.sum(0), weight

    low, high = np.zeros(2), np.ones(2)
    for _ in range(30):  # the spread at which squared distances from the centre are as large as they should be
        middle = (low + high) / 2
        mean, weight = centre(middle)
        wider = (weight * (rates - mean) ** 2).sum(0) > told.sum() - 1
        low, high = np.where(wider, middle, low), np.where(wider, high, middle)
    spread = np.maximum(high, _LEAST_SPREAD**2)
    mean, weight = centre(spread)
    lent = np.where(told, own / (own + spread), 1.0)
    kept = np.where(told, (1 - lent) * own, spread)
    return lent * mean + (1 - lent) * rates, np.sqrt(kept + lent**2 / weight.sum(0))
