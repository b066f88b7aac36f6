"""scikit-learn estimators: `estimate` and `audit_labels` behind `fit`, with results in attributes that end in `_`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from mlt_jax.audit.audit import audit_labels
from mlt_jax.audit.issues import clean_labels, find_label_issues
from mlt_jax.estimator.auto import estimate
from mlt_jax.labels import as_labels, in_rows


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
      coef_, intercept_: (d, q) and (q,), where X was given: the linear scores nearest to the out-of-sample ones.
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
        if y is None:
            raise ValueError("y: requires y to be passed, but the target y is None; pass labels (n, q)")
        if X is not None:
            checked = validate_data(self, X, ensure_min_samples=2)
            X = X if hasattr(X, "iloc") else checked  # a frame's rows are matched by its index
        options = {name: value for name, value in self.get_params().items() if name != "threshold"}
        self.audit_ = audit_labels(y, features=X, probs=probs, groups=groups, **options)
        self.wrong_, self.transition_ = self.audit_.wrong, np.asarray(self.audit_.found.T)
        self.issues_ = find_label_issues(self.audit_, threshold=self.threshold)
        self.clean_labels_ = clean_labels(self.audit_, threshold=self.threshold)
        if X is None:
            self.n_features_in_ = self.wrong_.shape[1]
            return self
        x = np.asarray(in_rows(X, self.audit_.labels.rows, "X") if hasattr(X, "iloc") else X, float)
        centre = x.mean(axis=0)
        self.coef_ = np.linalg.lstsq(x - centre, self.audit_.scores - self.audit_.scores.mean(axis=0), rcond=1e-6)[0]
        self.intercept_ = self.audit_.scores.mean(axis=0) - centre @ self.coef_
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """P(clean = 1), (n, q), of features X (n, d)."""
        check_is_fitted(self)
        if not hasattr(self, "coef_"):
            raise ValueError("X: this auditor was fitted without features; pass them to fit")
        scores = validate_data(self, X, reset=False) @ self.coef_ + self.intercept_
        return expit(self.audit_.slope * scores + self.audit_.offset)

    def predict(self, X: Any) -> np.ndarray:
        """Clean labels, (n, q), 0/1, of features X (n, d)."""
        return (self.predict_proba(X) > 0.5).astype(np.uint8)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect: labels of several classes are needed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = tags.target_tags.multi_output = tags.target_tags.two_d_labels = True
        tags.target_tags.single_output = False
        return tags
