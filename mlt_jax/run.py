"""One run from its configuration: data in, folder of results and a printed table out."""

import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
from mlt_jax.paper.methods import FROZEN_RATES, head_of, head_rates, needs_maps
from mlt_jax.paper.tasks import Noisy, make_task
from mlt_jax.processes import agree, file_hash, is_main, same, say
from mlt_jax.report import run_page
from mlt_jax.training import records
from mlt_jax.training.feature_cache import with_features, with_views
from mlt_jax.training.loop import Engine, Session, Task
from mlt_jax.training.methods import CHOSEN, find_estimator, find_method
from mlt_jax.training.metrics import transition_error


def run(config: Config) -> dict[str, Any]:
    """The summary of all seeds (see `records.summarize`), after `results.json` and the rest are in the work folder."""
    with ExitStack() as held:
        return _run(resolve(config), held)


def _run(settings: Settings, held: ExitStack) -> dict[str, Any]:
    config = settings.given
    _claim(settings, held)
    train, test = read(settings)
    identity = settings.identity() | {"data": [datasets.content_hash(data) for data in (train, test)]}
    if config.plugins:
        identity["plugins"] = [file_hash(path) for path in config.plugins]
    if settings.pretrained is not None:
        identity["weights"] = file_hash(Path(settings.pretrained))
    train, test = prepare(settings, train, test)
    say(f"{train.name}: {len(train.ids)} examples, {test.name}: {len(test.ids)}, {len(train.classes)} classes")
    engine = None
    train, features = estimator_features(settings, train)
    same(identity | {"seeds": list(config.seeds), "methods": list(config.methods)}, timeout=float(config.timeout))
    methods = _methods(config)
    results = []
    for seed in config.seeds:
        folder = settings.workdir / f"seed{seed}"
        done = _before(folder, identity)
        if missing := [name for name in methods if name not in done["test"]]:
            engine = engine or build_engine(settings, train)
            noisy = noisy_labels(config, train.labels, seed)
            task = make_task(train, test, noisy, known=config.noise != "none", features=features)
            new = run_seed(engine, task, config, missing, seed=seed, folder=folder)
            done = {"seed": seed} | {name: done[name] | new[name] for name in ("test", "T_error", "seconds")}
            records.write_json(folder / "results.json", done | {"identity": identity})
            if is_main():
                for checkpoints in folder.glob("*/checkpoints"):
                    shutil.rmtree(checkpoints)
        else:
            say(f"seed {seed}: was finished before, in {folder}")
        asked = {"test": {name: done["test"][name] for name in methods}}
        results.append({"seed": seed} | asked | {name: done[name] for name in ("T_error", "seconds")})
    summary = records.summarize(results)
    records.write_json(settings.workdir / "results.json", summary)
    rates = "" if config.noise in ("none", "mlml", "pml", "ulf") else f" ({config.rho_neg:g}, {config.rho_pos:g})"
    title = f"{train.name} -> {test.name}, noise {config.noise}{rates}, {len(results)} seeds; in {settings.workdir}"
    say("\n" + records.table(summary, title=title))
    if is_main():
        say(f"page: {run_page(settings.workdir)}")
    return summary


def run_seed(
    engine: Engine, task: Task, config: Config, methods: Sequence[str], *, seed: int, folder: Path
) -> dict[str, Any]:
    """Results of one seed: test scores per method, error of every T, seconds. Goes on where `folder` says it was."""
    session = Session(engine, task, seed=seed, folder=folder, chosen=config.estimator, save_every=config.save_every)
    tests = {name: session.score(name) for name in methods}
    errors = {}
    if task.truth is not None and task.truth.T is not None:
        nothing = np.broadcast_to(np.eye(2), task.truth.T.shape)
        found = {name: estimate.T for name, estimate in session.estimates.items()} | {records.NO_NOISE: nothing}
        errors = {name: transition_error(T, task.truth.T) for name, T in found.items()}
    return {"test": tests, "T_error": errors, "seconds": session.seconds}


def _methods(config: Config) -> tuple[str, ...]:
    """The methods asked for; by default without those that read the truth, where nobody knows it."""
    if config.methods == DEFAULT_METHODS and config.noise == "none":
        return tuple(name for name in config.methods if not _is_oracle(name))
    return config.methods


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
    """Compiled steps for all seeds: of heads where there are features, else of the network or its tail."""
    config = settings.given
    options: dict[str, Any] = {"size": config.image_size, "workers": config.workers, "on_error": config.on_error}
    return Engine(
        partial(build_model, settings, train), schedule=settings.schedule, images=train.features is None,
        rates=head_rates(settings.schedule.learning_rate) if train.features is None
        else None if config.learning_rate else FROZEN_RATES,
        accumulate=config.accumulate, **options,
    )  # fmt: skip


def build_model(settings: Settings, train: Dataset, head: str, key: PRNGKeyArray) -> Model:
    """The network of the configuration, or its tail where maps are kept, with this head and (pre)trained weights."""
    config, q = settings.given, len(train.classes)
    head = head_of(head, config.dataset)
    dtype = jnp.bfloat16 if config.precision == "bf16" else jnp.float32
    if train.features is not None:
        return build(head, num_classes=q, key=key, size=train.features.shape[-1], dtype=dtype)
    return build(
        settings.model, num_classes=q, key=key, pretrained=settings.pretrained, dtype=dtype, size=config.image_size,
        head=head, tail=train.views is not None,
    )  # fmt: skip


def load(settings: Settings) -> tuple[Dataset, Dataset]:
    """Training and test data as the network takes them."""
    return prepare(settings, *read(settings))


def read(settings: Settings) -> tuple[Dataset, Dataset]:
    """Training and test data as they are stored."""
    config = settings.given
    one = partial(
        datasets.load, config.dataset, data_dir=config.data_dir, source=config.source, features=config.features,
        labels=config.labels,
    )  # fmt: skip
    train, test = one(split=settings.train_split), one(split=settings.test_split)
    if train.classes != test.classes:
        raise ValueError(f"test_split: {test.name} has other classes than {train.name}; pass splits that agree")
    if train.features is not None and test.features is not None:
        if train.features.shape[1:] != test.features.shape[1:]:
            shapes = f"{test.features.shape[1:]} features, {train.name} has {train.features.shape[1:]}"
            raise ValueError(f"test_split: {test.name} has {shapes}; pass splits that agree")
        if settings.train_split != settings.test_split and np.array_equal(train.features, test.features):
            raise ValueError(
                f"features: {settings.train_split} and {settings.test_split} are the same examples, so the test would "
                "be of what was learned by heart; pass a folder with train.npz and test.npz (--dataset features "
                "--data-dir FOLDER)"
            )
    return train, test


def prepare(settings: Settings, train: Dataset, test: Dataset) -> tuple[Dataset, Dataset]:
    """The data with kept features or maps where not all weights are trained, without what cannot be read."""
    config = settings.given
    if train.features is not None:
        return train, test
    if settings.backbone == "finetune":
        return (train, test) if config.on_error == "raise" else (readable(train), readable(test))
    options: dict[str, Any] = {"size": config.image_size, "workers": config.workers, "on_error": config.on_error}
    options |= {"model": build_model(settings, train, "linear", jax.random.key(0)), "folder": config.cache}
    if settings.backbone == "tail":
        say(f"the tail is trained: maps of the stage before it are computed once and kept in {config.cache}")
        return with_views(train, views=config.views, **options), with_views(test, **options)
    say(f"the backbone is frozen: its features are computed once and kept in {config.cache}")
    options["maps"] = any(map(needs_maps, config.methods))
    return with_features(train, **options), with_features(test, **options)


def readable(data: Dataset) -> Dataset:
    """The examples whose image can be decoded."""
    image = data.image
    assert image is not None

    def fine(row: int) -> bool:
        try:
            image(row)
        except datasets.ImageError:
            return False
        return True

    with ThreadPoolExecutor() as pool:
        kept = np.flatnonzero(list(pool.map(fine, range(len(data.ids)))))
    if len(kept) < len(data.ids):
        say(f"{data.name}: {len(data.ids) - len(kept)} images cannot be read and are left out")
    return data if len(kept) == len(data.ids) else data.take(kept)


def estimator_features(settings: Settings, train: Dataset) -> tuple[Dataset, Float[np.ndarray, "n d"] | None]:
    """Features of the *pretrained* network, by which `auto` estimates T while it or its tail is trained.

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
    images = train._replace(views=None)
    found = with_features(
        images, build_model(settings, images, "linear", jax.random.key(0)), config.cache, size=config.image_size,
        workers=config.workers, on_error=config.on_error,
    )  # fmt: skip
    kept = set(found.ids)
    rows = np.array([row for row, name in enumerate(train.ids) if name in kept])
    return (train if len(rows) == len(train.ids) else train.take(rows)), found.features


_REMEDY = "pass another --workdir, or --no-resume to start over in it"


def _claim(settings: Settings, held: ExitStack) -> None:
    """Makes the work folder this run's as long as `held` is open; ValueError in every process where it is another's."""

    def claim() -> None:
        held.enter_context(records.owned(settings.workdir))
        path = settings.workdir / "config.json"
        if settings.given.resume:
            records.claim(path, settings.identity(), remedy=_REMEDY)
        for old in () if settings.given.resume else settings.workdir.glob("seed*"):
            if re.fullmatch(r"seed\d+", old.name) and (path.exists() or (old / _IDENTITY).exists()):
                shutil.rmtree(old)
        records.write_json(path, settings.as_json())

    _in_main(claim)


_IDENTITY = "identity.json"


def _before(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """What is finished of a seed; makes its folder this run's, ValueError in every process where it is another's."""

    def read() -> dict[str, Any]:
        done = records.read_json(folder / "results.json")
        begun = records.read_json(folder / _IDENTITY)
        if begun is None and (done is not None or any(folder.glob("*/checkpoints"))):
            begun = (done or {}).get("identity", {})
        for before in (begun, done and done.get("identity", {})):
            records.check_identity(folder, before, identity, remedy=_REMEDY)
        records.write_json(folder / _IDENTITY, identity)
        return done or {"test": {}, "T_error": {}, "seconds": {}}

    return _in_main(read)


def _in_main(act: Callable[[], Any]) -> Any:
    """What `act` gives in process 0, in every process; what it raises becomes a ValueError in all the others."""
    found, problem = None, None
    if is_main():
        try:
            found = act()
        except (OSError, ValueError) as error:
            problem = error
    said = agree(problem and str(problem))
    if said is not None:
        raise problem or ValueError(f"process 0: {said}")
    return agree(found)
