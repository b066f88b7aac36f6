"""scikit-learn estimators: `estimate` and `audit_labels` behind `fit`, with results in attributes that end in `_`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from mlt_jax.audit.audit import audit_labels
from mlt_jax.audit.issues import clean_labels, find_label_issues
from mlt_jax.estimator.auto import estimate
from mlt_jax.labels import as_labels


@dataclass(kw_only=True, eq=False, repr=False)
class NoiseTransition(BaseEstimator):
    """Noise transition matrices of multi-label data (see `mlt_jax.estimate`, whose parameters it has).

    Attributes:
      transition_: (q, 2, 2), `T[j, clean, noisy]`.
      prior_: (q,), P(clean = 1).
      stderr_: (q, 2), standard errors of rho_neg and rho_pos.
      status_: (q,), see `mlt_jax.Status`.
      estimate_: the whole `TransitionEstimate`.
      n_features_in_: q.
      feature_names_in_: class names, when labels came as a DataFrame.
    """

    # scikit-learn reads parameters and defaults off the class, so those of `estimate` stand here again.
    method: str = "auto"
    assume: str = "general"
    aggregate: str = "joint"
    tau: float = 0.5
    quantile: float | None = None
    min_selected: int = 50
    seed: int = 0
    coding: str = "01"

    def fit(
        self,
        labels: Any,
        y: None = None,
        *,
        losses: Any = None,
        probs: Any = None,
        features: Any = None,
        groups: Any = None,
    ) -> "NoiseTransition":
        """This estimator, with T of labels (n, q) and losses, probabilities or features (n, d); `y` is not used.

        `groups`: n ids, for features; examples of one group are in one fold.
        """
        checked = as_labels(labels, coding=self.coding)
        options = {name: value for name, value in self.get_params().items() if name != "coding"}
        self.estimate_ = estimate(checked, losses=losses, probs=probs, features=features, groups=groups, **options)
        self.transition_, self.prior_, self.stderr_, self.status_ = map(np.asarray, self.estimate_[:4])
        self.n_features_in_ = checked.values.shape[1]
        if checked.classes is not None:
            self.feature_names_in_ = np.array(checked.classes, dtype=object)
        return self


@dataclass(kw_only=True, eq=False, repr=False)
class LabelAuditor(BaseEstimator):
    """Which labels of a multi-label data set are wrong (see `mlt_jax.audit_labels`).

    Args:
      threshold: above which P(wrong) makes a label an issue.
      method, assume, seed, coding: as in `audit_labels`.

    Attributes:
      wrong_: (n, q), P(label is wrong).
      issues_: see `find_label_issues`.
      clean_labels_: (n, q), the labels with issues flipped.
      transition_: (q, 2, 2), `T[j, clean, noisy]`.
      audit_: the whole `Audit`.
      n_features_in_: d, or q where only probs were given.
    """

    threshold: float = 0.5
    method: str = "auto"
    assume: str = "general"
    seed: int = 0
    coding: str = "01"

    def fit(self, X: Any, y: Any, *, probs: Any = None, groups: Any = None) -> "LabelAuditor":
        """This estimator, with labels y (n, q) audited by features X (n, d), or by out-of-sample probs (n, q).

        `groups`: n ids, for features; examples of one group are in one fold.
        """
        options = {name: value for name, value in self.get_params().items() if name != "threshold"}
        self.audit_ = audit_labels(y, features=X, probs=probs, groups=groups, **options)
        self.wrong_, self.transition_ = self.audit_.wrong, np.asarray(self.audit_.found.T)
        self.issues_ = find_label_issues(self.audit_, threshold=self.threshold)
        self.clean_labels_ = clean_labels(self.audit_, threshold=self.threshold)
        self.n_features_in_ = self.wrong_.shape[1] if X is None else np.shape(X)[1]
        return self
