"""T-Revision (Xia et al. 2019): a network together with a correction of T that is learned beside it."""

from typing import Any

import jax.numpy as jnp
import optax

from mlt_jax.models.base import Model, PyTree

# Of the learning rate: its authors revise network and correction together at 5e-7, where the paper trains at 5e-5.
REVISION_RATE = 0.01


def with_delta(model: Model, *, num_classes: int) -> Model:
    """The model with a correction `delta` (q, 2, 2), zero at first; in training it gives (logits, delta)."""

    def apply(params: PyTree, stats: PyTree, inputs: Any, train: bool) -> tuple[Any, PyTree]:
        logits, stats = model.apply(params["net"], stats, inputs, train)
        return ((logits, params["delta"]) if train else logits), stats

    params = {"net": model.params, "delta": jnp.zeros((num_classes, 2, 2))}
    return model._replace(params=params, apply=apply, features=None)


def make_revision(learning_rate: float, *, clip: float, noise_rate: float) -> optax.GradientTransformation:
    """Adam at a hundredth of the learning rate, for the network and `delta`; `noise_rate` is not used."""
    return optax.chain(optax.clip_by_global_norm(clip), optax.adam(REVISION_RATE * learning_rate))
