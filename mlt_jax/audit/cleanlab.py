"""T to and from cleanlab's confident joint, and suspects in the form of its Datalab.

The two conventions are each other's transpose and differ in their normalisation:

    here      T[j, clean, noisy]      P(noisy | clean): every row sums to 1
    cleanlab  joint[j, noisy, clean]  counts of examples: row `noisy` sums to how often that label was given

cleanlab's labels, lists of class indices, are read by `as_labels` and written by `labels.to_lists`.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mlt_jax.arguments import shown
from mlt_jax.audit.audit import Audit, as_audit
from mlt_jax.audit.issues import Issues, find_label_issues, label_quality
from mlt_jax.labels import as_labels, num_axes, to_lists
from mlt_jax.transition import TransitionEstimate, as_transition, implied_prior


def to_cleanlab_joint(T: Any, labels: Any, *, observed: Any = None, coding: str = "01") -> Int[np.ndarray, "q 2 2"]:
    """Counts `joint[j, noisy, clean]`, (q, 2, 2) integers: `confident_joint=` of cleanlab 2.9's multi-label functions.

    Rows sum to the counts of given labels, as those of cleanlab's own calibrated joints do.

    Args:
      T: (q, 2, 2) `T[j, clean, noisy]`, or a `TransitionEstimate`, whose prior is then used.
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
    """
    matrices = T.T if isinstance(T, TransitionEstimate) else T
    lists = isinstance(labels, list | tuple) and num_axes(matrices) == 3
    checked = as_labels(labels, coding=coding, observed=observed, num_classes=len(matrices) if lists else None)
    n, q = checked.values.shape
    valid = as_transition(matrices, q)
    size = np.full(q, n) if checked.observed is None else checked.observed.sum(axis=0)
    ones = checked.values.sum(axis=0, dtype=np.int64)
    if isinstance(T, TransitionEstimate):
        matrix, prior = np.asarray(T.T, float), np.asarray(T.prior, float)
    else:
        prior = np.asarray(implied_prior(valid, jnp.asarray(ones / np.maximum(size, 1), valid.dtype)), float)
        matrix = np.asarray(valid, float)
    share = np.stack([1 - prior, prior], axis=1)[:, :, None] * matrix  # P(clean, noisy)
    given = np.stack([size - ones, ones], axis=1)
    flipped = np.stack([share[:, 1, 0], share[:, 0, 1]], axis=1) / np.maximum(share.sum(axis=1), 1e-12)
    wrong = np.rint(flipped * given).astype(np.int64)
    joint = np.zeros((q, 2, 2), np.int64)
    joint[:, [0, 1], [1, 0]] = wrong
    joint[:, [0, 1], [0, 1]] = given - wrong
    return joint


def from_cleanlab_joint(joint: Any) -> Float[Array, "q 2 2"]:
    """`T[j, clean, noisy]` of a confident joint `[j, noisy, clean]`, (q, 2, 2) counts or probabilities.

    A clean value that was never counted gets the identity row.
    """
    try:
        counts = np.asarray(joint, float)
    except (ValueError, TypeError):
        raise TypeError(f"joint: {shown(joint)}; pass (q, 2, 2) counts, [class, noisy, clean]") from None
    if counts.ndim != 3 or counts.shape[1:] != (2, 2) or not (np.isfinite(counts) & (counts >= 0)).all():
        raise ValueError(f"joint: shape {counts.shape}; pass (q, 2, 2) counts, [class, noisy, clean], none below 0")
    counts = counts.transpose(0, 2, 1)
    total = counts.sum(axis=2, keepdims=True)
    return jnp.asarray(np.where(total > 0, counts / np.where(total > 0, total, 1), np.eye(2)), dtype=float)


def to_cleanlab_issues(source: Any, *, threshold: float = 0.5, **inputs: Any) -> Any:
    """A pandas DataFrame with the columns of `Datalab.get_issues("label")` of multi-label data, a row per example.

    `is_label_issue`, whether a label is a suspect; `label_score`, P(all labels are right); `given_label` and
    `predicted_label`, lists of class indices. The index has the examples' names.

    Args:
      source, threshold, inputs: as in `find_label_issues`.
    """
    import pandas as pd

    audit = as_audit(source, inputs)
    issues = find_label_issues(audit, threshold=threshold)
    return pd.DataFrame(cleanlab_columns(audit, issues), index=pd.Index(audit.ids, name="example"))


def cleanlab_columns(audit: Audit, issues: Issues) -> dict[str, list[Any]]:
    """The columns of `to_cleanlab_issues`."""
    suspect = np.zeros(audit.wrong.shape, bool)
    suspect[issues.example, issues.column] = True
    suggested = audit.labels._replace(values=audit.labels.values ^ suspect)
    return {
        "is_label_issue": suspect.any(axis=1).tolist(),
        "label_score": label_quality(audit, per="example").astype(float).round(6).tolist(),
        "given_label": to_lists(audit.labels),
        "predicted_label": to_lists(suggested),
    }
