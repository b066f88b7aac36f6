"""ResNet-18/34/50 and a small one for digits, in Flax NNX: v1 and v1.5, plain convolutions or matrix products.

The modules hold parameters and running statistics under the names of the weight files (`stage1.block1.unit1.conv`);
`models.build` splits them once and hands out pure functions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from mlt_jax.models import layers


class Shape(NamedTuple):
    """How deep and wide a ResNet is."""

    blocks: tuple[int, ...]  # per stage
    widths: tuple[int, ...]  # per stage, of the 3x3 convolutions
    bottleneck: bool  # 1x1, 3x3, 1x1 to four times the width; else two 3x3
    stem: int  # channels; 7x7 stride 2 and a max pool, or 3x3 stride 2 where `pool` is False
    pool: bool = True

    @property
    def features(self) -> int:
        """Channels of the last stage."""
        return self.widths[-1] * (4 if self.bottleneck else 1)


SHAPES = {
    "resnet18": Shape((2, 2, 2, 2), (64, 128, 256, 512), False, 64),
    "resnet34": Shape((3, 4, 6, 3), (64, 128, 256, 512), False, 64),
    "resnet50": Shape((3, 4, 6, 3), (64, 128, 256, 512), True, 64),
    "resnet101": Shape((3, 4, 23, 3), (64, 128, 256, 512), True, 64),
    "small": Shape((1, 1, 1, 1), (16, 32, 64, 128), False, 16, pool=False),
}


class How(NamedTuple):
    """How the network is computed; parameters and numbers do not depend on it."""

    conv: str  # "lax" or "matmul"
    dtype: Any  # of activations; parameters and statistics stay float32
    axis_name: str | None  # mapped axis over which batch statistics are shared


def _generator(rngs: nnx.Rngs) -> np.random.Generator:
    # Numpy draws the parameters: jax.random would compile once per shape, for 20 seconds and more.
    return np.random.default_rng(np.asarray(jax.random.key_data(rngs.params())))


class Conv(nnx.Module):
    """Convolution without bias, padded so that stride 1 keeps the size."""

    def __init__(self, size: int, channels_in: int, channels_out: int, *, stride: int, how: How, rngs: nnx.Rngs):
        self.stride, self.how = stride, how
        spread = (2 / (size * size * channels_out)) ** 0.5  # He et al.'s, by fan-out
        kernel = _generator(rngs).standard_normal((size, size, channels_in, channels_out), np.float32)
        self.kernel = nnx.Param(jnp.asarray(np.float32(spread) * kernel))

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b i j d"]:
        """The filtered maps."""
        kernel = self.kernel[...].astype(self.how.dtype)
        return layers.conv(x, kernel, stride=self.stride, how=self.how.conv)


class BatchNorm(nnx.Module):
    """Batch norm as torch has it (eps 1e-5, running variance unbiased), with what follows it: addition and ReLU."""

    def __init__(self, channels: int, *, how: How):
        self.how = how
        self.scale, self.bias = nnx.Param(jnp.ones(channels)), nnx.Param(jnp.zeros(channels))
        self.mean, self.var = nnx.BatchStat(jnp.zeros(channels)), nnx.BatchStat(jnp.ones(channels))

    def __call__(
        self, x: Float[Array, "b h w c"], shortcut: Float[Array, "b h w c"] | None, *, relu: bool, train: bool
    ) -> Float[Array, "b h w c"]:
        """The normalised maps plus the shortcut; in training the running statistics are updated."""
        scale, bias = self.scale[...], self.bias[...]
        if not train:
            return layers.normalize(x, shortcut, self.mean[...], self.var[...], scale, bias, relu=relu)
        y, mean, var = layers.batch_norm(x, shortcut, scale, bias, relu, self.how.axis_name)
        n = x.size // x.shape[-1] * (jax.lax.axis_size(self.how.axis_name) if self.how.axis_name else 1)
        keep, new = 1 - layers.MOMENTUM, layers.MOMENTUM
        self.mean[...] = keep * self.mean[...] + new * mean
        self.var[...] = keep * self.var[...] + new * var * (n / max(n - 1, 1))
        return y


class Unit(nnx.Module):
    """Convolution and batch norm."""

    def __init__(self, size: int, channels_in: int, channels_out: int, *, stride: int = 1, how: How, rngs: nnx.Rngs):
        self.conv = Conv(size, channels_in, channels_out, stride=stride, how=how, rngs=rngs)
        self.bn = BatchNorm(channels_out, how=how)

    def __call__(
        self, x: Float[Array, "b h w c"], shortcut: Array | None = None, *, relu: bool = True, train: bool
    ) -> Float[Array, "b i j d"]:
        """`relu(bn(conv(x)) + shortcut)`."""
        return self.bn(self.conv(x), shortcut, relu=relu, train=train)


class Block(nnx.Module):
    """Residual block of two 3x3 units, or of a bottleneck's three."""

    def __init__(
        self, channels_in: int, width: int, *, bottleneck: bool, stride: int, version: str, how: How, rngs: nnx.Rngs
    ):
        self.bottleneck = bottleneck
        out = 4 * width if bottleneck else width
        if bottleneck:
            first, second = (stride, 1) if version == "v1" else (1, stride)
            self.unit1 = Unit(1, channels_in, width, stride=first, how=how, rngs=rngs)
            self.unit2 = Unit(3, width, width, stride=second, how=how, rngs=rngs)
            self.unit3 = Unit(1, width, out, how=how, rngs=rngs)
        else:
            self.unit1 = Unit(3, channels_in, width, stride=stride, how=how, rngs=rngs)
            self.unit2 = Unit(3, width, out, how=how, rngs=rngs)
        resized = stride != 1 or channels_in != out
        self.shortcut = Unit(1, channels_in, out, stride=stride, how=how, rngs=rngs) if resized else None

    def __call__(self, x: Float[Array, "b h w c"], *, train: bool) -> Float[Array, "b i j d"]:
        """`relu(units(x) + shortcut(x))`."""
        shortcut = x if self.shortcut is None else self.shortcut(x, relu=False, train=train)
        x = self.unit1(x, train=train)
        if not self.bottleneck:
            return self.unit2(x, shortcut, train=train)
        return self.unit3(self.unit2(x, train=train), shortcut, train=train)


class ResNet(nnx.Module):
    """Stem, stages of blocks, and a head on the last maps: by default linear, on their mean over positions."""

    def __init__(
        self, shape: Shape, *, num_classes: int, version: str, how: How, rngs: nnx.Rngs, head: Callable | None = None
    ):
        self.shape, self.how = shape, how
        self.stem = Unit(7 if shape.pool else 3, 3, shape.stem, stride=2, how=how, rngs=rngs)
        channels = shape.stem
        for s, (blocks, width) in enumerate(zip(shape.blocks, shape.widths, strict=True), 1):
            for b in range(1, blocks + 1):
                stride = 2 if s > 1 and b == 1 else 1
                block = Block(
                    channels, width, bottleneck=shape.bottleneck, stride=stride, version=version, how=how, rngs=rngs
                )
                setattr(self, f"stage{s}_block{b}", block)
                channels = 4 * width if shape.bottleneck else width
        self.head = (head or Head)(channels, num_classes, rngs=rngs)

    def trunk(self, x: Float[Array, "b h w 3"], *, train: bool) -> Float[Array, "b i j c"]:
        """Maps before the last stage, from preprocessed images."""
        x = self.stem(x.astype(self.how.dtype), train=train)
        x = layers.max_pool(x, how=self.how.conv) if self.shape.pool else x
        for s in range(1, len(self.shape.blocks)):
            x = self._stage(s, x, train=train)
        return x

    def last(self, x: Float[Array, "b h w c"], *, train: bool) -> Float[Array, "b i j d"]:
        """Maps after the last stage, from those of `trunk`."""
        return self._stage(len(self.shape.blocks), x.astype(self.how.dtype), train=train)

    def maps(self, x: Float[Array, "b h w 3"], *, train: bool) -> Float[Array, "b i j d"]:
        """Maps after the last stage, from preprocessed images."""
        return self.last(self.trunk(x, train=train), train=train)

    def _stage(self, s: int, x: Array, *, train: bool) -> Array:
        for b in range(1, self.shape.blocks[s - 1] + 1):
            x = getattr(self, f"stage{s}_block{b}")(x, train=train)
        return x

    def __call__(
        self, x: Float[Array, "b h w 3"], *, train: bool
    ) -> Float[Array, "b q"] | tuple[Float[Array, "b q"], ...]:
        """Logits, float32 (or what the head gives in training)."""
        return self.head(self.maps(x, train=train), train=train)


def dense(channels_in: int, channels_out: int, *, rngs: nnx.Rngs) -> nnx.Param:
    """A (channels_in, channels_out) kernel, uniform within 1 / sqrt(channels_in) of zero."""
    spread = channels_in**-0.5
    kernel = _generator(rngs).uniform(-spread, spread, (channels_in, channels_out)).astype(np.float32)
    return nnx.Param(jnp.asarray(kernel))


class Head(nnx.Module):
    """Linear classifier of features, or of the mean of maps over positions; float32."""

    def __init__(self, features: int, num_classes: int, *, rngs: nnx.Rngs):
        self.kernel, self.bias = dense(features, num_classes, rngs=rngs), nnx.Param(jnp.zeros(num_classes))

    def __call__(self, x: Float[Array, "b *positions d"], *, train: bool) -> Float[Array, "b q"]:
        """Logits."""
        return layers.linear(layers.pooled(x), self.kernel[...]) + self.bias[...][None]
