"""CDR (Xia et al. 2021): only the parameters that matter follow the gradient, the others merely decay."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

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
        whole = jnp.concatenate([x.ravel() for x in jax.tree.leaves(importance) if x.ndim in (2, 4)])
        share = 1 - state.noise_rate
        kept = jnp.floor(share * whole.size).astype(jnp.int32)
        cut = jnp.where(kept > 0, kth_largest(whole, kept), jnp.inf)

        def follow(g: Array, x: Array) -> Array:
            return jnp.where(x >= cut, g * share.astype(g.dtype), 0) if g.ndim in (2, 4) else g

        return jax.tree.map(follow, updates, importance), state

    return optax.GradientTransformation(init, update)


def kth_largest(x: Float[Array, "n"], k: int | Int[Array, ""]) -> Float[Array, ""]:
    """The k-th largest of non-negative float32 numbers, k from 1.

    By bisection on their bits, which are ordered as they are: 31 counts, where a sort takes ten times as long.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)

    def halve(step: Int[Array, ""], low: Int[Array, ""]) -> Int[Array, ""]:
        middle = low + jnp.left_shift(jnp.int32(1), 30 - step)
        return jnp.where(jnp.sum(bits >= middle) >= k, middle, low)

    return jax.lax.bitcast_convert_type(jax.lax.fori_loop(0, 31, halve, jnp.int32(0)), jnp.float32)


def make_cdr(learning_rate: float, *, clip: float, noise_rate: float) -> optax.GradientTransformation:
    """Adam on `keep_important`'s gradients with 1e-3 times each parameter added, as its authors' optimiser does.

    Decay that Adam does not see (AdamW's) would be 5e-7 a step, none in effect, and Adam cancels the scale of the
    gradients: CDR would be plain training.
    """
    return optax.chain(
        optax.clip_by_global_norm(clip),
        keep_important(noise_rate),
        optax.add_decayed_weights(WEIGHT_DECAY),
        optax.scale_by_adam(),
        optax.scale_by_learning_rate(learning_rate),
    )
