"""The joint rule: for one class, the four groups of examples lie on one line in the space of the partners' labels.

Let `mu_g` in R^q be how often each partner label is on in group g of class j: selected positives (S+) and negatives
(S-), unselected positives (U+) and negatives (U-). If the selected labels are clean and noise is class-dependent,
S+ shows `P(noisy_i = 1 | clean_j = 1)`, S- the same for `clean_j = 0`, and each unselected group is a mixture of the
two: `mu_U = (1 - theta) mu_S- + theta mu_S+` with theta in [0, 1] its share of clean positives. So the four points lie
on a line, and where U+ and U- lie on it gives everything: with sizes n_g,

    positives = n_S+ + theta_+ n_U+ + theta_- n_U-        prior = positives / n
    rho_neg = (1 - theta_+) n_U+ / (n - positives)        rho_pos = theta_- n_U- / positives

The groups are disjoint, so their errors are independent, about `m_i (1 - m_i) / n_g` in coordinate i: in units of
`sqrt(m_i (1 - m_i))` the maximum-likelihood line is the first principal axis of the four points with masses n_g.
A theta outside [0, 1] is pulled to its end by merging that group with S+ or S-. The paper's pairwise systems are the
projections of these equations on one coordinate; least squares on them (errors in b - a ignored, or corrected as if
independent) is biased because b, e and m_i share examples.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# Where U+ and U- go (0: S+, 1: S-, or themselves), all nine ways; row g of each matrix collects group g's members.
_MEMBERS = np.array([(0, 1, u_pos, u_neg) for u_pos in (2, 0, 1) for u_neg in (3, 0, 1)])
_MERGES = np.swapaxes(np.eye(4)[_MEMBERS], 1, 2)
_SQUARINGS = 12
# Chance that labels without any correlation pass as correlated; and the 95 % point of one partner's chi-square.
_CHANCE, _CHI2_95 = 0.05, 3.841


class Cloud(NamedTuple):
    """Group means of one class as far as the line needs them."""

    mass: Float[Array, "4"]  # n_g
    gram: Float[Array, "4 4"]  # inner products of sqrt(n_g) (mu_g - mean), in units of each partner's spread
    dimension: Float[Array, ""]  # number of partners with any spread
    contrast: Float[Array, "q"]  # chi-square (1 degree of freedom) of S+ against S-, per partner


def group_cloud(ones: Float[Array, "4 q"], totals: Float[Array, "4 #q"], asked: Bool[Array, "q"]) -> Cloud:
    """The cloud of one class from how often each partner is on in each group, and out of how many."""
    mass = jnp.mean(totals, axis=1)
    share = jnp.sum(ones, axis=0) / jnp.maximum(jnp.sum(totals, axis=0), 1)
    spread = share * (1 - share)
    scale = jnp.where(asked & (spread > 0), 1 / jnp.sqrt(jnp.where(spread > 0, spread, 1)), 0)
    mean = ones / jnp.maximum(totals, 1)
    centre = mass @ mean / jnp.maximum(jnp.sum(mass), 1)
    points = (mean - centre[None]) * scale[None]
    gap = (mass[0] * mass[1] / jnp.maximum(mass[0] + mass[1], 1)) * ((mean[0] - mean[1]) * scale) ** 2
    root = jnp.sqrt(mass)
    gram = (points @ points.T) * (root[:, None] * root[None])
    return Cloud(mass, gram, jnp.sum(scale > 0).astype(ones.dtype), gap)


def fit(cloud: Cloud, *, bounded: bool = True) -> Float[Array, "2"]:
    """Shares of clean positives in (U+, U-); 0 for an empty group. `bounded=False` leaves out theta in [0, 1]."""
    merge = jnp.asarray(_MERGES if bounded else _MERGES[:1], cloud.gram.dtype)
    members = jnp.asarray(_MEMBERS if bounded else _MEMBERS[:1])
    mass = merge @ cloud.mass
    root = jnp.sqrt(cloud.mass)[None, None] * merge / jnp.sqrt(jnp.maximum(mass, 1e-30))[:, :, None]
    gram = root @ cloud.gram @ jnp.swapaxes(root, 1, 2)
    axis = _top_eigenvector(gram)
    place = jnp.take_along_axis(axis / jnp.sqrt(jnp.where(mass > 0, mass, 1)), members, axis=1)
    length = place[:, 0] - place[:, 1]
    theta = (place[:, 2:] - place[:, 1:2]) / jnp.where(length == 0, 1, length)[:, None]
    theta = jnp.where((cloud.mass[None, 2:] > 0) & (length != 0)[:, None], theta, 0)
    inside = jnp.all((theta >= 0) & (theta <= 1), axis=1)
    explained = jnp.einsum("wg,wgh,wh->w", axis, gram, axis)
    return theta[jnp.argmax(jnp.where(inside, explained, -1))]


def correlated(cloud: Cloud) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    """Whether S+ and S- differ beyond chance (5 %), without which nothing is identified; how many partners do."""
    above_chance = jax.scipy.special.gammaincc(jnp.maximum(cloud.dimension, 1) / 2, jnp.sum(cloud.contrast) / 2)
    return (above_chance < _CHANCE) & (cloud.dimension > 0), jnp.sum(cloud.contrast > _CHI2_95)


def rates(mass: Float[Array, "4"], theta: Float[Array, "2"]) -> tuple[Float[Array, "2"], Float[Array, ""]]:
    """(rho_neg, rho_pos) and the prior from the group sizes and the shares of clean positives in U+ and U-."""
    total = jnp.sum(mass)
    positives = mass[0] + theta @ mass[2:]
    rho_neg = (1 - theta[0]) * mass[2] / jnp.maximum(total - positives, 1e-30)
    rho_pos = theta[1] * mass[3] / jnp.maximum(positives, 1e-30)
    return jnp.stack([rho_neg, rho_pos]), positives / jnp.maximum(total, 1)


def shares(mass: Float[Array, "4"], rates: Float[Array, "2"], prior: Float[Array, ""]) -> Float[Array, "2"]:
    """The inverse of `rates`: the shares that a solution implies, unconstrained; 0 for an empty group."""
    positives = prior * jnp.sum(mass)
    kept = positives * (1 - rates[1])
    inside = jnp.stack([kept - mass[0], positives - kept])
    return inside / jnp.where(mass[2:] > 0, mass[2:], jnp.inf)


def misfit(cloud: Cloud, theta: Float[Array, "2"]) -> Float[Array, ""]:
    """Squared distance of the group means from the best line with these shares, per degree of freedom."""
    place = jnp.concatenate([jnp.array([1, 0], theta.dtype), theta])
    total = jnp.maximum(jnp.sum(cloud.mass), 1)
    axis = jnp.sqrt(cloud.mass) * (place - cloud.mass @ place / total)
    explained = axis @ cloud.gram @ axis / jnp.maximum(axis @ axis, 1e-30)
    free = cloud.dimension * jnp.sum(cloud.mass[2:] > 0).astype(cloud.dimension.dtype)
    return jnp.maximum(jnp.trace(cloud.gram) - explained, 0) / jnp.maximum(free, 1)


def _top_eigenvector(gram: Float[Array, "way 4 4"]) -> Float[Array, "way 4"]:
    """Unit vectors of the largest eigenvalues, by repeated squaring: smooth, and cheap for thousands of classes."""
    power = gram
    for _ in range(_SQUARINGS):
        size = jnp.trace(power, axis1=1, axis2=2)
        power = power / jnp.where(size > 0, size, 1)[:, None, None]
        power = power @ power
    column = jnp.argmax(jnp.diagonal(power, axis1=1, axis2=2), axis=1)
    vector = jnp.take_along_axis(power, column[:, None, None], axis=2)[:, :, 0]
    norm = jnp.sqrt(jnp.sum(vector**2, axis=1, keepdims=True))
    return vector / jnp.where(norm > 0, norm, 1)
