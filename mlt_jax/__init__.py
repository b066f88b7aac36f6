"""Noise transition matrices for multi-label data: how noisy is each label, and which labels are wrong."""

from mlt_jax.anchors import dual_t, t_estimator
from mlt_jax.asymptotes import estimate_from_scores
from mlt_jax.audit import (
    Audit,
    audit_labels,
    clean_labels,
    cross_val_probs,
    find_label_issues,
    importance_weights,
    issues_frame,
    label_quality,
)
from mlt_jax.cooccurrence import Tables, count
from mlt_jax.crossfit import cross_val_logits
from mlt_jax.doors import from_cleanlab_joint, to_cleanlab_joint
from mlt_jax.estimator import Status, TransitionEstimate, estimate_all, estimate_from_tables, estimate_pair
from mlt_jax.labels import Labels, as_labels
from mlt_jax.recipe import estimate, noisy_sides
from mlt_jax.selection import losses_from_probs, select_clean
from mlt_jax.uncertainty import bootstrap

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "Labels",
    "Status",
    "Tables",
    "TransitionEstimate",
    "as_labels",
    "audit_labels",
    "bootstrap",
    "clean_labels",
    "count",
    "cross_val_logits",
    "cross_val_probs",
    "dual_t",
    "estimate",
    "estimate_all",
    "estimate_from_scores",
    "estimate_from_tables",
    "estimate_pair",
    "find_label_issues",
    "from_cleanlab_joint",
    "importance_weights",
    "issues_frame",
    "label_quality",
    "losses_from_probs",
    "noisy_sides",
    "select_clean",
    "t_estimator",
    "to_cleanlab_joint",
]
