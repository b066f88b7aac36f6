"""The page of an audit."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlt_jax.audit.audit import Audit
from mlt_jax.audit.issues import Issues, find_label_issues
from mlt_jax.audit.propose import Proposal
from mlt_jax.report import sections
from mlt_jax.report.page import page, tiles, write
from mlt_jax.report.thumbnails import in_folder, thumbnails

MOST_ISSUES = 5000


def audit_page(
    audit: Audit,
    path: str | Path,
    *,
    images: str | Path | Callable[[int], Any] | None = None,
    losses: Any = None,
    threshold: float = 0.5,
    most: int = MOST_ISSUES,
    interval: Any = None,
    proposal: Proposal | None = None,
    doubts: Sequence[str] = (),
    title: str = "Label audit",
) -> Path:
    """Where the page was written: noise per class, T, the evidence, and the labels to re-check.

    Args:
      images: a folder whose files are named like the ids, or a function from row to a path or a uint8 array.
      losses: (epochs, n, q) or (n, q) of training, for the histograms; by default the losses of the predictions.
      threshold, most: which suspects are listed, see `find_label_issues`.
      interval: (q, 2, 2) of the rates, where they are not those of the estimate, as those of `verified`.
      doubts: sentences of `assumption_test` about classes whose mistakes depend on other labels.
      proposal: cells to list for decision instead of the suspects, in their order and without P(wrong).
    """
    every = find_label_issues(audit, threshold=threshold)
    issues = find_label_issues(audit, threshold=threshold, most=most) if proposal is None else Issues(*proposal[:4])
    n, q = audit.wrong.shape
    suspects = np.bincount(every.column, minlength=q)
    order = np.argsort(-suspects, kind="stable").tolist()
    image = in_folder(images, audit.ids) if isinstance(images, str | Path) else images
    pictures = {} if image is None else thumbnails(issues.example.tolist(), image)
    # Each example is named once, however many of its labels are suspect.
    rows, place = np.unique(issues.example, return_inverse=True)
    position = {int(row): k for k, row in enumerate(rows)}
    data: dict[str, Any] = {
        "ids": [audit.ids[row] for row in rows],
        "classes": list(audit.classes),
        "example": place.tolist(),
        "column": issues.column.tolist(),
        "given": issues.given.tolist(),
        "wrong": [round(float(p), 5) for p in issues.wrong],
        "thumbs": {position[row]: uri for row, uri in pictures.items()},
    }
    # Under this name the browser keeps the decisions: that of the labels, and of what is asked about them.
    asked = json.dumps([audit.ids, audit.classes, None if proposal is None else proposal.example.tolist()])
    data["report"] = hashlib.sha256(asked.encode() + audit.labels.values.tobytes()).hexdigest()[:16]
    if proposal is not None:
        data["probability"] = proposal.probability.tolist()
    cells = n * q if audit.labels.observed is None else int(audit.labels.observed.sum())
    missed = int((every.given == 0).sum())
    numbers = [
        (f"{len(every.wrong):,}", "labels to re-check"),
        (f"{100 * audit.wrong.sum() / max(cells, 1):.2f} %", f"of {cells:,} labels expected wrong"),
        (f"{len(every.wrong) - missed:,}", "look falsely given"),
        (f"{missed:,}", "look missed"),
    ]
    listed = suspects if proposal is None else np.bincount(proposal.column, minlength=q)
    columns = [j for j in order if listed[j]]
    parts = [
        sections.warnings(audit.warnings),
        tiles(numbers),
        sections.rates(audit.found, audit.classes, suspects=suspects, interval=interval, pick=True),
        sections.assumption(audit.found, doubts),
        sections.issues(audit.classes, columns, len(every.wrong), len(issues.wrong), proposed=proposal is not None),
        sections.curves(audit, order),
        sections.heat_maps(audit.found, audit.classes, order),
        sections.mixtures(audit, order, losses),
        sections.partners(audit, order),
    ]
    return write(path, page(title, f"{n:,} examples, {q:,} classes", parts, data=data))
