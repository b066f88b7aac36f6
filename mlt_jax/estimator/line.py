"""The joint rule: for one class, the four groups of examples lie on one line in the space of the partners' labels.

Let `mu_g` in R^q be how often each partner label is 1 in group g of class j: selected positives (S+) and negatives
(S-), unselected positives (U+) and negatives (U-). If the selected labels are clean and noise is class-dependent,
S+ shows `P(noisy_i = 1 | clean_j = 1)`, S- the same for `clean_j = 0`, and each unselected group is a mixture of the
two: `mu_U = (1 - theta) mu_S- + theta mu_S+` with theta in [0, 1] its share of clean positives. So the four points lie
on a line, and the positions of U+ and U- on it determine the rest: with sizes n_g,

    positives = n_S+ + theta_+ n_U+ + theta_- n_U-        prior = positives / n
    rho_neg = (1 - theta_+) n_U+ / (n - positives)        rho_pos = theta_- n_U- / positives

The groups are disjoint, so their errors are independent, about `m_i (1 - m_i) / n_g` in coordinate i: in units of
`sqrt(m_i (1 - m_i))` the maximum-likelihood line is the first principal axis of the four points with masses n_g.
A theta outside [0, 1] is set to its bound by merging that group with S+ or S-. The paper's pairwise systems (label
system2) are the projections of these equations on one coordinate. Least squares over them is biased, whether errors in
b - a are ignored or corrected as if independent, because b, e and m_i share examples.

Where cells are unobserved, the sizes n_g in the equations are those of the class's own observed examples, and each
partner's mean is made of the examples where it is observed, too (see `counts.group_means`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mlt_jax.estimator.counts import Groups, group_means, own_sizes
from mlt_jax.estimator.sums import sums

# The nine merges: U+ and U- each stay, or join S+ (0) or S- (1). _COLLECT[merge, g, h] is 1 where h becomes part of g.
_MEMBERS = np.array([(0, 1, u_pos, u_neg) for u_pos in (2, 0, 1) for u_neg in (3, 0, 1)])
_COLLECT = np.transpose(np.eye(4)[_MEMBERS], (0, 2, 1))
_TIE_BREAK = 1 - 4e-6 * np.sum(_MEMBERS < 2, axis=1)  # fewer merges explain at least as much, except by rounding
_SQUARINGS = 12
_UPPER = [(g, h) for g in range(4) for h in range(g, 4)]
# Significance level of the test for any correlation, and the 95 % point of one partner's chi-square.
_LEVEL, CHI2_95 = 0.05, 3.841
_LARGE = 1000


class Cloud(NamedTuple):
    """Sufficient statistics of the four group means of one class."""

    size: Float[Array, "4"]  # n_g, of the class's own observed examples
    mass: Float[Array, "4"]  # n_g of the means: where cells are unobserved, with a partner observed, on average
    gram: Float[Array, "4 4"]  # inner products of sqrt(n_g) (mu_g - mean), in units of each partner's spread
    dimension: Float[Array, ""]  # number of partners with any spread
    contrast: Float[Array, ""]  # sum of the partners' chi-squares of S+ against S-
    partners: Float[Array, ""]  # how many differ between S+ and S- at 95 %


def group_cloud(
    ones: Groups,
    totals: Float[Array, "4 #q"],
    used: Bool[Array, "q"],
    share: Float[Array, "q"] | None = None,
) -> Cloud:
    """The cloud of one class from how often each partner is 1 in each group, and the sizes of the groups.

    `used` marks the partners that count; `share` is how often each is 1 in all groups, if known (saves a division).
    """
    size = mass = own_sizes(totals)
    if share is None:
        share = _sum_over(lambda g: ones[g]) / jnp.maximum(jnp.sum(totals, axis=0), 1)
    spread = share * (1 - share)
    mean, seen = group_means(ones, totals)
    used = used & seen
    unit = jnp.where(used, jnp.where(spread > 0, 1 / jnp.sqrt(jnp.where(spread > 0, spread, 1)), 0), 0)
    scale = unit
    if totals.shape[1] > 1:
        mass = jnp.sum(jnp.where(used[None], totals, 0), axis=1) / jnp.maximum(jnp.sum(used), 1).astype(totals.dtype)
        scale = unit * jnp.sqrt(jnp.sum(totals, axis=0) / jnp.maximum(jnp.sum(mass), 1))  # by number of examples
    weight = mass / jnp.maximum(jnp.sum(mass), 1)
    centre = _sum_over(lambda g: weight[g] * mean[g])
    root = jnp.sqrt(mass)
    points = [root[g] * (mean[g] - centre) * scale for g in range(4)]
    gap = (totals[0] * totals[1] / jnp.maximum(totals[0] + totals[1], 1)) * ((mean[0] - mean[1]) * unit) ** 2
    products = [points[g] * points[h] for g, h in _UPPER]
    counts = [member.astype(scale.dtype) for member in (scale > 0, gap > CHI2_95)]
    *upper, dimension, partners, contrast = sums(*products, *counts, gap)
    gram = jnp.stack([upper[_entry(g, h)] for g in range(4) for h in range(4)]).reshape(4, 4)
    return Cloud(size, mass, gram, dimension, contrast, partners)


def fit(cloud: Cloud, *, bounded: bool = True) -> Float[Array, "2"]:
    """Shares theta of clean positives in (U+, U-), 0 for an empty group; in [0, 1] unless `bounded=False`."""
    merges = slice(None if bounded else 1)

    def one(merge: tuple[Float[Array, "4 4"], Float[Array, ""]]) -> tuple[Array, Array]:
        collect, tie_break = merge
        mass = _sum_over(lambda g: collect[:, g] * cloud.mass[g])
        root = collect * jnp.sqrt(cloud.mass)[None] / jnp.sqrt(jnp.maximum(mass, 1e-30))[:, None]
        half = _sum_over(lambda g: root[:, g, None] * cloud.gram[g][None])
        gram = _sum_over(lambda g: half[:, None, g] * root[None, :, g])
        axis = _top_eigenvector(gram)
        merged = axis / jnp.sqrt(jnp.where(mass > 0, mass, 1))
        position = _sum_over(lambda g: collect[g] * merged[g])
        length = position[0] - position[1]
        theta = (position[2:] - position[1]) / jnp.where(length == 0, 1, length)
        theta = jnp.where((cloud.mass[2:] > 0) & (length != 0), theta, 0)
        explained = _sum_over(lambda g: axis[g] * _sum_over(lambda h: gram[g, h] * axis[h]))
        return theta, jnp.where(jnp.all((theta >= 0) & (theta <= 1)), explained * tie_break, -1)

    # One merge after the other: with all at once XLA takes their number, nine, for the length of its vectors.
    each = [jnp.asarray(x, cloud.gram.dtype)[merges] for x in (_COLLECT, _TIE_BREAK)]
    theta, score = jax.lax.map(one, tuple(each))
    return theta[jnp.argmax(score)]


def correlated(cloud: Cloud, overlap: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether S+ and S- differ significantly (5 %), without which T is not identifiable, by whatever rule.

    If none differs, the sum of the d chi-squares has mean d and variance 2 tr(R^2), where R has the correlations of the
    partners with each other: with d copies of one label it is d times one chi-square. So it is compared with the
    multiple of a chi-square that has this mean and variance; `overlap` is the mean squared correlation of two partners.

    References:
      Satterthwaite, "An approximate distribution of estimates of variance components", 1946.
    """
    dimension = jnp.maximum(cloud.dimension, 1)
    factor = 1 + (dimension - 1) * overlap  # tr(R^2) / d
    p_value = _chi_square_tail(cloud.contrast / factor, dimension / factor)
    return (p_value < _LEVEL) & (cloud.dimension > 0)


def _chi_square_tail(x: Float[Array, ""], freedom: Float[Array, ""]) -> Float[Array, ""]:
    """P(a chi-square exceeds x); from 1,000 degrees of freedom on by the cube root of Wilson and Hilferty (1931).

    In float32 the incomplete gamma function is off by 0.0003 there and by 0.24 at 670,000, the cube root by 0.0001.
    """
    exact = jax.scipy.special.gammaincc(jnp.minimum(freedom, _LARGE) / 2, x / 2)
    variance = 2 / (9 * freedom)
    root = jnp.cbrt(jnp.maximum(x, 0) / freedom)
    return jnp.where(freedom < _LARGE, exact, jax.scipy.stats.norm.sf((root - 1 + variance) / jnp.sqrt(variance)))


def overlaps(clouds: Cloud) -> Float[Array, "q"]:
    """Mean squared correlation of two partners of each class, from the clouds of *all* q classes.

    A cloud has the correlations of its class with the partners: the given positives are S+ and U+. The 1 / n that
    chance adds to a squared correlation is subtracted.
    """
    on = jnp.sqrt(clouds.mass) * jnp.array([[1, 0, 1, 0]], clouds.mass.dtype)
    total, positives = jnp.sum(clouds.mass, axis=1), clouds.mass[:, 0] + clouds.mass[:, 2]
    varied = positives * (total - positives)
    explained = jnp.einsum("jg,jgh,jh->j", on, clouds.gram, on) / jnp.maximum(varied, 1)
    pairs = jnp.where(varied > 0, clouds.dimension, 0)
    squared = jnp.where(varied > 0, explained - pairs / jnp.maximum(total, 1), 0)
    # All pairs but those of the class itself, as class and as partner.
    mean = (jnp.sum(squared) - 2 * squared) / jnp.maximum(jnp.sum(pairs) - 2 * pairs, 1)
    return jnp.clip(mean, 0, 1)


def rates(mass: Float[Array, "4"], theta: Float[Array, "2"]) -> tuple[Float[Array, "2"], Float[Array, ""]]:
    """(rho_neg, rho_pos) and the prior from the group sizes and the shares of clean positives in U+ and U-."""
    total = jnp.sum(mass)
    positives = mass[0] + theta @ mass[2:]
    rho_neg = (1 - theta[0]) * mass[2] / jnp.maximum(total - positives, 1e-30)
    rho_pos = theta[1] * mass[3] / jnp.maximum(positives, 1e-30)
    return jnp.stack([rho_neg, rho_pos]), positives / jnp.maximum(total, 1)


def shares(mass: Float[Array, "4"], rates: Float[Array, "2"], prior: Float[Array, ""]) -> Float[Array, "2"]:
    """The inverse of `rates`: shares of clean positives in (U+, U-), not bounded; 0 for an empty group."""
    positives = prior * jnp.sum(mass)
    kept = positives * (1 - rates[1])
    inside = jnp.stack([kept - mass[0], positives - kept])
    return inside / jnp.where(mass[2:] > 0, mass[2:], jnp.inf)


def misfit(cloud: Cloud, theta: Float[Array, "2"]) -> Float[Array, ""]:
    """Chi-square of the group means about the best line with these shares, per degree of freedom."""
    position = jnp.concatenate([jnp.array([1, 0], theta.dtype), theta])
    total = jnp.maximum(jnp.sum(cloud.mass), 1)
    axis = jnp.sqrt(cloud.mass) * (position - cloud.mass @ position / total)
    explained = axis @ cloud.gram @ axis / jnp.maximum(axis @ axis, 1e-30)
    free = cloud.dimension * jnp.sum(cloud.mass[2:] > 0).astype(cloud.dimension.dtype)
    return jnp.maximum(jnp.trace(cloud.gram) - explained, 0) / jnp.maximum(free, 1)


def _top_eigenvector(gram: Float[Array, "4 4"]) -> Float[Array, "4"]:
    """Unit eigenvector of the largest eigenvalue, by repeated squaring: differentiable, and fast when vmapped."""

    def square(_: Any, power: tuple[Array, ...]) -> tuple[Array, ...]:
        size = _sum_over(lambda g: power[_entry(g, g)])
        power = tuple(x / jnp.where(size > 0, size, 1) for x in power)
        return tuple(_sum_over(lambda k: power[_entry(g, k)] * power[_entry(k, h)]) for g, h in _UPPER)  # noqa: B023

    power = jax.lax.fori_loop(0, _SQUARINGS, square, tuple(gram[g, h] for g, h in _UPPER))
    size, vector = power[0], [power[_entry(g, 0)] for g in range(4)]
    for h in range(1, 4):
        larger = power[_entry(h, h)] > size
        size = jnp.where(larger, power[_entry(h, h)], size)
        vector = [jnp.where(larger, power[_entry(g, h)], vector[g]) for g in range(4)]
    norm = jnp.sqrt(_sum_over(lambda g: vector[g] ** 2))
    return jnp.stack(vector) / jnp.where(norm > 0, norm, 1)


def _entry(g: int, h: int) -> int:
    """Index of entry (g, h) of a symmetric matrix in `_UPPER`."""
    return _UPPER.index((min(g, h), max(g, h)))


def _sum_over(term: Callable[[int], Array]) -> Array:
    """Sum of `term` over the four groups, unrolled: XLA runs thousands of 4 x 4 products 30 times faster this way."""
    return term(0) + term(1) + term(2) + term(3)
