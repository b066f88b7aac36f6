"""What a method and an estimator are, and the two registries that name them; `paper.methods` fills both.

A method is a model (a head of `models.HEADS`), a loss, an update rule, where training starts, and for those that use T
an estimator by its name. `training.loop` trains them by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, PyTree, Shaped

from mlt_jax.estimator.crossfit import cross_val_logits
from mlt_jax.models import Model
from mlt_jax.training.losses import bce
from mlt_jax.training.optimizers import make_optimizer


class WarmUp(NamedTuple):
    """What plain training on the noisy labels leaves for estimators and for retraining."""

    weights: tuple[PyTree, PyTree]  # params and stats of the epoch of least validation loss
    losses: Float[np.ndarray, "epochs n q"]  # of the given labels, (at most) 5 epochs that end at the sampling epoch
    probs: Float[np.ndarray, "n q"]  # P(label = 1) of each class's epoch of least validation loss


@dataclass(frozen=True)
class Evidence:
    """All that an estimator may read: the noisy training labels and what was made of them."""

    labels: Shaped[np.ndarray, "n q"]
    features: Float[np.ndarray, "n d"] | None = None
    assume: str = "general"  # which side is known to be noise-free, if any: "general", "missing" or "partial"
    seed: int = 0
    warm_up: Callable[[], WarmUp] | None = None  # called when losses or probabilities are first read

    @cached_property
    def scores(self) -> Float[np.ndarray, "n q"]:
        """Out-of-sample logits of the given labels, by heads cross-fitted on the features."""
        if self.features is None:
            raise ValueError("features: none of shape (n, d); this estimator needs them")
        return cross_val_logits(self.features, self.labels)

    @property
    def losses(self) -> Float[np.ndarray, "epochs n q"]:
        """Losses of the given labels, see `WarmUp`."""
        return self._warm("losses").losses

    @property
    def probs(self) -> Float[np.ndarray, "n q"]:
        """Predicted P(label = 1), see `WarmUp`."""
        return self._warm("probs").probs

    def _warm(self, name: str) -> WarmUp:
        if self.warm_up is None:
            raise ValueError(f"{name}: none; this estimator needs a warm-up, pass features or images to train on")
        return self.warm_up()


class Truth(NamedTuple):
    """What only an oracle, or a score, may read."""

    T: Float[np.ndarray, "q 2 2"] | None  # None where the noise depends on the instance
    clean: Shaped[np.ndarray, "n q"]  # of the training examples


class Estimator(NamedTuple):
    """Where a T comes from: `estimate(evidence)`, or of an oracle `estimate(evidence, truth)`.

    It returns a `TransitionEstimate` or an array (q, 2, 2).
    """

    estimate: Callable[..., Any]
    oracle: bool = False


class Method(NamedTuple):
    """How a classifier is trained on noisy labels."""

    model: str = "linear"  # of `models.HEADS`
    loss: Callable[[Any, Any, Any], Any] = lambda logits, labels, T: bce(logits, labels)  # -> (b, q)
    update: Callable[..., Any] | None = None  # (learning_rate, clip=, noise_rate=) -> optax transformation; None: Adam
    estimator: str | None = None  # of `ESTIMATORS`, or `CHOSEN`: where the T of the loss comes from
    start: str = "fresh"  # "fresh" weights, the "warm" ones (least validation loss of plain training), or a method's
    wrap: Callable[..., Model] | None = None  # (model, num_classes=) -> the model with more to learn


CHOSEN = "chosen"  # the estimator that the user chose for the run
METHODS: dict[str, Method] = {}
ESTIMATORS: dict[str, Estimator] = {}
# Other names for the same method or estimator.
ALIASES: dict[str, str] = {}


def find_method(name: str) -> Method:
    """The method of that name; ValueError with all names otherwise."""
    return _find(METHODS, name, "method")


def find_estimator(name: str) -> Estimator:
    """The estimator of that name; ValueError with all names otherwise."""
    return _find(ESTIMATORS, name, "estimator")


def _find(registry: dict[str, Any], name: str, what: str) -> Any:
    if ALIASES.get(name, name) not in registry:
        raise ValueError(f"{what}: {name!r} is unknown; pass one of {', '.join(registry)}")
    return registry[ALIASES.get(name, name)]


def adam(learning_rate: float, *, clip: float, noise_rate: float) -> Any:
    """The update rule of most methods; `noise_rate` is not used."""
    return make_optimizer(learning_rate, clip=clip)
