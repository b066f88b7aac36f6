"""Noise rates from label correlations: labels and the labels taken as clean in, transition matrices out."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from mlt_jax.estimator.counts import Tables, as_selected, check_selection, count_checked, is_all_sparse
from mlt_jax.estimator.solve import estimate_from_tables, partner_ranks, solve_rows
from mlt_jax.estimator.uncertainty import standard_errors
from mlt_jax.labels import as_labels
from mlt_jax.transition import Status, TransitionEstimate, as_transition


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
        from mlt_jax.estimator import sparse_counts as sparse  # scipy.sparse is not needed for the rest

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
    errors = standard_errors(tables, checked, mask, **rule)
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
