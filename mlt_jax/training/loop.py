"""The training loop, the only one: a method trained on a task, resumable to the same bits where a folder is given.

    engine = Engine(lambda head, key: build(head, num_classes=20, key=key))
    session = Session(engine, Task(train, validation, test, truth), seed=0, folder=Path("runs/mine/seed0"))
    session.score("Reweight")              # {"mAP": ..., "OF1": ..., "CF1": ..., ...}
    session.transition("T-estimator max")  # a TransitionEstimate

What the methods of a task share (the warm-up, T) is trained or estimated once per session. The warm-up is plain
training, so that it is the method "Standard" as well.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree, Shaped

from mlt_jax.data import Dataset
from mlt_jax.estimator.assumption import MOST_TESTED, assumption_test
from mlt_jax.labels import as_labels
from mlt_jax.models import Model
from mlt_jax.models.pretrained import save
from mlt_jax.processes import is_main, say
from mlt_jax.training import metrics
from mlt_jax.training.checkpoint import Checkpoints
from mlt_jax.training.feeds import Feed, Resident, Step, Streamed
from mlt_jax.training.losses import bce
from mlt_jax.training.methods import (
    ALIASES,
    CHOSEN,
    Evidence,
    Method,
    Truth,
    WarmUp,
    adam,
    find_estimator,
    find_method,
)
from mlt_jax.training.optimizers import with_head_rate
from mlt_jax.training.records import Log, slug, write_json, write_transition
from mlt_jax.training.step import NonFiniteLoss, TrainState, init_state, make_train_step
from mlt_jax.transition import TransitionEstimate, from_matrices

CLIP, KEPT_EPOCHS = 10.0, 5


class Task(NamedTuple):
    """One noisy copy of a data set, and what is known of its noise."""

    train: Dataset  # noisy labels
    validation: Dataset  # noisy labels
    test: Dataset  # clean labels
    truth: Truth | None = None  # None where nobody knows it
    assume: str = "general"  # the side that estimators may take as noise-free: "missing" or "partial"
    # Of the training examples, for estimators alone, where `train` has images: by a network that never saw the labels.
    features: Float[np.ndarray, "n d"] | None = None


class Schedule(NamedTuple):
    """How long and how fast every training is; the paper's for VOC, its learning rate times ten for a head alone."""

    epochs: int = 20
    sample_epoch: int = 10  # the last of the epochs whose losses select labels
    batch_size: int = 128
    learning_rate: float = 5e-4

    @property
    def kept_epochs(self) -> int:
        """How many epochs' losses are kept."""
        return min(KEPT_EPOCHS, self.sample_epoch)


class Fit(NamedTuple):
    """A training's outcome: the weights of its epoch of best noisy-validation mAP."""

    params: PyTree
    stats: PyTree
    validation_mAP: float  # NaN where no class has a validation positive: then these are the last epoch's weights
    epoch: int  # from 1


class Engine:
    """What all sessions of a process share, so that each training step is compiled once.

    Args:
      make_model: (name of a head, key) -> model.
      schedule: the paper's for VOC by default.
      images: whether examples are images for a whole network, or maps for its tail, not features for a head alone.
      rates: learning rates of the heads that have their own.
      accumulate: into how many parts each batch is cut to save memory.
      options: of `data.batches`, for images.
    """

    def __init__(
        self, make_model: Callable[[str, PRNGKeyArray], Model], *, schedule: Schedule | None = None,
        images: bool = False, rates: Mapping[str, float] | None = None, accumulate: int = 1, **options: Any,
    ) -> None:  # fmt: skip
        self.make_model, self.schedule, self._rates = make_model, schedule or Schedule(), rates or {}
        self._images, self._accumulate, self._options = images, accumulate, options
        self._device_cache: dict[int, Any] = {}
        self._feeds: dict[Any, Feed] = {}
        self._steps: dict[Any, Step] = {}
        self._models: dict[str, Model] = {}

    def tools(self, method: Method, *, num_classes: int) -> tuple[Feed, Step]:
        """Feed and compiled step of a method; methods that differ only in T share theirs."""
        if method.model not in self._models:
            self._models[method.model] = self.make_model(method.model, jax.random.key(0))
        base, wrapped = self._models[method.model], (method.model, method.wrap)
        model = base if method.wrap is None else method.wrap(base, num_classes=num_classes)
        if wrapped not in self._feeds:
            size = self.schedule.batch_size
            self._feeds[wrapped] = (
                Streamed(model.apply, batch_size=size, **self._options)
                if self._images or jax.process_count() > 1
                else Resident(model.apply, batch_size=size, kept=self._device_cache)
            )
        key = (*wrapped, method.loss, method.update, clip_of(method))
        if key not in self._steps:
            # What the noise rate is, the optimiser reads from its state.
            optimizer = self.optimizer(method, noise_rate=0.0)
            self._steps[key] = compile_step(model, method, optimizer, accumulate=self._accumulate)
        return self._feeds[wrapped], self._steps[key]

    def optimizer(self, method: Method, *, noise_rate: float) -> Any:
        """The method's update rule; its head, alone or in a whole network, at the learning rate it has for itself."""
        rate = self.schedule.learning_rate
        head_rate = self._rates.get(method.model, rate)
        rule = (method.update or adam)(rate if self._images else head_rate, clip=clip_of(method), noise_rate=noise_rate)
        return with_head_rate(rule, head_rate / rate) if self._images and head_rate != rate else rule


def compile_step(model: Model, method: Method, optimizer: Any, *, accumulate: int = 1) -> Step:
    """The jitted `step(state, batch, T) -> (state, metrics)` of a method; it takes the memory of the state given."""

    @partial(jax.jit, donate_argnums=0)
    def step(state: TrainState, batch: Any, T: Any) -> Any:
        def loss(outputs: Any, labels: Any) -> Any:
            return method.loss(outputs, labels, T)

        return make_train_step(model.apply, loss, optimizer, accumulate=accumulate)(state, batch)

    return step


def clip_of(method: Method) -> float:
    """The gradient norm is cut where training starts from fresh weights, as in the paper's code."""
    return CLIP if method.start == "fresh" else float("inf")


def fit(name: str, task: Task, *, engine: Engine, seed: int = 0, folder: Path | None = None, **options: Any) -> Fit:
    """The method of that name trained on the task; `Session` does it for several methods and keeps what they share."""
    return Session(engine, task, seed=seed, folder=folder, **options).fit(name)


class Session:
    """The methods of one task and seed: their warm-ups, estimates of T, trainings and scores, each made once.

    Args:
      engine: compiled steps.
      task: data and what is known of its noise.
      seed: of the initial weights and of the order of examples.
      folder: each training keeps checkpoints and metrics in a folder of its own in it, and goes on from there.
      chosen: the estimator of the methods that leave it to the user ("Reweight").
      save_every: least number of seconds between checkpoints.
    """

    def __init__(
        self, engine: Engine, task: Task, *, seed: int = 0, folder: Path | None = None, chosen: str = "auto",
        save_every: float = 30.0,
    ) -> None:  # fmt: skip
        self.engine, self.task, self.seed, self.folder = engine, task, seed, folder
        self.chosen, self.save_every = chosen, save_every
        self.seconds: dict[str, float] = {}
        self.estimates: dict[str, TransitionEstimate] = {}  # by the estimators that do not read the truth
        self.fit = cache(self._fit)
        self._found = cache(self._estimate)
        self._plain = cache(self._train_plain)

    def score(self, name: str) -> dict[str, float]:
        """Test scores of a method at its epoch of best noisy-validation mAP, with that mAP and epoch."""
        method, found = find_method(name), self.fit(name)
        feed, _ = self.engine.tools(method, num_classes=self.num_classes)
        probs = _sigmoid(feed.predict(found.params, found.stats, self.task.test))
        scores = metrics.evaluate(probs, self.task.test.labels, self.task.test.ignore)
        return scores | {"validation_mAP": found.validation_mAP, "epoch": found.epoch}

    def error(self, name: str) -> float:
        """Summed error of an estimator's T."""
        if self.task.truth is None or self.task.truth.T is None:
            raise ValueError("truth: noise that depends on the instance has no one T to compare with")
        return metrics.transition_error(self.transition(name).T, self.task.truth.T)

    def transition(self, name: str, model: str = "linear") -> TransitionEstimate:
        """T by the estimator of that name, from the warm-up of the model where it reads one."""
        return self._found(name, model)

    def warm_up(self, model: str) -> WarmUp:
        """What plain training of this head leaves."""
        return self._plain(model)[1]

    @property
    def num_classes(self) -> int:
        """q."""
        return self.task.train.labels.shape[1]

    @property
    def noise_rate(self) -> float:
        """Share of the training labels that are wrong, which CDR reads: the true one where it is known."""
        if self.task.truth is not None:
            return float((self.task.train.labels != self.task.truth.clean).mean())
        found = self.transition(self.chosen)
        return float(np.mean((1 - found.prior) * found.rho_neg + found.prior * found.rho_pos))

    def _estimate(self, name: str, model: str) -> TransitionEstimate:
        estimator, data = find_estimator(name), self.task.train
        features = self.task.features if data.features is None else data.features
        if features is not None and features.ndim > 2:
            features = features.mean(axis=tuple(range(1, features.ndim - 1)))
        evidence = Evidence(data.labels, features, self.task.assume, self.seed, lambda: self.warm_up(model))
        if estimator.oracle and self.task.truth is None:
            raise ValueError(f"estimator: {name!r} reads the truth, which nobody knows here; leave its methods out")
        start = time.monotonic()
        found = estimator.estimate(evidence, self.task.truth) if estimator.oracle else estimator.estimate(evidence)
        if not isinstance(found, TransitionEstimate):
            found = from_matrices(found, as_labels(data.labels))
        self.seconds["estimation"] = self.seconds.get("estimation", 0.0) + time.monotonic() - start
        if not estimator.oracle:
            label = name if model == "linear" else f"{name} ({model})"
            self.estimates[label] = found
            if self.folder is not None:
                file = "transition" if label == self.chosen else f"transition.{slug(label)}"
                write_transition(self.folder, found, data.classes, self.task.truth and self.task.truth.T, name=file)
                if label == self.chosen and "scores" in vars(evidence) and self.num_classes <= MOST_TESTED:
                    tested = assumption_test(data.labels, scores=evidence.scores)
                    by_class = zip(data.classes, tested.p.tolist(), tested.test, tested.sentences, strict=True)
                    facts = {name: {"p": p, "test": test, "sentence": said} for name, p, test, said in by_class}
                    write_json(self.folder / "assumption.json", facts)
        return found

    def _fit(self, name: str) -> Fit:
        name = ALIASES.get(name, name)
        method = find_method(name)
        if _is_plain(method):
            return self._plain(method.model)[0]
        model, phase = self.engine.make_model(method.model, jax.random.key(self.seed)), 0
        if method.start == "warm":
            params, stats = self.warm_up(method.model).weights
            model, phase = model._replace(params=params, stats=stats), 1
        elif method.start != "fresh":
            before = self.fit(method.start)
            model, phase = model._replace(params=before.params, stats=before.stats), 2
        T = None
        if method.estimator is not None:
            estimator = self.chosen if method.estimator == CHOSEN else method.estimator
            T = np.asarray(self.transition(estimator, method.model).T, np.float32)
        if method.wrap is not None:
            model = method.wrap(model, num_classes=self.num_classes)
        return _Training(self, name, method, model, T, phase=phase).run()

    def _train_plain(self, model: str) -> tuple[Fit, WarmUp]:
        method, name = Method(model=model), "Standard" if model == "linear" else model.upper()
        fresh = self.engine.make_model(model, jax.random.key(self.seed))
        training = _Training(self, name, method, fresh, None, phase=0)
        found, tree = training.run(), training.tree
        return found, WarmUp(tree["warm"], np.asarray(tree["history"]), np.asarray(tree["probs"]))


def _is_plain(method: Method) -> bool:
    """Whether the method is plain training of its head: its warm-up is then all of it."""
    return method == Method(model=method.model)


@dataclass
class Position:
    """Where a training is: everything of a checkpoint that is not an array."""

    epoch: int = 0  # epochs done
    batch: int = 0  # batches done of the next one
    loss_sum: float = 0.0
    least_loss: float | None = None  # on the validation labels; plain training only
    best_map: float | None = None
    best_epoch: int = 0
    log_bytes: int = 0
    seconds: float = 0.0


class _Training:
    """The lifetime of one training: its arrays, its position and, in a folder, its checkpoints and its log."""

    def __init__(self, session: Session, name: str, method: Method, model: Model, T: Any, *, phase: int) -> None:
        self.session, self.task, self.name, self.model, self.phase = session, session.task, name, model, phase
        self.schedule, self.watched = session.engine.schedule, _is_plain(method)
        self.feed, self.step = session.engine.tools(method, num_classes=session.num_classes)
        self.T = np.zeros((session.num_classes, 2, 2), np.float32) if T is None else T
        self.folder = None if session.folder is None else session.folder / slug(name)
        self.at = Position()
        noise_rate = 0.0 if method.update is None else session.noise_rate
        optimizer = session.engine.optimizer(method, noise_rate=noise_rate)
        first, (n, q) = (model.params, model.stats), self.task.train.labels.shape
        self.tree: dict[str, Any] = {
            "state": init_state(jax.random.key(session.seed), *first, optimizer),
            "best": first,  # best validation mAP: what is tested
        }
        if self.watched:
            self.tree |= {
                "warm": first,  # least validation loss: where retraining starts
                "history": np.zeros((self.schedule.kept_epochs, n, q), np.float32),
                "probs": np.zeros((n, q), np.float32),
                "class_least": np.full(q, np.inf, np.float32),  # validation loss of the epoch of `probs`
            }

    def run(self) -> Fit:
        """Trains to the end, from wherever the folder says it was."""
        checkpoints = log = None
        if self.folder is not None:
            checkpoints = Checkpoints(self.folder / "checkpoints")
            found = checkpoints.restore(self.tree)
            self.tree, self.at = (self.tree, self.at) if found is None else (found[0], Position(**found[1]))
            if self.at.epoch < self.schedule.epochs:
                log = Log(self.folder, start=self.at.log_bytes, step=self.at.epoch)
                if found is not None:
                    say(f"seed {self.session.seed}: {self.name} goes on at epoch {self.at.epoch + 1}")
        for name in [name for name in self.tree if name in ("state", "best", "warm")]:  # every process in this order
            self.tree[name] = self.feed.put(self.tree[name])
        self.clock = self.saved = time.monotonic()
        try:
            for epoch in range(self.at.epoch, self.schedule.epochs):
                self._run_epoch(epoch, checkpoints, log)
                self.at.epoch, self.at.batch, self.at.loss_sum = epoch + 1, 0, 0.0
                self._save(checkpoints, log, now=self.at.epoch == self.schedule.epochs)
        except NonFiniteLoss as error:
            self._keep_ids(error)
            raise
        finally:
            if log is not None:
                log.close()
            if checkpoints is not None:
                checkpoints.close()
        self._spend()
        self.session.seconds[self.name] = self.at.seconds
        params, stats = self.tree["best"]
        if self.folder is not None and is_main():
            params_fixed, stats_fixed = self.model.fixed  # the file of a tail is a whole network
            net = params["net"] if "delta" in params else params  # T-Revision's correction is no weight of the network
            whole = (params_fixed | net, stats_fixed | stats)
            save(self.folder / "weights", self.model.name, *whole, self.model.preprocess)
        return Fit(params, stats, math.nan if self.at.best_map is None else self.at.best_map, self.at.best_epoch)

    def _run_epoch(self, epoch: int, checkpoints: Checkpoints | None, log: Log | None) -> None:
        """One epoch of training and what is measured after it."""
        at, data = self.at, self.task.train
        steps = len(data.ids) // self.schedule.batch_size

        def report(state: TrainState | None, done: int, loss: float) -> None:
            at.batch, at.loss_sum = done, at.loss_sum + loss
            if state is not None:
                self.tree["state"] = state
                if done < steps:
                    self._save(checkpoints, log)

        if at.batch < steps:
            self.tree["state"] = self.feed.train(
                self.step, self.tree["state"], self.T, data, epoch=self.phase * self.schedule.epochs + epoch,
                seed=self.session.seed, start=at.batch, report=report, wanted=self._due,
            )  # fmt: skip
        now = (self.tree["state"].params, self.tree["state"].stats)
        noisy = self.task.validation.labels
        logits = self.feed.predict(*now, self.task.validation)
        loss, mean_ap = _bce(logits, noisy), metrics.evaluate(_sigmoid(logits), noisy)["mAP"]
        if self.watched:
            self._watch(epoch, now, loss)
        if _better(mean_ap, at.best_map):
            at.best_map, at.best_epoch, self.tree["best"] = mean_ap, epoch + 1, _copy(now)
        if log is not None:
            entry = {"train_loss": at.loss_sum / max(steps, 1), "validation_loss": float(loss.mean())}
            log.write({"method": self.name, "epoch": epoch + 1, **entry, "validation_mAP": mean_ap}, step=epoch + 1)

    def _watch(self, epoch: int, now: tuple[PyTree, PyTree], loss: Float[np.ndarray, "n q"]) -> None:
        """Keeps what estimators and retraining take from plain training."""
        if _better(-float(loss.mean()), None if self.at.least_loss is None else -self.at.least_loss):
            self.at.least_loss, self.tree["warm"] = float(loss.mean()), _copy(now)
        better = loss.mean(axis=0) < self.tree["class_least"]
        slot = epoch - (self.schedule.sample_epoch - self.schedule.kept_epochs)
        kept = 0 <= slot < self.schedule.kept_epochs
        if kept or better.any():
            # As the released code does: through the training transform, which its estimator and Dual-T then read.
            logits = self.feed.predict(*now, self.task.train, drawn=(self.session.seed, epoch))
            # Copies: a checkpoint of the arrays as they were may be under way.
            history, probs, least = (np.array(self.tree[name]) for name in ("history", "probs", "class_least"))
            least[better] = loss.mean(axis=0)[better]
            probs[:, better] = _sigmoid(logits)[:, better]
            if kept:
                history[slot] = _bce(logits, self.task.train.labels)
            self.tree |= {"history": history, "probs": probs, "class_least": least}

    def _save(self, checkpoints: Checkpoints | None, log: Log | None, *, now: bool = False) -> None:
        """A checkpoint, if one is due."""
        if checkpoints is not None and log is not None and (now or self._due()):
            self._spend()
            self.at.log_bytes = log.flush()
            checkpoints.save(self.tree, dataclasses.asdict(self.at))
            self.saved = time.monotonic()

    def _due(self) -> bool:
        return self.folder is not None and time.monotonic() - self.saved >= self.session.save_every

    def _spend(self) -> None:
        now = time.monotonic()
        self.at.seconds, self.clock = self.at.seconds + now - self.clock, now

    def _keep_ids(self, error: NonFiniteLoss) -> None:
        """Writes which examples were in the batch whose loss was not finite."""
        if self.folder is not None:
            path = self.folder / "nonfinite.json"
            ids = [self.task.train.ids[row] for row in error.rows]
            write_json(path, {"step": error.step, "method": self.name, "epoch": self.at.epoch + 1, "ids": ids})
            error.add_note(f"the examples of the batch are listed in {path}")


def _copy(tree: PyTree) -> PyTree:
    """What outlives the next step, which takes the memory of its state."""
    return jax.tree.map(jnp.copy, tree)


def _better(value: float, best: float | None) -> bool:
    """Whether a score is the best so far; one that is not a number never displaces a number, but untrained weights."""
    return best is None or math.isnan(best) or value > best


def _sigmoid(logits: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "n q"]:
    return np.asarray(jax.nn.sigmoid(logits))


def _bce(logits: Float[np.ndarray, "n q"], labels: Shaped[np.ndarray, "n q"]) -> Float[np.ndarray, "n q"]:
    return np.asarray(bce(jax.numpy.asarray(logits), labels))
