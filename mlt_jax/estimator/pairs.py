"""The paper's 2x2 systems, one per pair of classes, and the rules that aggregate a class's many solutions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mlt_jax.arguments import shown
from mlt_jax.estimator.counts import Groups, group_means, own_sizes
from mlt_jax.estimator.sums import sums
from mlt_jax.labels import dense


class Pair(NamedTuple):
    """Solution of one 2x2 system."""

    rho_neg: Float[Array, "*batch"]
    rho_pos: Float[Array, "*batch"]
    prior: Float[Array, "*batch"]
    defined: Bool[Array, "*batch"]  # False where a denominator vanishes; the other fields are then 0


def estimate_pair(m_j: Any, m_i: Any, e: Any, a: Any, b: Any) -> Pair:
    """Rates and prior of class j from its co-occurrence with one partner i, not bounded to [0, 1].

    Args:
      m_j, m_i: P(noisy_j = 1) and P(noisy_i = 1); all arguments are scalars, or arrays of one shape.
      e: P(noisy_j = 1, noisy_i = 1).
      a, b: P(noisy_i = 1 | clean_j = 0) and P(noisy_i = 1 | clean_j = 1), over the examples selected as clean for j.

    References:
      The paper's equations with labels eq6 (prior) and eq7 (T).
    """
    given = {"m_j": m_j, "m_i": m_i, "e": e, "a": a, "b": b}
    m_j, m_i, e, a, b = (_frequency(name, x) for name, x in given.items())
    shapes = {x.shape for x in (m_j, m_i, e, a, b)} - {()}
    if len(shapes) > 1:
        raise ValueError(f"m_j, m_i, e, a, b: shapes {sorted(shapes)}; pass scalars, or arrays of one shape")
    prior, correlated = _divide(m_i - a, b - a)
    v, _ = _divide(e - a * m_j, b - a)  # P(clean_j = 1, noisy_j = 1)
    rho_neg, below_one = _divide(m_j - v, 1 - prior)
    kept, above_zero = _divide(v, prior)
    defined = correlated & below_one & above_zero
    rho_neg, rho_pos, prior = (jnp.where(defined, x, 0) for x in (rho_neg, 1 - kept, prior))
    return Pair(rho_neg, rho_pos, prior, defined)


class Choice(NamedTuple):
    """The aggregate of the partners' solutions for one class."""

    rates: Float[Array, "*batch 2"]  # rho_neg, rho_pos
    prior: Float[Array, "*batch"]
    partners: Int[Array, "*batch"]  # how many had a valid solution


def choose(
    ones: Groups, totals: Float[Array, "4 #q"], rank: Int[Array, "q"], share: Any = None, *, aggregate: str,
    bounded: bool = True,
) -> Choice:  # fmt: skip
    """Rates and prior of one class by a rule that chooses among, or averages, the partners' solutions.

    `bounded=False` leaves slightly negative rates as they are: set to zero they would have no derivatives.
    """
    q = rank.shape[0]
    used = rank < q
    if totals.shape[1] > 1:  # cells are unobserved: as many ones as there would be in groups of the class's own sizes
        mean, seen = group_means(ones, totals)
        used, totals, share = used & seen, own_sizes(totals)[:, None], None
        ones = [mean[g] * totals[g] for g in range(4)]
    total = jnp.sum(totals, axis=0)
    safe = jnp.maximum(totals, 1)
    a, b = ones[1] / safe[1], ones[0] / safe[0]
    m_j = jnp.broadcast_to((totals[0] + totals[2]) / jnp.maximum(total, 1), (q,))
    m_i = (ones[0] + ones[1] + ones[2] + ones[3]) / jnp.maximum(total, 1) if share is None else share
    pair = estimate_pair(m_j, m_i, (ones[0] + ones[2]) / jnp.maximum(total, 1), a, b)
    raw = jnp.stack([pair.rho_neg, pair.rho_pos])
    rates = jnp.where((raw < 0) & (raw > -0.3 / q), 0, raw)  # slightly negative is zero, as in the released code
    inside = jnp.all((rates >= 0) & (rates <= 1), axis=0) & (jnp.sum(rates, axis=0) < 1)
    valid = used & pair.defined & (pair.prior >= 0) & (pair.prior <= 1) & inside
    partners = jnp.sum(valid)
    if aggregate == "mean":
        share = valid.astype(rates.dtype) / jnp.maximum(partners, 1).astype(rates.dtype)
        # Half the derivative where a solution is set to zero: of max(0, x) that is what is expected next to 0.
        return Choice((rates if bounded else (rates + raw) / 2) @ share, pair.prior @ share, partners)
    if aggregate == "first":
        chosen = jnp.argmin(jnp.where(valid, rank, q))
    else:
        weight = valid.astype(rates.dtype)
        if aggregate == "residual":
            weight = jnp.where(used & pair.defined, jnp.abs(pair.prior * (1 - pair.prior) * (b - a)), 0)
        # Candidates lie in [0, 1], so clipping the others to it changes every sum of distances by the same constant.
        chosen = medoid(jnp.clip(rates if aggregate == "medoid" else raw, 0, 1), weight, valid)
    return Choice((rates if bounded else raw)[:, chosen], pair.prior[chosen], partners)


def medoid(points: Float[Array, "2 q"], weight: Float[Array, "q"], valid: Bool[Array, "q"]) -> Int[Array, ""]:
    """The valid r with the least `sum_i weight_i (|x_r - x_i| + |y_r - y_i|)`, by cutting planes instead of a sort.

    Both sums are convex in x_r and y_r, so each evaluated candidate gives two tangents that bound all others from
    below; the next candidate is the one with the least bound, until no bound is below the best sum found.
    """
    x, y = jax.lax.stop_gradient(points)
    weight = jax.lax.stop_gradient(weight)
    place = jnp.arange(x.shape[0])

    def tangents(at_x: Any, at_y: Any, below_x: Any, below_y: Any) -> Any:
        left, up = at_x - x, at_y - y
        terms = (weight * jnp.abs(left), weight * jnp.sign(left), weight * jnp.abs(up), weight * jnp.sign(up))
        sum_x, slope_x, sum_y, slope_y = sums(*terms)
        return sum_x + sum_y, jnp.maximum(below_x, sum_x - slope_x * left), jnp.maximum(below_y, sum_y - slope_y * up)

    def lowest(below_x: Any, below_y: Any, open_: Any) -> Any:
        below = jnp.where(open_, below_x + below_y, jnp.inf)
        least = jnp.min(below)
        return least, jnp.min(jnp.where(below <= least, place, place.shape[0] - 1))  # argmin, three times as fast

    def step(state: Any) -> Any:
        below_x, below_y, open_, best, least, chosen, _ = state
        total, below_x, below_y = tangents(x[chosen], y[chosen], below_x, below_y)
        best, least = jnp.where(total < least, chosen, best), jnp.minimum(total, least)
        open_ = open_ & (place != chosen)
        bound, chosen = lowest(below_x, below_y, open_)
        return below_x, below_y, open_, best, least, chosen, bound < least

    zero, mass = jnp.zeros_like(x), jnp.maximum(jnp.sum(weight), 1e-30)
    _, below_x, below_y = tangents(x @ weight / mass, y @ weight / mass, zero, zero)
    bound, first = lowest(below_x, below_y, valid)
    start = (below_x, below_y, valid, first, jnp.array(jnp.inf, x.dtype), first, bound < jnp.inf)
    return jax.lax.while_loop(lambda state: state[-1], step, start)[3]


def _frequency(name: str, x: Any) -> Array:
    """The checked frequency as a jax array; its values are not checked under jit."""
    if isinstance(x, jax.core.Tracer):
        return x
    array = dense(x, name)
    if not ((array >= 0) & (array <= 1)).all():
        raise ValueError(f"{name}: {array if array.ndim == 0 else shown(array)}; pass probabilities in [0, 1]")
    return jnp.asarray(array, jnp.result_type(float))


def _divide(x: Float[Array, "*s"], y: Float[Array, "*s"]) -> tuple[Float[Array, "*s"], Bool[Array, "*s"]]:
    """x / y and where it is defined; 0 elsewhere, with finite gradients."""
    x, y = jnp.asarray(x), jnp.asarray(y)
    ok = jnp.abs(y) > jnp.finfo(y.dtype).eps
    return jnp.where(ok, x, 0) / jnp.where(ok, y, 1), ok
