"""CSRA (Zhu & Wu 2021): besides the mean over positions, each class attends to those where its score is high."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mlt_jax.models import layers
from mlt_jax.models.resnet import dense

# Temperatures of the attention by number of heads; the last of several stands for the maximum.
TEMPERATURES = {1: (1.0,), 2: (1.0, jnp.inf), 4: (1.0, 2.0, 4.0, jnp.inf), 6: (1.0, 2.0, 3.0, 4.0, 5.0, jnp.inf)}


class CSRA(nnx.Module):
    """Class-specific residual attention over maps; VOC's setting by default: one head, weight 0.1 for the attention.

    The score at a position is x.w / |w|; a head's logit is its mean over positions plus `weight` times its mean under
    softmax(temperature * score); heads are summed.
    """

    def __init__(self, features: int, num_classes: int, *, rngs: nnx.Rngs, heads: int = 1, weight: float = 0.1):
        if heads not in TEMPERATURES:
            raise ValueError(f"heads: {heads}; pass one of {', '.join(map(str, TEMPERATURES))}")
        self.temperatures, self.weight = TEMPERATURES[heads], weight
        for head in range(heads):
            setattr(self, f"kernel{head}", dense(features, num_classes, rngs=rngs))

    def __call__(self, x: Float[Array, "b h w d"], *, train: bool) -> Float[Array, "b q"]:
        """Logits."""
        rows = layers.positions(x)
        logits = jnp.zeros((), jnp.float32)
        for head, temperature in enumerate(self.temperatures):
            kernel = getattr(self, f"kernel{head}")[...]
            logits = logits + head_logits(rows @ (kernel / jnp.linalg.norm(kernel, axis=0, keepdims=True)),
                                          temperature=temperature, weight=self.weight)  # fmt: skip
        return logits


def head_logits(scores: Float[Array, "b p q"], *, temperature: float, weight: float) -> Float[Array, "b q"]:
    """Mean score over positions plus `weight` times the attended score (infinite temperature: the maximum)."""
    if temperature == jnp.inf:
        attended = jnp.max(scores, axis=1)
    else:
        attended = jnp.sum(scores * jax.nn.softmax(temperature * scores, axis=1), axis=1)
    return jnp.mean(scores, axis=1) + weight * attended
