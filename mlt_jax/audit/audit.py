"""Which labels are wrong: P(label is wrong) for every cell, from labels and predictions of any framework.

With `pi = P(clean = 1 | prediction)` and T, Bayes' rule gives both flip directions:

    P(wrong | given = 1) = rho_neg (1 - pi) / (rho_neg (1 - pi) + (1 - rho_pos) pi)
    P(wrong | given = 0) = rho_pos pi / (rho_pos pi + (1 - rho_neg) (1 - pi))

A prediction's confidence alone does not decide: where 60 % of the absent labels were switched on, a doubtful positive
is most probably wrong; where no positive is ever false, it is right. `pi` must be a probability of the *clean* label,
while models are trained on the given ones: a slope and an offset per class are fitted to the logits so that the
calibrated prediction, passed through T, explains the given labels. Heads on features are trained through T as well.
T has errors of its own, and P(wrong) is its mean over them.

That is class-dependent noise. Where the estimate finds that noise prefers ambiguous examples (status `COUNTED`), the
given label says nothing more about the clean one than the score does, and `estimator.counting` gives P(wrong).
"""

from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mlt_jax.arguments import shown
from mlt_jax.audit.calibrate import calibrate, wrong_probability
from mlt_jax.audit.inputs import check_predictions
from mlt_jax.estimator.auto import check_groups, estimate
from mlt_jax.estimator.counting import counted_wrong
from mlt_jax.estimator.crossfit import cross_val_logits, principal_components
from mlt_jax.files.arrays import load_npz
from mlt_jax.labels import Labels, as_labels, as_logits, groups_in_rows, num_axes
from mlt_jax.outputs import atomic
from mlt_jax.transition import Status, TransitionEstimate, from_matrices, html_table


class Audit(NamedTuple):
    """What is known about every label of n examples and q classes."""

    labels: Labels  # as given
    found: TransitionEstimate  # T with standard errors and status
    scores: Float[np.ndarray, "n q"]  # out-of-sample logits
    # P(clean = 1 | score) = sigmoid(slope * score + offset); with counted rates P(given = 1 | score).
    slope: Float[np.ndarray, "q"]
    offset: Float[np.ndarray, "q"]
    wrong: Float[np.ndarray, "n q"]  # P(given label is wrong); 0 where the cell is not labelled
    ids: tuple[str, ...]  # names of the examples; their row numbers where none were passed
    warnings: tuple[str, ...] = ()  # what looks wrong with the predictions or features, see `audit.inputs`

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; column numbers where none were passed."""
        return self.labels.classes or tuple(map(str, range(self.wrong.shape[1])))

    def __repr__(self) -> str:
        """A line and the table of the first classes."""
        n, q = self.wrong.shape
        table = [f"{a[:24]:24} {b:>26} {c:>26}  {d:14} {e:>8}" for a, b, c, d, e in self._rows(8)]
        left = [f"{q - 8} more"] if q > 8 else []
        warned = [f"warning: {text}" for text in self.warnings]
        return "\n".join([f"Audit of {n:,} examples and {q:,} classes; {self._in_short()}", *warned, *table, *left])

    def _repr_html_(self) -> str:
        n, q = self.wrong.shape
        warned = "".join(f"<p><b>warning:</b> {escape(text)}</p>" for text in self.warnings)
        return f"<p>{n:,} examples, {q:,} classes; {self._in_short()}</p>{warned}{html_table(self._rows(50))}"

    def _in_short(self) -> str:
        cells = self.wrong.size if self.labels.observed is None else int(self.labels.observed.sum())
        share, several = 100 * float(self.wrong.sum()) / max(cells, 1), int((self.wrong > 0.5).sum())
        return f"{share:.1f} % of {cells:,} labels expected wrong, {several:,} more probably wrong than right"

    def _rows(self, most: int) -> list[tuple[str, ...]]:
        header, *rows = self.found.rows(self.classes, most=most)
        suspects = (self.wrong > 0.5).sum(axis=0)
        return [(*header, "suspects"), *((*row, str(suspects[j])) for j, row in enumerate(rows))]

    def save(self, path: str | Path) -> None:
        """Writes one npz file, without pickle, for `Audit.load`."""
        arrays: dict[str, Any] = {f"found_{k}": np.asarray(v) for k, v in self.found._asdict().items()}
        arrays |= {k: getattr(self, k) for k in ("scores", "slope", "offset", "wrong")}
        arrays |= {
            "labels": self.labels.values,
            "ids": np.array(self.ids, str),
            "warnings": np.array(self.warnings, str),
        }
        for name in ("observed", "classes", "rows"):
            value = getattr(self.labels, name)
            array = None if value is None else np.array(list(value))
            if array is not None and array.dtype.kind != "O":  # names of rows may be anything; ids have them as text
                arrays[name] = array
        with atomic(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Audit":
        """Reads what `save` wrote.

        Raises:
          ValueError: the file was not written by `save`.
        """
        try:
            arrays = load_npz(path)
            found = TransitionEstimate(*(jnp.asarray(arrays[f"found_{name}"]) for name in TransitionEstimate._fields))
            classes, rows = (None if k not in arrays else tuple(arrays[k].tolist()) for k in ("classes", "rows"))
            labels = Labels(arrays["labels"], arrays.get("observed"), classes, rows)
            numbers = {name: arrays[name] for name in ("scores", "slope", "offset", "wrong")}
            ids, warned = (tuple(arrays[name].tolist()) for name in ("ids", "warnings"))
            return cls(labels, found, ids=ids, warnings=warned, **numbers)
        except (KeyError, ValueError) as error:
            raise ValueError(f"path: {path} is no audit ({error}); pass a file that `Audit.save` has written") from None

    @property
    def clean_probs(self) -> Float[np.ndarray, "n q"]:
        """P(clean = 1 | prediction, given label), (n, q); of the prediction alone where the cell is not labelled."""
        given = self.labels.values == 1
        known = self.labels.observed if self.labels.observed is not None else np.True_
        prediction = np.asarray(jax.nn.sigmoid(self.slope * self.scores + self.offset))
        return np.where(known, np.where(given, 1 - self.wrong, self.wrong), prediction)


def audit_labels(
    labels: Any,
    *,
    probs: Any = None,
    features: Any = None,
    losses: Any = None,
    T: Any = None,
    method: str = "auto",
    assume: str = "general",
    ids: Any = None,
    classes: Any = None,
    observed: Any = None,
    coding: str = "01",
    seed: int = 0,
    groups: Any = None,
) -> Audit:
    """The audit of all labels: T and P(label is wrong) per cell.

    Args:
      labels: (n, q), any form that `as_labels` takes (cleanlab's lists of class indices too).
      probs: (n, q) predicted P(label = 1) for examples the model did *not* train on (see `cross_val_probs`). With
        (epochs, n, q), T comes from all epochs by the paper's method, and the last epoch predicts.
      features: (n, d) of a network that was not trained on these labels; heads are cross-fitted on them, and used
        rather than `probs` if both are passed.
      losses: (epochs, n, q) of the given labels, for T by the paper's method (beside features only if `method` says
        "recipe"); predictions still come from probs or features.
      T: (q, 2, 2) `T[j, clean, noisy]` or a `TransitionEstimate`, where it is known already.
      method, assume: how T is estimated, see `mlt_jax.estimate`.
      ids: n names of the examples; by default the index of labels that are a DataFrame, else row numbers.
      classes, observed, coding: of the labels, see `as_labels`.
      seed: of the folds in which heads on features are trained, for T and for the predictions.
      groups: n ids of what no two folds may share, such as patients or near-duplicates (see `cross_val_logits`); for
        `features` only. Predictions from elsewhere must have been made by grouped folds.

    Returns:
      `Audit`; its `warnings` name predictions and features that do not look as described (see `audit.inputs`).

    Raises:
      ValueError: an argument that is not as described, or groups without features.
    """
    if classes is None and probs is not None and hasattr(probs, "columns") and isinstance(labels, list | tuple):
        classes = list(map(str, probs.columns))
    width = np.shape(probs)[-1] if isinstance(labels, list | tuple) and num_axes(probs) >= 2 else None
    checked = as_labels(labels, coding=coding, observed=observed, classes=classes, num_classes=width)
    n, q = checked.values.shape
    if isinstance(ids, str) or not (ids is None or np.iterable(ids)):
        raise TypeError(f"ids: {shown(ids)}; pass a list of names, one per example")
    names = tuple(map(str, (checked.rows or range(n)) if ids is None else ids))
    if len(names) != n:
        raise ValueError(f"ids: {len(names)} names, labels have {n} rows; pass one name per example")
    if probs is None and features is None:
        raise ValueError("probs: neither probs nor features were given; pass one, from any framework")
    check_groups(groups, features)
    groups = groups_in_rows(groups, checked.rows)
    x = None if features is None else principal_components(features, n, rows=checked.rows)
    if T is None:
        options: dict[str, Any] = dict(method=method, assume=assume, seed=seed, groups=groups)
        found = estimate(checked, probs=probs, features=x, losses=losses, **options)
    else:
        found = T if isinstance(T, TransitionEstimate) else from_matrices(T, checked)
        if len(found.T) != q:
            raise ValueError(f"T: of {len(found.T)} classes, labels have {q}; pass that of the same classes")
    counted = bool((np.asarray(found.status) == Status.COUNTED).any())
    if x is not None:
        scores = cross_val_logits(x, checked, T=None if counted else found.T, seed=seed, groups=groups)
    else:
        scores = as_logits(probs[-1] if num_axes(probs) == 3 else probs, checked)
    known = checked.observed if checked.observed is not None else np.ones((n, q), bool)
    y = checked.values.astype(np.float32)
    rates = jnp.stack([found.rho_neg, found.rho_pos], axis=1).astype(jnp.float32)
    if counted:  # noise prefers ambiguous examples: T passes no probabilities on, see `estimator.counting`
        frequency = jnp.asarray(y.sum(0) / np.maximum(known.sum(0), 1), jnp.float32)
        slope, offset = calibrate(jnp.asarray(scores), y, known, jnp.zeros_like(rates), frequency)
        prediction = np.asarray(jax.nn.sigmoid(slope[None] * jnp.asarray(scores) + offset[None]), float)
        wrong = counted_wrong(prediction, y, np.asarray(rates), np.asarray(frequency))
        wrong = np.where(known, wrong, 0).astype(np.float32)
    else:
        slope, offset = calibrate(jnp.asarray(scores), y, known, rates, found.prior.astype(jnp.float32))
        guess = np.isin(np.asarray(found.status), (Status.TOO_FEW, Status.UNIDENTIFIABLE))  # any rate is possible
        stderr = jnp.where(guess[:, None], 0, jnp.nan_to_num(found.stderr)).astype(jnp.float32)
        wrong = np.asarray(wrong_probability(jnp.asarray(scores), y, known, rates, slope, offset, stderr))
    warned = check_predictions(checked, scores, features=None if x is None else x.values, groups=groups)
    return Audit(checked, found, scores, np.asarray(slope), np.asarray(offset), wrong, names, warned)


def cross_val_probs(features: Any, labels: Any, **options: Any) -> Float[np.ndarray, "n q"]:
    """P(label = 1) of each example, (n, q), by logistic heads that never saw it; options of `cross_val_logits`."""
    return np.asarray(jax.nn.sigmoid(cross_val_logits(features, labels, **options)))


def as_audit(source: Any, inputs: dict[str, Any]) -> Audit:
    """`source` where it is an `Audit`, else the audit of the labels `source` with the arguments `inputs`."""
    if not isinstance(source, Audit):
        return audit_labels(source, **inputs)
    if inputs:
        raise TypeError(
            f"{', '.join(inputs)}: this audit is made already; pass labels instead of it, or leave them out"
        )
    return source
