"""The files of an audit: what it writes, and the decisions of people that it reads.

Whatever is wrong with a file raises a ValueError of one line that names it.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlt_jax.audit.audit import Audit
from mlt_jax.audit.exports import decisions_in, is_export
from mlt_jax.audit.issues import Issues
from mlt_jax.audit.propose import Decisions, Proposal
from mlt_jax.audit.verified import Verified
from mlt_jax.estimator.raters import Raters, RaterStatus, RaterTable, ask_next
from mlt_jax.files.tables import existing
from mlt_jax.files.text import csv_rows
from mlt_jax.labels import Labels
from mlt_jax.outputs import atomic, is_number, write_csv
from mlt_jax.transition import Status, TransitionEstimate

FLIP, KEEP = ("flip", "wrong"), ("", "keep", "right")
ISSUE_COLUMNS = ("example", "class", "given", "suggested", "p_wrong", "decision")
PROPOSAL_COLUMNS = (*ISSUE_COLUMNS, "probability")
RATER_COLUMNS = {
    "raters.csv": ("rater", "class", "rho_neg", "neg_low", "neg_high", "rho_pos", "pos_low", "pos_high", "status"),
    "consensus.csv": ("example", "class", "consensus", "p_right"),
    "ask.csv": ("example", "class", "rater", "gain_bits"),
}
# What the rates and the interval of a class suppose, for people who label.
_CLASS_ONLY = (
    "mistakes that depend on the class only; if ambiguous examples have more of them, there are more than this"
)
ASSUMES = {
    Status.CORRELATION: f"{_CLASS_ONLY}, and that the labels taken as clean are",
    Status.FALLBACK: f"rates that were passed or borrowed, so there is no interval, and {_CLASS_ONLY}",
    Status.TOO_FEW: "nothing: it has too few labels, the rates are a guess",
    Status.UNIDENTIFIABLE: "nothing: predictions do not tell its labels, the rates are a guess",
    Status.POSTERIOR: _CLASS_ONLY,
    Status.COUNTED: "mistakes as people made them in five other sets, mostly on ambiguous examples; the interval is as "
    "wide as the rule's errors there",
    Status.SHARED: f"rates like those of the other classes, as its own predictions say little, and {_CLASS_ONLY}",
    Status.VERIFIED: "nothing but that the decisions on the drawn sample are right: it holds for any mistakes",
}


class Ballot(NamedTuple):
    """What reviewers say about one label."""

    where: str  # file and line of the first decision, else of the first row
    row: dict[str, Any]  # see `decision_rows`
    votes: dict[str, bool]  # by reviewer: whether the label is to be flipped

    @property
    def flip(self) -> bool | None:
        """Whether all say flip; None where nobody decided, or where they disagree."""
        return None if self.split else next(iter(self.votes.values()), None)

    @property
    def split(self) -> bool:
        """Whether they disagree."""
        return len(set(self.votes.values())) > 1


def read_decisions(
    path: str | Path, labels: Labels, ids: tuple[str, ...], classes: tuple[str, ...], **options: Any
) -> Decisions:
    """The decisions in a CSV file, as the page saves them: columns example, class, given, decision and probability.

    A decision is flip, keep or empty (undecided). Without a probability, decisions serve the ranking alone. What
    several reviewers say alike counts once; what they disagree about is refused. JSON is what Label Studio or FiftyOne
    exported, see `audit.exports`; labels of cells that nobody had labelled are left out. Options are of `read_text`.
    """
    place = places(ids, classes)
    rows = []
    merged = merge_decisions([path], **options).values()
    for ballot in merged:
        cell = find_cell(ballot.where, ballot.row, place)
        if np.isnan(ballot.row["given"]) and labels.observed is not None and not labels.observed[cell]:
            continue
        given = int(labels.values[cell])
        if ballot.row["given"] != given:
            raise ValueError(f"{ballot.where}, the label is {given}, not {ballot.row['given']:g}")
        if ballot.split:  # left out, it would be missing for a reason
            several = sum(other.split for other in merged)
            raise ValueError(f"{ballot.where}: reviewers disagree, on {several} labels in all; settle them on the page")
        label = -1 if ballot.flip is None else 1 - given if ballot.flip else given
        rows.append((*cell, label, ballot.row["probability"]))
    if not any(row[2] >= 0 for row in rows):
        raise ValueError(f"{path}: no cell is decided; decide some on the page, or write flip or keep")
    return Decisions(*map(np.array, zip(*rows, strict=True)))


def places(ids: Iterable[str], classes: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
    """The rows and columns by name, as decisions have names: without outer spaces."""

    def place(what: str, names: Iterable[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for k, name in enumerate(names):
            if found.setdefault(name.strip(), k) != k:
                raise ValueError(f'labels: {what} "{name.strip()}" stands twice, but for spaces; rename one')
        return found

    return place("example", ids), place("class", classes)


def decision_rows(path: str | Path, **options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each row of a CSV file of decisions stands, and the row: `example`, `class` and `decision` are text,
    `given`, `p_wrong` and `probability` numbers, NaN where the file has none. JSON: see `audit.exports`.
    """
    path = existing(path)
    if path.suffix.lower() == ".json":
        yield from decisions_in(path)
        return
    header, lines = csv_rows(path, **options)
    for missing in {"example", "class", "given", "decision"} - set(header):
        raise ValueError(f'{path}: column "{missing}" is missing; pass the issues CSV or saved decisions')
    for number, line in enumerate(lines, 2):
        row: dict[str, Any] = dict(zip(header, map(str.strip, line), strict=True))
        row["decision"] = row["decision"].lower()
        if row["decision"] not in FLIP + KEEP:
            raise ValueError(f'{path}: line {number} decides "{row["decision"]}"; write flip, keep or nothing')
        for key in ("given", "p_wrong", "probability"):
            text = row.get(key, "").replace(",", ".") or "nan"  # as some spreadsheets write it
            if not is_number(text):
                raise ValueError(f'{path}: line {number}, column "{key}" is "{text}"; write a number or nothing')
            row[key] = float(text)
        yield f"{path}: line {number}", row


def merge_decisions(paths: Iterable[str | Path], **options: Any) -> dict[tuple[str, str], Ballot]:
    """What all files say about each label, by example and class, in their order; options of `read_text`.

    A reviewer is known by the column `reviewer`, or else by the file. Who contradicts himself counts as two.

    Raises:
      ValueError: a file that is no CSV of decisions, or two that take different labels as given.
    """
    merged: dict[tuple[str, str], Ballot] = {}
    for path in paths:
        for where, row in decision_rows(path, **options):
            label, flip = (row["example"], row["class"]), row["decision"] in FLIP
            ballot = merged.setdefault(label, Ballot(where, row, {}))
            if not row["decision"]:
                continue
            if not ballot.votes:
                merged[label] = ballot = Ballot(where, row, {})
            if not np.array_equal(row["given"], ballot.row["given"], equal_nan=True):
                raise ValueError(
                    f"{where}, the label is {row['given']:g}, but {ballot.row['given']:g} in {ballot.where}"
                )
            who = row.get("reviewer") or str(path)
            ballot.votes[who if ballot.votes.get(who, flip) == flip else f"{who} ({where})"] = flip
    return merged


def write_disagreements(path: Path, ballots: Iterable[Ballot]) -> Path:
    """The path, once what each reviewer says is written there, a row per label and reviewer; the page imports it."""
    rows = (
        [row["example"], row["class"], *map(_number, (row["given"], 1 - row["given"], row["p_wrong"])),
         "flip" if flip else "keep", who]
        for _, row, votes in ballots
        for who, flip in votes.items()
    )  # fmt: skip
    return write_csv(path, [(*ISSUE_COLUMNS, "reviewer"), *rows])


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6g}"


def find_cell(where: str, row: dict[str, Any], place: tuple[dict[str, int], dict[str, int]]) -> tuple[int, int]:
    """(row, column) of the cell that a decision is about, by the places of examples and classes."""
    example, column = row["example"], row["class"]
    if example not in place[0] or column not in place[1]:
        raise ValueError(f'{where} is about "{example}", class "{column}", which is not among the labels')
    return place[0][example], place[1][column]


def class_summary(audit: Audit, issues: Issues, interval: Any = None) -> dict[str, dict[str, Any]]:
    """By class: rates with 95 % intervals (None where there are none), prior, status, what it assumes, and counts."""
    T, prior, status = (np.asarray(x) for x in (audit.found.T, audit.found.prior, audit.found.status))
    ends = np.asarray(audit.found.interval() if interval is None else interval)
    suspects = np.bincount(issues.column, minlength=len(audit.classes))
    spans = [[end.tolist() if np.isfinite(end).all() else None for end in pair] for pair in ends]
    return {
        name: {
            "rho_neg": float(T[j, 0, 1]),
            "rho_pos": float(T[j, 1, 0]),
            "interval_neg": spans[j][0],
            "interval_pos": spans[j][1],
            "prior": float(prior[j]),
            "status": Status(int(status[j])).name.lower(),
            "assumes": ASSUMES[Status(int(status[j]))],
            "given": int(audit.labels.values[:, j].sum()),
            "expected_wrong": float(audit.wrong[:, j].sum()),
            "suspects": int(suspects[j]),
        }
        for j, name in enumerate(audit.classes)
    }


def class_table(summary: dict[str, dict[str, Any]]) -> str:
    """The `class_summary` as text: rates in percent, the classes with most suspects first, then what they suppose."""

    def rate(row: dict[str, Any], side: str) -> str:
        ends = row[f"interval_{side}"]
        span = f" ({100 * ends[0]:5.1f} to {100 * ends[1]:5.1f})" if ends else " " * 17
        return f"{100 * row[f'rho_{side}']:6.1f}{span}"

    width = min(max(5, *map(len, summary)), 30)
    header = f"{'class':{width}} {'given':>8} {'falsely given, %':>23} {'missed, %':>23}  {'status':14} {'suspects':>8}"
    lines = [header]
    for name, row in sorted(summary.items(), key=lambda item: -item[1]["suspects"]):
        rates = f"{rate(row, 'neg'):>23} {rate(row, 'pos'):>23}"
        lines.append(f"{name[:30]:{width}} {row['given']:8d} {rates}  {row['status']:14} {row['suspects']:8d}")
    assumed = {row["status"]: row["assumes"] for row in summary.values()}
    return "\n".join([*lines, "", "What rates and intervals suppose:", *(f"- {k}: {v}" for k, v in assumed.items())])


def write_audit(
    out: Path, audit: Audit, issues: Issues, classes: dict[str, dict[str, Any]], answer: Verified | None
) -> list[Path]:
    """The files written: issues as CSV with a column for decisions, classes as JSON, T as npz."""
    table, summary, matrices, _ = audit_outputs(out)
    rows = (
        [audit.ids[row], audit.classes[column], given, 1 - given, f"{wrong:.6f}", ""]
        for row, column, given, wrong in zip(*issues, strict=True)
    )
    write_csv(table, [ISSUE_COLUMNS, *rows])
    whole: dict[str, Any] = {"examples": len(audit.ids), "suspects": len(issues.wrong)}
    whole |= {"warnings": list(audit.warnings), "classes": classes}
    if answer is not None:
        whole["share_wrong"], whole["share_interval"] = answer.share, answer.share_interval.tolist()
        whole["share_more"] = answer.share_more
        for row, more, decided in zip(classes.values(), answer.more, answer.decided, strict=True):
            row["decisions"], (row["more_neg"], row["more_pos"]) = int(decided.sum()), more.tolist()
    with atomic(summary, encoding="utf-8") as file:
        file.write(json.dumps(whole, indent=2) + "\n")
    audit.found.save(matrices, classes=audit.labels.classes)
    return [table, summary, matrices]


def write_proposal(path: Path, audit: Audit, proposal: Proposal) -> Path:
    """The path, once the cells to decide are written there as CSV."""
    rows = (
        [audit.ids[row], audit.classes[column], given, 1 - given, f"{wrong:.6f}", "", repr(float(probability))]
        for row, column, given, wrong, probability in zip(*proposal, strict=True)
    )
    return write_csv(path, [PROPOSAL_COLUMNS, *rows])


def audit_outputs(out: Path) -> tuple[Path, Path, Path, Path]:
    """What an audit writes beside its page."""
    ends = (".issues.csv", ".json", ".transition.npz", ".proposal.csv")
    table, summary, matrices, proposal = (out.with_suffix(end) for end in ends)
    return table, summary, matrices, proposal


def is_ours(path: Path) -> bool:
    """Whether a file looks like one that `mlt` wrote, and that nobody has filled in."""
    if path.suffix == ".npz":
        return is_transition(path)
    try:
        if is_export(path):
            return True
        text = path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return False
    if path.suffix == ".csv":
        if not text.startswith(tuple(map(",".join, (ISSUE_COLUMNS, *RATER_COLUMNS.values())))):
            return False
        # Decisions by hand are somebody's work.
        filled = any(row.get("decision") for row in csv.DictReader(text.splitlines()))
        return not filled or path.name.endswith(".disagreements.csv")
    if path.suffix == ".json":
        return text.startswith('{\n  "examples":') and '"suspects":' in text
    return text.startswith("<!doctype html>") and "Made by mlt_jax" in text


def is_transition(path: Path) -> bool:
    """Whether a file holds a T that `TransitionEstimate.save` wrote."""
    try:
        TransitionEstimate.load(path)
    except (OSError, ValueError):
        return False
    return True


def write_raters(out: Path, table: RaterTable, found: Raters, most: int) -> list[Path]:
    """The files written: T per rater and class with 95 % intervals, the consensus, and whom to ask next."""
    out.mkdir(parents=True, exist_ok=True)
    ends, asked = found.interval(), ask_next(found, most=most)
    rows: dict[str, Any] = {
        "raters.csv": (
            [rater, name, *(f"{x:.4f}" for k in (0, 1) for x in (found.T[r, j, k, 1 - k], *ends[r, j, k])),
             RaterStatus(int(found.status[r, j])).name.lower()]
            for r, rater in enumerate(table.raters) for j, name in enumerate(table.classes)
        ),
        "consensus.csv": (
            [example, name, found.consensus[i, j], f"{found.right[i, j]:.4f}"]
            for i, example in enumerate(table.examples) for j, name in enumerate(table.classes)
        ),
        "ask.csv": (
            [table.examples[i], table.classes[j], table.raters[r], f"{gain:.4f}"]
            for i, j, r, gain in zip(*asked, strict=True)
        ),
    }  # fmt: skip
    return [write_csv(out / name, [header, *rows[name]]) for name, header in RATER_COLUMNS.items()]
