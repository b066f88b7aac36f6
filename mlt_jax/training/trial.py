"""One noisy copy of a data set, tried by any number of methods: what they share is trained or estimated once.

    bench = Bench(make_model=lambda name, key: build(name, num_classes=20, key=key))
    trial = Trial(bench, parts, truth, assume="general", seed=0)
    trial.score("Reweight-Ours")            # {"mAP": ..., "OF1": ..., "CF1": ..., ...}
    trial.transition("T-estimator max")     # (q, 2, 2)

The warm-up is plain training, so that it is the method "Standard" as well. Training gives the same bits as
`experiments/run.py` on the same data, but it keeps no checkpoints: it is meant for features, where it takes seconds.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from mlt_jax.models import Model
from mlt_jax.paper.methods import ESTIMATORS, NEED_NO_WARM_UP, ORACLES, Evidence, Method, Truth, adam, find
from mlt_jax.training import losses, metrics
from mlt_jax.training import optimizers as optimizers_
from mlt_jax.training import step as training
from mlt_jax.training.feeds import Feed, Resident, Step, Streamed
from mlt_jax.training.pipeline import CLIP, KEPT_EPOCHS, Parts


class Schedule(NamedTuple):
    """How long and how fast every training is; the paper's for VOC, its learning rate times ten for a head alone."""

    epochs: int = 20
    sample_epoch: int = 10  # the last of the epochs whose losses select labels
    batch_size: int = 128
    learning_rate: float = 5e-4


class Fit(NamedTuple):
    """A training's outcome: the weights of its epoch of best noisy-validation mAP."""

    params: PyTree
    stats: PyTree
    validation_mAP: float
    epoch: int  # from 1


class Warm(NamedTuple):
    """A warm-up's outcome, and what estimators and retraining take from it."""

    fit: Fit
    weights: tuple[PyTree, PyTree]  # params and stats of least validation loss
    losses: Float[np.ndarray, "epochs n q"]
    probs: Float[np.ndarray, "n q"]


class _Tools(NamedTuple):
    feed: Feed
    step: Step


class Bench:
    """What all trials of a process share, so that each training step is compiled once.

    make_model: (name of a head, key) -> model. images: whether examples are images to decode for a whole network, not
    features for a head alone. rates: of the heads whose learning rate is not the schedule's.
    """

    def __init__(
        self, make_model: Callable[[str, PRNGKeyArray], Model], *, schedule: Schedule | None = None,
        images: bool = False, rates: Mapping[str, float] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.make_model, self.schedule, self._rates = make_model, schedule or Schedule(), rates or {}
        self._images, self._options = images, options
        self._kept: dict[int, Any] = {}
        self._feeds: dict[Any, Feed] = {}
        self._steps: dict[Any, Step] = {}
        self._models: dict[str, Model] = {}

    def tools(self, method: Method, *, num_classes: int) -> _Tools:
        """Feed and compiled step of a method; methods that differ only in T share theirs."""
        base = self._models.setdefault(method.model, self.make_model(method.model, jax.random.key(0)))
        wrapped = (method.model, method.wrap)
        model = base if method.wrap is None else method.wrap(base, num_classes=num_classes)
        if wrapped not in self._feeds:
            size = self.schedule.batch_size
            self._feeds[wrapped] = (
                Streamed(model.apply, batch_size=size, **self._options)
                if self._images
                else Resident(model.apply, batch_size=size, kept=self._kept)
            )
        key = (*wrapped, method.loss, method.update, clip_of(method))
        if key not in self._steps:
            # What the noise rate is, the optimiser reads from its state.
            self._steps[key] = _compiled(model, method, self.optimizer(method, noise_rate=0.0))
        return _Tools(self._feeds[wrapped], self._steps[key])

    def optimizer(self, method: Method, *, noise_rate: float) -> Any:
        """The method's update rule; its head, alone or in a whole network, at the learning rate it has for itself."""
        rate = self.schedule.learning_rate
        head_rate = self._rates.get(method.model, rate)
        rule = (method.update or adam)(rate if self._images else head_rate, clip=clip_of(method), noise_rate=noise_rate)
        return optimizers_.with_head_rate(rule, head_rate / rate) if self._images and head_rate != rate else rule


def _compiled(model: Model, method: Method, optimizer: Any) -> Step:
    @jax.jit
    def step(state: training.TrainState, batch: Any, T: Any) -> Any:
        def loss(outputs: Any, labels: Any) -> Any:
            return method.loss(outputs, labels, T)

        return training.make_train_step(model.apply, loss, optimizer)(state, batch)

    return step


def clip_of(method: Method) -> float:
    """The gradient norm is cut where training starts from fresh weights, as in the paper's code."""
    return CLIP if method.start == "fresh" else float("inf")


class Trial:
    """The lifetime of one noisy data set: its warm-ups, its estimates of T and its scores."""

    def __init__(self, bench: Bench, parts: Parts, truth: Truth, *, assume: str = "general", seed: int = 0) -> None:
        self.bench, self.parts, self.truth, self.assume, self.seed = bench, parts, truth, assume, seed
        self.warm = lru_cache(maxsize=None)(self._warm)
        self.fit = lru_cache(maxsize=None)(self._fit)
        self.transition = lru_cache(maxsize=None)(self._transition)

    @cached_property
    def noise_rate(self) -> float:
        """Share of the training labels that are wrong: CDR is told it."""
        return float((self.parts.train.labels != self.truth.clean).mean())

    def score(self, name: str) -> dict[str, float]:
        """Test scores of a method at its epoch of best noisy-validation mAP, with that mAP and epoch."""
        method, fit = find(name), self.fit(name)
        feed = self.bench.tools(method, num_classes=self.num_classes).feed
        probs = _sigmoid(feed.predict(fit.params, fit.stats, self.parts.test))
        scores = metrics.evaluate(probs, self.parts.test.labels, self.parts.test.ignore)
        return scores | {"validation_mAP": fit.validation_mAP, "epoch": fit.epoch}

    def error(self, name: str) -> float:
        """Summed error of an estimator's T."""
        if self.truth.T is None:
            raise ValueError("truth: noise that depends on the instance has no one T to compare with")
        return metrics.transition_error(self.transition(name), self.truth.T)

    @property
    def num_classes(self) -> int:
        """q."""
        return self.parts.train.labels.shape[1]

    def _transition(self, name: str, model: str = "linear") -> Float[np.ndarray, "q 2 2"]:
        """T by the estimator of that name, from the warm-up of the model where it needs one."""
        data = self.parts.train
        warm = None if name in NEED_NO_WARM_UP else self.warm(model)
        evidence = Evidence(
            data.labels, warm and warm.losses, warm and warm.probs, data.features, self.assume, self.seed
        )
        if name in ORACLES:
            return np.asarray(ORACLES[name](evidence, self.truth), np.float32)
        if name not in ESTIMATORS:
            raise ValueError(f"estimator: {name!r} is unknown; pass one of {', '.join((*ESTIMATORS, *ORACLES))}")
        return np.asarray(ESTIMATORS[name](evidence), np.float32)

    def _fit(self, name: str) -> Fit:
        method = find(name)
        if method == Method(model=method.model):
            return self.warm(method.model).fit
        T = None if method.estimator is None else self.transition(method.estimator, method.model)
        model, phase = self.bench.make_model(method.model, jax.random.key(self.seed)), 0
        if method.start == "warm":
            params, stats = self.warm(method.model).weights
            model, phase = model._replace(params=params, stats=stats), 1
        elif method.start != "fresh":
            before = self.fit(method.start)
            model, phase = model._replace(params=before.params, stats=before.stats), 2
        if method.wrap is not None:
            model = method.wrap(model, num_classes=self.num_classes)
        return self._train(method, model, T, phase=phase)

    def _warm(self, model: str) -> Warm:
        schedule, method, data = self.bench.schedule, Method(model=model), self.parts.train
        feed = self.bench.tools(method, num_classes=self.num_classes).feed
        noisy, first = self.parts.validation.labels, schedule.sample_epoch - min(KEPT_EPOCHS, schedule.sample_epoch)
        history: list[np.ndarray] = []
        least, weights = np.inf, None
        class_least = np.full(self.num_classes, np.inf)
        chosen = np.zeros(data.labels.shape, np.float32)

        def watch(epoch: int, state: training.TrainState, validation_logits: np.ndarray) -> None:
            nonlocal least, weights
            loss = _bce(validation_logits, noisy)
            if loss.mean() < least:
                least, weights = loss.mean(), (state.params, state.stats)
            better = loss.mean(axis=0) < class_least
            kept = first <= epoch < schedule.sample_epoch
            if kept or better.any():
                logits = feed.predict(state.params, state.stats, data)
                class_least[better] = loss.mean(axis=0)[better]
                chosen[:, better] = _sigmoid(logits)[:, better]
                if kept:
                    history.append(_bce(logits, data.labels))

        fresh = self.bench.make_model(model, jax.random.key(self.seed))
        fit = self._train(method, fresh, None, phase=0, watch=watch)
        assert weights is not None
        return Warm(fit, weights, np.stack(history), chosen)

    def _train(
        self, method: Method, model: Model, T: Any, *, phase: int, watch: Callable[..., None] | None = None
    ) -> Fit:
        """A whole training; another order of examples in each phase and epoch."""
        schedule, (feed, step) = self.bench.schedule, self.bench.tools(method, num_classes=self.num_classes)
        optimizer = self.bench.optimizer(method, noise_rate=self.noise_rate)
        state = feed.put(training.init_state(jax.random.key(self.seed), model.params, model.stats, optimizer))
        T = np.zeros((self.num_classes, 2, 2), np.float32) if T is None else T
        best = Fit(None, None, -1.0, 0)
        for epoch in range(schedule.epochs):
            state = feed.train(
                step, state, T, self.parts.train, epoch=phase * schedule.epochs + epoch, seed=self.seed, start=0,
                report=lambda *_: None,
            )  # fmt: skip
            logits = feed.predict(state.params, state.stats, self.parts.validation)
            mean_ap = metrics.evaluate(_sigmoid(logits), self.parts.validation.labels)["mAP"]
            if mean_ap > best.validation_mAP:
                best = Fit(state.params, state.stats, mean_ap, epoch + 1)
            if watch is not None:
                watch(epoch, state, logits)
        return best


def _sigmoid(logits: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "n q"]:
    return np.asarray(jax.nn.sigmoid(logits))


def _bce(logits: Float[np.ndarray, "n q"], labels: Any) -> Float[np.ndarray, "n q"]:
    return np.asarray(losses.bce(jax.numpy.asarray(logits), labels))
