"""Update rules."""

import jax
import optax
from jaxtyping import PyTree


def make_optimizer(learning_rate: float, *, clip: float = float("inf")) -> optax.GradientTransformation:
    """Adam, with the global gradient norm cut at `clip` first; its state has the same form whether it is cut or not."""
    return optax.chain(optax.clip_by_global_norm(clip), optax.adam(learning_rate))


def with_head_rate(rule: optax.GradientTransformation, factor: float) -> optax.GradientTransformation:
    """The rule with the learning rate of a whole network's head times `factor`."""

    def scale(updates: PyTree, params: PyTree) -> PyTree:
        return updates | {"head": jax.tree.map(lambda update: factor * update, updates["head"])}

    return optax.chain(rule, optax.stateless(scale))
