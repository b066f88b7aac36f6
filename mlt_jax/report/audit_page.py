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
from mlt_jax.report.thumbnails import Pictures, in_folder, pictures
from mlt_jax.transition import Status

MOST_ISSUES, MOST_ROWS = 5000, 200_000  # browsers end a list at some 33 million pixels
_MOST_LABELS = 100  # given labels that are named beside a suspect


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
    embed: float = 4.0,
    command: str = "mlt apply LABELS decisions.csv --out relabelled.csv",
    title: str = "Label audit",
) -> Path:
    """Where the page was written: noise per class, T, the evidence, and the labels to re-check.

    Args:
      images: a folder whose files are named like the ids, or a function from row to a path or a uint8 array. Files are
        linked, relative to the page: it shows the originals as long as they stay where they are.
      losses: (epochs, n, q) or (n, q) of training, for the histograms; by default the losses of the predictions.
      threshold, most: which suspects are listed, see `find_label_issues`.
      interval: (q, 2, 2) of the rates, where they are not those of the estimate, as those of `verified`.
      doubts: sentences of `assumption_test` about classes whose mistakes depend on other labels.
      proposal: cells to list for decision instead of the suspects, in their order and without P(wrong).
      embed: MB of small pictures inside the page, the most suspect first.
      command: what reads the decisions that the page saves, to copy from it.

    Raises:
      ValueError: a folder without pictures of the examples, or more suspects to list than a browser can.
    """
    every = find_label_issues(audit, threshold=threshold)
    issues = Issues(*(x[:most] for x in every)) if proposal is None else Issues(*proposal[:4])
    if len(issues.wrong) > MOST_ROWS:
        raise ValueError(
            f"most: {len(issues.wrong):,} labels to list; pass {MOST_ROWS:,} at most, the CSV file has all"
        )
    n, q = audit.wrong.shape
    suspects = np.bincount(every.column, minlength=q)
    guess = np.isin(np.asarray(audit.found.status), (Status.TOO_FEW, Status.UNIDENTIFIABLE))
    order = np.lexsort([-suspects, guess]).tolist()
    image = in_folder(images, audit.ids) if isinstance(images, str | Path) else images
    shown = Pictures({}, {}, 0)
    if image is not None:
        beside = Path(path).expanduser().absolute().parent
        shown = pictures(issues.example.tolist(), image, beside=beside, embed=embed)
    # Each example is named once, however many of its labels are suspect.
    rows, place = np.unique(issues.example, return_inverse=True)
    position = {int(row): k for k, row in enumerate(rows)}
    given = [np.flatnonzero(audit.labels.values[row]).tolist() for row in rows]
    data: dict[str, Any] = {
        "total": len(every.wrong) if proposal is None else len(issues.wrong),
        "ids": [audit.ids[row] for row in rows],
        "classes": list(audit.classes),
        "example": place.tolist(),
        "column": issues.column.tolist(),
        "given": issues.given.tolist(),
        "wrong": [round(float(p), 5) for p in issues.wrong],
        # Past the most, a negative number says how many more there are.
        "labels": [x if len(x) <= _MOST_LABELS else [*x[:_MOST_LABELS], _MOST_LABELS - len(x)] for x in given],
        "thumbs": {position[row]: uri for row, uri in shown.thumbs.items()},
        "files": {position[row]: link for row, link in shown.links.items()},
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
    named: dict[str, Any] = {
        "suspects": suspects,
        "interval": interval,
        "pick": set(columns),
        "gallery": image is not None,
    }
    listing: dict[str, Any] = {
        "command": command,
        "proposed": proposal is not None,
        "pictures": "" if image is None else str(shown),
    }
    parts = [
        sections.warnings(audit.warnings),
        tiles(numbers),
        sections.rates(audit.found, audit.classes, **named),
        sections.assumption(audit.found, doubts),
        sections.issues(audit.classes, columns, len(every.wrong), len(issues.wrong), **listing),
        sections.curves(audit, order),
        sections.heat_maps(audit.found, audit.classes, order),
        sections.mixtures(audit, order, losses),
        sections.partners(audit, order),
    ]
    subtitle = f"{n:,} examples, {q:,} classes"
    return write(path, page(title, subtitle, parts, data=data, beside=bool(shown.links)))
