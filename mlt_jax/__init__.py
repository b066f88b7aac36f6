"""Noise transition matrices for multi-label data: how noisy is each label, and which labels are wrong."""

from mlt_jax.audit.audit import Audit, audit_labels, cross_val_probs
from mlt_jax.audit.cleanlab import from_cleanlab_joint, to_cleanlab_joint
from mlt_jax.audit.issues import clean_labels, find_label_issues, importance_weights, issues_frame, label_quality
from mlt_jax.audit.propose import Decisions, Proposal, propose_cells
from mlt_jax.audit.verified import Verified, recalibrate, verified
from mlt_jax.estimator.anchors import dual_t, t_estimator
from mlt_jax.estimator.assumption import AssumptionTest, assumption_test
from mlt_jax.estimator.auto import estimate, noisy_sides
from mlt_jax.estimator.blind import estimate_from_scores
from mlt_jax.estimator.correlations import estimate_all
from mlt_jax.estimator.counts import Tables, count
from mlt_jax.estimator.crossfit import cross_val_logits
from mlt_jax.estimator.pairs import estimate_pair
from mlt_jax.estimator.raters import Raters, RaterStatus, ask_next, estimate_raters, rater_array
from mlt_jax.estimator.selection import losses_from_probs, select_clean
from mlt_jax.estimator.solve import estimate_from_tables
from mlt_jax.estimator.uncertainty import bootstrap
from mlt_jax.labels import Labels, as_labels
from mlt_jax.transition import Status, TransitionEstimate

__version__ = "0.1.0"

__all__ = [
    "AssumptionTest", "Audit", "Decisions", "Labels", "Proposal", "RaterStatus", "Raters", "Status", "Tables",
    "TransitionEstimate", "Verified", "as_labels", "ask_next", "assumption_test", "audit_labels", "bootstrap",
    "clean_labels", "count", "cross_val_logits", "cross_val_probs", "dual_t", "estimate", "estimate_all",
    "estimate_from_scores", "estimate_from_tables", "estimate_pair", "estimate_raters", "find_label_issues",
    "from_cleanlab_joint", "importance_weights", "issues_frame", "label_quality", "losses_from_probs", "noisy_sides",
    "propose_cells", "rater_array", "recalibrate", "select_clean", "t_estimator", "to_cleanlab_joint", "verified",
]  # fmt: skip
