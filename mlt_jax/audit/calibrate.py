"""P(clean = 1 | prediction) by a slope and an offset per class fitted through T, and P(wrong) by Bayes' rule."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.polynomial.hermite_e import hermegauss

from mlt_jax.transition import given_probability

_STEPS = 30
# Predictions are logits, so slopes are about 1; the offset's prior matters only where a class has next to no positives.
_SLOPE_SPREAD, _OFFSET_SPREAD = 0.5, 5.0
# What a slope must gain over the best constant: the 95 % point with 1 degree of freedom. It is positive, so chance does
# half as often.
_CHI2_95 = 3.841
# Gauss and Hermite's points and weights of a normal distribution: a mean over it by 5 values.
_NODES = tuple((v / scale).tolist() for v, scale in zip(hermegauss(5), (1, np.sqrt(2 * np.pi)), strict=True))


def _calibrate_one(
    s: Float[Array, "n"], y: Float[Array, "n"], known: Bool[Array, "n"], rates: Float[Array, "2"], prior: Array
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Slope and offset of one class by maximum likelihood through T; the prior alone where scores predict nothing."""

    def log_likelihood(logit: Float[Array, "n"]) -> Array:
        given = given_probability(jax.nn.sigmoid(logit), rates[0], 1 - rates[0] - rates[1])
        return jnp.sum(jnp.where(known, y * jnp.log(given) + (1 - y) * jnp.log1p(-given), 0))

    def cost(t: Float[Array, "2"]) -> Array:
        penalty = (t[0] / _SLOPE_SPREAD) ** 2 + (t[1] / _OFFSET_SPREAD) ** 2
        return penalty / 2 - log_likelihood(jnp.exp(t[0]) * s + t[1])

    def step(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        t, damping, best = carry
        hessian = jax.hessian(cost)(t)
        # Made positive definite: away from the optimum the likelihood through T is not concave.
        diagonal = (1 + damping) * (jnp.abs(jnp.diag(hessian)) + 1e-3)
        bound = 0.99 * jnp.sqrt(diagonal[0] * diagonal[1])
        cross = jnp.clip(hessian[0, 1], -bound, bound)
        g = jax.grad(cost)(t)
        direction = jnp.stack([diagonal[1] * g[0] - cross * g[1], diagonal[0] * g[1] - cross * g[0]])
        new = t - jnp.clip(direction / (diagonal[0] * diagonal[1] - cross**2), -1, 1)
        value = cost(new)
        better = value < best
        return (jnp.where(better, new, t), jnp.where(better, 0.3, 4.0) * damping, jnp.where(better, value, best)), None

    start = jnp.zeros(2, s.dtype)
    (t, _, _), _ = jax.lax.scan(step, (start, jnp.array(1e-2, s.dtype), cost(start)), None, length=_STEPS)
    share = jnp.sum(jnp.where(known, y, 0)) / jnp.maximum(jnp.sum(known), 1).astype(s.dtype)
    best = (share - rates[0]) / jnp.maximum(1 - rates[0] - rates[1], 1e-3)
    flat, best = (jnp.clip(p, 1e-4, 1 - 1e-4) for p in (prior, best))
    flat, best = (jnp.log(p) - jnp.log1p(-p) for p in (flat, best))
    slope, offset = jnp.exp(t[0]), t[1]
    # Against the best constant, not the prior: a prior that is off would make any score seem to predict.
    gain = log_likelihood(slope * s + offset) - log_likelihood(jnp.full_like(s, best))
    predicts = 2 * gain > _CHI2_95
    return jnp.where(predicts, slope, 0), jnp.where(predicts, offset, flat)


@jax.jit
def calibrate(
    s: Float[Array, "n q"], y: Array, known: Array, rates: Float[Array, "q 2"], prior: Float[Array, "q"]
) -> tuple[Float[Array, "q"], Float[Array, "q"]]:
    """Slopes and offsets (q,) of all classes; slope 0 and the prior's logit where scores predict nothing.

    s, y, known: scores, given labels and which cells are labelled; rates: (rho_neg, rho_pos); prior: P(clean = 1).
    """
    return jax.vmap(_calibrate_one, in_axes=(1, 1, 1, 0, 0))(s, y, known, rates, prior)


@jax.jit
def wrong_probability(
    s: Float[Array, "n q"],
    y: Array,
    known: Array,
    rates: Float[Array, "q 2"],
    slope: Array,
    offset: Array,
    stderr: Float[Array, "q 2"],
) -> Float[Array, "n q"]:
    """P(given label is wrong), (n, q), by the formulas of `audit.audit`; 0 where the cell is not labelled.

    It is the mean over the rates that `stderr` allows. What the given labels show is P(given = 1 | score), whatever the
    rates, so that is held: with a smaller rho_neg, more of the given labels at low scores are right. Plugged in alone,
    T would make the surest cells too sure.
    """
    shown = given_probability(jax.nn.sigmoid(slope[None] * s + offset[None]), rates[None, :, 0], _kept(rates))
    total = jnp.zeros_like(shown)
    for neg, neg_weight in zip(*_NODES, strict=True):
        for pos, pos_weight in zip(*_NODES, strict=True):
            drawn = jnp.clip(rates + stderr * jnp.array([[neg, pos]], rates.dtype), 0, 0.98)
            rho_neg, rho_pos = drawn[None, :, 0], drawn[None, :, 1]
            pi = jnp.clip((shown - rho_neg) / jnp.maximum(_kept(drawn), 0.02), 0, 1)
            flipped = jnp.where(y == 1, rho_neg * (1 - pi), rho_pos * pi)
            kept = jnp.where(y == 1, (1 - rho_pos) * pi, (1 - rho_neg) * (1 - pi))
            total += neg_weight * pos_weight * flipped / jnp.maximum(flipped + kept, 1e-30)
    return jnp.where(known, jnp.minimum(total, 1), 0)  # rounding may pass 1


def _kept(rates: Float[Array, "q 2"]) -> Float[Array, "1 q"]:
    return 1 - jnp.sum(rates, axis=1)[None]
