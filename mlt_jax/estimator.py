"""Transition matrices of all classes from co-occurrence tables: the paper's Algorithm 1, stage 2, and a better rule.

`T[j, clean, noisy]`, rows sum to 1; `rho_neg = T[j, 0, 1]`, `rho_pos = T[j, 1, 0]`.
"""

from enum import IntEnum
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from mlt_jax import lines
from mlt_jax.cooccurrence import Tables, count_checked
from mlt_jax.labels import as_labels, as_mask
from mlt_jax.selection import check_assume

AGGREGATES = ("joint", "medoid", "residual", "mean", "first")

# Rows of classes solved at once; bounds the memory of the q x q intermediate results.
_BLOCK = 256


class Status(IntEnum):
    """How a class's T came about.

    A guess is what the rule gives all the same where that is a valid T; else the T that counts every unselected label
    as wrong; else (a selection that leaves out most of a class says nothing) the identity.
    """

    CORRELATION = 0  # from label correlations
    FALLBACK = 1  # from the `fallback` array, for one of the two reasons below
    TOO_FEW = 2  # fewer than `min_selected` selected positives or negatives; T is a guess
    UNIDENTIFIABLE = 3  # correlations are not beyond chance, or no partner gave a valid system; T is a guess
    POSTERIOR = 4  # from the ends of the predicted posterior, see `asymptotes`


class TransitionEstimate(NamedTuple):
    """Estimated noise of q classes; T, prior, status, partners and residual are never NaN."""

    T: Float[Array, "q 2 2"]  # T[j, clean, noisy]
    prior: Float[Array, "q"]  # P(clean_j = 1)
    stderr: Float[Array, "q 2"]  # of rho_neg, rho_pos; NaN unless asked for, or where T is not from correlations
    status: Int[Array, "q"]  # see `Status`
    partners: Int[Array, "q"]  # joint: partners correlated with j at 95 %; else: partners with a valid system
    residual: Float[Array, "q"]  # misfit per degree of freedom over all partners; 1 is sampling noise alone

    @property
    def rho_neg(self) -> Float[Array, "q"]:
        """P(noisy_j = 1 | clean_j = 0)."""
        return self.T[:, 0, 1]

    @property
    def rho_pos(self) -> Float[Array, "q"]:
        """P(noisy_j = 0 | clean_j = 1)."""
        return self.T[:, 1, 0]

    def interval(self, level: float = 0.95) -> Float[Array, "q 2 2"]:
        """Intervals `[j, rate, end]` of rho_neg and rho_pos: estimate -+ z * stderr, cut to [0, 1]."""
        z = NormalDist().inv_cdf((1 + level) / 2)
        rates = jnp.stack([self.rho_neg, self.rho_pos], axis=1)
        return jnp.clip(jnp.stack([rates - z * self.stderr, rates + z * self.stderr], axis=2), 0, 1)

    def save(self, path: str | Path) -> None:
        """Writes one npz file, without pickle."""
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in self._asdict().items()}
        with open(path, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "TransitionEstimate":
        """Reads what `save` wrote."""
        with np.load(path, allow_pickle=False) as archive:
            missing = set(cls._fields) - set(archive.files)
            if missing:
                raise ValueError(
                    f"path: {path} has no {sorted(missing)}; pass a file written by TransitionEstimate.save"
                )
            return cls(**{name: jnp.asarray(archive[name]) for name in cls._fields})


class Pair(NamedTuple):
    """Solution of one 2x2 system."""

    rho_neg: Float[Array, "*batch"]
    rho_pos: Float[Array, "*batch"]
    prior: Float[Array, "*batch"]
    defined: Bool[Array, "*batch"]  # False where a denominator vanishes; the other fields are then 0


def estimate_pair(m_j: Any, m_i: Any, e: Any, a: Any, b: Any) -> Pair:
    """Rates and prior of class j from its co-occurrence with one partner i (labels eq6 and eq7), unconstrained.

    Scalars or arrays of one shape: `m_j = P(noisy_j = 1)`, `m_i = P(noisy_i = 1)`, `e = P(noisy_j = 1, noisy_i = 1)`
    and, over the examples selected as clean for j, `a = P(noisy_i = 1 | clean_j = 0)`, `b` the same for `clean_j = 1`.
    """
    prior, correlated = _divide(m_i - a, b - a)
    v, _ = _divide(e - a * m_j, b - a)  # P(clean_j = 1, noisy_j = 1)
    rho_neg, below_one = _divide(m_j - v, 1 - prior)
    kept, above_zero = _divide(v, prior)
    defined = correlated & below_one & above_zero
    rho_neg, rho_pos, prior = (jnp.where(defined, x, 0) for x in (rho_neg, 1 - kept, prior))
    return Pair(rho_neg, rho_pos, prior, defined)


def estimate_all(
    labels: Any,
    selected: Any,
    *,
    aggregate: str = "joint",
    assume: str = "general",
    num_partners: int | None = None,
    key: PRNGKeyArray | None = None,
    fallback: Any = None,
    min_selected: int = 50,
    stderr: bool = False,
    observed: Any = None,
    coding: str = "01",
) -> TransitionEstimate:
    """Transition matrices of all q classes from noisy labels and the labels taken as clean.

    Args:
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
      selected: (n, q) bool, for each class the examples whose label is taken as clean (see `select_clean`).
      aggregate: how the systems of the partners become one T. `"joint"` fits them all at once (see `lines`);
        `"medoid"` is the paper's rule (label final); `"residual"` the released code's; `"mean"` and `"first"` (R = 1)
        are the paper's ablations.
      assume: `"missing"` if no given positive is wrong (rho_neg is 0), `"partial"` if no given negative is.
      num_partners: R, how many partners each class uses, drawn with `key`; all q - 1 by default.
      key: also shuffles the order in which `"first"` tries the partners.
      fallback: (q, 2, 2) used for the classes that have no estimate of their own, such as `dual_t(probs, labels)`.
      min_selected: least number of selected positives, and of selected negatives.
      stderr: also return standard errors (see `uncertainty`).
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    mask = as_mask(selected, checked, name="selected")
    tables = count_checked(checked, mask)
    rule: dict[str, Any] = dict(aggregate=aggregate, assume=assume, num_partners=num_partners, key=key)
    estimate = estimate_from_tables(tables, fallback=fallback, min_selected=min_selected, **rule)
    if not stderr:
        return estimate
    from mlt_jax import uncertainty  # it builds on this module

    errors = uncertainty.standard_errors(tables, checked, mask, **rule)
    known = estimate.status == Status.CORRELATION
    return estimate._replace(stderr=jnp.where(known[:, None], errors, jnp.nan))


def estimate_from_tables(
    tables: Tables,
    *,
    aggregate: str = "joint",
    assume: str = "general",
    num_partners: int | None = None,
    key: PRNGKeyArray | None = None,
    fallback: Any = None,
    min_selected: int = 50,
) -> TransitionEstimate:
    """`estimate_all` from counted tables (see `cooccurrence.count`); `stderr` is NaN, as it needs the labels."""
    rank = partner_ranks(tables, aggregate=aggregate, assume=assume, num_partners=num_partners, key=key)
    q = len(tables.both)
    other = None if fallback is None else as_transition(fallback, q, name="fallback")
    return _estimate(tables, rank, other, aggregate=aggregate, assume=assume, min_selected=min_selected)


def as_transition(T: Any, num_classes: int, *, name: str = "T") -> Float[Array, "q 2 2"]:
    """T as a checked (q, 2, 2) array of row-stochastic matrices."""
    array = np.asarray(T, float)
    if array.shape != (num_classes, 2, 2):
        raise ValueError(f"{name}: shape {array.shape}; pass ({num_classes}, 2, 2), T[j, clean, noisy]")
    bad = ~((array >= 0).all((1, 2)) & np.isclose(array.sum(2), 1, atol=1e-4).all(1))
    if bad.any():
        j = int(bad.argmax())
        raise ValueError(f"{name}: class {j} is {array[j].tolist()}; pass rows of probabilities that sum to 1")
    return jnp.asarray(array, jnp.result_type(float))


def partner_ranks(
    tables: Tables, *, aggregate: str, assume: str, num_partners: int | None, key: PRNGKeyArray | None
) -> Int[Array, "#q q"]:
    """In which order class j asks its partners, (q, q), or (1, q) when all classes ask in the same; q is never."""
    if aggregate not in AGGREGATES:
        raise ValueError(f"aggregate: {aggregate!r}; pass one of {', '.join(AGGREGATES)}")
    check_assume(assume)
    q = len(tables.both)
    everyone = jnp.arange(q)[None]
    if num_partners is None and (key is None or aggregate != "first"):
        return everyone
    if num_partners is not None and not 1 <= num_partners <= max(q - 1, 1):
        raise ValueError(f"num_partners: {num_partners}; pass 1 to {q - 1}, one less than the number of classes")
    if key is None:
        raise ValueError(f"key: None; num_partners={num_partners} draws partners, pass jax.random.key(seed)")
    draw = jax.random.uniform(key, (q, q)) + jnp.eye(q)
    rank = jnp.argsort(jnp.argsort(draw, axis=1), axis=1)
    return jnp.where(rank < (q - 1 if num_partners is None else num_partners), rank, q)


class Solution(NamedTuple):
    """What one class's partners say."""

    rates: Float[Array, "*batch 2"]  # rho_neg, rho_pos
    prior: Float[Array, "*batch"]
    partners: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    valid: Bool[Array, "*batch"]  # rates are finite and sum to less than 1
    identified: Bool[Array, "*batch"]  # and the correlations that gave them are beyond chance


def solve_class(
    ones: Float[Array, "4 q"],
    totals: Float[Array, "4 #q"],
    rank: Int[Array, "q"],
    *,
    aggregate: str,
    bounded: bool = True,
) -> Solution:
    """Rates of one class from how often each partner is on, in the four groups of examples (see `Tables.groups`).

    `bounded=False` leaves out what pulls an estimate to an end of its range, which would hide its error.
    """
    asked = rank < rank.shape[0]
    cloud = lines.group_cloud(ones, totals, asked)
    if aggregate == "joint":
        theta = lines.fit(cloud, bounded=bounded)
        rates, prior = lines.rates(cloud.mass, theta)
        identified, partners = lines.correlated(cloud)
        valid = cloud.dimension > 0
    else:
        rates, prior, partners = _from_pairs(ones, totals, rank, aggregate=aggregate, bounded=bounded)
        theta = lines.shares(cloud.mass, rates, prior)
        identified = valid = partners > 0
    valid &= jnp.all(jnp.isfinite(rates)) & (jnp.sum(rates) < 1)
    return Solution(rates, prior, partners, lines.misfit(cloud, theta), valid, valid & identified)


def class_groups(tables: Tables, assume: str) -> tuple[Int[Array, "4 rows q"], Int[Array, "4 rows #p"]]:
    """`Tables.groups` under an assumption: a side that has no noise is selected whole."""
    merge = {"general": jnp.eye(4, dtype=jnp.int32)}
    merge["missing"] = merge["general"].at[0, 2].set(1).at[2, 2].set(0)
    merge["partial"] = merge["general"].at[1, 3].set(1).at[3, 3].set(0)
    ones, totals = (jnp.tensordot(merge[assume], group, 1) for group in tables.groups())
    return ones, totals


@partial(jax.jit, static_argnames=("aggregate", "assume"))
def _estimate(
    tables: Tables,
    rank: Int[Array, "#q q"],
    fallback: Float[Array, "q 2 2"] | None,
    *,
    aggregate: str,
    assume: str,
    min_selected: int | Int[Array, ""],
) -> TransitionEstimate:
    solution = map_classes(partial(solve_class, aggregate=aggregate), tables, rank, assume)
    sizes = jnp.max(class_groups(tables, assume)[1], axis=2).T.astype(solution.rates.dtype)
    enough = jnp.all(sizes[:, :2] >= min_selected, axis=1)
    reason = jnp.where(enough, Status.UNIDENTIFIABLE, Status.TOO_FEW)
    solved = enough & solution.identified
    trusting = jax.vmap(lines.rates, in_axes=(0, None))(sizes, jnp.array([0, 1], sizes.dtype))[0]
    trusting = jnp.where(jnp.sum(trusting, axis=1, keepdims=True) < 1, trusting, 0)
    from_rule = solution.valid if fallback is None else solved
    other = as_matrices(trusting) if fallback is None else fallback
    T = jnp.where(from_rule[:, None, None], as_matrices(solution.rates), other)
    frequency = (sizes[:, 0] + sizes[:, 2]) / jnp.sum(sizes, axis=1)
    return TransitionEstimate(
        T=T,
        prior=jnp.where(from_rule, solution.prior, implied_prior(T, frequency)),
        stderr=jnp.full(solution.rates.shape, jnp.nan, T.dtype),
        status=jnp.where(solved, Status.CORRELATION, reason if fallback is None else Status.FALLBACK).astype(jnp.int32),
        partners=solution.partners.astype(jnp.int32),
        residual=jnp.where(from_rule, solution.residual, 0),
    )


def implied_prior(T: Float[Array, "q 2 2"], frequency: Float[Array, "q"]) -> Float[Array, "q"]:
    """P(clean = 1) that T makes of the observed P(noisy = 1), cut to [0, 1]."""
    spread = T[:, 1, 1] - T[:, 0, 1]
    return jnp.clip((frequency - T[:, 0, 1]) / jnp.where(jnp.abs(spread) > 1e-3, spread, 1), 0, 1)


def as_matrices(rates: Float[Array, "q 2"]) -> Float[Array, "q 2 2"]:
    """T from rates (rho_neg, rho_pos); a rate below 0 is 0."""
    rho_neg, rho_pos = jnp.where(rates > 0, rates, 0).T  # also turns -0 into 0
    return jnp.stack([jnp.stack([1 - rho_neg, rho_neg], 1), jnp.stack([rho_pos, 1 - rho_pos], 1)], 1)


def map_classes(solve: Any, tables: Tables, rank: Int[Array, "#q q"], assume: str) -> Any:
    """`solve(ones, totals, rank)` of every class: vmapped, in blocks that bound memory."""
    q = len(tables.both)
    dtype = jnp.result_type(float)

    def one(j: Int[Array, ""]) -> Any:
        row = Tables(*(table[jnp.minimum(j, len(table) - 1)][None] for table in tables))
        ones, totals = (group[:, 0].astype(dtype) for group in class_groups(row, assume))
        ranks = rank[jnp.minimum(j, len(rank) - 1)]
        return solve(ones, totals, jnp.where(jnp.arange(q) == j, q, ranks))

    return jax.lax.map(one, jnp.arange(q), batch_size=min(_BLOCK, q))


def _from_pairs(
    ones: Float[Array, "4 q"], totals: Float[Array, "4 #q"], rank: Int[Array, "q"], *, aggregate: str,
    bounded: bool,
) -> tuple[Float[Array, "2"], Float[Array, ""], Int[Array, ""]]:  # fmt: skip
    """Rates and prior by one of the rules that choose among, or average, the partners' own solutions."""
    q = ones.shape[1]
    asked = rank < q
    total = jnp.sum(totals, axis=0)
    safe = jnp.maximum(totals, 1)
    a, b = ones[1] / safe[1], ones[0] / safe[0]
    m_j = jnp.broadcast_to((totals[0] + totals[2]) / jnp.maximum(total, 1), (q,))
    pair = estimate_pair(m_j, jnp.sum(ones, axis=0) / jnp.maximum(total, 1),
                         (ones[0] + ones[2]) / jnp.maximum(total, 1), a, b)  # fmt: skip
    raw = jnp.stack([pair.rho_neg, pair.rho_pos])
    rates = jnp.where((raw < 0) & (raw > -0.3 / q), 0, raw)  # a hair below zero is zero, as in the released code
    inside = jnp.all((rates >= 0) & (rates <= 1), axis=0) & (jnp.sum(rates, axis=0) < 1)
    valid = asked & pair.defined & (pair.prior >= 0) & (pair.prior <= 1) & inside
    partners = jnp.sum(valid)
    if aggregate == "mean":
        share = valid.astype(rates.dtype) / jnp.maximum(partners, 1).astype(rates.dtype)
        return rates @ share, pair.prior @ share, partners
    if aggregate == "first":
        chosen = jnp.argmin(jnp.where(valid, rank, q))
    else:
        weight = valid.astype(rates.dtype)
        if aggregate == "residual":
            weight = jnp.where(asked & pair.defined, jnp.abs(pair.prior * (1 - pair.prior) * (b - a)), 0)
        # Candidates lie in [0, 1], so cutting the others to it moves every sum of distances by the same constant.
        spread = sum(_sum_of_distances(jnp.clip(x, 0, 1), weight) for x in (rates if aggregate == "medoid" else raw))
        chosen = jnp.argmin(jnp.where(valid, spread, jnp.inf))
    return (rates if bounded else raw)[:, chosen], pair.prior[chosen], partners


def _sum_of_distances(x: Float[Array, "q"], weight: Float[Array, "q"]) -> Float[Array, "q"]:
    """`sum_i weight_i |x_r - x_i|` for every r, by one sort and prefix sums."""
    order = jnp.argsort(x)
    x, weight = x[order], weight[order]
    below, moment = jnp.cumsum(weight), jnp.cumsum(weight * x)
    distance = x * (2 * below - below[-1]) - (2 * moment - moment[-1])
    return jnp.zeros_like(distance).at[order].set(distance)


def _divide(x: Float[Array, "*s"], y: Float[Array, "*s"]) -> tuple[Float[Array, "*s"], Bool[Array, "*s"]]:
    """x / y and where it is defined; 0 elsewhere, with finite gradients."""
    x, y = jnp.asarray(x), jnp.asarray(y)
    ok = jnp.abs(y) > jnp.finfo(y.dtype).eps
    return jnp.where(ok, x, 0) / jnp.where(ok, y, 1), ok
