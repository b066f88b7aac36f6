"""Estimators of T from labels and losses, predictions or features: `estimate`, `estimate_all` and their parts."""

from mlt_jax.estimator.anchors import dual_t, t_estimator
from mlt_jax.estimator.assumption import assumption_test
from mlt_jax.estimator.auto import estimate, noisy_sides
from mlt_jax.estimator.blind import estimate_from_scores
from mlt_jax.estimator.correlations import estimate_all
from mlt_jax.estimator.counts import Tables, count
from mlt_jax.estimator.crossfit import cross_val_logits
from mlt_jax.estimator.pairs import estimate_pair
from mlt_jax.estimator.selection import losses_from_probs, select_clean
from mlt_jax.estimator.solve import AGGREGATES, estimate_from_tables
from mlt_jax.estimator.uncertainty import bootstrap
from mlt_jax.transition import Status, TransitionEstimate
