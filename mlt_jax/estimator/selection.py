"""Selection of labels to take as clean: those with small loss, by a Gaussian mixture per class and label value."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt8

from mlt_jax.arguments import check_integer, check_number
from mlt_jax.estimator.sums import ANY_ORDER, sums
from mlt_jax.labels import as_labels, as_matrix, num_axes
from mlt_jax.transition import check_assume

# The released code's scikit-learn settings, and the number of examples below which a column is not fitted.
_MAX_STEPS, _TOLERANCE, _VARIANCE_FLOOR = 10, 1e-2, 5e-4
_FEWEST = 10
_TWO_MEANS_STEPS = 100
_FIRST_CUTS = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4)  # of the range; most losses are small
BYTES_PER_CELL = 24  # what a fit holds per example besides the losses
_CELLS_AT_ONCE = 2**19
LEAST_PROBABILITY = 1e-7  # of a given label, which bounds its loss

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
    max_memory: int = 2**30,
) -> np.ndarray:
    """Mask (n, q), bool, of the labels taken as clean; too large for memory: see `sparse_selection`.

    Per class and label value the losses of each epoch are scaled to [0, 1] and averaged over epochs, and a mixture of
    two Gaussians is fitted. All labels are selected where that is not possible: with fewer than 10 examples, or if all
    losses are equal. Unobserved cells are never selected.

    Args:
      losses: (epochs, n, q) or (n, q), the loss of each given label (see `losses_from_probs`); the released code passes
        the five epochs that end at its sampling epoch.
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
      tau: a label is selected if its posterior probability of the component with lower mean exceeds tau.
      assume: `"missing"` (no given positive is wrong) selects every positive, `"partial"` every negative.
      max_memory: bytes of work space besides losses and mask; classes are done in blocks that fit.

    Raises:
      ValueError: tau outside (0, 1), an unknown assumption, or losses that are not finite or not of the labels' shape.

    References:
      Stage 1 of the paper's Algorithm 1 (label alg1); Arazo et al., "Unsupervised label noise modeling", ICML 2019.
    """
    check_rule(tau, assume)
    check_integer("max_memory", max_memory, 0)
    checked = as_labels(labels, coding=coding, observed=observed)
    history = as_matrix(losses, checked, name="losses", lead=True)
    n, q = checked.values.shape
    known = checked.observed if checked.observed is not None else np.broadcast_to(np.True_, (n, q))
    block = int(np.clip(max_memory // ((4 * len(history) + BYTES_PER_CELL) * n), 1, q))
    taken = np.empty((n, q), bool)
    for start in range(0, q, block):
        part = slice(min(start, q - block), min(start + block, q))  # all of one size, to compile once
        cells = (np.ascontiguousarray(x[..., part].swapaxes(-1, -2)) for x in (history, checked.values, known))
        taken[:, part] = np.asarray(_select(*cells, tau=tau, assume=assume)).T
    return taken


def losses_from_probs(probs: Any, labels: Any, *, observed: Any = None, coding: str = "01") -> np.ndarray:
    """Binary cross entropy of the given labels, float32 of the shape of `probs`: predicted P(label = 1).

    Args:
      probs: (epochs, n, q) or (n, q), in [0, 1]; the probability of the given label counts as at least 1e-7.
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    p = as_matrix(probs, checked, name="probs", low=0, high=1, lead=num_axes(probs) == 3)
    return -np.log(np.clip(np.where(checked.values == 1, p, 1 - p), LEAST_PROBABILITY, None))


def check_rule(tau: float, assume: str) -> None:
    """Raises ValueError where tau is not in (0, 1) or the assumption is unknown."""
    check_assume(assume)
    check_number("tau", tau, lambda x: 0 < x < 1, "a probability strictly between 0 and 1")


def select_cells(
    losses: Float[Array, "epochs q n"],
    values: UInt8[Array, "q n"],
    known: Bool[Array, "q n"],
    weight: Float[Array, "q n"] | None = None,
    *,
    tau: Scalar,
    assume: str,
) -> Bool[Array, "q n"]:
    """Which of the `known` cells of each class are taken as clean; a cell counts `weight` times in its mixture."""
    fitted = {"general": (True, False), "missing": (False,), "partial": (True,)}[assume]

    def one(cells: tuple[Array, Array, Array, Array | None]) -> Bool[Array, "n"]:
        losses, values, known, weight = cells
        y = values == 1
        taken = known
        for value in fitted:
            member = known & (y if value else ~y)
            x = scale_losses(losses, member)
            mixture = fit_mixture(x, member, weight)
            taken = taken & ((low_posterior(mixture, x) > tau) | ~mixture.fitted | ~member)
        return taken

    q, n = values.shape
    at_once = min(q, max(1, _CELLS_AT_ONCE // n))  # a loop ends with the slowest of these
    return jax.lax.map(one, (jnp.moveaxis(losses, 1, 0), values, known, weight), batch_size=at_once)


_select = jax.jit(select_cells, static_argnames="assume", compiler_options=ANY_ORDER)


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


def fit_mixture(x: Float[Array, "n"], member: Bool[Array, "n"], weight: Float[Array, "n"] | None = None) -> Mixture:
    """The mixture of one masked column: 2-means, then at most 10 EM steps, as scikit-learn's GaussianMixture does.

    With `weight` an example counts that many times.

    EM is deliberately not run to convergence: the paper's selections come from ten steps. Every step is one pass over
    the column; moments are taken about the threshold of 2-means, which avoids cancellation.
    """
    m = member.astype(x.dtype) if weight is None else jnp.where(member, weight, 0)
    low = jnp.min(x, where=member, initial=jnp.inf)
    high = jnp.max(x, where=member, initial=-jnp.inf)
    cut = _two_means_cut(x, m, jnp.minimum(low, 1), jnp.maximum(high, 0))
    z = x - cut
    whole = jnp.stack(sums(m, m * z, m * z**2))
    size = jnp.maximum(whole[0], 1)

    def maximise(upper: Float[Array, "3"]) -> Mixture:
        moments = jnp.stack([whole - upper, upper], axis=1)
        mass = moments[0] + 10 * jnp.finfo(x.dtype).eps
        mean = moments[1] / mass
        variance = jnp.maximum(moments[2] / mass - mean**2, 0) + _VARIANCE_FLOOR
        return Mixture(mass / jnp.sum(mass), mean + cut, variance, jnp.array(True))

    def em_step(carry: tuple[Mixture, Array, Array, Array]) -> tuple[Mixture, Array, Array, Array]:
        mixture, bound, _, step = carry
        logits = _log_joint(mixture, x)
        gap = logits[1] - logits[0]
        small = jnp.exp(-jnp.abs(gap))  # of the less likely component, beside 1 for the other
        upper = m * jnp.where(gap > 0, 1, small) / (1 + small)
        likelihood = m * (jnp.maximum(logits[0], logits[1]) + jnp.log(1 + small))
        *moments, total = sums(upper, upper * z, upper * z**2, likelihood)
        new_bound = total / size
        return maximise(jnp.stack(moments)), new_bound, jnp.abs(new_bound - bound), step + 1

    infinity = jnp.array(jnp.inf, x.dtype)
    above = m * (z > 0).astype(x.dtype)
    start = (maximise(jnp.stack(sums(above, above * z, above * z**2))), -infinity, infinity, jnp.array(0))
    mixture = jax.lax.while_loop(lambda c: (c[2] >= _TOLERANCE) & (c[3] < _MAX_STEPS), em_step, start)[0]
    order = jnp.argsort(mixture.mean)
    fitted = (whole[0] >= _FEWEST) & (high > low)
    return Mixture(mixture.weight[order], mixture.mean[order], mixture.variance[order], fitted)


def _two_means_cut(x: Float[Array, "n"], m: Float[Array, "n"], low: Scalar, high: Scalar) -> Float[Array, ""]:
    """The threshold between two clusters: Lloyd's algorithm from the best of `_FIRST_CUTS`, to its fixed point."""
    size, total = sums(m, m * x)

    def above(*cuts: Scalar) -> tuple[Array, Array]:
        """Number and sum of the members above each cut."""
        upper = [m * (x > cut).astype(x.dtype) for cut in cuts]
        found = jnp.stack(sums(*upper, *(u * x for u in upper)))
        return found[: len(cuts)], found[len(cuts) :]

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        cut, _, count = carry
        (number,), (upper,) = above(cut)
        centres = (total - upper) / jnp.maximum(size - number, 1), upper / jnp.maximum(number, 1)
        return (centres[0] + centres[1]) / 2, cut, count + 1

    cuts = low + (high - low) * jnp.array(_FIRST_CUTS, x.dtype)
    number, upper = above(*cuts)
    spread = upper**2 / jnp.maximum(number, 1) + (total - upper) ** 2 / jnp.maximum(size - number, 1)
    start = cuts[jnp.argmax(spread)]
    first = (start, start - 1, jnp.array(0))
    return jax.lax.while_loop(lambda c: (c[0] != c[1]) & (c[2] < _TWO_MEANS_STEPS), step, first)[0]


def _log_joint(mixture: Mixture, x: Float[Array, "n"]) -> tuple[Float[Array, "n"], Float[Array, "n"]]:
    scale = jnp.log(mixture.weight) - 0.5 * jnp.log(2 * jnp.pi * mixture.variance)
    half_precision = 0.5 / mixture.variance
    low, high = (scale[k] - half_precision[k] * (x - mixture.mean[k]) ** 2 for k in (0, 1))
    return low, high
