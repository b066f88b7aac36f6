"""Noise rates from labels and out-of-sample scores alone: the asymptotes of P(given = 1 | score).

If noise is class-dependent, the given label depends on an example only through its clean label, so

    P(given = 1 | score) = rho_neg + (1 - rho_neg - rho_pos) P(clean = 1 | score)

for any score that was computed without this example's label. For low scores the left side tends to rho_neg, for high
scores to 1 - rho_pos. Anchor methods read both limits off the few most extreme examples. Here the whole curve is
fitted, with P(clean = 1 | score) = sigmoid(slope * score + offset): four parameters per class by maximum likelihood, so
every example counts. This needs examples at both ends whose clean label is nearly certain (the anchor assumption) and a
curve that is about logistic in the score, as for the logits of a linear head. It needs neither a selection of clean
labels nor label correlations. A noise-free side is a limit of 0, or of 1, which can be tested (`side_test`).

Rates of several classes are shrunk towards each other (empirical Bayes): they are modelled as draws from a common
distribution whose variance is estimated, so rates that differ beyond their errors stay apart.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mlt_jax.labels import Labels, as_labels, as_matrix
from mlt_jax.transition import Status, TransitionEstimate, as_matrices, given_probability, implied_prior

_STEPS = 40
# Initial (logit rho_neg, logit rho_pos, log slope, offset): little or much noise on either side.
_STARTS = [(neg, pos, 0.0, 0.0) for neg in (-5.0, -1.5) for pos in (-3.0, 0.0)]
# The penalty of a rate is -0.05 log(1 - rate), so it is about 0 where the data leave it open.
_RATE_PENALTY = 0.05
# Prior standard deviation of log slope: scores are logits. Flatter curves would have their limits far beyond the data.
_SLOPE_SPREAD = 0.5
# Least standard deviation of the rates over classes: part of their errors is common and does not show in their spread.
_LEAST_SPREAD = 0.01
# Least standard error of a rate: the curve is only approximately logistic.
_LEAST_ERROR = 0.005
_FEWEST, _CHI2_3_95, _BINS, _MISFIT_BINS = 10, 7.815, 1000, 20


class Bins(NamedTuple):
    """Labels grouped by score, a row per class; empty bins have total 0."""

    score: Float[Array, "*q b"]  # mean over the bin
    positives: Float[Array, "*q b"]  # number of given positives
    total: Float[Array, "*q b"]  # number of examples


class Curve(NamedTuple):
    """Fitted curves, a row per class."""

    rates: Float[Array, "*q 2"]  # rho_neg, rho_pos
    stderr: Float[Array, "*q 2"]
    predictive: Float[Array, "*q"]  # twice the log likelihood gained over a constant
    evidence: Float[Array, "*q 2"]  # twice the log likelihood lost when rho_neg, or rho_pos, is held at 0
    misfit: Float[Array, "*q"]  # chi-square per degree of freedom over 20 score bins


class SideTest(NamedTuple):
    """P-values of two hypotheses: rho_neg = 0 (no given positive is wrong), rho_pos = 0 (no given negative is)."""

    by_class: Float[np.ndarray, "q 2"]  # NaN where the rates are not identifiable
    overall: Float[np.ndarray, "2"]  # of all identifiable classes together; NaN if there are none


def estimate_from_scores(
    scores: Any, labels: Any, *, share: bool = True, observed: Any = None, coding: str = "01"
) -> TransitionEstimate:
    """Transition matrices of all classes from out-of-sample logits, with standard errors.

    Args:
      scores: (n, q) logits of P(label = 1), or of P(clean label = 1), by a model that never saw the example's labels.
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
      share: shrink the rates of the classes towards each other where at least 4 are identifiable.

    Returns:
      Estimates with status `POSTERIOR`; `TOO_FEW` with fewer than 10 given positives or negatives; `UNIDENTIFIABLE`
      where the scores do not predict the labels (95 %). In the latter two T has the mean rates of the other classes, or
      is the identity, with NaN errors, if nothing is shrunk. `residual` is the misfit of the curve; `partners` is 0.
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    curve, enough, identifiable, frequency = _fit_checked(scores, checked)
    rates, stderr = np.asarray(curve.rates), np.maximum(curve.stderr, _LEAST_ERROR)
    if share and int(identifiable.sum()) >= 4:
        rates, stderr = _shrink(rates, stderr, np.asarray(identifiable))
    else:
        rates, stderr = (np.where(identifiable[:, None], x, other) for x, other in ((rates, 0), (stderr, np.nan)))
    rates = np.clip(rates, 0, None)
    rates /= np.maximum(1, rates.sum(1, keepdims=True) / 0.99)
    T = as_matrices(jnp.asarray(rates, curve.rates.dtype))
    status = jnp.where(enough, jnp.where(identifiable, Status.POSTERIOR, Status.UNIDENTIFIABLE), Status.TOO_FEW)
    return TransitionEstimate(
        T=T,
        prior=implied_prior(T, frequency),
        stderr=jnp.asarray(stderr, T.dtype),
        status=status.astype(jnp.int32),
        partners=jnp.zeros(len(T), jnp.int32),
        residual=jnp.where(identifiable, curve.misfit, 0),
    )


def side_test(scores: Any, labels: Any, *, observed: Any = None, coding: str = "01") -> SideTest:
    """P-values of rho_neg = 0 and of rho_pos = 0, from out-of-sample logits; arguments as in `estimate_from_scores`.

    Likelihood-ratio tests of a parameter on its bound: under the hypothesis the statistic is 0 with probability 1/2 and
    else chi-square with 1 degree of freedom. It is divided by the misfit of the curve where that is above 1. `overall`
    tests the sum over the classes. The curve is only approximately logistic, so call a side noisy below 0.001 rather
    than below 0.05.

    References:
      Self and Liang, "Asymptotic properties of maximum likelihood estimators ... under nonstandard conditions", 1987.
    """
    from scipy.stats import binom, chi2, norm  # slow to import, and only needed here

    curve, _, found, _ = _fit_checked(scores, as_labels(labels, coding=coding, observed=observed))
    evidence = np.asarray(curve.evidence / jnp.maximum(curve.misfit, 1)[:, None], float)
    identifiable = np.asarray(found)
    p = np.where(evidence > 0, norm.sf(np.sqrt(evidence)), 1)
    m = int(identifiable.sum())
    freedom = np.arange(1, m + 1)[:, None]
    overall = (binom.pmf(freedom, m, 0.5) * chi2.sf(evidence[identifiable].sum(0), freedom)).sum(0)
    return SideTest(np.where(identifiable[:, None], p, np.nan), overall if m else np.full(2, np.nan))


def _fit_checked(scores: Any, labels: Labels) -> tuple[Curve, Bool[Array, "q"], Bool[Array, "q"], Float[Array, "q"]]:
    """Curves; which classes have enough given labels; which of these are identifiable; P(given = 1)."""
    s = jnp.asarray(as_matrix(scores, labels, name="scores"))
    known = jnp.asarray(labels.observed if labels.observed is not None else np.ones(s.shape, bool))
    y = jnp.asarray(labels.values, s.dtype)
    curve = fit_curves(s, y, known)
    positives, size = jnp.sum(y, axis=0), jnp.sum(known, axis=0).astype(s.dtype)
    enough = (positives >= _FEWEST) & (size - positives >= _FEWEST)
    identifiable = enough & (curve.predictive > _CHI2_3_95) & jnp.all(jnp.isfinite(curve.stderr), axis=1)
    return curve, enough, identifiable, positives / jnp.maximum(size, 1)


def fit_curves(scores: Float[Array, "n q"], labels: Float[Array, "n q"], known: Bool[Array, "n q"]) -> Curve:
    """Four-parameter logistic curves of all classes from logits, 0/1 labels and the mask of observed cells."""
    return _fit_all(bin_scores(scores, labels, known))


@jax.jit
def bin_scores(scores: Float[Array, "n q"], labels: Float[Array, "n q"], known: Bool[Array, "n q"]) -> Bins:
    """Up to 1,000 bins of neighbouring scores per class: the curve is nearly straight within one, so little is lost."""

    def one(score: Float[Array, "n"], y: Float[Array, "n"], known: Bool[Array, "n"]) -> Bins:
        rank = jnp.argsort(jnp.argsort(jnp.where(known, score, jnp.inf)))
        size = jnp.maximum(jnp.sum(known), 1).astype(score.dtype)
        cell = jnp.where(known, (rank.astype(score.dtype) / size * _BINS).astype(jnp.int32), _BINS)
        total, positives, sums = (
            jax.ops.segment_sum(jnp.where(known, v, 0), cell, _BINS) for v in (jnp.ones_like(y), y, score)
        )
        return Bins(sums / jnp.maximum(total, 1), positives, total)

    return jax.vmap(one, in_axes=1)(scores, labels, known)


def _given(theta: Float[Array, "4"], score: Float[Array, "b"]) -> Float[Array, "b"]:
    """P(given = 1 | score) of the curve with theta = (rho_neg, rho_pos, slope, offset)."""
    rho_neg, rho_pos, slope, offset = theta
    return given_probability(jax.nn.sigmoid(slope * score + offset), rho_neg, 1 - rho_neg - rho_pos)


def _log_likelihood(given: Float[Array, "b"], bins: Bins) -> Float[Array, ""]:
    return jnp.sum(bins.positives * jnp.log(given) + (bins.total - bins.positives) * jnp.log1p(-given))


def _fit_one(bins: Bins) -> Curve:
    dtype = bins.score.dtype

    def constrain(t: Float[Array, "4"], free: Float[Array, "2"]) -> Float[Array, "4"]:
        """(rho_neg, rho_pos, slope, offset) from unconstrained parameters; a rate that is not free is 0."""
        return jnp.concatenate([jax.nn.sigmoid(t[:2]) * free, jnp.exp(t[2:3]), t[3:]])

    def score_and_information(t: Float[Array, "4"], curve: Any) -> tuple[Float[Array, "4"], Float[Array, "4 4"]]:
        """Gradient of the log likelihood by t, and its expected negative Hessian, which is never indefinite."""
        given, jacobian = curve(t), jax.jacfwd(curve)(t)
        weight = 1 / (given * (1 - given))
        score = jacobian.T @ (weight * (bins.positives - bins.total * given))
        return score, jacobian.T @ ((weight * bins.total)[:, None] * jacobian)

    def fit(free: Float[Array, "2"], start: Float[Array, "4"]) -> tuple[Float[Array, "4"], Array]:
        """Penalised maximum likelihood from one start: Fisher scoring with Levenberg-Marquardt damping."""

        def penalty(t: Float[Array, "4"]) -> Array:
            return _RATE_PENALTY * jnp.sum(jax.nn.softplus(t[:2])) + (t[2] / _SLOPE_SPREAD) ** 2 / 2

        def cost(t: Float[Array, "4"]) -> Array:
            return penalty(t) - _log_likelihood(_given(constrain(t, free), bins.score), bins)

        def step(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
            t, damping, least = carry
            score, hessian = score_and_information(t, lambda t: _given(constrain(t, free), bins.score))
            hessian += jax.hessian(penalty)(t)
            damped = hessian + jnp.diag(damping * (jnp.diag(hessian) + 1e-3))
            new = t - jnp.clip(jnp.linalg.solve(damped, jax.grad(penalty)(t) - score), -1, 1)
            value = cost(new)
            better = value < least
            damping *= jnp.where(better, 0.3, 4.0)
            return (jnp.where(better, new, t), damping, jnp.where(better, value, least)), None

        (t, _, value), _ = jax.lax.scan(step, (start, jnp.array(1e-2, dtype), cost(start)), None, length=_STEPS)
        return t, value

    # Three fits: both rates free, rho_neg held at 0, rho_pos held at 0.
    free = jnp.array([[1, 1], [0, 1], [1, 0]], dtype)
    fits, values = jax.vmap(jax.vmap(fit, in_axes=(None, 0)), in_axes=(0, None))(free, jnp.asarray(_STARTS, dtype))
    best = fits[jnp.arange(3), jnp.nanargmin(values, axis=1)]
    thetas = jax.vmap(constrain)(best, free)
    likelihoods = jax.vmap(lambda theta: _log_likelihood(_given(theta, bins.score), bins))(thetas)
    theta = thetas[0]
    share = jnp.sum(bins.positives) / jnp.maximum(jnp.sum(bins.total), 1)
    constant = _log_likelihood(jnp.full_like(bins.score, jnp.clip(share, 1e-6, 1 - 1e-6)), bins)
    _, information = score_and_information(theta, lambda theta: _given(theta, bins.score))
    # Scaled to a unit diagonal first: float32 could not invert it otherwise.
    unit = jnp.sqrt(jnp.maximum(jnp.diag(information), 1e-6))
    covariance = jnp.linalg.pinv(information / (unit[:, None] * unit[None]), hermitian=True)
    error = jnp.sqrt(jnp.maximum(jnp.diag(covariance)[:2], 1)) / unit[:2]
    predictive, evidence = 2 * (likelihoods[0] - constant), jnp.maximum(2 * (likelihoods[0] - likelihoods[1:]), 0)
    return Curve(theta[:2], error, predictive, evidence, _misfit(theta, bins))


_fit_all = jax.jit(jax.vmap(_fit_one))


def _misfit(theta: Float[Array, "4"], bins: Bins) -> Float[Array, ""]:
    """Chi-square of the given labels against the curve in 20 equally filled score bins, per degree of freedom."""
    given = _given(theta, bins.score)
    excess, variance = (
        jnp.sum(v.reshape(_MISFIT_BINS, -1), axis=1)
        for v in (bins.positives - bins.total * given, bins.total * given * (1 - given))
    )
    return jnp.sum(excess**2 / jnp.maximum(variance, 0.5)) / (_MISFIT_BINS - 4)


def _shrink(rates: np.ndarray, stderr: np.ndarray, identifiable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Empirical Bayes posterior means and errors of the rates; the variance over classes is Paule and Mandel's (1982).

    Classes that are not identifiable get the mean over the others.
    """
    use = identifiable[:, None]
    variance = np.where(use, stderr**2, 1.0)

    def weighted_mean(between: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = use / (variance + between)
        return (weight * rates).sum(0) / weight.sum(0), weight

    low, high = np.zeros(2), np.ones(2)
    for _ in range(30):  # bisection for the variance between classes at which chi-square equals its expectation
        middle = (low + high) / 2
        mean, weight = weighted_mean(middle)
        wider = (weight * (rates - mean) ** 2).sum(0) > use.sum() - 1
        low, high = np.where(wider, middle, low), np.where(wider, high, middle)
    between = np.maximum(high, _LEAST_SPREAD**2)
    mean, weight = weighted_mean(between)
    shrinkage = np.where(use, variance / (variance + between), 1.0)
    posterior = np.where(use, (1 - shrinkage) * variance, between)
    return shrinkage * mean + (1 - shrinkage) * rates, np.sqrt(posterior + shrinkage**2 / weight.sum(0))
