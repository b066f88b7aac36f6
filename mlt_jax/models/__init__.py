"""Networks by name, as pure functions: `build("resnet50", num_classes=20, key=key, pretrained="weights.npz")`."""

from functools import partial
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from mlt_jax.models import pretrained as _pretrained
from mlt_jax.models.agcn import AGCN
from mlt_jax.models.base import CAFFE, IMAGENET, Model, Preprocess, PyTree
from mlt_jax.models.csra import CSRA
from mlt_jax.models.layers import mean_pool
from mlt_jax.models.resnet import SHAPES, Head, How, ResNet
from mlt_jax.models.wsic import WSIC

__all__ = ["CAFFE", "HEADS", "IMAGENET", "Model", "Preprocess", "build", "names"]

names = (*SHAPES, "linear")
# What can follow a backbone, or stand alone on its features: name -> module(features, num_classes, rngs=...).
HEADS: dict[str, Any] = {
    "linear": Head,
    "csra": CSRA,
    "csra-coco": partial(CSRA, heads=6, weight=0.5),  # its authors' settings for COCO
    "agcn": AGCN,
    "wsic": WSIC,
}


def build(
    name: str,
    *,
    num_classes: int,
    key: PRNGKeyArray,
    size: int | None = None,
    pretrained: str | PathLike[str] | None = None,
    conv: str = "auto",
    axis_name: str | None = None,
    version: str | None = None,
    dtype: Any = jnp.float32,
    head: str = "linear",
    tail: bool = False,
) -> Model:
    """The named network, ready to train.

    Args:
      name: one of `names`: "resnet18", "resnet34", "resnet50", "resnet101", "small" (scenes of 32 to 64 px), or
        "linear", which takes features (b, d), or maps (b, h, w, d) that it averages, instead of images; or another of
        `HEADS` alone.
      num_classes: q, the number of logits.
      key: for the random parameters: all, or only the head when the weights were trained for other classes.
      size: pixels of a side of the images, only checked; for "linear" the number of features (2048 if not given).
      pretrained: a weight file (.npz or .safetensors), or the name of a repository of the Hugging Face hub such as
        "timm/resnet50.tv_in1k"; its preprocessing comes with it, and its head too if it has `num_classes` classes.
      conv: "lax" (plain convolutions), "matmul" (faster on CPUs, same numbers), or "auto": by `jax.default_backend()`.
      axis_name: the mapped axis over which batch statistics are shared (for `jax.pmap`).
      version: where a bottleneck strides: "v1" on its first 1x1 convolution, "v1.5" on the 3x3. From scratch v1.5;
        weights know theirs.
      dtype: of the activations, such as `jnp.bfloat16`; parameters, statistics and logits are float32.
      head: of a ResNet, one of `HEADS`.
      tail: of a ResNet, the last stage and the head alone: they take the maps before that stage
        (`features(..., at="trunk")` of the whole network); `fixed` holds the other weights.
    """
    _check(name, num_classes, size, conv, version, head)
    if tail and name not in SHAPES:
        raise ValueError(f"tail: of {name!r}, which has no stages; pass one of {', '.join(SHAPES)}")
    rngs = nnx.Rngs(params=key)
    if name in HEADS:
        if pretrained is not None:
            raise ValueError(f"pretrained: {str(pretrained)!r} for name={name!r}; it has no backbone, leave it out")
        graph, params, stats = _split(_head(name, axis_name)(size or 2048, num_classes, rngs=rngs))
        return Model(params, stats, partial(_apply, graph, jnp.asarray), None, name)
    weights = None if pretrained is None else _pretrained.load(pretrained, SHAPES[name])
    if weights is not None and version not in (None, weights.version):
        raise ValueError(f"version: {version!r}, but the weights of {str(pretrained)!r} are {weights.version}")
    auto = "matmul" if jax.default_backend() == "cpu" else "lax"
    how = How(auto if conv == "auto" else conv, jnp.dtype(dtype), axis_name)
    version = (version or "v1.5") if weights is None else weights.version
    net = ResNet(
        SHAPES[name], num_classes=num_classes, version=version, how=how, rngs=rngs, head=_head(head, axis_name)
    )
    graph, params, stats = _split(net)
    preprocess = IMAGENET
    if weights is not None:
        params, stats = _pretrained.fill(params, stats, weights)
        preprocess = weights.preprocess
    precision = str(how.dtype)
    if tail:
        stages = len(SHAPES[name].blocks)
        fixed = (_cut(params, stages)[1], _cut(stats, stages)[1])
        params, stats = _cut(params, stages)[0], _cut(stats, stages)[0]
        return Model(params, stats, partial(_apply_tail, graph, fixed), None, name, preprocess, precision, fixed)
    apply, features = partial(_apply, graph, preprocess), partial(_features, graph, preprocess)
    return Model(params, stats, apply, features, name, preprocess, precision)


def _head(name: str, axis_name: str | None) -> Any:
    """The module of a head; the one that has batch statistics is told the axis over which they are shared."""
    return partial(AGCN, axis_name=axis_name) if name == "agcn" else HEADS[name]


def _check(name: str, num_classes: int, size: int | None, conv: str, version: str | None, head: str) -> None:
    if name not in (*SHAPES, *HEADS):
        raise ValueError(f"name: {name!r}; pass one of {', '.join((*SHAPES, *HEADS))}")
    if head not in HEADS:
        raise ValueError(f"head: {head!r}; pass one of {', '.join(HEADS)}")
    if num_classes < 1:
        raise ValueError(f"num_classes: {num_classes}; pass at least 1")
    if conv not in ("auto", "lax", "matmul"):
        raise ValueError(f'conv: {conv!r}; pass "auto", "lax" or "matmul"')
    if version not in (None, "v1", "v1.5"):
        raise ValueError(f'version: {version!r}; pass "v1" (stride on the first 1x1) or "v1.5" (on the 3x3)')
    least = 1 if name in HEADS else 16 if name == "small" else 32
    if size is not None and size < least:
        raise ValueError(f"size: {size}; {name} needs at least {least}")


def _split(net: nnx.Module) -> tuple[Any, PyTree, PyTree]:
    graph, *states = nnx.split(net, nnx.Param, nnx.BatchStat)
    params, stats = (nnx.to_pure_dict(state) for state in states)
    return graph, params, stats


def _apply(
    graph: Any, preprocess: Any, params: PyTree, stats: PyTree, inputs: Array | np.ndarray, train: bool
) -> tuple[Any, PyTree]:
    net = nnx.merge(graph, params, stats)
    outputs = net(preprocess(inputs), train=train)
    return outputs, nnx.to_pure_dict(nnx.state(net, nnx.BatchStat)) if train else stats


def _cut(tree: PyTree, stages: int) -> tuple[PyTree, PyTree]:
    """(the last stage and the head, the rest) of a tree of parameters or statistics."""
    last = {key: leaf for key, leaf in tree.items() if key == "head" or key.startswith(f"stage{stages}_")}
    return last, {key: leaf for key, leaf in tree.items() if key not in last}


def _apply_tail(
    graph: Any, fixed: tuple[PyTree, PyTree], params: PyTree, stats: PyTree, maps: Array | np.ndarray, train: bool
) -> tuple[Any, PyTree]:
    net = nnx.merge(graph, fixed[0] | params, fixed[1] | stats)
    outputs = net.head(net.last(jnp.asarray(maps), train=train), train=train)
    after = nnx.to_pure_dict(nnx.state(net, nnx.BatchStat)) if train else stats
    return outputs, {key: after[key] for key in stats}


def _features(
    graph: Any, preprocess: Preprocess, params: PyTree, stats: PyTree, images: Array | np.ndarray, at: str = "pooled"
) -> Float[Array, "b d"] | Float[Array, "b i j d"]:
    net = nnx.merge(graph, params, stats)
    found = (net.trunk if at == "trunk" else net.maps)(preprocess(images), train=False)
    return mean_pool(found) if at == "pooled" else found.astype(jnp.float32)
