"""The paper's job, resumable: corrupt, warm up, select and estimate, retrain with T, test.

A seed's run is a row of phases: "standard" (the warm-up, plain BCE), "estimated" (retraining with the estimated T) and,
where the noise is known, "true". It can be stopped at any moment and goes on from its last checkpoint to the same bits.
"""

import dataclasses
import json
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray, UInt8

import mlt_jax
from mlt_jax.config import Config
from mlt_jax.data import Dataset
from mlt_jax.models import Model, build
from mlt_jax.models.pretrained import save
from mlt_jax.paper import noise
from mlt_jax.processes import is_main, say
from mlt_jax.training import losses, metrics
from mlt_jax.training import optimizers as optimizers_
from mlt_jax.training import step as training
from mlt_jax.training.checkpoint import Checkpoints
from mlt_jax.training.feeds import Feed, Resident, Step, Streamed
from mlt_jax.training.records import Log, write_json, write_transition
from mlt_jax.transition import TransitionEstimate

CLIP, KEPT_EPOCHS, VALIDATION = 10.0, 5, 0.1
CORRECTED = {"reweight": losses.reweighted_bce, "forward": losses.forward_bce, "backward": losses.backward_bce}


class Parts(NamedTuple):
    """The examples of one seed's run; train and validation have noisy labels, test has clean ones."""

    train: Dataset
    validation: Dataset
    test: Dataset
    true_T: Float[np.ndarray, "q 2 2"] | None  # None where nobody corrupted the labels


class Engine(NamedTuple):
    """What all seeds of a run share, so that each step is compiled once."""

    config: Config
    model: Model
    feed: Feed
    warm: Step
    corrected: Step


@dataclass
class Position:
    """Where a run is: everything of a checkpoint that is not an array."""

    phase: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    least_loss: float | None = None
    best_map: float = -1.0
    best_epoch: int = 0
    log_bytes: int = 0
    tests: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def noisy_labels(
    config: Config, labels: UInt8[np.ndarray, "n q"], seed: int
) -> tuple[UInt8[np.ndarray, "n q"], Float[np.ndarray, "q 2 2"] | None]:
    """Labels corrupted by the seed as the configuration says, and the T behind them (pairwise: the realised one)."""
    key, q = jax.random.key(seed), labels.shape[1]
    if config.noise == "none":
        return labels, None
    if config.noise == "pairwise":
        corrupted = np.asarray(noise.corrupt_pairwise(key, labels, config.rho_pos))
        return corrupted, np.asarray(noise.realised_transition(labels, corrupted))
    if config.noise == "rates":
        T = noise.transition(config.rho_neg, config.rho_pos, q)
    else:
        rate = config.rho_neg if config.noise == "pml" else config.rho_pos
        T = noise.named_transition(config.noise, rate, q, labels_per_example=float(labels.sum(axis=1).mean()))
    return np.asarray(noise.corrupt(key, labels, T)), np.asarray(T)


def prepare(config: Config, train: Dataset, test: Dataset, seed: int) -> Parts:
    """Noise drawn by the seed on all training examples, then 90 % to train and 10 % to validate, the same for all."""
    labels, true_T = noisy_labels(config, train.labels, seed)
    noisy = train._replace(labels=labels, ignore=None)
    kept, held_out = split_rows(len(labels))
    return Parts(noisy.take(kept), noisy.take(held_out), test, true_T)


def split_rows(n: int) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " k"]]:
    """Rows to train on and rows to validate on, 90 % and 10 % of n, the same for every seed."""
    order = np.random.default_rng(1).permutation(n)
    cut = max(1, round(VALIDATION * n))
    return np.sort(order[cut:]), np.sort(order[:cut])


def build_model(config: Config, train: Dataset, key: PRNGKeyArray) -> Model:
    """The network of the configuration, with fresh (or pretrained) weights."""
    assert config.model is not None
    dtype = jnp.bfloat16 if config.precision == "bf16" else jnp.float32
    if train.features is not None:
        return build("linear", num_classes=len(train.classes), key=key, size=train.features.shape[-1], dtype=dtype)
    return build(
        config.model, num_classes=len(train.classes), key=key, pretrained=config.pretrained, dtype=dtype,
        size=config.image_size,
    )  # fmt: skip


def build_engine(config: Config, train: Dataset) -> Engine:
    """Model, feed and the two compiled steps: plain for the warm-up, corrected by T after it."""
    assert config.batch_size is not None
    model = build_model(config, train, jax.random.key(0))
    resident = train.features is not None and jax.process_count() == 1
    options = {"size": config.image_size, "workers": config.workers, "on_error": config.on_error}
    feed: Feed = (
        Resident(model.apply, batch_size=config.batch_size)
        if resident
        else Streamed(model.apply, batch_size=config.batch_size, **options)
    )
    make = partial(training.make_train_step, model.apply, accumulate=config.accumulate)
    warm_optimizer, optimizer = optimizers(config)
    corrected = CORRECTED[config.loss]

    def warm_step(state: training.TrainState, batch: Any, T: Any) -> Any:
        return make(losses.bce, warm_optimizer)(state, batch)

    def corrected_step(state: training.TrainState, batch: Any, T: Any) -> Any:
        return make(lambda logits, labels: corrected(logits, labels, T), optimizer)(state, batch)

    return Engine(config, model, feed, jax.jit(warm_step), jax.jit(corrected_step))


def optimizers(config: Config) -> tuple[Any, Any]:
    """Adam for the warm-up, gradient norm cut at 10, and for what follows."""
    assert config.learning_rate is not None
    return optimizers_.make_optimizer(config.learning_rate, clip=CLIP), optimizers_.make_optimizer(config.learning_rate)


def run_seed(engine: Engine, parts: Parts, *, seed: int, folder: Path) -> dict[str, Any]:
    """Results of one seed: test scores per method, T error, seconds per phase. Goes on where `folder` says it was."""
    return _SeedRun(engine, parts, seed, folder).run()


class _SeedRun:
    """The lifetime of one seed's run: its arrays, its position, its folder."""

    def __init__(self, engine: Engine, parts: Parts, seed: int, folder: Path) -> None:
        self.engine, self.parts, self.seed, self.folder = engine, parts, seed, folder
        self.config, self.feed = engine.config, engine.feed
        self.phases = ("standard", "estimated") if parts.true_T is None else ("standard", "estimated", "true")
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.at = Position()
        n, q = parts.train.labels.shape
        model = build_model(self.config, parts.train, jax.random.key(seed))
        first = (model.params, model.stats)
        self.tree: dict[str, Any] = {
            "state": training.init_state(jax.random.key(seed), *first, optimizers(self.config)[0]),
            "warm": first,  # least validation loss of the warm-up: where retraining starts
            "best": first,  # best validation mAP of the phase: what is tested
            "history": np.zeros((self.kept_epochs, n, q), np.float32),
            "T": np.zeros((q, 2, 2), np.float32),
        }

    @property
    def kept_epochs(self) -> int:
        assert self.config.sample_epoch is not None
        return min(KEPT_EPOCHS, self.config.sample_epoch)

    def run(self) -> dict[str, Any]:
        found = self.checkpoints.restore(self.tree)
        if found is not None:
            self.tree, self.at = found[0], Position(**found[1])
            say(f"seed {self.seed}: goes on at {self.phases[self.at.phase]}, epoch {self.at.epoch + 1}")
        for name in ("state", "warm", "best"):
            self.tree[name] = self.feed.put(self.tree[name])
        self.log = Log(self.folder, start=self.at.log_bytes, step=self.global_epoch())
        self.clock = self.saved = time.monotonic()
        try:
            for phase in range(self.at.phase, len(self.phases)):
                self.run_phase(self.phases[phase])
                self.at.phase, self.at.epoch = phase + 1, 0
        except training.NonFiniteLoss as error:
            self.keep_ids(error)
            raise
        finally:
            self.log.close()
            self.checkpoints.close()
        return self.results()

    def run_phase(self, phase: str) -> None:
        assert self.config.epochs is not None
        if phase != "standard" and self.at.epoch == 0 and self.at.batch == 0:
            if phase == "estimated":
                self.estimate()
            params, stats = self.tree["warm"]
            fresh = training.init_state(self.tree["state"].key, params, stats, optimizers(self.config)[1])
            self.tree["state"] = self.feed.put(fresh)
            self.at.best_map = -1.0
        for epoch in range(self.at.epoch, self.config.epochs):
            self.at.epoch = epoch
            self.run_epoch(phase)
            self.at.epoch, self.at.batch, self.at.loss_sum = epoch + 1, 0, 0.0
            self.spend(phase)
            self.save_if_due()
        params, stats = self.tree["best"]
        if phase == "estimated" and is_main():
            model = self.engine.model
            save(self.folder / "weights", model.name, params, stats, model.preprocess)
        logits = self.feed.predict(params, stats, self.parts.test)
        scores = metrics.evaluate(_sigmoid(logits), self.parts.test.labels, self.parts.test.ignore)
        self.at.tests[phase] = scores | {"validation_mAP": self.at.best_map, "epoch": self.at.best_epoch + 1}
        self.log.write({"phase": phase, "epoch": self.at.best_epoch + 1, **{f"test_{k}": v for k, v in scores.items()}},
                       step=self.global_epoch())  # fmt: skip
        self.spend(phase)

    def run_epoch(self, phase: str) -> None:
        """One epoch of training and what is measured after it."""
        at, data = self.at, self.parts.train
        T = self.parts.true_T if phase == "true" else self.tree["T"]

        def report(state: training.TrainState, done: int, loss: float) -> None:
            self.tree["state"], at.batch, at.loss_sum = state, done, at.loss_sum + loss
            if done < steps:
                self.save_if_due()

        assert self.config.batch_size is not None
        steps = len(data.ids) // self.config.batch_size
        step = self.engine.warm if phase == "standard" else self.engine.corrected
        # Another order of examples in each phase.
        order = self.global_epoch()
        if at.batch < steps:
            T = np.asarray(T, np.float32)
            self.tree["state"] = self.feed.train(
                step, self.tree["state"], T, data, epoch=order, seed=self.seed, start=at.batch, report=report
            )
        state = self.tree["state"]
        now = (state.params, state.stats)
        noisy = self.parts.validation.labels
        logits = self.feed.predict(*now, self.parts.validation)
        loss, mean_ap = float(_bce(logits, noisy).mean()), metrics.evaluate(_sigmoid(logits), noisy)["mAP"]
        if phase == "standard":
            if at.least_loss is None or loss < at.least_loss:
                at.least_loss, self.tree["warm"] = loss, now
            slot = at.epoch - (self.config.sample_epoch - self.kept_epochs)  # type: ignore[operator]
            if 0 <= slot < self.kept_epochs:
                history = self.tree["history"] = np.array(self.tree["history"])
                history[slot] = _bce(self.feed.predict(*now, data), data.labels)
        if mean_ap > at.best_map:
            at.best_map, at.best_epoch, self.tree["best"] = mean_ap, at.epoch, now
        entry = {"train_loss": at.loss_sum / steps, "validation_loss": loss, "validation_mAP": mean_ap}
        self.log.write({"phase": phase, "epoch": at.epoch + 1, **entry}, step=order + 1)

    def estimate(self) -> None:
        """T of the noisy training labels from the losses of the kept epochs; written down with the class names."""
        self.spend("standard")
        config, data = self.config, self.parts.train
        found: TransitionEstimate
        if config.estimator == "auto" and data.features is not None and data.features.ndim == 2:
            found = mlt_jax.estimate(data.labels, features=data.features)
        else:
            params, stats = self.tree["warm"]
            probs = _sigmoid(self.feed.predict(params, stats, data))
            found = mlt_jax.estimate(
                data.labels, losses=self.tree["history"], probs=probs, method=config.estimator, assume=config.assume,
                aggregate=config.aggregate,
            )  # fmt: skip
        self.tree["T"] = np.asarray(found.T, np.float32)
        write_transition(self.folder, found, data.classes, self.parts.true_T)
        self.spend("estimation")

    def global_epoch(self) -> int:
        assert self.config.epochs is not None
        return self.at.phase * self.config.epochs + self.at.epoch

    def spend(self, phase: str) -> None:
        now = time.monotonic()
        self.at.seconds[phase] = self.at.seconds.get(phase, 0.0) + now - self.clock
        self.clock = now

    def save_if_due(self) -> None:
        if time.monotonic() - self.saved >= self.config.save_every:
            self.at.log_bytes = self.log.flush()
            self.checkpoints.save(self.tree, dataclasses.asdict(self.at))
            self.saved = time.monotonic()

    def keep_ids(self, error: training.NonFiniteLoss) -> None:
        """Writes which examples were in the batch whose loss was not finite."""
        path = self.folder / "nonfinite.json"
        ids = [self.parts.train.ids[row] for row in error.rows]
        write_json(
            path, {"step": error.step, "phase": self.phases[self.at.phase], "epoch": self.at.epoch + 1, "ids": ids}
        )
        error.add_note(f"the examples of the batch are listed in {path}")

    def results(self) -> dict[str, Any]:
        T, true_T = self.tree["T"], self.parts.true_T
        errors = {}
        if true_T is not None:
            identity = np.broadcast_to(np.eye(2), true_T.shape)
            errors = {name: metrics.transition_error(x, true_T) for name, x in (("T", T), ("identity", identity))}
        return {"seed": self.seed, "test": self.at.tests, "T_error": errors, "seconds": self.at.seconds}


def _sigmoid(logits: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "n q"]:
    return np.asarray(jax.nn.sigmoid(logits))


def _bce(logits: Float[np.ndarray, "n q"], labels: UInt8[np.ndarray, "n q"]) -> Float[np.ndarray, "n q"]:
    return np.asarray(losses.bce(jnp.asarray(logits), labels))


def load_results(path: Path) -> dict[str, Any] | None:
    """What `write_json` wrote there, or None."""
    return json.loads(path.read_text()) if path.exists() else None
