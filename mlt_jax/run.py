"""One run from its configuration: data in, folder of results and a printed table out."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, UInt8

from mlt_jax import data as datasets
from mlt_jax.config import DEFAULT_METHODS, Config, Settings, resolve
from mlt_jax.data import Dataset
from mlt_jax.models import Model, build
from mlt_jax.paper import noise
from mlt_jax.paper.methods import needs_maps
from mlt_jax.paper.tasks import Noisy, make_task
from mlt_jax.processes import agree, is_main, say
from mlt_jax.report import run_page
from mlt_jax.training import records
from mlt_jax.training.feature_cache import with_features
from mlt_jax.training.loop import Engine, Session, Task
from mlt_jax.training.methods import CHOSEN, find_estimator, find_method
from mlt_jax.training.metrics import transition_error


def run(config: Config) -> dict[str, Any]:
    """The summary of all seeds (see `records.summarize`), after `results.json` and the rest are in the work folder."""
    settings = resolve(config)
    _claim(settings)
    train, test = load(settings)
    say(f"{train.name}: {len(train.ids)} examples, {test.name}: {len(test.ids)}, {len(train.classes)} classes")
    engine = None
    train, features = estimator_features(settings, train)
    results = []
    for seed in config.seeds:
        folder = settings.workdir / f"seed{seed}"
        done = agree(records.read_json(folder / "results.json") if is_main() else None)
        if done is None:
            engine = engine or build_engine(settings, train)
            noisy = noisy_labels(config, train.labels, seed)
            task = make_task(train, test, noisy, known=config.noise != "none", features=features)
            done = run_seed(engine, task, config, seed=seed, folder=folder)
            records.write_json(folder / "results.json", done)
            if is_main():
                for checkpoints in folder.glob("*/checkpoints"):
                    shutil.rmtree(checkpoints)
        else:
            say(f"seed {seed}: was finished before, in {folder}")
        results.append(done)
    summary = records.summarize(results)
    records.write_json(settings.workdir / "results.json", summary)
    rates = "" if config.noise in ("none", "mlml", "pml", "ulf") else f" ({config.rho_neg:g}, {config.rho_pos:g})"
    title = f"{train.name} -> {test.name}, noise {config.noise}{rates}, {len(results)} seeds; in {settings.workdir}"
    say("\n" + records.table(summary, title=title))
    if is_main():
        say(f"page: {run_page(settings.workdir)}")
    return summary


def run_seed(engine: Engine, task: Task, config: Config, *, seed: int, folder: Path) -> dict[str, Any]:
    """Results of one seed: test scores per method, error of every T, seconds. Goes on where `folder` says it was."""
    session = Session(engine, task, seed=seed, folder=folder, chosen=config.estimator, save_every=config.save_every)
    names = config.methods
    if names == DEFAULT_METHODS and task.truth is None:
        names = tuple(name for name in names if not _is_oracle(name))
    tests = {name: session.score(name) for name in names}
    errors = {}
    if task.truth is not None and task.truth.T is not None:
        nothing = np.broadcast_to(np.eye(2), task.truth.T.shape)
        found = {name: estimate.T for name, estimate in session.estimates.items()} | {records.NO_NOISE: nothing}
        errors = {name: transition_error(T, task.truth.T) for name, T in found.items()}
    return {"seed": seed, "test": tests, "T_error": errors, "seconds": session.seconds}


def _is_oracle(name: str) -> bool:
    estimator = find_method(name).estimator
    return estimator is not None and estimator != CHOSEN and find_estimator(estimator).oracle


def noisy_labels(config: Config, labels: UInt8[np.ndarray, "n q"], seed: int) -> Noisy:
    """Labels corrupted by the seed as the configuration says, with the T behind them (pairwise: the realised one)."""
    key, q = jax.random.key(seed), labels.shape[1]
    if config.noise == "none":
        return Noisy(labels, None, config.assume)
    if config.noise == "pairwise":
        corrupted = np.asarray(noise.corrupt_pairwise(key, labels, config.rho_pos))
        return Noisy(corrupted, np.asarray(noise.realised_transition(labels, corrupted)), config.assume)
    if config.noise == "rates":
        T = noise.transition(config.rho_neg, config.rho_pos, q)
    else:
        rate = config.rho_neg if config.noise == "pml" else config.rho_pos
        T = noise.named_transition(config.noise, rate, q, labels_per_example=float(labels.sum(axis=1).mean()))
    return Noisy(np.asarray(noise.corrupt(key, labels, T)), np.asarray(T), config.assume)


def build_engine(settings: Settings, train: Dataset) -> Engine:
    """Compiled steps for all seeds: of heads where there are features, else of the whole network."""
    config = settings.given
    options: dict[str, Any] = {"size": config.image_size, "workers": config.workers, "on_error": config.on_error}
    return Engine(
        partial(build_model, settings, train), schedule=settings.schedule, images=train.features is None,
        accumulate=config.accumulate, **options,
    )  # fmt: skip


def build_model(settings: Settings, train: Dataset, head: str, key: PRNGKeyArray) -> Model:
    """The network of the configuration with this head, with fresh (or pretrained) weights."""
    config, q = settings.given, len(train.classes)
    dtype = jnp.bfloat16 if config.precision == "bf16" else jnp.float32
    if train.features is not None:
        return build(head, num_classes=q, key=key, size=train.features.shape[-1], dtype=dtype)
    return build(
        settings.model, num_classes=q, key=key, pretrained=settings.pretrained, dtype=dtype, size=config.image_size,
        head=head,
    )  # fmt: skip


def load(settings: Settings) -> tuple[Dataset, Dataset]:
    """Training and test data; as features, or maps where a method reads them, where the backbone is frozen."""
    config = settings.given
    read = partial(
        datasets.load, config.dataset, data_dir=config.data_dir, source=config.source, features=config.features,
        labels=config.labels,
    )  # fmt: skip
    train, test = read(split=settings.train_split), read(split=settings.test_split)
    if train.classes != test.classes:
        raise ValueError(f"test_split: {test.name} has other classes than {train.name}; pass splits that agree")
    if train.features is not None or settings.backbone != "frozen":
        return train, test
    say(f"the backbone is frozen: its features are computed once and kept in {config.cache}")
    keep = partial(
        with_features, model=build_model(settings, train, "linear", jax.random.key(0)), folder=config.cache,
        size=config.image_size, workers=config.workers, on_error=config.on_error,
        maps=any(map(needs_maps, config.methods)),
    )  # fmt: skip
    return keep(train), keep(test)


def estimator_features(settings: Settings, train: Dataset) -> tuple[Dataset, Float[np.ndarray, "n d"] | None]:
    """Features of the *pretrained* network, by which `auto` estimates T while all of it is fine-tuned, if it is.

    That network never saw the noisy labels; a fine-tuned one has learned some of them. One pass, kept in the cache.
    Images that could not be read are left out of the data.
    """
    config = settings.given
    asked = any(find_method(name).estimator == CHOSEN for name in config.methods) and config.estimator == "auto"
    if train.features is not None or not asked:
        return train, None
    if settings.pretrained is None:
        say("no pretrained weights to take features from: T comes from the paper's recipe, small losses of the warm-up")
        return train, None
    say(f"T is estimated from features of the pretrained network, computed once and kept in {config.cache}")
    found = with_features(
        train, build_model(settings, train, "linear", jax.random.key(0)), config.cache, size=config.image_size,
        workers=config.workers, on_error=config.on_error,
    )  # fmt: skip
    kept = set(found.ids)
    rows = np.array([row for row, name in enumerate(train.ids) if name in kept])
    return (train if len(rows) == len(train.ids) else train.take(rows)), found.features


def _claim(settings: Settings) -> None:
    """Makes the work folder this run's; ValueError in every process where it is another's."""
    problem = None
    path = settings.workdir / "config.json"
    if is_main():
        if settings.given.resume:
            try:
                remedy = "pass another --workdir, or --no-resume to start over in it"
                records.claim(path, settings.identity(), remedy=remedy)
            except ValueError as error:
                problem = str(error)
        elif path.exists():
            for old in settings.workdir.glob("seed*"):
                shutil.rmtree(old)
        if problem is None:
            records.write_json(path, settings.as_json())
    problem = agree(problem)
    if problem:
        raise ValueError(problem)
