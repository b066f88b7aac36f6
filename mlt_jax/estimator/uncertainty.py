"""Standard errors of estimated rates: the delta method on per-example influences, and a bootstrap.

Counts are sums over independent examples, and the rates are a function f of them. So the influence of an example on the
rates is the gradient of f by the counts it adds to, and `Var[rates]` is the sum of the squared influences. (Their mean
is zero: f does not change when all counts grow in proportion.) Partners share examples, which influences account for
and a per-partner formula averaged over partners does not. With one partner this is the delta method for the 8-cell
multinomial of (noisy_j, selected_j, noisy_i).

Not included: the choice of a partner by a rule, and the selection of clean labels, are treated as fixed.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from mlt_jax.arguments import check_integer, check_key
from mlt_jax.estimator.counts import Tables, count_arrays
from mlt_jax.estimator.solve import check_aggregate, estimate_from_tables, map_classes, partner_ranks, unbounded_rates
from mlt_jax.labels import Labels, as_labels, as_mask
from mlt_jax.transition import check_assume

_CHUNK_CELLS = 2**25
_BLOCK = 256


def standard_errors(
    tables: Tables,
    labels: Any,
    selected: Any,
    *,
    aggregate: str = "joint",
    assume: str = "general",
    num_partners: int | None = None,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "q 2"]:
    """Delta-method standard errors of (rho_neg, rho_pos), ignoring bounds: a rate of 0 has a positive error, too.

    Infinite where the rates without bounds are none at all: the data say next to nothing of them.

    `labels` and `selected` are checked: `Labels` and a mask, or `SparseLabels` and a `SparseMask`. `tables` are their
    counts; the options are those of `estimate_all`.
    """
    rank = partner_ranks(len(tables.both), aggregate=aggregate, assume=assume, num_partners=num_partners, key=key)
    classes = jnp.arange(len(tables.both))
    per_one, per_example = gradients(tables, rank, classes, aggregate=aggregate, assume=assume)
    n, q = (labels.values if isinstance(labels, Labels) else labels.by_example).shape
    rows = max(1, _CHUNK_CELLS // (8 * q))
    total = jnp.zeros((q, 2), per_one.dtype)
    for start in range(0, n, rows):
        cells = _dense_rows(labels, selected, slice(start, start + rows))
        total += _squared_influence(*cells, per_one, per_example, assume)
    return jnp.sqrt(jnp.where(jnp.isnan(total), jnp.inf, total))


def _dense_rows(labels: Any, selected: Any, part: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, selection and observed cells of some examples, dense."""
    if isinstance(labels, Labels):
        values = labels.values[part]
        known = np.broadcast_to(np.True_, values.shape) if labels.observed is None else labels.observed[part]
        return values, selected[part], known
    values = labels.by_example[part].toarray()
    taken = selected.cells[part].toarray() == selected.selected
    return values, taken, np.broadcast_to(np.True_, values.shape)


def bootstrap(
    key: PRNGKeyArray,
    labels: Any,
    selected: Any,
    *,
    num_samples: int = 200,
    aggregate: str = "joint",
    assume: str = "general",
    min_selected: int = 50,
    observed: Any = None,
    coding: str = "01",
) -> Float[Array, "num_samples q 2"]:
    """Rates (rho_neg, rho_pos) re-estimated on `num_samples` resamples of the examples with replacement.

    Args:
      key: of the resampling.
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
      selected: (n, q), True where the label is taken as clean; the selection is not repeated.
      num_samples: number of resamples; the other options are those of `estimate_all`.
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    mask = as_mask(selected, checked, name="selected")
    check_key(key)
    check_integer("num_samples", num_samples, 1)
    check_aggregate(aggregate)
    check_assume(assume)
    check_integer("min_selected", min_selected, 0)
    batch = max(1, min(num_samples, _CHUNK_CELLS // checked.values.size))
    keys = jax.random.split(key, num_samples)
    arrays = jnp.asarray(checked.values), jnp.asarray(mask), checked.observed
    return _resample(keys, *arrays, batch=batch, aggregate=aggregate, assume=assume, min_selected=min_selected)


@partial(jax.jit, static_argnames=("batch", "aggregate", "assume", "min_selected"))
def _resample(
    keys: Key[Array, "num_samples"], y: Array, s: Array, o: Array | None, *, batch: int, **options: Any
) -> Float[Array, "num_samples q 2"]:
    n = len(y)

    def one(key: PRNGKeyArray) -> Float[Array, "q 2"]:
        weight = jnp.zeros(n, jnp.int32).at[jax.random.randint(key, (n,), 0, n)].add(1)
        estimate = estimate_from_tables(count_arrays(y, s, o, weight), **options)
        return jnp.stack([estimate.rho_neg, estimate.rho_pos], axis=1)

    return jax.lax.map(one, keys, batch_size=batch)


@partial(jax.jit, static_argnames=("aggregate", "assume"))
def gradients(
    tables: Tables, rank: Int[Array, "#rows q"], classes: Int[Array, "rows"], *, aggregate: str, assume: str
) -> tuple[Float[Array, "rows 2 4 q"], Float[Array, "rows 2 4 p"]]:
    """Derivatives of two rates by the counts of ones, and by the sizes, of the four groups of each row's class."""

    def gradient(ones: list[Array], totals: Float[Array, "4 p"], rank: Int[Array, "q"], _: Any) -> Any:
        def rates(ones: Float[Array, "4 q"], totals: Float[Array, "4 p"]) -> Float[Array, "2"]:
            return unbounded_rates(ones, totals, rank, aggregate=aggregate)

        return jax.jacrev(rates, argnums=(0, 1))(jnp.stack(ones), totals)

    return map_classes(gradient, tables=tables, rank=rank, classes=classes, assume=assume, block=_BLOCK)


@partial(jax.jit, static_argnames="assume")
def _squared_influence(
    y: Array, s: Bool[Array, "n q"], known: Bool[Array, "n q"], per_one: Array, per_example: Array, assume: str
) -> Float[Array, "q 2"]:
    """Sum over these examples of the squared influence on each class's rates."""
    y = y.astype(bool)
    s = s | (y & known if assume == "missing" else ~y & known if assume == "partial" else False)
    groups = [s & y, s & ~y & known, ~s & y, ~s & ~y & known]
    dtype = per_one.dtype
    total = jnp.zeros((y.shape[0], y.shape[1], 2), dtype)
    for g, member in enumerate(groups):
        influence = jnp.einsum("ni,jri->njr", y.astype(dtype), per_one[:, :, g])
        if per_example.shape[3] == 1:
            influence += per_example[None, :, :, g, 0]
        else:
            influence += jnp.einsum("ni,jri->njr", known.astype(dtype), per_example[:, :, g])
        total += jnp.where(member[:, :, None], influence, 0)
    return jnp.sum(total**2, axis=0)
