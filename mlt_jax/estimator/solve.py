"""Transition matrices of all classes from co-occurrence tables: stage 2 of the paper's Algorithm 1 (label alg1)."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from mlt_jax.arguments import check_choice, check_integer, check_key, shown
from mlt_jax.estimator import line
from mlt_jax.estimator.counts import Groups, Tables
from mlt_jax.estimator.pairs import Choice, choose
from mlt_jax.estimator.sums import ANY_ORDER
from mlt_jax.transition import Status, TransitionEstimate, as_matrices, as_transition, check_assume, implied_prior

AGGREGATES = ("joint", "medoid", "residual", "mean", "first")

# Classes that the rules of `pairs` solve at once; bounds the memory of their intermediate (class, partner) arrays.
_BLOCK = 16
_CONCLUDED_AT_ONCE = 2**14  # bounds the memory of millions of classes


def estimate_from_tables(
    tables: Tables,
    *,  # the same options as `estimate_all` has: both are public, and editors and `help` should show them
    aggregate: str = "joint",
    assume: str = "general",
    num_partners: int | None = None,
    key: PRNGKeyArray | None = None,
    fallback: Any = None,
    min_selected: int = 50,
    mesh: Mesh | None = None,
) -> TransitionEstimate:
    """Transition matrices of all q classes from `count`'s tables; `stderr` is NaN, as it needs the labels.

    The options, and the errors raised, are those of `estimate_all`.
    """
    if not isinstance(tables, Tables):
        raise TypeError(f"tables: {shown(tables)}; pass the `Tables` that `count` returns")
    check_integer("min_selected", min_selected, 0)
    q = len(tables.both)
    rank = partner_ranks(q, aggregate=aggregate, assume=assume, num_partners=num_partners, key=key)
    other = None if fallback is None else as_transition(fallback, q, name="fallback")
    evidence = gather_rows(tables, rank, jnp.arange(q), aggregate=aggregate, assume=assume, mesh=mesh)
    return conclude_all(*evidence, other, min_selected=min_selected)


def partner_ranks(
    q: int,
    classes: Int[Array | np.ndarray, "rows"] | None = None,
    *,
    aggregate: str,
    assume: str,
    num_partners: int | None,
    key: PRNGKeyArray | None,
) -> Int[Array, "#rows q"]:
    """`rank[k, i]`: the place of partner i in the order in which class `classes[k]` uses them; q if it does not.

    Without `classes` those of all. The shape is (1, q) if the order is the same for all. Each class draws for itself,
    whichever others are asked for. The entries of a class as its own partner are to be ignored.
    """
    check_rule(q, aggregate=aggregate, assume=assume, num_partners=num_partners, key=key)
    if key is None or (num_partners is None and aggregate != "first"):
        return jnp.arange(q)[None]
    classes = jnp.arange(q) if classes is None else jnp.asarray(classes)
    return _drawn(key, classes, q, q - 1 if num_partners is None else num_partners)


@partial(jax.jit, static_argnames="q")
def _drawn(
    key: PRNGKeyArray, classes: Int[Array, "rows"], q: int, number: int | Int[Array, ""]
) -> Int[Array, "rows q"]:
    """Ranks of as many partners as asked for, of some classes."""

    def of_class(j: Int[Array, ""]) -> Int[Array, "q"]:
        draw = jax.random.uniform(jax.random.fold_in(key, j), (q,)).at[j].set(2)
        rank = jnp.zeros(q, jnp.int32).at[jnp.argsort(draw)].set(jnp.arange(q, dtype=jnp.int32))
        return jnp.where(rank < number, rank, q)

    return jax.lax.map(of_class, classes, batch_size=min(_BLOCK, len(classes)))


def check_aggregate(aggregate: str) -> None:
    """Raises ValueError unless `aggregate` is one of `AGGREGATES`."""
    check_choice("aggregate", aggregate, AGGREGATES, f"one of {', '.join(AGGREGATES)}")


def check_rule(q: int, *, aggregate: str, assume: str, num_partners: int | None, key: PRNGKeyArray | None) -> None:
    """Raises ValueError or TypeError unless these options of `estimate_all` are as it describes them."""
    check_aggregate(aggregate)
    check_assume(assume)
    if num_partners is not None:
        remedy = f"1 to {q - 1}, one less than the number of classes"
        check_integer("num_partners", num_partners, 1, max(q - 1, 1), remedy)
        if key is None:
            raise ValueError(f"key: None; num_partners={num_partners} draws partners, pass jax.random.key(seed)")
    if key is not None and (num_partners is not None or aggregate == "first"):
        check_key(key)


class Solution(NamedTuple):
    """What the correlations with its partners imply for one class; see `TransitionEstimate`."""

    rates: Float[Array, "*batch 2"]  # rho_neg, rho_pos
    prior: Float[Array, "*batch"]
    partners: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    valid: Bool[Array, "*batch"]  # rates are finite and sum to less than 1
    identified: Bool[Array, "*batch"]  # and the correlations they come from are significant


def unbounded_rates(
    ones: Groups, totals: Float[Array, "4 #q"], rank: Int[Array, "q"], *, aggregate: str
) -> Float[Array, "2"]:
    """(rho_neg, rho_pos) of one class from how often each partner is 1 in the four groups (see `Tables.groups`).

    Without the bounds on the rates, where the derivatives would be 0 and hide the error.
    """
    if aggregate != "joint":
        return choose(ones, totals, rank, aggregate=aggregate, bounded=False).rates
    cloud = line.group_cloud(ones, totals, rank < rank.shape[0])
    return line.rates(cloud.size, line.fit(cloud, bounded=False))[0]


def conclude(cloud: line.Cloud, choice: Choice | None, overlap: Float[Array, ""]) -> Solution:
    """Solution of one class: the line through its cloud or, if given, the choice among the partners' solutions."""
    if choice is None:
        theta = line.fit(cloud)
        rates, prior = line.rates(cloud.size, theta)
        partners, valid = cloud.partners.astype(jnp.int32), cloud.dimension > 0
    else:
        rates, prior, partners = choice
        theta = line.shares(cloud.size, rates, prior)
        valid = partners > 0
    valid &= jnp.all(jnp.isfinite(rates)) & (jnp.sum(rates) < 1)
    return Solution(rates, prior, partners, line.misfit(cloud, theta), valid, valid & line.correlated(cloud, overlap))


def class_groups(tables: Tables, assume: str) -> tuple[list[Array], list[Array]]:
    """`Tables.groups` under an assumption: all labels of a side without noise count as selected."""
    if assume == "missing":
        tables = tables._replace(pos=tables.both, total_pos=tables.total_both)
    if assume == "partial":
        tables = tables._replace(neg=tables.partner - tables.both, total_neg=tables.total - tables.total_both)
    return tables.groups()


def gather_rows(
    tables: Tables,
    rank: Int[Array, "#rows q"],
    classes: Int[Array, "rows"],
    *,
    aggregate: str,
    assume: str,
    mesh: Mesh | None = None,
) -> tuple[line.Cloud, Choice | None]:
    """Clouds and choices of the classes with indices `classes`; the tables have one row for each of them."""
    rows = len(classes)
    if mesh is not None:
        mesh = Mesh(mesh.devices, mesh.axis_names)  # without the caller's axis types, so that XLA shards the inputs
    if mesh is not None and rows % mesh.size:  # shards have equal sizes, so the last row is repeated
        take = np.minimum(np.arange(-(-rows // mesh.size) * mesh.size), rows - 1)
        tables, rank, classes = jax.tree.map(lambda x: x[take] if len(x) == rows else x, (tables, rank, classes))
    gather = _evidence if isinstance(tables.both, jax.core.Tracer) else _fast_evidence
    evidence = gather(tables, rank, classes, aggregate=aggregate, assume=assume, mesh=mesh)
    return jax.tree.map(lambda x: x[:rows], evidence) if len(classes) > rows else evidence


def _evidence(
    tables: Tables,
    rank: Int[Array, "#rows q"],
    classes: Int[Array, "rows"],
    *,
    aggregate: str,
    assume: str,
    mesh: Mesh | None,
) -> tuple[line.Cloud, Choice | None]:
    """Clouds and choices of the classes: everything that needs a pass over the tables."""
    each = partial(map_classes, tables=tables, rank=rank, classes=classes, assume=assume, mesh=mesh)
    choices = None if aggregate == "joint" else each(partial(choose, aggregate=aggregate), block=_BLOCK)
    clouds = each(lambda ones, totals, rank, share: line.group_cloud(ones, totals, rank < len(rank), share))
    return clouds, choices


# `conclude_all` is compiled without these options: it compares shares with their bounds exactly.
_fast_evidence = jax.jit(_evidence, static_argnames=("aggregate", "assume", "mesh"), compiler_options=ANY_ORDER)


@jax.jit
def conclude_all(
    clouds: line.Cloud,
    choices: Choice | None,
    fallback: Float[Array, "q 2 2"] | None,
    *,
    min_selected: int | Int[Array, ""],
) -> TransitionEstimate:
    """Estimates of all classes from what `gather_rows` gives for all of them."""
    sizes = clouds.size
    inputs = clouds, choices, line.overlaps(clouds)
    solution = jax.lax.map(lambda each: conclude(*each), inputs, batch_size=min(_CONCLUDED_AT_ONCE, len(sizes)))
    enough = jnp.all(sizes[:, :2] >= min_selected, axis=1)
    reason = jnp.where(enough, Status.UNIDENTIFIABLE, Status.TOO_FEW)
    solved = enough & solution.identified
    # The guess: every unselected label is wrong, or none is where that would be no valid T.
    guess = jax.vmap(line.rates, in_axes=(0, None))(sizes, jnp.array([0, 1], sizes.dtype))[0]
    guess = jnp.where(jnp.sum(guess, axis=1, keepdims=True) < 1, guess, 0)
    from_rule = solution.valid if fallback is None else solved
    other = as_matrices(guess) if fallback is None else fallback
    T = jnp.where(from_rule[:, None, None], as_matrices(solution.rates), other)
    frequency = (sizes[:, 0] + sizes[:, 2]) / jnp.maximum(jnp.sum(sizes, axis=1), 1)
    return TransitionEstimate(
        T=T,
        prior=jnp.where(from_rule, solution.prior, implied_prior(T, frequency)),
        stderr=jnp.full(solution.rates.shape, jnp.nan, T.dtype),
        status=jnp.where(solved, Status.CORRELATION, reason if fallback is None else Status.FALLBACK).astype(jnp.int32),
        partners=solution.partners.astype(jnp.int32),
        residual=jnp.where(from_rule, solution.residual, 0),
    )


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

    `share` is how often each partner is 1. Blocks bound the memory of intermediate arrays.
    """
    inputs = (classes, *tables, rank)
    by_class = [len(x) == len(classes) for x in inputs]  # the others are common to all classes
    q = tables.both.shape[1]
    dtype = jnp.result_type(float)

    def one(j: Int[Array, ""], *tables_and_rank: Any) -> Any:
        table, rank = Tables(*tables_and_rank[:-1]), tables_and_rank[-1]
        ones, totals = class_groups(table, assume)
        share = table.partner.astype(dtype) / jnp.maximum(table.total, 1).astype(dtype)
        others = jnp.where(jnp.arange(q) == j, q, rank)
        return solve([x.astype(dtype) for x in ones], jnp.stack(totals).astype(dtype), others, share)

    def every(*inputs: Array) -> Any:
        rows = [x if own else None for x, own in zip(inputs, by_class, strict=True)]
        common: list[Any] = [None if own else x[0] for x, own in zip(inputs, by_class, strict=True)]

        def row(own: list[Any]) -> Any:
            return one(*(shared if x is None else x for x, shared in zip(own, common, strict=True)))

        return jax.vmap(row)(rows) if block is None else jax.lax.map(row, rows, batch_size=min(block, len(inputs[0])))

    if mesh is not None:
        split = PartitionSpec(mesh.axis_names)
        specs = tuple(split if own else PartitionSpec() for own in by_class)
        every = jax.shard_map(every, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    return every(*inputs)
