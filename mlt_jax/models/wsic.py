"""WSIC (Hu et al. 2019): a net for the clean label's logit and one for its difference to the noisy label's."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mlt_jax.models import layers
from mlt_jax.models.resnet import dense


class WSIC(nnx.Module):
    """Two linear nets on the shared features: h, which predicts, and r; in training both h and h + r have a loss."""

    def __init__(self, features: int, num_classes: int, *, rngs: nnx.Rngs):
        self.kernel, self.bias = dense(features, num_classes, rngs=rngs), nnx.Param(jnp.zeros(num_classes))
        self.residual_kernel = dense(features, num_classes, rngs=rngs)
        self.residual_bias = nnx.Param(jnp.zeros(num_classes))

    def __call__(
        self, x: Float[Array, "b *positions d"], *, train: bool
    ) -> Float[Array, "b q"] | tuple[Float[Array, "b q"], Float[Array, "b q"]]:
        """Logits h of the clean label; in training (h, h + r), see `losses.wsic`."""
        x = layers.pooled(x)
        clean = layers.linear(x, self.kernel[...]) + self.bias[...][None]
        if not train:
            return clean
        return clean, clean + layers.linear(x, self.residual_kernel[...]) + self.residual_bias[...][None]
