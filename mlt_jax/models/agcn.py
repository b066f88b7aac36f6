"""AGCN, that is ADD-GCN (Ye et al. 2020): class vectors pooled from the maps, mixed by a static and a dynamic graph."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mlt_jax.models import layers
from mlt_jax.models.resnet import BatchNorm, How, dense

_SLOPE = 0.2


def _leaky(x: Array) -> Array:
    return jax.nn.leaky_relu(x, _SLOPE)


class AGCN(nnx.Module):
    """Mean of two scores per class: the maximum of its map over positions, and one of its vector after both graphs.

    With class maps M = X S and vectors V = sum over positions of sigmoid(M) (X W + b), one per class:
    H = V + f(f(A V) W_s), A learned; the dynamic graph D = sigmoid([g, H] W_c) with g = f(norm(mean of H, W_g));
    Z = V + f(f(D H) W_d); second score Z_j . u_j. f is the leaky ReLU of slope 0.2, vectors have half the features.
    """

    def __init__(self, features: int, num_classes: int, *, rngs: nnx.Rngs, axis_name: str | None = None):
        width = features // 2
        self.scores = dense(features, num_classes, rngs=rngs)
        self.transform, self.transform_bias = dense(features, width, rngs=rngs), nnx.Param(jnp.zeros(width))
        self.static_graph = dense(num_classes, num_classes, rngs=rngs)
        self.static, self.static_bias = dense(width, width, rngs=rngs), nnx.Param(jnp.zeros(width))
        self.all_classes, self.all_classes_bias = dense(width, width, rngs=rngs), nnx.Param(jnp.zeros(width))
        self.norm = BatchNorm(width, how=How("lax", jnp.dtype("float32"), axis_name))
        self.graph, self.graph_bias = dense(2 * width, num_classes, rngs=rngs), nnx.Param(jnp.zeros(num_classes))
        self.dynamic, self.dynamic_bias = dense(width, width, rngs=rngs), nnx.Param(jnp.zeros(width))
        self.last, self.last_bias = dense(width, num_classes, rngs=rngs), nnx.Param(jnp.zeros(num_classes))

    def __call__(self, x: Float[Array, "b h w d"], *, train: bool) -> Float[Array, "b q"]:
        """Logits."""
        rows = layers.positions(x)
        maps = rows @ self.scores[...]
        vectors = self.class_vectors(rows, maps)
        mixed = self.mix(vectors, train=train)
        second = jnp.einsum("bqh,hq->bq", mixed, self.last[...]) + self.last_bias[...][None]
        return (jnp.max(maps, axis=1) + second) / 2

    def class_vectors(self, rows: Float[Array, "b p d"], maps: Float[Array, "b p q"]) -> Float[Array, "b q h"]:
        """V: features weighted by attention, transformed. Summed first, so that the product has q rows per image."""
        attention = jax.nn.sigmoid(maps)
        attended = jnp.einsum("bpq,bpd->bqd", attention, rows)
        share = jnp.sum(attention, axis=1)[:, :, None]
        return attended @ self.transform[...] + share * self.transform_bias[...][None, None]

    def mix(self, vectors: Float[Array, "b q h"], *, train: bool) -> Float[Array, "b q h"]:
        """Z: the vectors after the static and the dynamic graph."""
        neighbours = _leaky(jnp.einsum("ij,bjh->bih", self.static_graph[...], vectors))
        hidden = vectors + _leaky(neighbours @ self.static[...] + self.static_bias[...][None, None])
        graph = self.dynamic_graph(hidden, train=train)
        moved = _leaky(graph @ hidden) @ self.dynamic[...] + self.dynamic_bias[...][None, None]
        return vectors + _leaky(moved)

    def dynamic_graph(self, hidden: Float[Array, "b q h"], *, train: bool) -> Float[Array, "b q q"]:
        """D[i, j]: how much of class j's vector class i takes, in this image."""
        image = jnp.mean(hidden, axis=1) @ self.all_classes[...] + self.all_classes_bias[...][None]
        image = _leaky(self.norm(image[:, None, None], None, relu=False, train=train)[:, 0, 0])
        both = jnp.concatenate([jnp.broadcast_to(image[:, None], hidden.shape), hidden], axis=2)
        return jax.nn.sigmoid(both @ self.graph[...] + self.graph_bias[...][None, None])
