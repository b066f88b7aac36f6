"""Which labels to take as clean: small-loss examples, by a two-component mixture per class and label value."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mlt_jax.labels import as_labels, as_matrix

# The released code's scikit-learn settings, and the number of examples below which a column is not fitted.
_MAX_STEPS, _TOLERANCE, _VARIANCE_FLOOR = 10, 1e-2, 5e-4
_FEWEST = 10
_TWO_MEANS_STEPS = 100

Scalar = float | Float[Array, ""]


class Mixture(NamedTuple):
    """Two Gaussians on a line; component 0 has the lower mean."""

    weight: Float[Array, "*batch 2"]
    mean: Float[Array, "*batch 2"]
    variance: Float[Array, "*batch 2"]
    fitted: Bool[Array, "*batch"]  # False: fewer than 10 examples, or all losses equal


def select_clean(
    losses: Any,
    labels: Any,
    *,
    tau: float = 0.5,
    assume: str = "general",
    observed: Any = None,
    coding: str = "01",
) -> np.ndarray:
    """Mask (n, q) of the labels taken as clean.

    Args:
      losses: (epochs, n, q) or (n, q), the loss of each given label, per class (see `losses_from_probs`). Per class
        and label value each epoch is scaled to [0, 1], the epochs are averaged, and a two-component Gaussian mixture
        is fitted, as the paper's released code does (it gives the five epochs that end at its sampling epoch).
      labels: (n, q), any form that `as_labels` takes.
      tau: a label is taken when its posterior of the low-loss component exceeds tau.
      assume: `"missing"` (no given positive is wrong): every positive is taken. `"partial"`: every negative is.

    A column (class and value) that cannot be fitted, with fewer than 10 examples or with all losses equal, is taken
    whole. Unobserved cells are never taken.
    """
    check_assume(assume)
    if not 0 < tau < 1:
        raise ValueError(f"tau: {tau}; pass a probability strictly between 0 and 1")
    checked = as_labels(labels, coding=coding, observed=observed)
    history = as_matrix(losses, checked, name="losses", lead=True)
    known = checked.observed if checked.observed is not None else np.ones(checked.values.shape, bool)
    return np.asarray(_select(history, checked.values.astype(bool), known, tau=tau, assume=assume))


def losses_from_probs(probs: Any, labels: Any, *, observed: Any = None, coding: str = "01") -> np.ndarray:
    """Binary cross entropy of the given labels, (epochs, n, q) or (n, q) like `probs`, the predicted P(label = 1)."""
    checked = as_labels(labels, coding=coding, observed=observed)
    p = as_matrix(probs, checked, name="probs", low=0, high=1, lead=np.ndim(probs) == 3)
    return -np.log(np.clip(np.where(checked.values == 1, p, 1 - p), 1e-7, None))


def check_assume(assume: str) -> None:
    """Raises unless `assume` is one of the three."""
    if assume not in ("general", "missing", "partial"):
        raise ValueError(f'assume: {assume!r}; pass "general", "missing" (rho_neg = 0) or "partial" (rho_pos = 0)')


@partial(jax.jit, static_argnames="assume")
def _select(
    losses: Float[Array, "epochs n q"], y: Bool[Array, "n q"], known: Bool[Array, "n q"], *, tau: Scalar, assume: str
) -> Bool[Array, "n q"]:
    taken = {}
    for value, free in ((True, assume != "missing"), (False, assume != "partial")):
        member = (y == value) & known
        taken[value] = member
        if free:
            clean = jax.vmap(_clean_column, in_axes=(2, 1, None), out_axes=1)(losses, member, tau)
            taken[value] = member & clean
    return taken[True] | taken[False]


def _clean_column(losses: Float[Array, "epochs n"], member: Bool[Array, "n"], tau: Scalar) -> Bool[Array, "n"]:
    x = scale_losses(losses, member)
    mixture = fit_mixture(x, member)
    return (low_posterior(mixture, x) > tau) | ~mixture.fitted


def scale_losses(losses: Float[Array, "epochs n"], member: Bool[Array, "n"]) -> Float[Array, "n"]:
    """Mean over epochs of the losses of one column, each epoch scaled to [0, 1] over its members."""
    low = jnp.min(losses, axis=1, keepdims=True, where=member[None], initial=jnp.inf)
    high = jnp.max(losses, axis=1, keepdims=True, where=member[None], initial=-jnp.inf)
    span = jnp.where(high > low, high - low, 1)
    return jnp.where(member, jnp.mean((losses - jnp.where(high > low, low, losses)) / span, axis=0), 0)


def low_posterior(mixture: Mixture, x: Float[Array, "n"]) -> Float[Array, "n"]:
    """P(component 0 | x) of one mixture."""
    logits = _log_joint(mixture, x)
    return jax.nn.sigmoid(logits[0] - logits[1])


def fit_mixture(x: Float[Array, "n"], member: Bool[Array, "n"]) -> Mixture:
    """The mixture of one masked column: 2-means, then at most 10 EM steps, as scikit-learn's GaussianMixture does.

    EM is not run to convergence on purpose: the paper's masks come from these ten steps.
    """
    m = member.astype(x.dtype)
    size = jnp.maximum(jnp.sum(m), 1)

    def maximise(high: Float[Array, "n"]) -> Mixture:
        r = jnp.stack([m * (1 - high), m * high])
        mass = jnp.sum(r, axis=1) + 10 * jnp.finfo(x.dtype).eps
        mean = jnp.sum(r * x[None], axis=1) / mass
        variance = jnp.sum(r * (x[None] - mean[:, None]) ** 2, axis=1) / mass + _VARIANCE_FLOOR
        return Mixture(mass / jnp.sum(mass), mean, variance, jnp.array(True))

    def em_step(carry: tuple[Mixture, Array, Array, Array]) -> tuple[Mixture, Array, Array, Array]:
        mixture, bound, _, step = carry
        logits = _log_joint(mixture, x)
        new_bound = jnp.sum(m * jnp.logaddexp(logits[0], logits[1])) / size
        return maximise(jax.nn.sigmoid(logits[1] - logits[0])), new_bound, jnp.abs(new_bound - bound), step + 1

    def em_goes_on(carry: tuple[Mixture, Array, Array, Array]) -> Array:
        return (carry[2] >= _TOLERANCE) & (carry[3] < _MAX_STEPS)

    infinity = jnp.array(jnp.inf, x.dtype)
    start = (maximise(_two_means(x, member).astype(x.dtype)), -infinity, infinity, jnp.array(0))
    mixture = jax.lax.while_loop(em_goes_on, em_step, start)[0]
    order = jnp.argsort(mixture.mean)
    low = jnp.min(x, where=member, initial=jnp.inf)
    high = jnp.max(x, where=member, initial=-jnp.inf)
    fitted = (jnp.sum(member) >= _FEWEST) & (high > low)
    return Mixture(mixture.weight[order], mixture.mean[order], mixture.variance[order], fitted)


def _two_means(x: Float[Array, "n"], member: Bool[Array, "n"]) -> Bool[Array, "n"]:
    """Members of the upper of two clusters: Lloyd's steps from the ends of the range until the cut stands still."""

    def centre(where: Bool[Array, "n"]) -> Array:
        size = jnp.sum(where)
        return jnp.sum(x, where=where) / jnp.maximum(size, 1).astype(x.dtype)

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        cut, _, count = carry
        return (centre(member & (x <= cut)) + centre(member & (x > cut))) / 2, cut, count + 1

    low, high = jnp.min(x, where=member, initial=1), jnp.max(x, where=member, initial=0)
    first = (low + high) / 2
    cut, _, _ = jax.lax.while_loop(
        lambda c: (c[0] != c[1]) & (c[2] < _TWO_MEANS_STEPS), step, (first, first - 1, jnp.array(0))
    )
    return member & (x > cut)


def _log_joint(mixture: Mixture, x: Float[Array, "n"]) -> Float[Array, "2 n"]:
    spread = (x[None] - mixture.mean[:, None]) ** 2 / mixture.variance[:, None]
    return jnp.log(mixture.weight)[:, None] - 0.5 * (spread + jnp.log(2 * jnp.pi * mixture.variance)[:, None])
