"""Transition matrices of all classes from co-occurrence tables: the paper's Algorithm 1, stage 2, and a better rule.

`T[j, clean, noisy]`, rows sum to 1; `rho_neg = T[j, 0, 1]`, `rho_pos = T[j, 1, 0]`.
"""

from collections.abc import Iterable
from enum import IntEnum
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from mlt_jax import lines
from mlt_jax.cooccurrence import Tables, as_selected, check_selection, count_checked, is_all_sparse
from mlt_jax.labels import as_labels
from mlt_jax.pairs import Choice, Groups, choose, estimate_pair
from mlt_jax.selection import check_assume

__all__ = ["AGGREGATES", "Status", "TransitionEstimate", "estimate_all", "estimate_from_tables", "estimate_pair"]

AGGREGATES = ("joint", "medoid", "residual", "mean", "first")

# Classes that the rules over partners solve at once; bounds the memory of what they hold per pair.
_BLOCK = 16


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


def estimate_all(
    labels: Any,
    selected: Any = None,
    *,
    unselected: Any = None,
    aggregate: str = "joint",
    assume: str = "general",
    num_partners: int | None = None,
    key: PRNGKeyArray | None = None,
    fallback: Any = None,
    min_selected: int = 50,
    stderr: bool = False,
    observed: Any = None,
    coding: str = "01",
    mesh: Mesh | None = None,
    max_memory: int = 2**30,
) -> TransitionEstimate:
    """Transition matrices of all q classes from noisy labels and the labels taken as clean.

    Args:
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`; scipy.sparse stays so.
      selected: (n, q) bool, for each class the examples whose label is taken as clean (see `select_clean`).
      unselected: (n, q), the cells that are not, in place of `selected`; with sparse labels give the smaller, sparse.
      aggregate: how the systems of the partners become one T. `"joint"` fits them all at once (see `lines`);
        `"medoid"` is the paper's rule (label final); `"residual"` the released code's; `"mean"` and `"first"` (R = 1)
        are the paper's ablations.
      assume: `"missing"` if no given positive is wrong (rho_neg is 0), `"partial"` if no given negative is.
      num_partners: R, how many partners each class uses, drawn with `key`; all q - 1 by default.
      key: also shuffles the order in which `"first"` tries the partners.
      fallback: (q, 2, 2) used for the classes that have no estimate of their own, such as `dual_t(probs, labels)`.
      min_selected: least number of selected positives, and of selected negatives.
      stderr: also return standard errors (see `uncertainty`); these need the whole tables, and more.
      mesh: classes are spread over the devices of this mesh.
      max_memory: bytes for tables of sparse labels; if all q x q do not fit, classes are done in blocks.
    """
    check_selection(selected, unselected)
    rule: dict[str, Any] = dict(aggregate=aggregate, assume=assume, num_partners=num_partners, key=key)
    more: dict[str, Any] = dict(fallback=fallback, min_selected=min_selected, mesh=mesh)
    checked: Any
    mask: Any
    if is_all_sparse(labels, observed, coding):
        from mlt_jax import sparse  # scipy.sparse is not needed for the rest

        checked = sparse.as_sparse_labels(labels)
        mask = sparse.as_sparse_mask(selected, unselected, checked)
        if not stderr:
            return _estimate_blocks(
                sparse.count_blocks(checked, mask, max_memory=max_memory), labels.shape[1], rule, more
            )
        tables = sparse.count_sparse(checked, mask)
    else:
        checked = as_labels(labels, coding=coding, observed=observed)
        mask = as_selected(selected, unselected, checked)
        tables = count_checked(checked, mask)
    estimate = estimate_from_tables(tables, **rule, **more)
    if not stderr:
        return estimate
    from mlt_jax import uncertainty  # it builds on this module

    errors = uncertainty.standard_errors(tables, checked, mask, **rule)
    known = estimate.status == Status.CORRELATION
    return estimate._replace(stderr=jnp.where(known[:, None], errors, jnp.nan))


def _estimate_blocks(
    blocks: Iterable[tuple[np.ndarray, Tables]], num_classes: int, rule: dict[str, Any], more: dict[str, Any]
) -> TransitionEstimate:
    """Estimates of all classes, whose tables come a block of classes at a time."""
    rank = partner_ranks(num_classes, **rule)
    fallback = more["fallback"]
    other = None if fallback is None else as_transition(fallback, num_classes, name="fallback")
    options: dict[str, Any] = dict(
        aggregate=rule["aggregate"], assume=rule["assume"], min_selected=more["min_selected"]
    )
    out: dict[str, np.ndarray] = {}
    for classes, tables in blocks:
        ranks = rank if len(rank) == 1 else rank[classes]
        found = solve_rows(tables, ranks, None if other is None else other[classes], jnp.asarray(classes),
                           mesh=more["mesh"], **options)  # fmt: skip
        for name, value in found._asdict().items():  # reading it also waits until the tables are no longer needed
            rows = np.asarray(value)
            out.setdefault(name, np.empty((num_classes, *rows.shape[1:]), rows.dtype))[classes] = rows
    return TransitionEstimate(**{name: jnp.asarray(value) for name, value in out.items()})


def estimate_from_tables(
    tables: Tables,
    *,
    aggregate: str = "joint",
    assume: str = "general",
    num_partners: int | None = None,
    key: PRNGKeyArray | None = None,
    fallback: Any = None,
    min_selected: int = 50,
    mesh: Mesh | None = None,
) -> TransitionEstimate:
    """`estimate_all` from counted tables (see `cooccurrence.count`); `stderr` is NaN, as it needs the labels."""
    q = len(tables.both)
    rank = partner_ranks(q, aggregate=aggregate, assume=assume, num_partners=num_partners, key=key)
    other = None if fallback is None else as_transition(fallback, q, name="fallback")
    options: dict[str, Any] = dict(aggregate=aggregate, assume=assume, min_selected=min_selected)
    return solve_rows(tables, rank, other, jnp.arange(q), mesh=mesh, **options)


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
    q: int, *, aggregate: str, assume: str, num_partners: int | None, key: PRNGKeyArray | None
) -> Int[Array, "#q q"]:
    """In which order class j asks its partners, (q, q), or (1, q) when all classes ask in the same; q is never."""
    if aggregate not in AGGREGATES:
        raise ValueError(f"aggregate: {aggregate!r}; pass one of {', '.join(AGGREGATES)}")
    check_assume(assume)
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
    ones: Groups, totals: Float[Array, "4 #q"], rank: Int[Array, "q"], *, aggregate: str, bounded: bool = True
) -> Solution:
    """Rates of one class from how often each partner is on, in the four groups of examples (see `Tables.groups`).

    `bounded=False` leaves out what pulls an estimate to an end of its range, which would hide its error.
    """
    cloud = lines.group_cloud(ones, totals, rank < rank.shape[0])
    choice = None if aggregate == "joint" else choose(ones, totals, rank, aggregate=aggregate, bounded=bounded)
    return conclude(cloud, choice, bounded=bounded)


def conclude(cloud: lines.Cloud, choice: Choice | None, *, bounded: bool = True) -> Solution:
    """The solution of one class: the line through its cloud, or what a rule chose among the partners' own solutions."""
    if choice is None:
        theta = lines.fit(cloud, bounded=bounded)
        rates, prior = lines.rates(cloud.mass, theta)
        identified, partners = lines.correlated(cloud)
        valid = cloud.dimension > 0
    else:
        rates, prior, partners = choice
        theta = lines.shares(cloud.mass, rates, prior)
        identified = valid = partners > 0
    valid &= jnp.all(jnp.isfinite(rates)) & (jnp.sum(rates) < 1)
    return Solution(rates, prior, partners, lines.misfit(cloud, theta), valid, valid & identified)


def class_groups(tables: Tables, assume: str) -> tuple[list[Array], list[Array]]:
    """`Tables.parts` under an assumption: a side that has no noise is selected whole."""
    if assume == "missing":
        tables = tables._replace(pos=tables.both, total_pos=tables.total_both)
    if assume == "partial":
        tables = tables._replace(neg=tables.partner - tables.both, total_neg=tables.total - tables.total_both)
    return tables.parts()


def solve_rows(
    tables: Tables,
    rank: Int[Array, "#rows q"],
    fallback: Float[Array, "rows 2 2"] | None,
    classes: Int[Array, "rows"],
    *,
    aggregate: str,
    assume: str,
    min_selected: int,
    mesh: Mesh | None = None,
) -> TransitionEstimate:
    """Estimates of the classes whose rows the tables have, `classes` their numbers."""
    rows = len(classes)
    if mesh is not None:
        mesh = Mesh(mesh.devices, mesh.axis_names)  # whatever its axis types, XLA lays out the inputs
    if mesh is not None and rows % mesh.size:  # shards have equal sizes; the last row is solved several times
        take = np.minimum(np.arange(-(-rows // mesh.size) * mesh.size), rows - 1)
        tables, rank, fallback, classes = jax.tree.map(
            lambda x: x[take] if len(x) == rows else x, (tables, rank, fallback, classes)
        )
    look = _evidence if isinstance(tables.both, jax.core.Tracer) else _fast_evidence
    evidence = look(tables, rank, classes, aggregate=aggregate, assume=assume, mesh=mesh)
    found = _estimate(*evidence, fallback, min_selected=min_selected)
    return jax.tree.map(lambda x: x[:rows], found) if len(found.T) > rows else found


def _evidence(
    tables: Tables,
    rank: Int[Array, "#rows q"],
    classes: Int[Array, "rows"],
    *,
    aggregate: str,
    assume: str,
    mesh: Mesh | None,
) -> tuple[lines.Cloud, Choice | None, list[Int[Array, "#rows #q"]]]:
    """What the partners of every class say, and the sizes of its groups: all that needs a pass over the tables."""

    def cloud(
        ones: Groups, totals: Float[Array, "4 #q"], rank: Int[Array, "q"], share: Float[Array, "q"]
    ) -> lines.Cloud:
        return lines.group_cloud(ones, totals, rank < rank.shape[0], share)

    each = partial(map_classes, tables=tables, rank=rank, classes=classes, assume=assume, mesh=mesh)
    choices = None if aggregate == "joint" else each(partial(choose, aggregate=aggregate), block=_BLOCK)
    return each(cloud), choices, class_groups(tables, assume)[1]


# What follows is strict again: it asks whether shares lie exactly on a bound.
_fast_evidence = jax.jit(_evidence, static_argnames=("aggregate", "assume", "mesh"), compiler_options=lines.ANY_ORDER)


@jax.jit
def _estimate(
    clouds: lines.Cloud,
    choices: Choice | None,
    totals: list[Int[Array, "#rows #q"]],
    fallback: Float[Array, "rows 2 2"] | None,
    *,
    min_selected: int | Int[Array, ""],
) -> TransitionEstimate:
    solution = jax.vmap(conclude)(clouds, choices)
    sizes = jnp.stack([jnp.max(total, axis=1) for total in totals], 1).astype(solution.rates.dtype)
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


def map_classes(
    solve: Any,
    *,
    tables: Tables,
    rank: Int[Array, "#rows q"],
    classes: Int[Array, "rows"],
    assume: str,
    mesh: Mesh | None = None,
    block: int | None = None,
) -> Any:
    """`solve(ones, totals, rank, share)` of every class: vmapped, over the devices of a mesh, in blocks of classes.

    Blocks bound the memory of what `solve` cannot do in one fused pass over its row.
    """
    inputs = (classes, *tables, rank)
    own = [len(x) == len(classes) for x in inputs]  # the others are the same for all classes
    q = tables.both.shape[1]
    dtype = jnp.result_type(float)

    def one(j: Int[Array, ""], *row: Array) -> Any:
        table, rank = Tables(*row[:-1]), row[-1]
        ones, totals = class_groups(table, assume)
        share = table.partner.astype(dtype) / jnp.maximum(table.total, 1).astype(dtype)
        others = jnp.where(jnp.arange(q) == j, q, rank)
        return solve([x.astype(dtype) for x in ones], jnp.stack(totals).astype(dtype), others, share)

    def every(*inputs: Array) -> Any:
        rows = [x if mine else x[0] for x, mine in zip(inputs, own, strict=True)]
        if block is None:
            return jax.vmap(one, in_axes=[0 if mine else None for mine in own])(*rows)
        mine = [x for x, is_own in zip(rows, own, strict=True) if is_own]

        def woven(mine: list[Array]) -> Any:
            left = iter(mine)
            return one(*(next(left) if is_own else x for x, is_own in zip(rows, own, strict=True)))

        return jax.lax.map(woven, mine, batch_size=min(block, len(rows[0])))

    if mesh is not None:
        split = PartitionSpec(mesh.axis_names)
        specs = tuple(split if mine else PartitionSpec() for mine in own)
        every = jax.shard_map(every, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    return every(*inputs)
