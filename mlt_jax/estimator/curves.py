"""Class-dependent noise read off scores: the limits of P(given = 1 | score) at both ends.

If noise is class-dependent, the given label depends on an example only through its clean label, so

    P(given = 1 | score) = rho_neg + (1 - rho_neg - rho_pos) P(clean = 1 | score)

for any score that was computed without this example's label. For low scores the left side tends to rho_neg, for high
scores to 1 - rho_pos. Anchor methods read both limits off the few most extreme examples. Here the whole curve is
fitted by maximum likelihood, so every example counts. Only the *ranks* of the scores are used: any increasing function
of a score gives the same curve, so logits, probabilities and votes are alike. P(clean = 1) is logistic in the rank's
normal score, with one slope below, one within and one above the middle third of the given positives.

This needs neither a selection of clean labels nor label correlations. It needs examples at both ends whose clean label
is nearly certain, and noise that does not prefer ambiguous examples; `estimator.blind` tells how far that holds.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mlt_jax.transition import given_probability

_STEPS, _PLAIN_STEPS = 40, 15
# Initial (logit rho_neg, logit rho_pos): little or much noise on either side.
_STARTS = [(neg, pos) for neg in (-5.0, -1.5) for pos in (-3.0, 0.0)]
# The penalty of a rate is -0.05 log(1 - rate), so it is about 0 where the data leave it open.
_RATE_PENALTY = 0.05
# Prior of the log slopes, relative to the plain logistic regression of the given label: noise flattens that one. Its
# centre, its spread and the spread of the three slopes around their mean.
_SLOPE_CENTRE, _SLOPE_SPREAD, _SLOPE_CHANGE = 0.3, 0.7, 0.2
_BINS, _MISFIT_BINS, _PARAMETERS = 500, 20, 6
CLASSES_AT_ONCE = 256  # fitted together; bounds the memory


class Bins(NamedTuple):
    """Given labels grouped by the rank of the score, a row per class; empty bins have total 0."""

    rank: Float[Array, "*q b"]  # normal score of the bin's mean rank
    positives: Float[Array, "*q b"]  # number of given positives
    total: Float[Array, "*q b"]  # number of examples


class Curve(NamedTuple):
    """Fitted curves, a row per class."""

    rates: Float[np.ndarray, "q 2"]  # rho_neg, rho_pos
    stderr: Float[np.ndarray, "q 2"]  # 0 where `assume` holds the rate
    given: Float[np.ndarray, "q b"]  # P(given = 1) in each bin
    clean: Float[np.ndarray, "q b"]  # P(clean = 1) in each bin
    likelihood: Float[np.ndarray, "q"]  # log likelihood of the given labels
    misfit: Float[np.ndarray, "q"]  # chi-square per degree of freedom over 20 bins


def _ranks(score: Float[Array, "n"], known: Bool[Array, "n"]) -> Float[Array, "n"]:
    """Ranks of the known scores, from 0 to 1; equal scores share one."""
    score = jnp.where(known, score, jnp.inf)
    ordered, size = jnp.sort(score), jnp.maximum(jnp.sum(known), 1).astype(score.dtype)
    below, upto = (jnp.searchsorted(ordered, score, side=side).astype(score.dtype) for side in ("left", "right"))
    return (below + jnp.minimum(upto, size)) / (2 * size)


def _cells(rank: Float[Array, "n"]) -> Int[Array, "n"]:
    return jnp.minimum(rank * _BINS, _BINS - 1).astype(jnp.int32)


@jax.jit
def bin_scores(scores: Float[Array, "n q"], labels: Float[Array, "n q"], known: Bool[Array, "n q"]) -> Bins:
    """Up to 500 bins of neighbouring ranks per class; equal scores share a bin."""

    def one(score: Float[Array, "n"], y: Float[Array, "n"], known: Bool[Array, "n"]) -> Bins:
        rank = _ranks(score, known)
        cell = jnp.where(known, _cells(rank), _BINS)
        total, positives, ranks = (
            jax.ops.segment_sum(jnp.where(known, v, 0), cell, _BINS) for v in (jnp.ones_like(y), y, rank)
        )
        empty = (jnp.arange(_BINS, dtype=y.dtype) + 0.5) / _BINS
        middle = jnp.where(total > 0, ranks / jnp.maximum(total, 1), empty)
        return Bins(jax.scipy.special.ndtri(jnp.clip(middle, 1e-5, 1 - 1e-5)), positives, total)

    return jax.vmap(one, in_axes=1)(scores, labels, known)


@jax.jit
def at_scores(
    values: Float[Array, "q b"], scores: Float[Array, "n q"], known: Bool[Array, "n q"]
) -> Float[Array, "n q"]:
    """The value of each example's bin, such as P(clean = 1)."""

    def one(value: Float[Array, "b"], score: Float[Array, "n"], known: Bool[Array, "n"]) -> Float[Array, "n"]:
        return value[_cells(_ranks(score, known))]

    return jax.vmap(one, in_axes=(0, 1, 1), out_axes=1)(values, scores, known)


def fit_curves(bins: Bins, assume: str = "general", held: float = 0.0) -> Curve:
    """Curves of all classes; `assume` holds rho_neg ("missing") or rho_pos ("partial") at `held`.

    Standard errors come from the whole information matrix, in float64, so a rate that the data leave open has a large
    one.
    """
    free = jnp.array({"general": (1, 1), "missing": (0, 1), "partial": (1, 0)}[assume], bins.rank.dtype)
    fitted, information = _fit_all(bins, free, held * (1 - free))
    information = np.asarray(information, float)
    information[:, [0, 1], [0, 1]] += np.where(np.asarray(free) == 1, 0, 1e12)
    unit = np.sqrt(np.maximum(np.einsum("qii->qi", information), 1e-6))
    # Scaled to a unit diagonal. A direction without information may have come out negative, by rounding: it is wide.
    values, vectors = np.linalg.eigh(information / (unit[:, :, None] * unit[:, None]))
    variance = np.einsum("qik,qk->qi", vectors**2, 1 / np.maximum(values, 1e-6))[:, :2]
    stderr = np.where(np.asarray(free) == 1, np.sqrt(variance) / unit[:, :2], 0)
    return Curve(stderr=stderr, **{name: np.asarray(value) for name, value in fitted.items()})


def _log_likelihood(given: Float[Array, "b"], bins: Bins) -> Float[Array, ""]:
    return jnp.sum(bins.positives * jnp.log(given) + (bins.total - bins.positives) * jnp.log1p(-given))


def _plain_logits(bins: Bins) -> Float[Array, "b"]:
    """Logits of the logistic regression of the given label on the rank's normal score, slope at least 0.001."""
    x, positives, total = bins.rank, bins.positives, bins.total
    share = jnp.clip(jnp.sum(positives) / jnp.maximum(jnp.sum(total), 1), 1e-4, 1 - 1e-4)

    def newton(t: Float[Array, "2"], _: None) -> tuple[Float[Array, "2"], None]:
        p = jax.nn.sigmoid(t[0] * x + t[1])
        excess, weight = positives - total * p, total * p * (1 - p)
        slope, offset = jnp.sum(excess * x) - 0.01 * t[0], jnp.sum(excess)
        a, b, c = jnp.sum(weight * x * x) + 0.01, jnp.sum(weight * x), jnp.sum(weight) + 0.001
        step = jnp.stack([c * slope - b * offset, a * offset - b * slope]) / (a * c - b * b + 1e-9)
        return t + jnp.clip(step, -2, 2), None

    start = jnp.stack([jnp.zeros_like(share), jnp.log(share) - jnp.log1p(-share)])
    (slope, offset), _ = jax.lax.scan(newton, start, None, length=_PLAIN_STEPS)
    return jnp.maximum(slope, 1e-3) * x + offset


def _segments(bins: Bins) -> Float[Array, "b 3"]:
    """The plain logit in three parts, below, within and above the middle third of the given positives."""
    z = _plain_logits(bins)
    share = jnp.cumsum(bins.positives) / jnp.maximum(jnp.sum(bins.positives), 1)
    low, high = jnp.interp(1 / 3, share, z), jnp.interp(2 / 3, share, z)
    return jnp.stack([jnp.minimum(z, low), jnp.clip(z, low, high) - low, jnp.maximum(z, high) - high], axis=1)


def _fit_one(
    bins: Bins, free: Float[Array, "2"], held: Float[Array, "2"]
) -> tuple[dict[str, Array], Float[Array, "6 6"]]:
    """The curve of one class and the information about (rho_neg, rho_pos, three log slopes, offset)."""
    parts = _segments(bins)
    dtype = bins.rank.dtype

    def clean(t: Float[Array, "6"]) -> Float[Array, "b"]:
        return jax.nn.sigmoid(parts @ jnp.exp(t[2:5]) + t[5])

    def given(t: Float[Array, "6"]) -> Float[Array, "b"]:
        rho_neg, rho_pos = jax.nn.sigmoid(t[:2]) * free + held
        return given_probability(clean(t), rho_neg, 1 - rho_neg - rho_pos)

    def penalty(t: Float[Array, "6"]) -> Array:
        return _RATE_PENALTY * jnp.sum(jax.nn.softplus(t[:2])) + slope_prior(t[2:5])

    def slope_prior(slopes: Float[Array, "3"]) -> Array:
        mean = jnp.mean(slopes)
        return (((mean - _SLOPE_CENTRE) / _SLOPE_SPREAD) ** 2 + jnp.sum(((slopes - mean) / _SLOPE_CHANGE) ** 2)) / 2

    def cost(t: Float[Array, "6"]) -> Array:
        return penalty(t) - _log_likelihood(given(t), bins)

    def fit(start: Float[Array, "6"]) -> tuple[Float[Array, "6"], Array]:
        """Penalised maximum likelihood from one start: Fisher scoring with Levenberg-Marquardt damping."""

        def step(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
            t, damping, least = carry
            p, jacobian = given(t), jax.jacfwd(given)(t)
            weight = 1 / (p * (1 - p))
            gradient = jax.grad(penalty)(t) - jacobian.T @ (weight * (bins.positives - bins.total * p))
            hessian = jacobian.T @ ((weight * bins.total)[:, None] * jacobian) + jax.hessian(penalty)(t)
            damped = hessian + jnp.diag(damping * (jnp.diag(hessian) + 1e-3))
            new = t - jnp.clip(jnp.linalg.solve(damped, gradient), -1, 1)
            value = cost(new)
            better = value < least
            damping *= jnp.where(better, 0.3, 4.0)
            return (jnp.where(better, new, t), damping, jnp.where(better, value, least)), None

        (t, _, value), _ = jax.lax.scan(step, (start, jnp.array(1e-2, dtype), cost(start)), None, length=_STEPS)
        return t, value

    starts = jnp.array([(*rates, *3 * [_SLOPE_CENTRE], 0.0) for rates in _STARTS], dtype)
    fits, values = jax.vmap(fit)(starts)
    t = fits[jnp.nanargmin(values)]
    p, c = given(t), clean(t)
    rates = jax.nn.sigmoid(t[:2]) * free + held
    slope = (1 - jnp.sum(rates)) * c * (1 - c)
    jacobian = jnp.concatenate(
        [jnp.stack([1 - c, -c], 1) * free[None], slope[:, None] * parts * jnp.exp(t[None, 2:5]), slope[:, None]], 1
    )
    information = jacobian.T @ ((bins.total / (p * (1 - p)))[:, None] * jacobian)
    information = information.at[2:5, 2:5].add(jax.hessian(slope_prior)(t[2:5]))
    found = {"rates": rates, "given": p, "clean": c, "likelihood": _log_likelihood(p, bins), "misfit": _misfit(p, bins)}
    return found, information


@jax.jit
def _fit_all(
    bins: Bins, free: Float[Array, "2"], held: Float[Array, "2"]
) -> tuple[dict[str, Array], Float[Array, "q 6 6"]]:
    return jax.lax.map(partial(_fit_one, free=free, held=held), bins, batch_size=min(CLASSES_AT_ONCE, len(bins.rank)))


def _misfit(given: Float[Array, "b"], bins: Bins) -> Float[Array, ""]:
    """Chi-square of the given labels against the curve in 20 equally filled bins, per degree of freedom."""
    excess, variance = (
        jnp.sum(v.reshape(_MISFIT_BINS, -1), axis=1)
        for v in (bins.positives - bins.total * given, bins.total * given * (1 - given))
    )
    return jnp.sum(excess**2 / jnp.maximum(variance, 0.5)) / (_MISFIT_BINS - _PARAMETERS)
