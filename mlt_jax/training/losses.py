"""Losses of one logit and one noisy 0/1 label, element-wise and unreduced: the caller takes the mean.

`g = sigmoid(logit)` is the predicted P(clean_j = 1), `y` the noisy label, `T[j] = [[1 - rn, rn], [rp, 1 - rp]]`. All of
them work from log g and log(1 - g), so that values and gradients stay finite far out on either side.

References: reweighting by Liu and Tao 2016; forward and backward correction by Patrini et al. 2017; T-Revision by Xia
et al. 2019; generalised cross entropy by Zhang and Sabuncu 2018; WSIC by Hu et al. 2019.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

Logits = Float[Array, "n q"]
Labels = Shaped[Array | np.ndarray, "n q"]
Transition = Float[Array | np.ndarray, "q 2 2"]

# The least P(noisy = y) of a T that need not be one, and the least 1 - rho_neg - rho_pos that is divided by.
_LEAST_NOISY, _LEAST_DETERMINANT = 1e-6, 0.05


def bce(logits: Logits, labels: Labels) -> Float[Array, "n q"]:
    """Binary cross entropy of each label, (n, q): -log g where y = 1, -log(1 - g) where y = 0."""
    return -jax.nn.log_sigmoid(jnp.where(_on(labels), logits, -logits))


def reweighted_bce(logits: Logits, labels: Labels, T: Transition) -> Float[Array, "n q"]:
    """Importance-weighted cross entropy, (n, q): P(clean = y) / P(noisy = y) * bce; the weight passes no gradient."""
    return jax.lax.stop_gradient(importance(logits, labels, T)) * bce(logits, labels)


def forward_bce(logits: Logits, labels: Labels, T: Transition) -> Float[Array, "n q"]:
    """Cross entropy of the noisy posterior T'g, (n, q): -log P(noisy = y)."""
    return -_log_noisy(logits, labels, T)


def backward_bce(logits: Logits, labels: Labels, T: Transition) -> Float[Array, "n q"]:
    """Unbiased estimate of the clean loss, (n, q): entry y of T^-1 (loss of 0, loss of 1). It can be negative.

    1 - rho_neg - rho_pos counts as 0.05 where it is less: an estimated T may be singular, or worse.
    """
    on, T = _on(labels), jnp.asarray(T, logits.dtype)[None]
    given, other = bce(logits, on), bce(logits, ~on)
    kept_other = jnp.where(on, T[..., 0, 0], T[..., 1, 1])
    lost_given = jnp.where(on, T[..., 1, 0], T[..., 0, 1])
    determinant = jnp.maximum(T[..., 0, 0] - T[..., 1, 0], _LEAST_DETERMINANT)
    return (kept_other * given - lost_given * other) / determinant


def revision_bce(logits: Logits, labels: Labels, T: Transition, delta: Transition) -> Float[Array, "n q"]:
    """Weighted cross entropy with T + delta as it is, (n, q); the weight passes gradient to `delta` and to the network.

    As its authors': rows are not renormalised, so T + delta need not be a transition matrix; P(noisy = y) counts as
    1e-6 where it is less.
    """
    revised = jnp.asarray(T, logits.dtype) + jnp.asarray(delta, logits.dtype)
    column = jnp.where(_on(labels)[:, :, None], revised[None, :, :, 1], revised[None, :, :, 0])
    g = jax.nn.sigmoid(logits)
    noisy = column[..., 0] * (1 - g) + column[..., 1] * g
    given = jnp.where(_on(labels), g, 1 - g)
    return given / jnp.maximum(noisy, _LEAST_NOISY) * bce(logits, labels)


def gce(logits: Logits, labels: Labels, *, power: float = 0.7) -> Float[Array, "n q"]:
    """Generalised cross entropy, (n, q): (1 - p^power) / power with p the probability given to y."""
    return -jnp.expm1(-power * bce(logits, labels)) / power


def wsic(clean_logits: Logits, noisy_logits: Logits, labels: Labels) -> Float[Array, "n q"]:
    """WSIC's loss, (n, q): bce of the noisy logits plus bce of the clean ones, both against the noisy label.

    Its authors judge the clean logits by clean labels; where there are none, the noisy label takes their place.
    """
    return bce(noisy_logits, labels) + bce(clean_logits, labels)


def importance(logits: Logits, labels: Labels, T: Transition) -> Float[Array, "n q"]:
    """Weights P(clean = y) / P(noisy = y), (n, q), from the predicted clean posterior; at most 1e6."""
    ratio = -bce(logits, labels) - _log_noisy(logits, labels, T)
    return jnp.exp(jnp.minimum(ratio, -jnp.log(_LEAST_NOISY)))


def _on(labels: Labels) -> Array:
    return jnp.asarray(labels).astype(bool)


def _log_noisy(logits: Logits, labels: Labels, T: Transition) -> Float[Array, "n q"]:
    """log P(noisy = y) = log(T[0, y] (1 - g) + T[1, y] g)."""
    T = jnp.asarray(T, logits.dtype)
    column = jnp.where(_on(labels)[:, :, None], T[None, :, :, 1], T[None, :, :, 0])
    # A label that T rules out was given all the same.
    column = jnp.where(jnp.sum(column, axis=-1, keepdims=True) > 0, column, _LEAST_NOISY)
    # A rate of zero adds nothing: log 0 without its infinite gradient.
    log_column = jnp.where(column > 0, jnp.log(jnp.where(column > 0, column, 1)), -jnp.inf)
    return jnp.logaddexp(
        log_column[..., 0] + jax.nn.log_sigmoid(-logits), log_column[..., 1] + jax.nn.log_sigmoid(logits)
    )
