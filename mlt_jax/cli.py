"""The command `mlt`: a wrong file or option gets one line and exit code 2; Ctrl-C ends with 130."""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Collection
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from tqdm import tqdm

from mlt_jax import processes
from mlt_jax.audit.audit import Audit, audit_labels
from mlt_jax.audit.exports import export_audit, export_files
from mlt_jax.audit.files import (
    RATER_COLUMNS,
    audit_outputs,
    class_summary,
    class_table,
    find_cell,
    is_ours,
    is_transition,
    merge_decisions,
    places,
    read_decisions,
    write_audit,
    write_disagreements,
    write_proposal,
    write_raters,
)
from mlt_jax.audit.issues import find_label_issues
from mlt_jax.audit.propose import propose_cells
from mlt_jax.audit.verified import Verified, recalibrate, refusal, verified
from mlt_jax.commands import (
    CONFIG,
    HELP,
    ApplyCommand,
    AuditCommand,
    Command,
    EstimateCommand,
    RatersCommand,
    ReportCommand,
)
from mlt_jax.estimator.assumption import MOST_TESTED, assumption_test
from mlt_jax.estimator.correlations import estimate_all
from mlt_jax.estimator.counts import check_inputs, count_checked
from mlt_jax.estimator.raters import estimate_raters, rater_array
from mlt_jax.estimator.solve import AGGREGATES, estimate_from_tables
from mlt_jax.files.columns import Table
from mlt_jax.files.tables import align, existing, features_like, probabilities, read_groups, read_share, read_table
from mlt_jax.files.text import csv_rows
from mlt_jax.files.write import write_labels
from mlt_jax.labels import ABSENT, CODINGS, UNKNOWN
from mlt_jax.outputs import check_outputs
from mlt_jax.transition import Status, TransitionEstimate, check_assume

_MOST_PRINTED = 20  # disagreements; the file has all


def main(args: list[str] | None = None) -> int:
    """The exit code: 0, or 2 with one line where a file or an option is wrong."""
    words = sys.argv[1:] if args is None else args
    if words[:1] in (["--help"], ["-h"], ["--version"]):
        print(f"mlt_jax {version('mlt_jax')}" if words[0] == "--version" else HELP)
        return 0
    command = tyro.cli(Command, prog="mlt", args=words, config=CONFIG)
    run: dict[type, Callable[[Any], None]] = {
        EstimateCommand: run_estimate, AuditCommand: run_audit, ApplyCommand: run_apply, RatersCommand: run_raters,
        ReportCommand: run_report,
    }  # fmt: skip
    try:
        run[type(command)](command)
    except (ValueError, TypeError, OSError) as error:
        print(f"mlt: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mlt: interrupted", file=sys.stderr)
        return 130
    except jax.errors.JaxRuntimeError:
        processes.await_end()
        raise
    return 0


def run_estimate(command: EstimateCommand) -> None:
    """Counts this process's rows, puts the counts of all processes together, solves; process 0 writes."""
    _check_choice("aggregate", command.aggregate, AGGREGATES)
    check_assume(command.assume)
    inputs = (command.labels, command.selected, command.unselected)
    check_outputs([command.out], inputs, ours=is_transition, force=command.force)
    # Joined before any other call of JAX, which would start it for this process alone.
    where = command.coordinator, command.num_processes, command.process_id
    processes.join(*where, timeout=command.timeout, program="mlt")
    files = {name: processes.file_hash(getattr(command, name)) for name in ("labels", "selected", "unselected")}
    options = {name: getattr(command, name) for name in ("aggregate", "assume", "min_selected")}
    patience = float(command.timeout)
    processes.same(files | options, timeout=patience)
    part = jax.process_index(), jax.process_count()

    found = _estimate_share(
        lambda: [None if path is None else read_share(path, *part) for path in inputs], options, patience
    )
    if processes.is_main():
        command.out.parent.mkdir(parents=True, exist_ok=True)
        found.save(command.out)
        status = ", ".join(Status(code).name.lower() for code in np.unique(found.status))
        print(f"{len(found.T)} classes ({status}); {command.out}")


def _estimate_share(read: Callable[[], list[Any]], rule: dict[str, Any], timeout: float) -> TransitionEstimate:
    """Estimates from the rows of all processes, of which each reads its own; all count lists, or all tables."""
    if jax.process_count() == 1:
        labels, selected, unselected = read()
        return estimate_all(labels, selected, unselected=unselected, **rule)
    from mlt_jax.estimator.lists import Lists, count_checked_lists, estimate_from_lists, list_burden

    wrong = None
    try:
        labels, mask = check_inputs(*read(), observed=None, coding="01")
        votes = [0, *list_burden(labels, mask), getattr(mask, "selected", False)]
    except (ValueError, TypeError, OSError) as error:
        wrong, votes = error, [1, 0, 0, 0]
    failed, *burden, storing_selected = np.asarray(processes.add_up(np.array(votes, np.float32), timeout=timeout))
    # All end together: one that ended alone would leave the others waiting.
    if failed:
        raise wrong or ValueError("another process could not count its rows; see its output")
    if max(burden) > 1 or storing_selected not in (0, jax.process_count()):
        return estimate_from_tables(processes.add_up(count_checked(labels, mask), timeout=timeout), **rule)
    shares = processes.each(count_checked_lists(labels, mask).arrays(), timeout=timeout)
    return estimate_from_lists(reduce(Lists.merge, map(Lists.from_arrays, shares)), **rule)


def run_audit(command: AuditCommand) -> None:
    """Reads, audits, prints, writes."""
    from mlt_jax.report.audit_page import MOST_ROWS, audit_page  # a complaint about a file need not wait
    from mlt_jax.report.thumbnails import in_folder

    if not 0 <= command.threshold < 1:
        raise ValueError(f"--threshold: {command.threshold}; pass a probability in [0, 1)")
    _check_choice("coding", command.coding, CODINGS)
    if command.probs is None and command.features is None:
        raise ValueError("probs: no predictions; pass a second file, or --features")
    if command.groups is not None and command.features is None:
        raise ValueError("--groups: they keep folds apart, but there are no --features; pass both, or neither")
    if command.propose is not None and command.decisions is not None:
        raise ValueError("--propose: --decisions is given as well; propose first, then pass what was decided")
    if not 0 <= command.most <= MOST_ROWS:
        raise ValueError(f"--most: {command.most}; pass how many suspects to show, {MOST_ROWS:,} at most")
    if not command.embed >= 0:
        raise ValueError(f"--embed: {command.embed}; pass how many MB of small pictures the page may hold, 0 for none")
    groups_file = None if command.groups is None else Path(command.groups)
    inputs = (command.labels, command.probs, command.features, command.transition, command.decisions, groups_file)
    written_to = audit_outputs(command.out)[: None if command.propose is not None else 3]
    exports = [_export(words) for words in command.export]
    check_outputs([command.out, *written_to], inputs, ours=is_ours, force=command.force)
    if command.out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out: {command.out} gets a page; pass a name that ends with .html")
    taken = [*inputs, command.out, *written_to]
    for tool, file in exports:
        check_outputs(export_files(tool, file), taken, ours=is_ours, force=command.force, flag="--export")
        taken += export_files(tool, file)
    with tqdm(total=4, disable=None, bar_format="{desc:24}{bar:30} {elapsed}", leave=False) as bar:
        bar.set_description("reading")
        own: dict[str, Any] = dict(groups=command.groups)  # the column may stand in any of the files
        probs = None if command.probs is None else command.read(command.probs, **own)
        labels = command.read(command.labels, classes=None if probs is None else probs.classes, **own)
        features = None if command.features is None else command.read(command.features, **own)
        command.check_ignored(labels, probs, features)
        borrowed = False
        if probs is not None:
            probs = probabilities(align(probs, labels))
            borrowed = labels.listed or labels.classes is None or (labels.ids is None and probs.ids is not None)
            labels = _named_by(labels, probs)
        groups = None if command.groups is None else read_groups(command.groups, labels, **command.text())
        x = None if features is None else features_like(features, labels)
        ids = labels.ids or tuple(map(str, range(len(labels.values))))
        picture = None if command.images is None else in_folder(command.images, ids)
        known = ~np.isnan(labels.values)
        names = labels.classes
        found = None if command.transition is None else TransitionEstimate.load(command.transition, classes=names)
        bar.update()
        bar.set_description("estimating, calibrating")
        try:
            audit = audit_labels(
                labels.values, probs=None if probs is None else probs.values, features=x, T=found,
                ids=labels.ids, classes=labels.classes, observed=None if known.all() else known, coding=command.coding,
                seed=command.seed, groups=groups,
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(str(error).replace("labels:", f"{command.labels}:", 1)) from None
        bar.update()
        bar.set_description("writing the list")
        proposal, answer = None, None
        notes: list[str] = []
        if command.propose is not None:
            given = audit.labels, audit.scores, command.propose
            proposal = propose_cells(*given, per=command.per, wrong=audit.wrong)
        if command.decisions is not None:
            audit, answer, notes = _decided(audit, command.decisions, **command.text())
        interval = None if answer is None else answer.interval
        issues = find_label_issues(audit, threshold=command.threshold)
        summary = class_summary(audit, issues, interval)
        doubts = []
        if len(audit.classes) <= MOST_TESTED:
            tested = assumption_test(audit.labels, scores=audit.scores)
            for entry, p, sentence in zip(summary.values(), tested.p, tested.sentences, strict=True):
                entry["assumption"] = {"p": round(float(p), 6), "sentence": sentence}
            doubts = [sentence for sentence, fired in zip(tested.sentences, tested.test, strict=True) if fired]
            notes += doubts
        written = write_audit(command.out, audit, issues, summary, answer)
        if proposal is not None:
            written.append(write_proposal(written_to[-1], audit, proposal))
            notes.append(f"{len(proposal.example)} cells to decide, in random order; stop where you like")
        for tool, file in exports:
            written += export_audit(tool, file, audit, issues, images=command.images, picture=picture)
        bar.update()
        bar.set_description("making the page")
        title = command.title or f"Label audit of {command.labels.name}"
        shown: dict[str, Any] = dict(threshold=command.threshold, most=command.most, title=title)
        page = audit_page(
            audit, command.out, images=picture, interval=interval, proposal=proposal, doubts=doubts,
            embed=command.embed, command=_next_command(command, labels, borrowed=borrowed), **shown,
        )  # fmt: skip
        bar.update()
    warned = [f"warning: {text}" for text in audit.warnings]
    print("\n".join([*warned, class_table(summary), *(["", *notes] if notes else [])]))
    print(f"\n{len(issues.wrong)} labels to re-check; {page}, {', '.join(map(str, written))}")


def _decided(audit: Audit, path: Path, **options: Any) -> tuple[Audit, Verified | None, list[str]]:
    """The audit by the decisions in a file, what they verify, if anything, and what is to be said about it."""
    decisions = read_decisions(path, audit.labels, audit.ids, audit.classes, **options)
    if reason := refusal(audit.labels, decisions):
        wrong = recalibrate(audit.labels, audit.wrong, decisions)
        return audit._replace(wrong=wrong), None, [f"rates are as without decisions: {reason}"]
    answer = verified(audit.labels, audit.scores, decisions, wrong=audit.wrong)
    low, high = 100 * answer.share_interval
    several = int((decisions.label >= 0).sum())
    note = (
        f"{100 * answer.share:.1f} % of all labels are wrong ({low:.1f} to {high:.1f}), by {several} decisions; "
        f"{answer.share_more:,} more would halve the interval"
    )
    verdict = np.asarray(answer.found.status) == Status.VERIFIED
    classes = f"{verdict.sum()} of {len(verdict)} classes have enough decisions for their own rates"
    if verdict.any():
        classes += f"; {int(np.median(answer.more[verdict, 1])):,} more on a class would halve its interval of missed"
    return audit._replace(found=answer.found, wrong=answer.wrong), answer, [note, classes]


def _next_command(command: AuditCommand, labels: Table, *, borrowed: bool) -> str:
    """What reads the decisions saved on the page: `mlt apply`, or after --propose the audit with them.

    `borrowed`: whether ids or class names may be those of the predictions.
    """
    own: dict[str, Any] = {name: getattr(command, name) for name in ("id_column", "separator", "encoding", "coding")}
    if command.propose is not None:
        names = ("ignore_columns", "features", "groups", "seed", "images", "transition", "threshold", "most")
        own |= {name: getattr(command, name) for name in names} | {"decisions": "decisions.csv"}
        words, files, out = ["audit"], [command.labels, command.probs], "verified.html"
    else:  # apply reads the labels alone, if they have all the names
        columns = () if labels.source is None else labels.source.names
        own["ignore_columns"] = tuple(name for name in command.ignore_columns if name in columns)
        own["groups"] = None if labels.groups is None else command.groups
        own["probs"] = command.probs if borrowed else None
        kind = command.labels.suffix.lower()
        words, files = ["apply"], [command.labels, Path("decisions.csv")]
        out = f"relabelled{kind if kind in ('.tsv', '.npy', '.npz', '.parquet') else '.csv'}"
    words += [str(file) for file in files if file is not None]
    usual = {field.name: field.default for field in dataclasses.fields(command)}
    usual["probs"] = None
    for name, value in own.items():
        if value != usual[name]:
            words += [f"--{name.replace('_', '-')}", *(value if isinstance(value, tuple) else [str(value)])]
    return shlex.join(["mlt", *words, "--out", out])


def _named_by(labels: Table, probs: Table) -> Table:
    """The labels with the ids and class names of the predictions where they have none."""
    return labels._replace(classes=labels.classes or probs.classes, ids=labels.ids or probs.ids)


def _export(words: str) -> tuple[str, Path]:
    """(tool, path) of `tool=path`."""
    tool, _, file = words.partition("=")
    if not file:
        raise ValueError(f"--export: {words!r} names no file; pass TOOL=FILE, such as label-studio=tasks.json")
    return tool, Path(file)


def _check_choice(flag: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"--{flag}: {value!r} is unknown; pass {', '.join(choices)}")


def run_apply(command: ApplyCommand) -> None:
    """Reads, flips what was decided, writes."""
    _check_choice("coding", command.coding, CODINGS)
    meanings = CODINGS[command.coding]
    absent = next(number for number, meaning in meanings.items() if meaning == ABSENT)
    if not command.decisions:
        raise ValueError("decisions: no file; pass what the page saved, or the issues CSV")
    apart = command.out.with_suffix(".disagreements.csv")
    inputs = [command.labels, command.probs, *command.decisions]
    check_outputs([command.out], inputs, ours=lambda path: False, force=command.force)
    check_outputs([apart], inputs, ours=is_ours, force=command.force)
    if command.above is not None and not 0 <= command.above <= 1:
        hint = f", {command.above / 100:g} for {command.above:g} %" if 1 < command.above <= 100 else ""
        raise ValueError(f"--above: {command.above}; pass a probability in [0, 1]{hint}")
    probs = None if command.probs is None else command.read(command.probs, groups=command.groups)
    labels = command.read(command.labels, classes=None if probs is None else probs.classes, groups=command.groups)
    command.check_ignored(labels, probs)
    if command.groups is not None and labels.groups is None:
        raise ValueError(f'--groups: {command.labels} has no column "{command.groups}"; leave it out, or correct it')
    named = labels if probs is None else _named_by(labels, align(probs, labels))
    labels = named if labels.source is None else labels  # what a file lacks is not put into it
    n, q = labels.values.shape
    classes, ids = named.classes or tuple(map(str, range(q))), named.ids or tuple(map(str, range(n)))
    place = places(ids, classes)
    values, flipped = labels.values.copy(), 0
    ballots = merge_decisions(command.decisions, **command.text()).values()
    doubts: list[float] = []  # P(the label was right) of each label that is flipped unseen
    for ballot in ballots:
        where, row, votes = ballot
        likely = not votes and command.above is not None and row["p_wrong"] > command.above
        if not ballot.flip and not likely:
            continue
        cell = find_cell(where, row, place)
        meaning = meanings.get(values[cell], UNKNOWN)
        given = np.nan if meaning == UNKNOWN else float(meaning != ABSENT)
        if not np.array_equal(given, row["given"], equal_nan=True):
            found = f"{values[cell]:g}, not {row['given']:g} (coding {command.coding})"
            raise ValueError(f"{where}, the label is {found}")
        values[cell] = absent if given == 1 else 1
        flipped += 1
        doubts += [1 - row["p_wrong"]] if likely else []
    write_labels(command.out, labels, values)
    unseen = f" ({len(doubts)} unseen, of which {sum(doubts):.1f} are expected to be right labels)" if doubts else ""
    print(f"{flipped} labels flipped{unseen}; {command.out}")
    split = [ballot for ballot in ballots if ballot.split]
    if split or apart.exists():  # an older list would be taken for this one
        write_disagreements(apart, split)
    if split:
        print(f"{len(split)} left as they are, reviewers disagree; {apart}")
    for _, row, votes in split[:_MOST_PRINTED]:
        words = {True: "remove label" if row["given"] == 1 else "add label", False: "keep"}
        said = ", ".join(f"{who}: {words[flip]}" for who, flip in votes.items())
        print(f"  {row['example']}, {row['class']}: {said}")
    if len(split) > _MOST_PRINTED:
        print(f"  and {len(split) - _MOST_PRINTED} more")


def run_raters(command: RatersCommand) -> None:
    """Reads, estimates, prints the agreement, writes."""
    source = command.table
    existing(source)
    outputs = [command.out / name for name in RATER_COLUMNS]
    check_outputs(outputs, [source, command.probs], ours=is_ours, force=command.force)
    header, rows = csv_rows(source, **command.text())
    columns: dict[str, list[Any]] = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
    probs = None if command.probs is None else probabilities(read_table(command.probs, **command.text()))
    if probs and not (probs.ids and probs.classes):
        raise ValueError(f"{command.probs}: no ids or no class names; add them, judgements are matched by name")
    try:
        table = rater_array(columns, examples=probs and probs.ids, classes=probs and probs.classes)
    except ValueError as error:
        raise ValueError(f"{source}: {str(error).removeprefix('table: ')}") from None
    p = None if probs is None else np.clip(probs.values, 1e-6, 1 - 1e-6)
    found = estimate_raters(table.labels, scores=None if p is None else np.log(p) - np.log1p(-p))
    for name, alpha, graded in zip(table.classes, found.alpha, found.graded, strict=True):
        print(f"{name:20} alpha {alpha:6.3f}  {'graded' if graded else 'clear'}")
    written = write_raters(command.out, table, found, command.most)
    print(f"all classes: alpha {found.alpha_overall:.3f}; {', '.join(map(str, written))}")


def run_report(command: ReportCommand) -> None:
    """Writes the page."""
    from mlt_jax.report import run_page

    out = command.out or command.workdir / "report.html"
    check_outputs([out], [], ours=is_ours, force=command.force)
    print(run_page(command.workdir, out))


def script() -> None:
    """Ends the process with `main`'s exit code."""
    processes.leave(main())


if __name__ == "__main__":
    script()
