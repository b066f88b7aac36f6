"""Transition matrices from label correlations: from noisy labels and a selection of labels taken as clean."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from mlt_jax.arguments import check_integer, check_switch
from mlt_jax.estimator.counts import Tables, check_inputs, count_checked
from mlt_jax.estimator.solve import (
    check_aggregate,
    check_rule,
    conclude_all,
    estimate_from_tables,
    gather_rows,
    partner_ranks,
)
from mlt_jax.estimator.uncertainty import standard_errors
from mlt_jax.labels import Labels
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
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`; scipy.sparse labels with coding
        "01" and all cells observed are counted without making them dense, as lists of labels that occur together where
        these are short (see `lists`): equally exact; for the joint rule also where a few cells are unobserved. T and
        prior are those of each class's own observed cells. Which cells of a partner are observed may depend on its own
        label, and on the clean or the given label of the class (see `counts.group_means`); a partner never observed
        with one of the class's four groups of examples says nothing, and where all are such the class is
        `UNIDENTIFIABLE`.
      selected: (n, q) bool, True where the label is taken as clean (see `select_clean`).
      unselected: (n, q), its complement, in place of `selected`; with sparse labels give the smaller one, as sparse.
      aggregate: how the equations of all partners give one T. `"joint"` fits them all at once (see `line`); `"medoid"`
        is the paper's rule (label final); `"residual"` the released code's; `"mean"` and `"first"` (R = 1) are the
        paper's ablations.
      assume: `"missing"`: no given positive is wrong (rho_neg = 0); `"partial"`: no given negative is (rho_pos = 0).
      num_partners: R, how many partners each class uses, drawn with `key`; all q - 1 by default. On lists they are
        drawn from the labels that occur together with the class, and status and `residual` still come from all.
      key: required by `num_partners`; with it `"first"` tries the partners in random order.
      fallback: (q, 2, 2), T for the classes without an estimate of their own, such as `dual_t(probs, labels)`.
      min_selected: least number of selected positives, and of selected negatives, for an estimate.
      stderr: also compute standard errors (see `uncertainty`), which needs the q x q tables at once, except on lists.
      mesh: devices over which the classes of tables are spread; lists are made by the cores of this machine.
      max_memory: bytes for the tables or lists of sparse labels; what does not fit is done in blocks of classes.

    Returns:
      `TransitionEstimate` with status `CORRELATION`, or `FALLBACK`, or without a fallback `TOO_FEW` (selected labels)
      or `UNIDENTIFIABLE` (no significant correlation). `stderr` is NaN except for `CORRELATION` with `stderr=True`;
      infinite there, with the interval [0, 1], where the data say next to nothing of the rates.

    Raises:
      ValueError: an argument that is not as described.

    References:
      Li et al., "Multi-Label Noise Transition Matrix Estimation with Label Correlations", Algorithm 1, stage 2.
    """
    rule: dict[str, Any] = dict(aggregate=aggregate, assume=assume, num_partners=num_partners, key=key)
    rest: dict[str, Any] = dict(fallback=fallback, min_selected=min_selected, mesh=mesh)
    given: dict[str, Any] = dict(observed=observed, coding=coding)
    on_lists: dict[str, Any] = dict(assume=assume, fallback=fallback, min_selected=min_selected, max_memory=max_memory)
    check_aggregate(aggregate)
    check_switch("stderr", stderr)
    check_integer("min_selected", min_selected, 0)
    check_integer("max_memory", max_memory, 0)
    plain = aggregate == "joint" and num_partners is None and not stderr
    checked, mask = check_inputs(labels, selected, unselected, masked=plain, **given)
    if not isinstance(checked, Labels) and checked.unobserved is not None:
        from mlt_jax.estimator import list_masks

        if list_masks.masked_lists_pay(checked, mask):
            return list_masks.estimate_masked(checked, mask, **on_lists)
        checked, mask = check_inputs(labels, selected, unselected, **given)
    if not isinstance(checked, Labels):
        from mlt_jax.estimator import lists  # scipy.sparse is only needed here
        from mlt_jax.estimator.sparse_counts import count_blocks

        drawn_for_joint = aggregate == "joint" and num_partners is not None
        if not drawn_for_joint and (lists.list_burden(checked, mask) <= 1).all():
            rules = lists.list_rule(checked.by_example.shape[1], **rule)
            return lists.estimate_listed(checked, mask, rule=rules, stderr=stderr, **on_lists)
    if not isinstance(checked, Labels) and not stderr:
        blocks = count_blocks(checked, mask, max_memory=max_memory)
        return _estimate_blocks(blocks, checked.by_example.shape[1], rule, **rest)
    tables = count_checked(checked, mask)
    estimate = estimate_from_tables(tables, **rule, **rest)
    if not stderr:
        return estimate
    errors = standard_errors(tables, checked, mask, **rule)
    known = estimate.status == Status.CORRELATION
    return estimate._replace(stderr=jnp.where(known[:, None], errors, jnp.nan))


def _estimate_blocks(
    blocks: Iterable[tuple[np.ndarray, Tables]],
    num_classes: int,
    rule: dict[str, Any],
    *,
    fallback: Any,
    min_selected: int,
    mesh: Mesh | None,
) -> TransitionEstimate:
    """Estimates of all classes from tables that are counted a block of classes at a time.

    The blocks give their evidence, which is small; the conclusions need that of all classes.
    """
    check_rule(num_classes, **rule)  # before anything is counted
    other = None if fallback is None else as_transition(fallback, num_classes, name="fallback")
    options: dict[str, Any] = dict(aggregate=rule["aggregate"], assume=rule["assume"], mesh=mesh)
    whole: Any = None
    for classes, tables in blocks:
        found = gather_rows(tables, partner_ranks(num_classes, classes, **rule), jnp.asarray(classes), **options)
        part = jax.tree.map(np.asarray, found)  # waits until the shared tables are no longer needed
        if whole is None:
            whole = jax.tree.map(lambda x: np.empty((num_classes, *x.shape[1:]), x.dtype), part)
        for kept, new in zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True):
            kept[classes] = new
    return conclude_all(*jax.tree.map(jnp.asarray, whole), other, min_selected=min_selected)
