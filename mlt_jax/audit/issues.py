"""What to do about an audit: suspects, label quality, relabelled data and weights for any framework's loss."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from mlt_jax.arguments import check_choice, check_integer, check_number
from mlt_jax.audit.audit import as_audit


class Issues(NamedTuple):
    """m suspected labels, the most probably wrong first."""

    example: Int[np.ndarray, "m"]  # row
    column: Int[np.ndarray, "m"]  # class
    given: UInt8[np.ndarray, "m"]
    wrong: Float[np.ndarray, "m"]  # P(given label is wrong)

    @property
    def suggested(self) -> UInt8[np.ndarray, "m"]:
        """The other label."""
        return (1 - self.given).astype(np.uint8)


def find_label_issues(source: Any, *, threshold: float = 0.5, most: int | None = None, **inputs: Any) -> Issues:
    """Labels more probably wrong than `threshold`, the worst first, at most `most` of them.

    Args:
      source: an `Audit`, or labels (n, q); likewise in the other functions of this module.
      **inputs: the arguments of `audit_labels`, where `source` is labels.
    """
    audit = as_audit(source, inputs)
    check_number("threshold", threshold, lambda x: 0 <= x < 1, "a probability in [0, 1)")
    if most is not None:
        check_integer("most", most, 0)
    rows, columns = np.nonzero(audit.wrong > threshold)
    wrong = audit.wrong[rows, columns]
    order = np.argsort(-wrong, kind="stable")[:most]
    rows, columns = rows[order], columns[order]
    return Issues(rows, columns, audit.labels.values[rows, columns], wrong[order])


def issues_frame(source: Any, *, threshold: float = 0.5, most: int | None = None, **inputs: Any) -> Any:
    """`find_label_issues` as a pandas DataFrame: example, row, class, given, suggested, p_wrong."""
    import pandas as pd

    audit = as_audit(source, inputs)
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
    """P(label is right) of every cell, example or class.

    Args:
      source, inputs: as in `find_label_issues`.
      per: "cell", (n, q); "example", (n,): that all of its labels are right; or "class", (q,): the mean of its cells,
        which is the expected share of right labels. Cells that are not labelled count as right, and in no mean.
    """
    check_choice("per", per, ("cell", "example", "class"), '"cell", "example" or "class"')
    audit = as_audit(source, inputs)
    right = 1 - audit.wrong
    if per == "example":
        return np.prod(right, axis=1)
    if per == "class" and audit.labels.observed is not None:
        known = audit.labels.observed.sum(axis=0)
        return 1 - audit.wrong.sum(axis=0) / np.maximum(known, 1)
    return right.mean(axis=0) if per == "class" else right


def clean_labels(source: Any, *, threshold: float = 0.5, **inputs: Any) -> UInt8[np.ndarray, "n q"]:
    """Labels (n, q), 0/1, with those flipped that are more probably wrong than `threshold`; unlabelled cells stay 0."""
    audit = as_audit(source, inputs)
    check_number("threshold", threshold, lambda x: 0 <= x <= 1, "a probability")
    return audit.labels.values ^ (audit.wrong > threshold).astype(np.uint8)


def importance_weights(source: Any, **inputs: Any) -> Float[np.ndarray, "n q"]:
    """Weights (n, q) that make the mean loss of the *given* labels that of the clean ones, for any framework's loss.

    beta = P(clean = given | x) / P(noisy = given | x), at most `1 / T[given, given]`; 0 where a cell is not labelled.
    With PyTorch: `BCEWithLogitsLoss(reduction="none")(logits, labels)` times these, then the mean.
    """
    audit = as_audit(source, inputs)
    kept = np.asarray(audit.found.T)[:, [0, 1], [0, 1]]
    y = audit.labels.values == 1
    weight = (1 - audit.wrong) / np.maximum(np.where(y, kept[:, 1], kept[:, 0]), 1e-3)
    return weight if audit.labels.observed is None else np.where(audit.labels.observed, weight, 0)
