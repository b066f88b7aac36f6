"""The scikit-learn door: the same functions behind `fit` and attributes that end in `_`."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from mlt_jax.labels import as_labels
from mlt_jax.recipe import estimate


class NoiseTransition(BaseEstimator):
    """Noise transition matrices of multi-label data (see `mlt_jax.estimate`).

    Parameters are those of `mlt_jax.estimate`. After `fit`:
      transition_: (q, 2, 2), `T[j, clean, noisy]`;  prior_: (q,);  stderr_: (q, 2) of rho_neg, rho_pos;
      status_: (q,), see `mlt_jax.Status`;  estimate_: the whole `TransitionEstimate`;
      n_features_in_: q;  feature_names_in_: class names, when labels came as a DataFrame.
    """

    def __init__(
        self,
        *,
        method: str = "auto",
        assume: str = "general",
        aggregate: str = "joint",
        tau: float = 0.5,
        quantile: float | None = None,
        min_selected: int = 50,
        coding: str = "01",
    ) -> None:
        self.method = method
        self.assume = assume
        self.aggregate = aggregate
        self.tau = tau
        self.quantile = quantile
        self.min_selected = min_selected
        self.coding = coding

    def fit(
        self, labels: Any, y: None = None, *, losses: Any = None, probs: Any = None, features: Any = None
    ) -> "NoiseTransition":
        """Estimates T from labels (n, q) and losses, probabilities or features (n, d); `y` is not used."""
        checked = as_labels(labels, coding=self.coding)
        options = {name: value for name, value in self.get_params().items() if name != "coding"}
        self.estimate_ = estimate(checked, losses=losses, probs=probs, features=features, **options)
        self.transition_, self.prior_, self.stderr_, self.status_ = map(np.asarray, self.estimate_[:4])
        self.n_features_in_ = checked.values.shape[1]
        if checked.classes is not None:
            self.feature_names_in_ = np.array(checked.classes, dtype=object)
        return self
