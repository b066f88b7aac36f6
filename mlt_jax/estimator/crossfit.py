"""Out-of-sample scores from given features: a ridge logistic head per class, trained on the other folds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mlt_jax.labels import as_labels
from mlt_jax.transition import as_transition, given_probability

# Newton steps, and steps of conjugate gradients in each: on real features the loss is at its floor then.
_STEPS, _INNER = 4, 8
# Cells (examples x classes x folds) that are solved together; bounds the memory.
_CELLS = 2**24


def cross_val_logits(
    features: Any,
    labels: Any,
    *,
    folds: int = 5,
    seed: int = 0,
    T: Any = None,
    l2: float = 3e-3,
    components: int = 512,
    observed: Any = None,
    coding: str = "01",
) -> np.ndarray:
    """Logits (n, q) of each example by heads that never saw it.

    Args:
      features: (n, d) real numbers, from any network; reduced to their first `components` principal components.
      labels: (n, q), any form that `as_labels` takes.
      folds: the heads of one fold are trained on the others; `seed` deals the examples to folds.
      T: (q, 2, 2); if given the heads predict the *clean* label: they are trained so that T of their prediction fits
        the given labels (forward correction). Without it they predict the given label.
      l2: weight of the ridge penalty, for features scaled to a total variance of 100.
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    n, q = checked.values.shape
    if not 2 <= folds <= n:
        raise ValueError(f"folds: {folds}; pass 2 to {n}, the number of examples")
    x = principal_components(features, n, components).values
    fold = np.random.default_rng(seed).permutation(n) % folds
    train = fold[:, None] != np.arange(folds)
    rates = jnp.zeros((q, 2)) if T is None else as_transition(T, q)[:, jnp.array([0, 1]), jnp.array([1, 0])]
    logits = np.empty((n, q), np.float32)
    block = max(1, _CELLS // (n * folds))
    for start in range(0, q, block):  # all classes together would need too much memory where there are thousands
        part = slice(start, start + block)
        y = checked.values[:, part]
        known = np.broadcast_to(True, y.shape) if checked.observed is None else checked.observed[:, part]
        heads = head_logits(x, jnp.asarray(y, x.dtype), jnp.asarray(known), jnp.asarray(train), rates[part], l2)
        logits[:, part] = np.asarray(heads)[np.arange(n), fold]
    return logits


class Components(NamedTuple):
    """Principal components of features; whatever takes features takes these, and does not compute them again."""

    values: Float[Array, "n k"]  # scaled to a total variance of 100


def principal_components(features: Any, n: int, components: int = 512, *, seed: int = 0) -> Components:
    """The first principal components of (n, d) features; `Components` of n examples come back as they are.

    By two steps of subspace iteration, a tenth of the time of an eigendecomposition: the last components are mixed with
    those that follow, which does not matter here (89 instead of 90 % of the variance of 2,048 ResNet features).
    """
    if isinstance(features, Components) and len(features.values) == n:
        return features
    x = np.asarray(features.values if isinstance(features, Components) else features)
    if x.ndim != 2 or len(x) != n or x.dtype.kind not in "fiu":
        raise ValueError(f"features: shape {x.shape}, dtype {x.dtype}; pass ({n}, d) real numbers, a row per example")
    if not np.isfinite(x).all():
        raise ValueError(f"features: row {int((~np.isfinite(x)).any(1).argmax())} is not finite; drop or mend it")
    x = x.astype(np.float32)
    x = x - x.mean(0)
    second = x.T @ x / n
    axes = np.random.default_rng(seed).normal(size=(len(second), min(components, *x.shape))).astype(np.float32)
    for _ in range(2):
        axes = np.linalg.qr(second @ axes)[0]
    axes = axes @ np.linalg.eigh(axes.T @ second @ axes)[1][:, ::-1]
    z = x @ axes
    total = float((z**2).sum() / n)
    return Components(jnp.asarray(z * np.float32(10 / np.sqrt(total) if total > 0 else 0)))


@jax.jit
def head_logits(
    x: Float[Array, "n k"],
    y: Float[Array, "n q"],
    known: Bool[Array, "n q"],
    train: Bool[Array, "n folds"],
    rates: Float[Array, "q 2"],
    l2: float | Array,
) -> Float[Array, "n folds q"]:
    """Logits of all examples by the heads of every fold, fitted to the examples in `train`.

    P(label = 1) is `rho_neg + (1 - rho_neg - rho_pos) sigmoid(logit)`, with the rates given.
    Newton's method with the expected curvature, on all heads at once, a column each. A step is solved by conjugate
    gradients: components are uncorrelated, so that curvature is nearly diagonal and few of them do.
    """
    n, shape = len(x), (len(x), train.shape[1], y.shape[1])
    weight = (train[:, :, None] & known[:, None]).reshape(n, -1).astype(x.dtype)
    weight /= jnp.maximum(jnp.sum(weight, axis=0, keepdims=True), 1)
    y = jnp.broadcast_to(y[:, None], shape).reshape(n, -1)
    # Heads cannot be told apart from a constant where little of the label is kept.
    rho_neg, kept = (jnp.tile(r, shape[1])[None] for r in (rates[:, 0], jnp.maximum(1 - jnp.sum(rates, axis=1), 0.1)))
    x = jnp.concatenate([x, jnp.ones((n, 1), x.dtype)], axis=1)
    variance = jnp.mean(x**2, axis=0)[:, None]
    penalty = jnp.full(variance.shape, l2, x.dtype).at[-1].set(0)

    def dot(u: Float[Array, "k h"], v: Float[Array, "k h"]) -> Float[Array, "1 h"]:
        return jnp.sum(u * v, axis=0, keepdims=True)

    def newton(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        w, z = carry
        clean = jax.nn.sigmoid(z)
        p, slope = given_probability(clean, rho_neg, kept), kept * clean * (1 - clean)
        pull = weight * slope / (p * (1 - p))
        bend = pull * slope
        scale = jnp.sum(bend, axis=0, keepdims=True) * variance + penalty + 1e-8

        def conjugate(state: Any, _: None) -> tuple[Any, None]:
            step, z_step, rest, way, size = state
            z_way = x @ way
            bent = x.T @ (bend * z_way) + penalty * way
            length = size / jnp.maximum(dot(way, bent), 1e-30)
            rest = rest - length * bent
            new_size = dot(rest, rest / scale)
            new_way = rest / scale + new_size / jnp.maximum(size, 1e-30) * way
            return (step + length * way, z_step + length * z_way, rest, new_way, new_size), None

        rest = x.T @ (pull * (y - p)) - penalty * w
        state = jnp.zeros_like(w), jnp.zeros_like(z), rest, rest / scale, dot(rest, rest / scale)
        step, z_step = jax.lax.scan(conjugate, state, None, length=_INNER)[0][:2]

        def loss(length: Float[Array, ""]) -> Float[Array, "1 h"]:
            p = given_probability(jax.nn.sigmoid(z + length * z_step), rho_neg, kept)
            new = w + length * step
            entropy = -jnp.log(jnp.where(y == 1, p, 1 - p))
            return jnp.sum(weight * entropy, axis=0, keepdims=True) + dot(penalty / 2 * new, new)

        lengths = jnp.array([1, 0.3, 0.1, 0], x.dtype)  # nearly always 1
        length = lengths[jnp.argmin(jax.lax.map(loss, lengths), axis=0)]
        return (w + length * step, z + length * z_step), None

    share = jnp.clip((jnp.sum(weight * y, axis=0) - rho_neg[0]) / kept[0], 0.01, 0.99)
    start = jnp.zeros((x.shape[1], y.shape[1]), x.dtype).at[-1].set(jnp.log(share) - jnp.log1p(-share))
    (_, z), _ = jax.lax.scan(newton, (start, x @ start), None, length=_STEPS)
    return z.reshape(shape)
