"""T and predictions -> P(label is wrong), suspects, weights; files, cleanlab and scikit-learn at either end."""

from mlt_jax.audit.audit import Audit, audit_labels, cross_val_probs
from mlt_jax.audit.issues import (
    Issues,
    clean_labels,
    find_label_issues,
    importance_weights,
    issues_frame,
    label_quality,
)
from mlt_jax.audit.propose import Decisions, Proposal, propose_cells
from mlt_jax.audit.verified import Verified, recalibrate, refusal
