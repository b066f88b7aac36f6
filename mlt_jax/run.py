"""One run from its configuration: data in, folder of results and a printed table out."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import jax

from mlt_jax import data as datasets
from mlt_jax.config import Config, as_json, identity, resolve
from mlt_jax.data import Dataset
from mlt_jax.processes import agree, is_main, say
from mlt_jax.report import run_page
from mlt_jax.training import records
from mlt_jax.training.feature_cache import with_features
from mlt_jax.training.pipeline import build_engine, build_model, load_results, prepare, run_seed


def run(config: Config) -> dict[str, Any]:
    """The summary of all seeds (see `records.summarize`), after `results.json` and the rest are in the work folder."""
    config = resolve(config)
    assert config.workdir is not None
    _claim(config, config.workdir)
    train, test = load(config)
    say(f"{train.name}: {len(train.ids)} examples, {test.name}: {len(test.ids)}, {len(train.classes)} classes")
    engine = None
    results = []
    for seed in config.seeds:
        folder = config.workdir / f"seed{seed}"
        done = agree(load_results(folder / "results.json") if is_main() else None)
        if done is None:
            engine = engine or build_engine(config, train)
            done = run_seed(engine, prepare(config, train, test, seed), seed=seed, folder=folder)
            records.write_json(folder / "results.json", done)
            if is_main():
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        else:
            say(f"seed {seed}: was finished before, in {folder}")
        results.append(done)
    summary = records.summarize(results)
    records.write_json(config.workdir / "results.json", summary)
    rates = "" if config.noise in ("none", "mlml", "pml", "ulf") else f" ({config.rho_neg:g}, {config.rho_pos:g})"
    title = f"{train.name} -> {test.name}, noise {config.noise}{rates}, {len(results)} seeds; in {config.workdir}"
    say("\n" + records.table(summary, title=title, loss=config.loss))
    if is_main():
        say(f"page: {run_page(config.workdir)}")
    return summary


def load(config: Config) -> tuple[Dataset, Dataset]:
    """Training and test data; as features where the backbone is frozen."""
    options: dict[str, Any] = {"data_dir": config.data_dir, "source": config.source}
    options |= {"features": config.features, "labels": config.labels}
    train, test = (datasets.load(config.dataset, split=s, **options) for s in (config.train_split, config.test_split))
    if train.classes != test.classes:
        raise ValueError(f"test_split: {test.name} has other classes than {train.name}; pass splits that agree")
    if train.features is not None or config.backbone != "frozen":
        return train, test
    say(f"the backbone is frozen: its features are computed once and kept in {config.cache}")
    model = build_model(config, train, jax.random.key(0))
    keep = partial(
        with_features, model=model, folder=config.cache, size=config.image_size, workers=config.workers,
        on_error=config.on_error,
    )  # fmt: skip
    return keep(train), keep(test)


def _claim(config: Config, workdir: Path) -> None:
    """Makes the work folder this run's; ValueError where it is another's."""
    problem = None
    if is_main():
        before = load_results(workdir / "config.json")
        now = as_json(config)
        if before is not None and config.resume:
            mine, theirs = identity(now), identity(before)
            other = [name for name in mine if mine[name] != theirs.get(name)]
            if other:
                problem = (
                    f"workdir: {workdir} holds a run with other {', '.join(other)}; pass another --workdir, or "
                    "--no-resume to start over in it"
                )
        elif before is not None:
            for old in workdir.glob("seed*"):
                shutil.rmtree(old)
        if problem is None:
            records.write_json(workdir / "config.json", now)
    problem = agree(problem)
    if problem:
        raise ValueError(problem)
