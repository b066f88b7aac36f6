"""Running cells: data by study, noise by setting, and one job for all methods that can share a warm-up."""

import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from mlt_jax import data as datasets
from mlt_jax.data import Dataset
from mlt_jax.estimator.crossfit import cross_val_logits
from mlt_jax.models import build
from mlt_jax.paper import noise
from mlt_jax.paper.methods import ESTIMATORS, FROZEN_RATES, head_of, head_rates, load_plugins
from mlt_jax.paper.tables import label_only
from mlt_jax.paper.tables.options import Options, identity, length
from mlt_jax.paper.tables.plan import MAP_STUDIES, REAL_TEST, STUDIES, WHOLE, Cell, Study
from mlt_jax.paper.tables.provenance import commit, machine
from mlt_jax.paper.tasks import Noisy, make_task, split_rows
from mlt_jax.training.feature_cache import with_features
from mlt_jax.training.loop import Engine, Schedule, Session
from mlt_jax.training.methods import find_method
from mlt_jax.training.records import slug, write_json
from mlt_jax.transition import Status

COCO_LABELS = "coco2014_train_labels.npz"


class Missing(Exception):
    """The data for a cell is not at hand; says what and how to pass it."""


class Job(NamedTuple):
    """Cells that share data, noise, seed and warm-up."""

    study: str
    setting: str
    seed: int
    inputs: str  # "labels", "pooled" or "maps"
    methods: tuple[str, ...]

    @property
    def cells(self) -> list[Cell]:
        """One by one."""
        return [Cell(self.study, self.setting, self.seed, method) for method in self.methods]


class Outcome(NamedTuple):
    """What became of a cell."""

    cell: Cell
    log: str | None = None  # of a failure: the file with its traceback
    missing: str | None = None  # which data is not at hand


def jobs_of(cells: Iterable[Cell]) -> list[Job]:
    """The cells as jobs; those that share data and compiled steps come one after the other."""
    groups: dict[tuple[str, str, int, str], list[str]] = {}
    for cell in cells:
        groups.setdefault((cell.study, cell.setting, cell.seed, cell.inputs), []).append(cell.method)
    jobs = [Job(*key, methods=tuple(methods)) for key, methods in groups.items()]
    return sorted(jobs, key=lambda job: (("labels", "pooled", "maps").index(job.inputs), job.study))


def run_job(options: Options, job: Job, *, on_cell: Callable[[Outcome], None] | None = None) -> list[Outcome]:
    """Computes and writes the cells that have no file yet; a cell that fails leaves a log and the rest go on."""
    load_plugins(options.plugins)
    outcomes = []
    compute: Callable[[Cell], dict[str, Any]] | None = None
    missing = None
    for cell in job.cells:
        path, log = options.workdir / cell.path, options.workdir / "failed" / Path(cell.path).with_suffix(".log")
        if not path.exists() and missing is None:
            start = time.monotonic()
            try:
                compute = compute or _computer(options, job)
                scores = compute(cell)
                spent = time.monotonic() - start
                write_json(path, {**cell._asdict(), "scores": scores, "seconds": spent, "commit": commit(),
                                  "machine": machine(), "identity": identity(options)})  # fmt: skip
                log.unlink(missing_ok=True)
            except Missing as error:
                missing = str(error)
            except Exception as error:
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text(f"{cell}\n{type(error).__name__}: {error}\n\n{traceback.format_exc()}", encoding="utf-8")
        done = path.exists()
        outcomes.append(Outcome(cell, None if done or missing else str(log), None if done else missing))
        if on_cell is not None:
            on_cell(outcomes[-1])
    folder = training_folder(options, job)
    if folder is not None and all(outcome.log is None for outcome in outcomes):
        shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def _computer(options: Options, job: Job) -> Callable[[Cell], dict[str, Any]]:
    """The function that scores the cells of a job; sets up what they share."""
    if job.inputs == "labels":
        return lambda cell: _from_labels(options, cell)
    session = make_session(options, job)
    return lambda cell: _scores(session, cell.method)


def _scores(session: Session, name: str) -> dict[str, float]:
    """Error of an estimator's T, or test scores of a method; of the paper's T also how many classes have Dual-T's."""
    model = "linear"
    if name in ESTIMATORS:
        scores, estimator = {"T_error": session.error(name)}, name
    else:
        method, scores = find_method(name), session.score(name)
        model, estimator = method.model, method.estimator or ""
    if estimator.startswith("Our estimator") and not estimator.endswith("blind"):
        status = np.asarray(session.transition(estimator, model).status)
        scores["fallbacks"] = float((status == Status.FALLBACK).sum())
    return scores


def make_session(options: Options, job: Job) -> Session:
    """The noisy data set of a job and the engine that trains on it; whole networks can be resumed."""
    train, test = load(options, job.study, job.inputs)
    noisy = corrupt(options, job.study, train, job.setting, job.seed)
    parts = _parts(options, job.study, job.inputs)
    task = make_task(train, parts[1] if test is None else test, noisy, parts=parts)
    dataset = _study(options, job.study, job.inputs).dataset
    engine = _engine(options, dataset, len(train.classes), _depth(train))
    return Session(engine, task, seed=job.seed, folder=training_folder(options, job))


def training_folder(options: Options, job: Job) -> Path | None:
    """Where the trainings of a job keep their checkpoints, until all of its cells are done."""
    whole = options.backbone != "frozen" and job.inputs != "labels"
    return options.workdir / "training" / job.study / slug(job.setting) / f"seed{job.seed}" if whole else None


def _depth(train: Dataset) -> int | None:
    return None if train.features is None else train.features.shape[-1]


def learning_rate(options: Options) -> float:
    """Of Adam, but for the heads in `FROZEN_RATES` or `HEAD_FACTORS`."""
    return options.learning_rate or (5e-4 if options.backbone == "frozen" else 5e-5)


@cache
def _engine(options: Options, dataset: str, num_classes: int, depth: int | None) -> Engine:
    schedule = Schedule(*length(options, dataset), options.batch_size, learning_rate(options))
    if options.backbone == "frozen":
        return Engine(
            lambda name, key: build(head_of(name, dataset), num_classes=num_classes, key=key, size=depth),
            schedule=schedule,
            rates=None if options.learning_rate else FROZEN_RATES,
        )

    def whole(head: str, key: Any) -> Any:
        head = head_of(head, dataset)
        return build("resnet50", num_classes=num_classes, key=key, pretrained=options.pretrained, head=head)

    return Engine(whole, schedule=schedule, images=True, rates=head_rates(schedule.learning_rate))


def _study(options: Options, study: str, inputs: str) -> Study:
    """Its data, as far as it is at hand."""
    if options.real_test:
        return REAL_TEST.get(study, STUDIES[study])
    images = inputs == "maps" or options.backbone != "frozen"
    return (MAP_STUDIES if images else {}).get(study, STUDIES[study])


@cache
def _parts(options: Options, study: str, inputs: str) -> tuple[Dataset, Dataset]:
    """Rows to train and to validate on: always the same, so their features are copied once."""
    train, _ = load(options, study, inputs)
    kept, held_out = split_rows(len(train.ids))
    return train.take(kept), train.take(held_out)


@cache
def load(options: Options, study: str, inputs: str) -> tuple[Dataset, Dataset | None]:
    """Training and test data of a study with clean labels; `Missing` where they are not at hand."""
    dataset, train_split, test_split = _study(options, study, inputs)
    problem = lacking(options, study, inputs)
    if problem is not None:
        raise Missing(problem)
    if inputs == "labels" and (dataset == "coco" or not _has_features(options, dataset)):  # all of COCO's labels
        return _labels_alone(options, study), None
    splits = [split for split in (train_split, test_split) if split is not None]
    if study in WHOLE:  # features of the images that are in each part
        features, _ = load(options, WHOLE[study], "pooled")
        row = {name: k for k, name in enumerate(features.ids)}
        found = [features.take([row[name] for name in _images(options, dataset, split).ids]) for split in splits]
    elif options.backbone == "frozen" and inputs != "maps" and _has_features(options, dataset):
        found = [_features(options, dataset, split) for split in splits]
    else:
        found = [_images(options, dataset, split) for split in splits]
        if options.backbone == "frozen":
            model = build("resnet50", num_classes=20, key=jax.random.key(0), pretrained=options.pretrained)
            found = [with_features(data, model, options.cache, maps=inputs == "maps") for data in found]
    if len(found) == 1:
        return found[0], None
    return found[0], found[1]._replace(ignore=None) if options.difficult == "positive" else found[1]


def lacking(options: Options, study: str, inputs: str) -> str | None:
    """Why a study's cells cannot be run, as far as a look at the folders tells; None where they can."""
    dataset, _, test = _study(options, study, inputs)
    if study in WHOLE and not (_has_features(options, dataset) and _has_images(options, dataset)):
        return "not run, no images with features; pass --features-dir and --devkit"
    for name in {dataset, (test or "").split("/")[0] if "/" in (test or "") else dataset}:
        if inputs == "labels" or (options.backbone == "frozen" and inputs == "pooled" and _has_features(options, name)):
            continue
        if options.devkit is None or options.pretrained is None:
            return "not run, no images; pass --devkit and --pretrained"
        if not _has_images(options, name):
            return "not run, no images"
    return None


def _has_images(options: Options, dataset: str) -> bool:
    folder = "annotations" if dataset == "coco" else f"VOC{dataset.removeprefix('voc')}"
    return options.devkit is not None and any((options.devkit / at / folder).exists() for at in (".", "VOCdevkit"))


def _has_features(options: Options, dataset: str) -> bool:
    folder = options.features_dir
    return folder is not None and (folder / f"{dataset}_features.npz").exists()


def _features(options: Options, dataset: str, split: str) -> Dataset:
    """Features of a split, of this data set or of the one that its name begins with."""
    return datasets.load(dataset, split=split, features=options.features_dir)


def _images(options: Options, dataset: str, split: str) -> Dataset:
    dataset, split = split.split("/") if "/" in split else (dataset, split)
    try:
        return datasets.load(dataset, split=split, data_dir=options.devkit)
    except (OSError, ValueError) as error:
        raise Missing("not run, no images") from error


@cache
def _labels_alone(options: Options, study: str) -> Dataset:
    folder = options.features_dir
    if folder is None:
        raise Missing("no labels; pass --features-dir, the folder of the label files")
    if study == "coco":
        path = folder / COCO_LABELS
        if not path.exists():
            raise Missing(f"no {COCO_LABELS}; pass --features-dir")
        with np.load(path, allow_pickle=False) as archive:
            classes = tuple(map(str, archive["classes"]))
            labels = np.unpackbits(archive["train"], axis=1)[:, : len(classes)]
            return Dataset("coco/train", tuple(map(str, archive["names"])), classes, labels)
    wanted = [("voc2007", "trainval"), ("voc2012", "trainval"), ("voc2007", "test")]
    wanted = wanted if study == "voc-pool" else [(STUDIES[study].dataset, "trainval")]
    found, ids = [], []
    for dataset, split in wanted:
        path = folder / f"{dataset}_labels.npz"
        if not path.exists():
            raise Missing(f"no {path.name}; pass --features-dir")
        with np.load(path, allow_pickle=False) as archive:
            found.append((archive[split] >= 0).astype(np.uint8))
            ids += [f"{dataset}/{name}" for name in archive[f"{split}_names"]]
            classes = tuple(map(str, archive["classes"]))
    return Dataset(study, tuple(ids), classes, np.concatenate(found))


def corrupt(options: Options, study: str, train: Dataset, setting: str, seed: int) -> Noisy:
    """The clean labels of `train`, all of the study's examples or some, under a setting named as in the tables."""
    key, clean = jax.random.key(seed), train.labels
    if setting.startswith("("):
        rho_neg, rho_pos = map(float, setting.strip("()").split(","))
        T = np.asarray(noise.transition(rho_neg, rho_pos, clean.shape[1]))
        assume = "missing" if rho_neg == 0 else "partial" if rho_pos == 0 else "general"
        return Noisy(np.asarray(noise.corrupt(key, clean, T)), T, assume)
    if setting.startswith("Pair-wise"):
        rate = float(setting.split()[-1].rstrip("%")) / 100
        return Noisy(np.asarray(noise.corrupt_pairwise(key, clean, rate)), None, "general")
    if setting.startswith("PMD"):
        kind = setting.split("-")[-1]
        level = options.pmd_levels[list(noise.PMD_TYPES).index(kind)]
        labels = noise.corrupt_pmd(key, clean, _posteriors(options, study, train.ids), kind=kind, level=level)
        return Noisy(np.asarray(labels), None, "general")
    raise ValueError(f"setting: {setting!r} is unknown; pass a column's name, such as (0,0.2) or PMD-Type-I")


def _posteriors(options: Options, study: str, ids: Sequence[str]) -> Float[np.ndarray, "n q"]:
    """P(clean label = 1) of these examples, for PMD noise."""
    study = WHOLE.get(study, study)
    rows = {name: row for row, name in enumerate(load(options, study, "pooled")[0].ids)}
    return _all_posteriors(options, study)[[rows[name] for name in ids]]


@cache
def _all_posteriors(options: Options, study: str) -> Float[np.ndarray, "n q"]:
    """Out-of-sample predictions by ridge heads that are trained on the clean labels."""
    train, _ = load(options, study, "pooled")
    if train.features is None:
        raise Missing("PMD noise needs pooled features; pass --features-dir and --backbone=frozen")
    return np.asarray(jax.nn.sigmoid(cross_val_logits(train.features, train.labels)))


def _from_labels(options: Options, cell: Cell) -> dict[str, float]:
    train, _ = load(options, cell.study, "labels")
    if cell.method == "frequencies":
        return label_only.frequencies(train.labels)
    if cell.method.startswith("n="):
        train = train.take(np.random.default_rng(cell.seed).permutation(len(train.ids))[: int(cell.method[2:])])
    clean = train.labels
    noisy = corrupt(options, cell.study, train, cell.setting, cell.seed)
    assert noisy.T is not None
    if cell.method in ("label A", "label B"):
        return label_only.partner_error(clean, noisy.labels, noisy.T, assume=noisy.assume, group=cell.method)
    rows = np.arange(len(clean)) if cell.method.startswith("n=") else split_rows(len(clean))[0]
    return {"T_error": label_only.gold_error(clean[rows], noisy.labels[rows], noisy.T, assume=noisy.assume)}
