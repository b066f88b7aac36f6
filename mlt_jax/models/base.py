"""A network as pure functions of its parameters, and the preprocessing of its pixels."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

PyTree = Any


class Preprocess(NamedTuple):
    """What the weights expect of pixels: `(reorder(rgb) * scale - mean) / std`, per channel in the order named."""

    order: str  # "rgb" or "bgr"
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, images: Shaped[Array | np.ndarray, "b h w 3"]) -> Float[Array, "b h w 3"]:
        """Network input from RGB images in 0..255, on the device: float32, or float64 of float64 images."""
        x = jnp.asarray(images)
        x = x if x.dtype == jnp.float64 else x.astype(jnp.float32)
        x = x[..., ::-1] if self.order == "bgr" else x
        mean, std = (jnp.asarray(v, x.dtype).reshape(1, 1, 1, 3) for v in (self.mean, self.std))
        return (x * jnp.asarray(self.scale, x.dtype) - mean) / std


# torchvision's and timm's; also what a network trained from scratch gets.
IMAGENET = Preprocess("rgb", 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CAFFE = Preprocess("bgr", 1.0, (103.939, 116.779, 123.68), (1.0, 1.0, 1.0))


class Model(NamedTuple):
    """A network as pure functions, so that training does not depend on NNX."""

    params: PyTree  # nested dict of float32 arrays
    stats: PyTree  # running statistics of batch norm, {} if there are none
    apply: Callable[..., tuple[Array, PyTree]]  # (params, stats, inputs, train) -> logits (b, q) float32, new stats
    # (params, stats, inputs, at="pooled") -> (b, d); at="maps": (b, h, w, d); at="trunk": maps before the last stage
    features: Callable[..., Array] | None
    name: str
    preprocess: Preprocess | None = None  # None for a network of features
    precision: str = "float32"  # of the activations
    fixed: tuple[PyTree, PyTree] = ({}, {})  # params and stats of a tail's trunk, which are not trained
