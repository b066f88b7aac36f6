"""The paper's estimators and training from JPEGs, where a network can learn the noise by heart: a table per setting.

python experiments/tail.py --data-dir DIR                                        # the tail of a ResNet-50 at 176 px
python experiments/tail.py --data-dir DIR --backbone finetune --image-size 112   # all of its weights, as a control
python experiments/tail.py --data-dir DIR --backbone frozen                      # heads on features of the same images

DIR holds a VOCdevkit; half of VOC2007's trainval is trained on, the other half is tested on. A killed run goes on when
the same command is given again. Results: `results.json` of every setting and `table.md` of all, in the work folder;
with `--cells` the errors of T also go to the runs of the paper's tables, where est_VOC2007 shows them beside its own.
"""

import dataclasses
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from mlt_jax.config import Config, Settings, resolve
from mlt_jax.data import Dataset
from mlt_jax.models import cpu
from mlt_jax.paper.tables import store
from mlt_jax.paper.tables.options import Options as TablesOptions
from mlt_jax.paper.tables.options import identity
from mlt_jax.paper.tables.plan import Cell
from mlt_jax.paper.tables.provenance import commit, machine
from mlt_jax.paper.tasks import make_task
from mlt_jax.processes import exit_code, say
from mlt_jax.run import build_engine, estimator_features, load, noisy_labels
from mlt_jax.training import records
from mlt_jax.training.loop import Engine, Session
from mlt_jax.transition import Status

# What is trained, and the name of its row.
METHODS = {"Standard": "Standard", "Reweight": "Reweight, default T", "Reweight-TrueT": "Reweight, true T"}
SCORES = ("mAP", "OF1", "CF1")
# Which T error stands beside which row of est_VOC2007.
ROWS = {
    "Dual T-estimator max": "Dual-T, told", "Our estimator": "recipe, told", "Our estimator, blind": "default",
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What is run."""

    data_dir: Path
    """folder that holds VOCdevkit"""
    workdir: Path | None = None
    """where results and checkpoints are kept; by default runs/ and the backbone"""
    cells: Path | None = None
    """file of the finished runs of experiments/tables.py (.jsonl.gz) to which the errors of T are added"""
    cache: Path = Path("runs/features")
    """where maps and features are kept"""
    settings: tuple[str, ...] = ("0,.6", ".2,.2", ".6,0", ".034,.4")
    """rho_neg,rho_pos of each"""
    pretrained: str | None = None
    """as of run.py"""
    model: str = "resnet50"
    """as of run.py"""
    backbone: str = "tail"
    """tail, finetune or frozen, as of run.py"""
    image_size: int = 176
    """as of run.py"""
    views: int = 4
    """as of run.py"""
    epochs: int = 20
    """as of run.py"""
    learning_rate: float | None = None
    """as of run.py"""
    batch_size: int = 128
    """as of run.py"""
    seed: int = 0
    """of noise, weights and order"""


def place(options: Options) -> Path:
    """The work folder."""
    return options.workdir or Path("runs") / options.backbone


def configure(options: Options, rho_neg: float, rho_pos: float) -> Settings:
    """The run of one setting."""
    return resolve(
        Config(
            dataset="voc2007", data_dir=options.data_dir, train_split="train", test_split="val", rho_neg=rho_neg,
            rho_pos=rho_pos, seeds=(options.seed,), model=options.model, pretrained=options.pretrained,
            backbone=options.backbone, cache=options.cache, views=options.views, image_size=options.image_size,
            epochs=options.epochs, learning_rate=options.learning_rate, batch_size=options.batch_size,
            workdir=place(options) / f"{rho_neg:g}-{rho_pos:g}",
        )
    )  # fmt: skip


def measure(
    part: str, settings: Settings, engine: Engine, train: Dataset, test: Dataset, features: Any
) -> dict[str, Any]:
    """Part "T_error" or "test" of a setting's results; trainings that its folder has are taken up."""
    config, folder = settings.given, settings.workdir
    records.claim(folder / "config.json", settings.identity(), remedy="pass another --workdir")
    records.write_json(folder / "config.json", settings.as_json())
    noisy = noisy_labels(config, train.labels, config.seeds[0])
    task = make_task(train, test, noisy, features=features)
    session = Session(engine, task, seed=config.seeds[0], folder=folder)
    found = _errors(session, config) if part == "T_error" else _scores(session)
    return found | {"seconds": session.seconds, "commit": commit(), "machine": machine()}


def _errors(session: Session, config: Config) -> dict[str, Any]:
    """What the estimators make of the plain training."""
    told = "missing" if config.rho_neg == 0 else "partial" if config.rho_pos == 0 else "general"
    errors = {"default": session.error("auto")}
    say(f"{place_of(session)}: T error of the default {errors['default']:.2f}")
    errors |= {"recipe, blind": session.error("recipe"), "Dual-T": session.error("dual-t")}
    # The same warm-up, from its checkpoint.
    informed = Session(session.engine, session.task._replace(assume=told), seed=session.seed, folder=session.folder)
    errors |= {"recipe, told": informed.error("recipe"), "Dual-T, told": informed.error("dual-t")}
    say(f"{place_of(session)}: T errors {', '.join(f'{name} {error:.2f}' for name, error in errors.items())}")
    fallbacks = int((np.asarray(informed.transition("recipe").status) == Status.FALLBACK).sum())
    return {"T_error": errors, "fallbacks": fallbacks}


def _scores(session: Session) -> dict[str, Any]:
    """Test scores of every method."""
    tests = {}
    for name in METHODS:
        tests[name] = session.score(name)
        scores = ", ".join(f"{score} {100 * tests[name][score]:.1f}" for score in SCORES)
        say(f"{place_of(session)}: {METHODS[name]}: {scores}")
    return {"test": tests}


def place_of(session: Session) -> str:
    """The setting, as its folder is called."""
    return "" if session.folder is None else session.folder.name


def table(found: dict[str, dict[str, Any]], note: str) -> str:
    """Markdown: T errors, then scores, a row per setting."""
    errors = ("recipe, told", "recipe, blind", "Dual-T, told", "Dual-T", "default")
    lines = [note, "", "| (rho_neg, rho_pos) | " + " | ".join(errors) + " |", "|---" * 6 + "|"]
    for name, result in found.items():
        lines.append(f"| ({name}) | " + " | ".join(f"{result['T_error'][error]:.2f}" for error in errors) + " |")
    lines += ["", "| (rho_neg, rho_pos) | method | mAP | OF1 | CF1 | epoch | minutes |", "|---" * 7 + "|"]
    for name, result in found.items():
        for method, scores in result.get("test", {}).items():
            cells = [f"{100 * scores[score]:.1f}" for score in SCORES]
            cells += [str(scores["epoch"]), f"{result['seconds'][method] / 60:.0f}"]
            lines.append(f"| ({name}) | {METHODS[method]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cells_of(options: Options, found: dict[str, dict[str, Any]], note: str) -> dict[Cell, dict[str, Any]]:
    """The errors of T as runs of the paper's tables; the time of the plain training counts once for all three."""
    records = {}
    for setting, result in found.items():
        rates = ",".join(f"{float(rate):g}" for rate in setting.split(","))
        for name, error in ROWS.items():
            cell = Cell(f"voc2007-{options.backbone}", f"({rates})", options.seed, name)
            scores = {"T_error": result["T_error"][error]}
            scores |= {"fallbacks": result["fallbacks"]} if name == "Our estimator" else {}
            spent = result["seconds"]["Standard"] / len(ROWS)
            about = {key: result[key] for key in ("commit", "machine")} | {"about": note}
            records[cell] = {**cell._asdict(), "scores": scores, "seconds": spent, **about}
    return records


def words(options: Options) -> str:
    """What was asked for, without the folders of this machine."""
    said = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name not in ("data_dir", "workdir", "cache", "cells", "pretrained") and value != field.default:
            said += [f"--{field.name.replace('_', '-')}", *(value if isinstance(value, tuple) else [str(value)])]
    return shlex.join(["python", "experiments/tail.py", "--data-dir", "DIR", *said])


def main(options: Options) -> None:
    """Runs all settings and writes the table after each: the errors of T of all first, as they need fewer trainings."""
    if cpu.alone():
        cpu.tune()
    pairs = {text: [float(rate) for rate in text.split(",")] for text in options.settings}
    runs = {text: configure(options, *rates) for text, rates in pairs.items()}
    if options.cells is not None:
        store.read(options.cells, identity(TablesOptions()))  # a file that does not fit ends this now, not in hours
    first, start = next(iter(runs.values())), time.monotonic()
    train, test = load(first)
    train, features = estimator_features(first, train)
    say(f"maps and features are there after {(time.monotonic() - start) / 60:.0f} minutes")
    engine, found = build_engine(first, train), {}
    for part in ("T_error", "test"):
        for text, settings in runs.items():
            path = settings.workdir / "results.json"
            found[text] = records.read_json(path) or {}
            if part not in found[text]:
                found[text] |= measure(part, settings, engine, train, test, features)
                records.write_json(path, found[text])
            publish(options, found, f"{len(train.ids)} images of {train.name} (90 % trained on), tested on "
                    f"{len(test.ids)} of {test.name}")  # fmt: skip


def publish(options: Options, found: dict[str, dict[str, Any]], data: str) -> None:
    """The table of what there is, and the errors of T among the cells."""
    note = f"{options.backbone}, {options.model}, {options.image_size} px, {data}, {options.epochs} epochs, seed "
    note += f"{options.seed}; `{words(options)}`"
    if options.cells is not None:
        before = store.read(options.cells, identity(TablesOptions()))
        store.write(options.cells, identity(TablesOptions()), before | cells_of(options, found, note))
    made = "; ".join(dict.fromkeys(f"commit {one['commit']}, {one['machine']}" for one in found.values()))
    text = table(found, f"{note}; {made}")
    (place(options) / "table.md").write_text(text, encoding="utf-8")
    say(text)


if __name__ == "__main__":
    given = tyro.cli(Options)
    sys.exit(exit_code("tail.py", lambda: main(given)))
