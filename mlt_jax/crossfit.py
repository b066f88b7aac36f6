"""Out-of-sample scores from given features: a ridge logistic head per class, trained on the other folds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mlt_jax.estimator import as_transition
from mlt_jax.labels import as_labels

_STEPS, _RATE = 200, 0.05


def cross_val_logits(
    features: Any,
    labels: Any,
    *,
    folds: int = 5,
    seed: int = 0,
    T: Any = None,
    l2: float = 1e-3,
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
    x = principal_components(features, n, components)
    fold = np.random.default_rng(seed).permutation(n) % folds
    rates = jnp.zeros((q, 2)) if T is None else as_transition(T, q)[:, jnp.array([0, 1]), jnp.array([1, 0])]
    known = jnp.asarray(checked.observed if checked.observed is not None else np.ones((n, q), bool))
    y = jnp.asarray(checked.values, x.dtype)
    logits = np.empty((n, q), np.float32)
    for k in range(folds):  # one after the other: together they would need `folds` times the memory
        held_out = fold == k
        logits[held_out] = np.asarray(_head_logits(x, y, known & jnp.asarray(~held_out)[:, None], rates, l2))[held_out]
    return logits


def principal_components(features: Any, n: int, components: int) -> Float[Array, "n k"]:
    """The first principal components of (n, d) features, scaled to a total variance of 100."""
    x = np.asarray(features)
    if x.ndim != 2 or len(x) != n or x.dtype.kind not in "fiu":
        raise ValueError(f"features: shape {x.shape}, dtype {x.dtype}; pass ({n}, d) real numbers, a row per example")
    if not np.isfinite(x).all():
        raise ValueError(f"features: row {int((~np.isfinite(x)).any(1).argmax())} is not finite; drop or mend it")
    x = x.astype(np.float32)
    x = x - x.mean(0)
    variance, axes = np.linalg.eigh(x.T @ x / n)
    axes = axes[:, ::-1][:, :components]
    total = float(variance[::-1][:components].sum())
    return jnp.asarray(x @ axes * (10 / np.sqrt(total) if total > 0 else 0.0))


@jax.jit
def _head_logits(
    x: Float[Array, "n k"], y: Float[Array, "n q"], train: Array, rates: Float[Array, "q 2"], l2: float | Array
) -> Float[Array, "n q"]:
    """Logits of all examples by heads fitted to the cells in `train`: full-batch Adam on a decaying rate."""
    import optax  # not needed by those who bring their own probabilities

    weight = train.astype(x.dtype) / jnp.maximum(jnp.sum(train, axis=0), 1).astype(x.dtype)[None]
    rho_neg, kept = rates[None, :, 0], 1 - jnp.sum(rates, axis=1)[None]

    def loss(params: tuple[Array, Array]) -> Array:
        given = jnp.clip(rho_neg + kept * jax.nn.sigmoid(x @ params[0] + params[1][None]), 1e-6, 1 - 1e-6)
        entropy = -(y * jnp.log(given) + (1 - y) * jnp.log1p(-given))
        return jnp.sum(weight * entropy) + l2 / 2 * jnp.sum(params[0] ** 2)

    adam = optax.adam(optax.cosine_decay_schedule(_RATE, _STEPS))

    def step(carry: Any, _: None) -> tuple[Any, None]:
        params, state = carry
        with jax.numpy_dtype_promotion("standard"):  # optax promotes; strict sessions need not care
            updates, state = adam.update(jax.grad(loss)(params), state)
        return (optax.apply_updates(params, updates), state), None

    start = jnp.zeros((x.shape[1], y.shape[1]), x.dtype), jnp.full(y.shape[1], -2.0, x.dtype)
    (w, b), _ = jax.lax.scan(step, (start, adam.init(start)), None, length=_STEPS)[0]
    return x @ w + b[None]
