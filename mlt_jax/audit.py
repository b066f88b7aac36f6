"""Which labels are wrong: P(label is wrong) for every cell, from labels and predictions of any framework.

With `pi = P(clean = 1 | prediction)` and T, Bayes' rule gives both flip directions:

    P(wrong | given = 1) = rho_neg (1 - pi) / (rho_neg (1 - pi) + (1 - rho_pos) pi)
    P(wrong | given = 0) = rho_pos pi / (rho_pos pi + (1 - rho_neg) (1 - pi))

A prediction's confidence alone is not that: where 60 % of the negatives were switched on, a doubtful given positive is
most probably wrong, and where no positive is ever false it is right. `pi` must be a probability of the *clean* label,
while models are trained on the given ones: a slope and an offset per class are fitted to the logits so that T of the
calibrated prediction explains the given labels. With features the heads are trained through T to begin with.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from mlt_jax.crossfit import cross_val_logits
from mlt_jax.estimator import Status, TransitionEstimate, as_transition, implied_prior
from mlt_jax.labels import Labels, as_labels, as_matrix
from mlt_jax.recipe import estimate

_STEPS = 30
# Predictions are logits, so slopes are about 1; an offset is only held where a class has next to no positives.
_SLOPE_SPREAD, _OFFSET_SPREAD = 0.5, 5.0
_CHI2_95 = 3.841
_EDGE = 1e-6


class Audit(NamedTuple):
    """What is known about every label of n examples and q classes."""

    labels: Labels  # as given
    found: TransitionEstimate  # T, its errors and status
    scores: Float[np.ndarray, "n q"]  # out-of-sample logits
    slope: Float[np.ndarray, "q"]  # pi = sigmoid(slope * score + offset)
    offset: Float[np.ndarray, "q"]
    wrong: Float[np.ndarray, "n q"]  # P(given label is wrong); 0 where nobody gave one
    ids: tuple[str, ...]  # the examples' names; their row numbers where none were given

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; their column numbers where none were given."""
        return self.labels.classes or tuple(map(str, range(self.wrong.shape[1])))

    @property
    def clean_probs(self) -> Float[np.ndarray, "n q"]:
        """P(clean = 1 | prediction, given label), (n, q)."""
        given = self.labels.values == 1
        known = self.labels.observed if self.labels.observed is not None else np.True_
        return np.where(known, np.where(given, 1 - self.wrong, self.wrong), _posterior(self))


class Issues(NamedTuple):
    """Suspected labels, the most probably wrong first."""

    example: Int[np.ndarray, "m"]  # row
    column: Int[np.ndarray, "m"]  # class
    given: UInt8[np.ndarray, "m"]
    wrong: Float[np.ndarray, "m"]  # P(given label is wrong)

    @property
    def suggested(self) -> UInt8[np.ndarray, "m"]:
        """The other label."""
        return (1 - self.given).astype(np.uint8)


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
) -> Audit:
    """The audit of all labels: T and P(label is wrong) per cell.

    Args:
      labels: (n, q), any form that `as_labels` takes (cleanlab's lists of class indices too).
      probs: (n, q) predicted P(label = 1) for examples the model did *not* train on (see `cross_val_probs`). With
        (epochs, n, q) T comes from all epochs, the way of the paper, and the last epoch predicts.
      features: (n, d) of any network; heads are cross-fitted on them. Better than probs where both are at hand.
      losses: (epochs, n, q) of the given labels, for T the way of the paper; predictions still come from the others.
      T: (q, 2, 2) `T[j, clean, noisy]` or a `TransitionEstimate`, where it is known already.
      method, assume: how T is estimated, see `mlt_jax.estimate`.
      ids: n names of the examples.  classes: q names.  seed: of the folds.
    """
    if classes is None and probs is not None and hasattr(probs, "columns") and isinstance(labels, list | tuple):
        classes = list(map(str, probs.columns))
    width = None if probs is None or not isinstance(labels, list | tuple) else np.shape(probs)[-1]
    checked = as_labels(labels, coding=coding, observed=observed, classes=classes, num_classes=width)
    n, q = checked.values.shape
    names = tuple(map(str, range(n) if ids is None else ids))
    if len(names) != n:
        raise ValueError(f"ids: {len(names)} names, labels have {n} rows; pass one name per example")
    if probs is None and features is None:
        raise ValueError("probs: neither probs nor features were given; pass one, from any framework")
    if T is None:
        told = {"losses": losses, "method": method, "assume": assume}
        found = estimate(checked, probs=probs, features=features, **told)
    else:
        found = T if isinstance(T, TransitionEstimate) else _known(T, checked)
        if len(found.T) != q:
            raise ValueError(f"T: of {len(found.T)} classes, labels have {q}; pass that of the same classes")
    if features is not None:
        scores = cross_val_logits(features, checked, T=found.T, seed=seed)
    else:
        last = probs[-1] if np.ndim(probs) == 3 else probs
        p = np.clip(as_matrix(last, checked, name="probs", low=0, high=1), _EDGE, 1 - _EDGE)
        scores = np.log(p) - np.log1p(-p)
    known = checked.observed if checked.observed is not None else np.ones((n, q), bool)
    y = checked.values.astype(np.float32)
    rates = jnp.stack([found.rho_neg, found.rho_pos], axis=1).astype(jnp.float32)
    slope, offset = _calibrate(jnp.asarray(scores), y, known, rates, found.prior.astype(jnp.float32))
    wrong = _wrong(jnp.asarray(scores), y, known, rates, slope, offset)
    return Audit(checked, found, scores, np.asarray(slope), np.asarray(offset), np.asarray(wrong), names)


def find_label_issues(
    source: Any, *, threshold: float = 0.5, most: int | None = None, **inputs: Any
) -> Issues:  # fmt: skip
    """Labels more probably wrong than `threshold`, the worst first, at most `most` of them.

    source: an `Audit`, or labels with the arguments of `audit_labels` as `inputs`; likewise in the functions below.
    """
    audit = _as_audit(source, inputs)
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold: {threshold}; pass a probability in [0, 1)")
    rows, columns = np.nonzero(audit.wrong > threshold)
    wrong = audit.wrong[rows, columns]
    order = np.argsort(-wrong, kind="stable")[:most]
    rows, columns = rows[order], columns[order]
    return Issues(rows, columns, audit.labels.values[rows, columns], wrong[order])


def issues_frame(source: Any, *, threshold: float = 0.5, most: int | None = None, **inputs: Any) -> Any:
    """`find_label_issues` as a pandas DataFrame: example, row, class, given, suggested, p_wrong."""
    import pandas as pd

    audit = _as_audit(source, inputs)
    issues = find_label_issues(audit, threshold=threshold, most=most)
    return pd.DataFrame(
        {
            "example": [audit.ids[row] for row in issues.example],
            "row": issues.example,
            "class": [audit.classes[column] for column in issues.column],
            "given": issues.given,
            "suggested": issues.suggested,
            "p_wrong": issues.wrong,
        }
    )


def label_quality(source: Any, *, per: str = "cell", **inputs: Any) -> Float[np.ndarray, "..."]:
    """P(label is right): (n, q) per "cell"; (n,) per "example", that all of its labels are right; (q,) per "class", the
    mean of its cells, which is the share of right labels to be expected. Cells nobody labelled do not count (1).
    """
    if per not in ("cell", "example", "class"):
        raise ValueError(f'per: {per!r}; pass "cell", "example" or "class"')
    audit = _as_audit(source, inputs)
    right = 1 - audit.wrong
    if per == "example":
        return np.prod(right, axis=1)
    if per == "class" and audit.labels.observed is not None:
        known = audit.labels.observed.sum(axis=0)
        return 1 - audit.wrong.sum(axis=0) / np.maximum(known, 1)
    return right.mean(axis=0) if per == "class" else right


def clean_labels(source: Any, *, threshold: float = 0.5, **inputs: Any) -> UInt8[np.ndarray, "n q"]:
    """Labels (n, q), 0/1, with those flipped that are more probably wrong than `threshold`; unobserved cells stay 0."""
    audit = _as_audit(source, inputs)
    return audit.labels.values ^ (audit.wrong > threshold).astype(np.uint8)


def importance_weights(source: Any, **inputs: Any) -> Float[np.ndarray, "n q"]:
    """Weights (n, q) that make the mean loss of the *given* labels that of the clean ones, for any framework's loss.

    beta = P(clean = given | x) / P(noisy = given | x), at most `1 / T[given, given]`; 0 where nobody gave a label. With
    PyTorch: `BCEWithLogitsLoss(reduction="none")(logits, labels)` times these, then the mean.
    """
    audit = _as_audit(source, inputs)
    kept = np.asarray(audit.found.T)[:, [0, 1], [0, 1]]
    y = audit.labels.values == 1
    weight = (1 - audit.wrong) / np.maximum(np.where(y, kept[:, 1], kept[:, 0]), 1e-3)
    return weight if audit.labels.observed is None else np.where(audit.labels.observed, weight, 0)


def cross_val_probs(features: Any, labels: Any, **options: Any) -> Float[np.ndarray, "n q"]:
    """P(label = 1) of each example, (n, q), by logistic heads that never saw it; options of `cross_val_logits`."""
    return np.asarray(jax.nn.sigmoid(cross_val_logits(features, labels, **options)))


def _as_audit(source: Any, inputs: dict[str, Any]) -> Audit:
    if not isinstance(source, Audit):
        return audit_labels(source, **inputs)
    if inputs:
        raise TypeError(
            f"{', '.join(inputs)}: this audit is made already; pass labels instead of it, or leave them out"
        )
    return source


def _known(T: Any, labels: Labels) -> TransitionEstimate:
    """An estimate that says only T."""
    q = labels.values.shape[1]
    T = as_transition(T, q)
    size = len(labels.values) if labels.observed is None else np.maximum(labels.observed.sum(axis=0), 1)
    frequency = labels.values.sum(axis=0) / size
    return TransitionEstimate(
        T=T,
        prior=implied_prior(T, jnp.asarray(frequency, T.dtype)),
        stderr=jnp.full((q, 2), jnp.nan, T.dtype),
        status=jnp.full(q, Status.FALLBACK, jnp.int32),
        partners=jnp.zeros(q, jnp.int32),
        residual=jnp.zeros(q, T.dtype),
    )


def _posterior(audit: Audit) -> Float[np.ndarray, "n q"]:
    """P(clean = 1 | prediction)."""
    return np.asarray(jax.nn.sigmoid(audit.slope * audit.scores + audit.offset))


def _given(rates: Float[Array, "2"], logit: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """P(given = 1) where `logit` is that of the clean label."""
    return jnp.clip(rates[0] + (1 - rates[0] - rates[1]) * jax.nn.sigmoid(logit), _EDGE, 1 - _EDGE)


def _calibrate_one(
    s: Float[Array, "n"], y: Float[Array, "n"], known: Bool[Array, "n"], rates: Float[Array, "2"], prior: Array
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Slope and offset of one class by maximum likelihood through T; the prior alone where scores predict nothing."""

    def fit(logit: Float[Array, "n"]) -> Array:
        given = _given(rates, logit)
        return jnp.sum(jnp.where(known, y * jnp.log(given) + (1 - y) * jnp.log1p(-given), 0))

    def cost(t: Float[Array, "2"]) -> Array:
        held = (t[0] / _SLOPE_SPREAD) ** 2 + (t[1] / _OFFSET_SPREAD) ** 2
        return held / 2 - fit(jnp.exp(t[0]) * s + t[1])

    def step(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        t, damping, best = carry
        curvature = jax.hessian(cost)(t)
        # A 2x2 matrix made positive: off the optimum the likelihood through T is not concave.
        diagonal = (1 + damping) * (jnp.abs(jnp.diag(curvature)) + 1e-3)
        bound = 0.99 * jnp.sqrt(diagonal[0] * diagonal[1])
        inner = jnp.clip(curvature[0, 1], -bound, bound)
        g = jax.grad(cost)(t)
        move = jnp.stack([diagonal[1] * g[0] - inner * g[1], diagonal[0] * g[1] - inner * g[0]])
        new = t - jnp.clip(move / (diagonal[0] * diagonal[1] - inner**2), -1, 1)
        value = cost(new)
        better = value < best
        return (jnp.where(better, new, t), jnp.where(better, 0.3, 4.0) * damping, jnp.where(better, value, best)), None

    start = jnp.zeros(2, s.dtype)
    (t, _, _), _ = jax.lax.scan(step, (start, jnp.array(1e-2, s.dtype), cost(start)), None, length=_STEPS)
    flat = jnp.clip(prior, 1e-4, 1 - 1e-4)
    flat = jnp.log(flat) - jnp.log1p(-flat)
    slope, offset = jnp.exp(t[0]), t[1]
    predicts = 2 * (fit(slope * s + offset) - fit(jnp.full_like(s, flat))) > _CHI2_95
    return jnp.where(predicts, slope, 0), jnp.where(predicts, offset, flat)


@jax.jit
def _calibrate(
    s: Float[Array, "n q"], y: Array, known: Array, rates: Float[Array, "q 2"], prior: Float[Array, "q"]
) -> tuple[Float[Array, "q"], Float[Array, "q"]]:
    return jax.vmap(_calibrate_one, in_axes=(1, 1, 1, 0, 0))(s, y, known, rates, prior)


@jax.jit
def _wrong(
    s: Float[Array, "n q"], y: Array, known: Array, rates: Float[Array, "q 2"], slope: Array, offset: Array
) -> Float[Array, "n q"]:
    pi = jax.nn.sigmoid(slope[None] * s + offset[None])
    rho_neg, rho_pos = rates[None, :, 0], rates[None, :, 1]
    flipped = jnp.where(y == 1, rho_neg * (1 - pi), rho_pos * pi)
    kept = jnp.where(y == 1, (1 - rho_pos) * pi, (1 - rho_neg) * (1 - pi))
    return jnp.where(known, flipped / jnp.maximum(flipped + kept, 1e-30), 0)
