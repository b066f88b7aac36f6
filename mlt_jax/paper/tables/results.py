"""Entries of a table from the files of its runs: means over seeds, the printed number, and the tests at its foot."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlt_jax.paper import printed as paper
from mlt_jax.paper.methods import ALIASES, needs_maps
from mlt_jax.paper.printed import AVERAGE
from mlt_jax.paper.tables.plan import BESIDE_ROWS, HALF, NO_RIVALS, PRINTED_FOR, WHOLE, Cell, Plan, Row
from mlt_jax.paper.tables.provenance import UNKNOWN
from mlt_jax.training.metrics import wilcoxon_greater
from mlt_jax.training.records import read_json

OURS, BASELINE = "Reweight-Ours", "Standard"
SCORES = ("mAP", "OF1", "CF1", "validation_mAP")  # fractions, printed in percent
Scores = Mapping[Cell, dict[str, float]]


class Entry(NamedTuple):
    """One entry: ours, theirs, or why there is none."""

    mean: float | None
    std: float | None = None  # over seeds, None for one run
    runs: int = 0
    printed: paper.Printed | None = None
    best: bool = False  # of the methods that compete
    note: str = ""
    fallbacks: float | None = None  # of the paper's T: mean number of classes whose T is Dual-T's

    @property
    def difference(self) -> float | None:
        """Ours minus theirs."""
        return None if self.mean is None or self.printed is None else self.mean - self.printed.mean


class Table(NamedTuple):
    """A table to be written."""

    plan: Plan
    entries: dict[tuple[Row, str], Entry]
    foot: list[str]
    seconds: Mapping[str, float]  # spent on its runs, by what they read, see `Cell.inputs`
    notes: list[str]  # what was not run, and why
    commits: tuple[str, ...]  # of the code that made its runs
    machines: tuple[str, ...]  # that made them
    abouts: tuple[str, ...]  # what runs of other programs are


def read(workdir: Path, cells: Iterable[Cell]) -> dict[Cell, dict[str, Any]]:
    """What the cells' files say, for those that have one."""
    found = {}
    for cell in cells:
        path = workdir / cell.path
        if path.exists():
            found[cell] = read_json(path)
    return found


def tabulate(
    plan: Plan, records: Mapping[Cell, dict[str, Any]], *, seeds: Iterable[int], missing: Mapping[Cell, str]
) -> Table:
    """The table; `missing` says why a cell has no record, where that is known."""
    seeds = tuple(seeds)
    scores = {cell: record["scores"] for cell, record in records.items()}
    printed = paper.tables().get(plan.id)
    if plan.id == "win_loss":
        entries = {key: _p_value(plan, key, scores, seeds, printed) for key in plan.entries}
    else:
        entries = {key: _entry(cells, key, scores, seeds, printed) for key, cells in plan.entries.items()}
        for column in plan.columns:
            for metric in {
                row.metric for row in plan.rows if row.metric is not None and row.metric != "validation_mAP"
            }:
                _mark_best(plan, entries, metric, column)
    used = {cell for group in plan.entries.values() for cell in group}
    mine = {cell: record for cell, record in records.items() if cell._replace(seed=0) in used}
    seconds: dict[str, float] = {}
    for cell, record in mine.items():
        seconds[cell.inputs] = seconds.get(cell.inputs, 0.0) + record["seconds"]

    def said(name: str, default: str) -> tuple[str, ...]:
        return tuple(sorted({record.get(name, default) for record in mine.values()} - {""}))

    return Table(
        plan,
        entries,
        _foot(plan, entries, scores, seeds),
        seconds,
        _notes(plan, entries, missing) + _short_of_seeds(plan, entries, len(seeds)),
        said("commit", UNKNOWN),
        said("machine", f"{UNKNOWN} machine"),
        said("about", ""),
    )


def _values(cells: tuple[Cell, ...], score: str, scores: Scores, seeds: tuple[int, ...]) -> list[float]:
    """Per seed the mean over the cells, for the seeds that have them all."""
    found = []
    for seed in seeds:
        here = [scores.get(cell._replace(seed=seed), {}).get(score) for cell in cells]
        if all(value is not None for value in here):
            found.append(float(np.mean(np.array(here, float))))
    return found


def _entry(
    cells: tuple[Cell, ...], key: tuple[Row, str], scores: Scores, seeds: tuple[int, ...], printed: Any
) -> Entry:
    row, column = key
    _, name = BESIDE_ROWS.get(row.method, ("", PRINTED_FOR.get(row.method, row.method)))
    theirs = None if printed is None else printed.value(row.metric, name, column)
    # What was printed for the correct row came from a bug; it stands beside the row that has it.
    theirs = None if row.method in PRINTED_FOR.values() else theirs
    score = f"{row.method} {column}" if row.metric is None else row.metric
    seeds = (0,) if row.metric is None else seeds
    values = _values(cells, score, scores, seeds)
    if not values:
        return Entry(None, printed=theirs)
    scale = 100 if row.metric in SCORES else 1
    std = scale * float(np.std(values)) if len(values) > 1 else None
    fallbacks = _values(cells, "fallbacks", scores, seeds)
    mean = float(np.mean(fallbacks)) if fallbacks else None
    return Entry(scale * float(np.mean(values)), std, len(values), theirs, fallbacks=mean)


def _mark_best(plan: Plan, entries: dict[tuple[Row, str], Entry], metric: str, column: str) -> None:
    for row in rank(plan, entries, metric, column)[:1]:
        entries[row, column] = entries[row, column]._replace(best=True)


def rank(plan: Plan, entries: Mapping[tuple[Row, str], Entry], metric: str, column: str) -> list[Row]:
    """The competing rows that were run, best first."""
    sign = 1 if metric == "T_error" else -1
    rivals = [row for row in plan.rows if row.metric == metric and row.method not in NO_RIVALS]
    rivals = [row for row in rivals if not plan.half or not needs_maps(ALIASES.get(row.method, row.method))]
    run = [row for row in rivals if entries[row, column].mean is not None]
    return sorted(run, key=lambda row: sign * (entries[row, column].mean or 0.0))


def pairs(
    plan: Plan,
    cells: Iterable[Cell],
    baseline: str,
    metric: str,
    scores: Scores,
    seeds: Iterable[int],
    *,
    ours: str = OURS,
) -> tuple[list[float], list[float]]:
    """Scores of ours and of a baseline in every setting where both were run, means over the seeds both have.

    Where rows on maps are tested on other images, ours is that of these images.
    """  # fmt: skip
    left, right = [], []
    for study, setting in dict.fromkeys((cell.study, cell.setting) for cell in cells):
        both = []
        beside = HALF.get(study, study) if plan.half and needs_maps(baseline) else study
        for seed in seeds:
            names = Cell(beside, setting, seed, ours), Cell(study, setting, seed, baseline)
            two = [scores.get(cell, {}).get(metric) for cell in names]
            if None not in two:
                both.append(two)
        if both:
            mean = np.mean(np.array(both, float), axis=0)
            left.append(float(mean[0]))
            right.append(float(mean[1]))
    return left, right


def _p_value(plan: Plan, key: tuple[Row, str], scores: Scores, seeds: tuple[int, ...], printed: Any) -> Entry:
    row, baseline = key
    ours, theirs = pairs(plan, plan.entries[key], baseline, row.metric or "", scores, seeds)
    value = printed.value(row.metric, row.method, PRINTED_FOR.get(baseline, baseline))
    value = None if baseline in PRINTED_FOR.values() else value
    if not ours:
        return Entry(None, printed=value)
    p = wilcoxon_greater(ours, theirs)
    word = "win" if p < 0.01 else "loss" if p > 0.99 else "tie"
    return Entry(p, None, len(ours), value, note=f"{word}, {len(ours)} pairs")


def _foot(plan: Plan, entries: Mapping[tuple[Row, str], Entry], scores: Scores, seeds: tuple[int, ...]) -> list[str]:
    lines = []
    methods = list(dict.fromkeys(row.method for row in plan.rows))
    if any(row.metric == "T_error" for row in plan.rows):
        lines += _sums(plan, entries)
    if OURS in methods and plan.id not in ("win_loss", "tau"):
        cells = [cell for group in plan.entries.values() for cell in group]
        for metric in ("mAP", "OF1", "CF1"):
            found = []
            for method in methods:
                name = ALIASES.get(method, method)
                if name == OURS or name in NO_RIVALS:
                    continue
                ours, theirs = pairs(plan, cells, name, metric, scores, seeds)
                if ours:
                    found.append(f"{method} {wilcoxon_greater(ours, theirs):.3f} ({len(ours)} pairs)")
            if found:
                lines.append(f"Wilcoxon signed-rank test, one-sided, p that {OURS} is greater in {metric}: "
                             + "; ".join(found) + ".")  # fmt: skip
        lines += _places(plan, entries)
    lines += _half(plan, scores, seeds)
    lines += _apart(plan, entries)
    if AVERAGE in plan.columns:
        lines.append(f"{AVERAGE} is over all four noise types, ours and the paper's (printed ones may leave ALF out).")
    return lines


def _half(plan: Plan, scores: Scores, seeds: tuple[int, ...]) -> list[str]:
    """Rows on maps beside those on pooled features of the same images, means over the settings that all have."""
    places = dict.fromkeys((cell.study, cell.setting) for cell in plan.half)
    groups = {name: [Cell(*at, 0, name) for at in places] for name in dict.fromkeys(cell.method for cell in plan.half)}
    for row in plan.rows:
        method = ALIASES.get(row.method, row.method)
        if needs_maps(method):
            groups[row.method] = [Cell(WHOLE[study], setting, 0, method) for study, setting in places]

    def score(cell: Cell, metric: str) -> list[float]:
        return _values((cell,), metric, scores, seeds)

    groups = {name: cells for name, cells in groups.items() if any(score(cell, "mAP") for cell in cells)}
    common = [k for k in range(len(places)) if all(score(cells[k], "mAP") for cells in groups.values())]
    pooled = groups.keys() & {cell.method for cell in plan.half}
    if not common or len(pooled) in (0, len(groups)):
        return []
    texts = []
    for name, cells in groups.items():
        means = [np.mean([np.mean(score(cells[k], metric)) for k in common]) for metric in ("mAP", "OF1", "CF1")]
        texts.append(f"{name} {' / '.join(f'{100 * mean:.1f}' for mean in means)}")
    over = f"mean over {len(common)} settings" if len(common) > 1 else f"at {list(places)[common[0]][1]}"
    return [f"On the images of AGCN and CSRA, mAP / OF1 / CF1, {over}: {'; '.join(texts)}."]


def _apart(plan: Plan, entries: Mapping[tuple[Row, str], Entry]) -> list[str]:
    """Which rows differ from the printed ones by more than 3 points, or 20 % of an error."""
    found: dict[str, list[bool]] = {}
    for (row, _), entry in entries.items():
        if entry.difference is not None and entry.printed is not None and row.metric is not None and not entry.note:
            allowed = 0.2 * entry.printed.mean if row.metric == "T_error" else 3
            found.setdefault(row.method, []).append(abs(entry.difference) > allowed)
    if not found:
        return []
    rows = [f"{method} {sum(apart)} of {len(apart)}" for method, apart in found.items() if any(apart)]
    return [f"Entries more than 3 points, or 20 % of an error, from the paper's: {'; '.join(rows) or 'none'}. Why: "
            "docs/departures.md."]  # fmt: skip


def _sums(plan: Plan, entries: Mapping[tuple[Row, str], Entry]) -> list[str]:
    lines = []
    for row in plan.rows:
        whole = [entries[row, column] for column in plan.columns]
        if all(entry.mean is not None for entry in whole) and len(whole) > 1:
            theirs = [entry.printed.mean for entry in whole if entry.printed is not None]
            printed = f" (paper {sum(theirs):.2f})" if len(theirs) == len(whole) else ""
            lines.append(f"{row.method}: {sum(entry.mean or 0.0 for entry in whole):.2f}{printed}")
    return [f"Summed over the columns: {'; '.join(lines)}."] if lines else []


def _places(plan: Plan, entries: Mapping[tuple[Row, str], Entry]) -> list[str]:
    lines = []
    for metric in ("mAP", "OF1", "CF1"):
        places = []
        for column in plan.columns:
            ranked = [row.method for row in rank(plan, entries, metric, column)]
            if OURS in ranked and len(ranked) > 2:
                places.append(ranked.index(OURS))
        if places:
            first, second = places.count(0), places.count(1)
            lines.append(f"{metric}: first in {first}, second in {second} of {len(places)} columns")
    text = "; ".join(lines)
    return [f"{OURS} among the methods run (not {'; '.join(NO_RIVALS[:2])}): {text}."] if text else []


def _notes(plan: Plan, entries: Mapping[tuple[Row, str], Entry], missing: Mapping[Cell, str]) -> list[str]:
    """Which rows are empty, or have holes, and why."""
    reasons: dict[str, list[str]] = {}
    for row in plan.rows:
        holes = [column for column in plan.columns if entries[row, column].mean is None]
        if not holes:
            continue
        group = [cell for column in holes for cell in plan.entries[row, column]]
        why = next((missing[cell] for cell in group if cell in missing), "not run")
        where = "" if len(holes) == len(plan.columns) else f" ({len(holes)} of {len(plan.columns)} columns)"
        reasons.setdefault(why, []).append(f"{row.method}{where}")
    return [f"{'; '.join(dict.fromkeys(rows))}: {why}." for why, rows in reasons.items()]


def _short_of_seeds(plan: Plan, entries: Mapping[tuple[Row, str], Entry], wanted: int) -> list[str]:
    """Which rows have fewer runs than seeds were asked for."""
    if plan.id in ("win_loss", "validation_coco"):
        return []
    short: dict[int, list[str]] = {}
    for row in plan.rows:
        runs = min((entries[row, column].runs for column in plan.columns if entries[row, column].runs), default=wanted)
        if runs < wanted:
            short.setdefault(runs, []).append(row.method)
    return [f"{'; '.join(dict.fromkeys(rows))}: {runs} of {wanted} seeds." for runs, rows in sorted(short.items())]
