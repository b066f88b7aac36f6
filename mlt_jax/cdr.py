"""CDR (Xia et al. 2021): only the parameters that matter follow the gradient, the others merely decay."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

WEIGHT_DECAY = 1e-3


class ImportanceState(NamedTuple):
    """The noise rate is state, not code, so that one compiled step serves all rates."""

    noise_rate: Float[Array, ""]


def keep_important(noise_rate: float) -> optax.GradientTransformation:
    """Gradients of the unimportant weights set to zero, those of the important ones times 1 - noise rate.

    Importance is |gradient * value|, over all matrices and kernels (2-D and 4-D parameters) together; the share
    1 - noise rate with the highest is kept. Other parameters (biases, norms) follow their gradient as it is.
    """

    def init(params: Any) -> ImportanceState:
        return ImportanceState(jnp.asarray(noise_rate, jnp.float32))

    def update(updates: Any, state: ImportanceState, params: Any = None) -> tuple[Any, ImportanceState]:
        importance = jax.tree.map(lambda g, w: jnp.abs(g * w), updates, params)
        ranked = jnp.sort(jnp.concatenate([x.ravel() for x in jax.tree.leaves(importance) if x.ndim in (2, 4)]))
        share = 1 - state.noise_rate
        kept = jnp.floor(share * ranked.size).astype(jnp.int32)
        cut = jnp.where(kept > 0, ranked[jnp.clip(ranked.size - kept, 0, ranked.size - 1)], jnp.inf)

        def follow(g: Array, x: Array) -> Array:
            return jnp.where(x >= cut, g * share.astype(g.dtype), 0) if g.ndim in (2, 4) else g

        return jax.tree.map(follow, updates, importance), state

    return optax.GradientTransformation(init, update)


def make_cdr(learning_rate: float, *, clip: float, noise_rate: float) -> optax.GradientTransformation:
    """Adam on `keep_important`'s gradients, and weight decay of 1e-3 (times the learning rate) on all parameters."""
    return optax.chain(
        optax.clip_by_global_norm(clip),
        keep_important(noise_rate),
        optax.scale_by_adam(),
        optax.add_decayed_weights(WEIGHT_DECAY),
        optax.scale_by_learning_rate(learning_rate),
    )
