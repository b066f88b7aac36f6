"""T-Revision (Xia et al. 2019): a network together with a correction of T that is learned beside it."""

from typing import Any

import jax.numpy as jnp
import optax

from mlt_jax.models.base import Model, PyTree

# The correction learns more slowly than the network.
DELTA_RATE = 0.1


def with_delta(model: Model, *, num_classes: int) -> Model:
    """The model with a correction `delta` (q, 2, 2), zero at first; in training it gives (logits, delta)."""

    def apply(params: PyTree, stats: PyTree, inputs: Any, train: bool) -> tuple[Any, PyTree]:
        logits, stats = model.apply(params["net"], stats, inputs, train)
        return ((logits, params["delta"]) if train else logits), stats

    params = {"net": model.params, "delta": jnp.zeros((num_classes, 2, 2))}
    return model._replace(params=params, apply=apply, features=None)


def make_revision(learning_rate: float, *, clip: float, noise_rate: float) -> optax.GradientTransformation:
    """Adam, for `delta` at a tenth of the learning rate; `noise_rate`, which all update rules get, is not used."""
    rates = {"net": optax.adam(learning_rate), "delta": optax.adam(DELTA_RATE * learning_rate)}
    return optax.chain(optax.clip_by_global_norm(clip), optax.partition(rates, {"net": "net", "delta": "delta"}))
