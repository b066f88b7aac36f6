"""The command behind `experiments/tables.py`: run what is missing, then write."""

import dataclasses
import re
import shlex
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mlt_jax.paper import noise
from mlt_jax.paper.methods import FROZEN_RATES, load_plugins
from mlt_jax.paper.tables import launch, store
from mlt_jax.paper.tables.cells import Job, Outcome, jobs_of, lacking, learning_rate, run_job
from mlt_jax.paper.tables.options import Options, check, identity, length
from mlt_jax.paper.tables.plan import BESIDE, Cell, Plan, ids, plan
from mlt_jax.paper.tables.results import BASELINE, OURS, Table, read, tabulate
from mlt_jax.paper.tables.write import write
from mlt_jax.training.records import check_identity, claim, owned, write_json

FROZEN = (
    "Not the paper's networks: the ResNet-50 backbone is frozen and heads are trained on its features (Adam {rate:g}, "
    "{epochs} epochs, COCO {coco}); the paper fine-tunes all of it. The paper's columns are printed numbers of its own "
    "runs."
)
STAND_IN = (
    "Not the paper's test set: VOC2007 `trainval` is tested on VOC2012 `trainval`, and the other way round; COCO is a "
    "part, 33,347 images of train2014 and 6,669 of val2014. Only-difficult labels are {difficult} in the test set."
)
PART_OF_COCO = (
    "On 30,012 of COCO's images, 512 components of features of 160-px images; gold on the labels of 73,873 images."
)
NOISE_FREE_SIDE = (
    '"Our estimator" and "Reweight-Ours" are the paper\'s recipe with the rule of its code (residual). They, T and '
    "Dual-T are given the noise-free side of the first four settings, as in that code (the printed rows of T and "
    'Dual-T fit only so); "blind" is this library\'s default, without that knowledge.'
)
CHOICES = (
    "CDR is given the share of wrong labels; WSIC has the noisy label in place of the clean one; pair-wise noise takes "
    "a class for the next one."
)
SMALL_IMAGES = (
    "AGCN and CSRA look at maps of small images (176 px short side), the other rows at features of full ones; they "
    "train on VOC2007 `train` and are tested on its `val`: half the data, another test set. So none of their "
    "numbers is bold, and the tests compare them with Reweight-Ours on features of these images."
)
AGCN_RATE = (
    f"AGCN's learning rate, {FROZEN_RATES['agcn']:g}, is the best of three by mAP on noisy validation labels, those of "
    "VOC2007 at (0,0.2)."
)


# Which runs are made, where, and how they are written; --only picks some of them.
_NO_NUMBERS = (
    "table", "only", "workdir", "out", "formats", "cache", "launcher", "ray_address", "workers", "write_only",
    "cells", "features_dir", "devkit", "pretrained",
)  # fmt: skip


def run(options: Options) -> list[Table]:
    """The tables, after their missing cells were run and their files written."""
    check(options)
    load_plugins(options.plugins)
    names = ids() if options.table == ("all",) else options.table
    kept = {} if options.cells is None else store.read(options.cells, identity(options))
    beside = {cell.study for cell in kept} & BESIDE.keys()
    plans = [_with_levels(plan(name, extra=options.extra, beside=beside), options) for name in names]
    if options.backbone == "frozen" and not options.real_test:
        plans = [one.beside_maps((BASELINE, OURS)) for one in plans]
    every = dict.fromkeys(cell for one in plans for cell in _cells(one, options))
    wanted = [cell for cell in every if cell.study not in BESIDE]
    chosen = [cell for cell in wanted if _is_chosen(cell, options)]
    if options.write_only:  # what is at hand is another matter: the same runs give the same tables everywhere
        return _written(options, plans, wanted, {}, kept)
    problems = {(cell.study, cell.inputs): lacking(options, cell.study, cell.inputs) for cell in wanted}
    missing = {cell._replace(seed=0): why for cell in wanted if (why := problems[cell.study, cell.inputs]) is not None}
    with owned(options.workdir):
        path, mine, remedy = options.workdir / "identity.json", identity(options), "pass another --workdir"
        claim(path, mine, remedy=remedy)
        for cell, record in read(options.workdir, wanted).items():
            check_identity((options.workdir / cell.path).parent, record.get("identity"), mine, remedy=remedy)
        write_json(path, mine)
        possible = [cell for cell in chosen if problems[cell.study, cell.inputs] is None]
        done = {cell for cell in possible if cell in kept or (options.workdir / cell.path).exists()}
        missing |= _run_cells(options, [cell for cell in possible if cell not in done])
        return _written(options, plans, wanted, missing, kept)


def _written(
    options: Options, plans: list[Plan], wanted: list[Cell], missing: Mapping[Cell, str], kept: dict[Cell, Any]
) -> list[Table]:
    found = {} if options.write_only and options.cells else read(options.workdir, wanted)
    shown = {cell for one in plans for cell in _cells(one, options)}
    records = {cell: store.rounded(record) for cell, record in (kept | found).items() if cell in shown}
    if options.cells is not None and found:
        store.write(options.cells, identity(options), kept | found)
    tables = []
    for one in plans:
        table = tabulate(one, records, seeds=options.seeds, missing=missing)
        tables.append(table)
        paths = write(table, options.out, about=_about(options, table), formats=options.formats)
        print(f"{one.id}: {', '.join(map(str, paths))}", flush=True)
    return tables


def _with_levels(one: Plan, options: Options) -> Plan:
    """The plan with the level beside each column of PMD noise."""
    levels = zip(noise.PMD_TYPES, options.pmd_levels, strict=True)
    return one._replace(headings={f"PMD-Type-{kind}": f"PMD-Type-{kind}, {level:.0%}" for kind, level in levels})


def _cells(one: Plan, options: Options) -> list[Cell]:
    return one.cells(seeds=options.seeds, map_seeds=options.map_seeds)


def _is_chosen(cell: Cell, options: Options) -> bool:
    text = f"{cell.study} {cell.setting} seed{cell.seed} {cell.method}"
    return not options.only or any(re.search(pattern, text) for pattern in options.only)


def _run_cells(options: Options, cells: list[Cell]) -> dict[Cell, str]:
    """Runs the cells; why each of those that have no result has none (with the seed left out, as in the plan)."""
    missing: dict[Cell, str] = {}
    jobs = jobs_of(cells)
    start, failed = time.monotonic(), 0
    with tqdm(total=len(cells), unit="run", desc="runs", disable=None, smoothing=0.1) as bar:

        def one(outcome: Outcome) -> None:
            nonlocal failed
            if outcome.missing is not None:
                missing[outcome.cell._replace(seed=0)] = outcome.missing
            elif outcome.log is not None:
                failed += 1
                missing[outcome.cell._replace(seed=0)] = "failed, see its log in the work folder"
                bar.write(f"failed: {' '.join(map(str, outcome.cell))}; log: {outcome.log}", file=sys.stderr)
            bar.update()

        def lost(job: Job, error: Exception) -> None:
            log = options.workdir / "failed" / f"{Path(job.cells[0].path).with_suffix('')}.worker.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"{job}\n{type(error).__name__}: {error}\n", encoding="utf-8")
            for cell in job.cells:
                done = (options.workdir / cell.path).exists()
                one(Outcome(cell, log=None if done else str(log)))

        def each(job: Job, outcomes: list[Outcome]) -> None:
            for outcome in outcomes:
                one(outcome)
            say_time_left(bar, start, job)

        if options.launcher == "ray":
            launch.ray(jobs, partial(run_job, options), done=each, lost=lost, address=options.ray_address,
                       workers=options.workers)  # fmt: skip
        else:
            launch.local(
                jobs, partial(run_job, options, on_cell=one), done=lambda job, _: say_time_left(bar, start, job)
            )
    if failed:
        print(f"{failed} of {len(cells)} runs failed; the same command tries them again", file=sys.stderr, flush=True)
    return missing


def say_time_left(bar: Any, start: float, job: Job) -> None:
    """One line per job where there is no terminal for a bar."""
    if bar.disable:
        job_done, total = getattr(bar, "counted", 0) + len(job.methods), bar.total
        bar.counted = job_done
        spent = time.monotonic() - start
        left = spent / max(job_done, 1) * (total - job_done)
        name = f"{job.study} {job.setting} seed {job.seed}"
        print(f"{job_done}/{total} runs, {spent:.0f} s, about {left:.0f} s left; {name}", file=sys.stderr, flush=True)


def _about(options: Options, table: Table) -> list[str]:
    """What is said at the top of a table: the command, the commit, when, where, and what these runs are."""
    slow = "".join(
        f", {table.seconds[inputs]:.0f} s of it {what}"
        for inputs, what in (("maps", "AGCN and CSRA"), ("images", "networks trained on images"))
        if inputs in table.seconds
    )
    lines = [
        f"`{command(options, table)}`",
        f"runs of commit {', '.join(table.commits) or 'none'}, on {', '.join(table.machines) or 'no machine'}; they "
        f"took {sum(table.seconds.values()):.0f} s together, those shared with other tables included{slow}",
    ]
    inputs = {cell.inputs for group in table.plan.entries.values() for cell in group}
    if options.backbone == "frozen" and inputs != {"labels"}:
        epochs, coco = (length(options, name)[0] for name in ("voc2007", "coco"))
        lines.append(FROZEN.format(rate=learning_rate(options), epochs=epochs, coco=coco))
    if not options.real_test and inputs != {"labels"}:
        lines.append(STAND_IN.format(difficult={"positive": "positives", "skip": "left out"}[options.difficult]))
    if inputs == {"labels"}:
        lines.append("From labels alone, with exactly the right labels selected and the noise-free side given.")
    else:
        lines += [NOISE_FREE_SIDE, CHOICES]
    if "maps" in inputs and options.backbone == "frozen":
        lines.append(SMALL_IMAGES)
        lines += [AGCN_RATE] if options.learning_rate is None else []
    return (
        lines
        + [f"Beside them, `experiments/tail.py`: {about}." for about in table.abouts]
        + NOTES.get(table.plan.id, [])
    )


NOTES: Mapping[str, list[str]] = {
    "est_MSCOCO": [PART_OF_COCO],
    "ablation2": [
        "Examples drawn from VOC2007 trainval and test and VOC2012 trainval together (21,503). Every class counts; the "
        "paper's code leaves out classes with fewer than 50 selected positives, perhaps why n=1000 is so low there."
    ],
    "ablation_n1": [
        "Mean error over single partners with a valid system, labels A being the bold rows of validation_coco; the "
        "noise-free side is given. VOC's ALF rates, as printed."
    ],
}


def command(options: Options, table: Table) -> str:
    """The command that makes a table: what changes its numbers, and the kinds of files that its runs read."""
    words = ["python", "experiments/tables.py", "--table", table.plan.id]
    reads = table.seconds.keys() - {"images"}
    all_images = options.backbone != "frozen" or (options.devkit is not None and options.features_dir is None)
    if reads - {"maps"} and not all_images:
        words += ["--features-dir", "DIR"]
    if reads and (all_images or "maps" in reads):
        words += ["--devkit", "DIR", "--pretrained", "FILE"]
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name in _NO_NUMBERS or value == field.default:
            continue
        words.append(f"--{field.name.replace('_', '-')}")
        if value is not True:
            words += map(str, value) if isinstance(value, tuple) else [str(value)]
    return shlex.join(words)
