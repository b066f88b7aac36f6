"""Two models of the judgements of one class by several raters, fitted by EM; `estimator.raters` chooses.

Clear (Dawid and Skene): a label is present or absent, and rater r errs with its own rates, whatever the example.
Graded: a label is present to a degree u, and rater r says yes with probability sigmoid(a_r + b_r u). The references are
in `estimator.raters`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8

_STEPS, _TOLERANCE = 500, 1e-5
# Prior standard deviations of the slope (mean 1: scores are logits) and of the offset.
_SLOPE_SPREAD, _OFFSET_SPREAD = 1.0, 5.0
# Degrees of a graded label, for the fit and for the answer.
_DEGREES, FINE = (np.linspace(-5, 5, k, dtype=np.float32) for k in (31, 121))
# What the mean of the raters' (a, b) is drawn to, and how much; how much a rater's are drawn to that mean.
_CENTRE, _CENTRE_WEIGHT, _MEAN_WEIGHT = (-1.0, 2.0), (0.01, 0.2), (0.25, 1.0)
_GRADED_STEPS, _GRADED_TOLERANCE = 300, 1e-3


class Clear(NamedTuple):
    """EM of the clear model, a row per class."""

    clean: Float[Array, "*q n"]  # P(clean = 1)
    yes: Float[Array, "*q n"]  # P(one more rater says 1)
    line: Float[Array, "*q 2"]  # slope, offset
    rates: Float[Array, "*q raters 2"]
    wrong: Float[Array, "*q raters 2"]  # expected number of wrong judgements of absent, of present labels
    total: Float[Array, "*q raters 2"]  # expected number of judgements of absent, of present labels
    information: Float[Array, "*q p p"]  # observed, with the prior's, p = 2 raters + 2
    likelihood: Float[Array, "*q"]
    gain: Float[Array, "*q n raters"]


class Graded(NamedTuple):
    """EM of the graded model, a row per class."""

    clean: Float[Array, "*q n"]  # P(clean = 1)
    yes: Float[Array, "*q n"]  # P(one more rater says 1)
    rates: Float[Array, "*q raters 2"]
    variance: Float[Array, "*q raters 2"]
    slope: Float[Array, "*q"]
    likelihood: Float[Array, "*q"]
    gain: Float[Array, "*q n raters"]


@partial(jax.jit, static_argnames="scored")
def fit_clear(
    y: Int8[Array, "n q raters"],
    s: Float[Array, "n q"],
    pseudo: Float[Array, "q raters 2 2"],
    *,
    scored: bool,
) -> Clear:
    """The clear model of every class.

    Args:
      y: judgements, 0/1, -1 for gaps.
      s: scores, zeros where there are none.
      pseudo: [class, rater, rate, wrong or right], the prior of the rates in judgements.
      scored: whether there are scores, of which a slope is fitted.
    """
    return jax.vmap(partial(_clear_one, scored=scored), in_axes=(1, 1, 0))(y, s, pseudo)


def _clear_one(
    y: Int8[Array, "n raters"], s: Float[Array, "n"], pseudo: Float[Array, "raters 2 2"], *, scored: bool
) -> Clear:
    given, denied = (y == 1).astype(s.dtype), (y == 0).astype(s.dtype)
    votes = jnp.sum(given + denied, axis=1)
    seen = (votes > 0).astype(s.dtype)
    held = jnp.array([_SLOPE_SPREAD, _OFFSET_SPREAD], s.dtype) ** -2

    def curvature(prior: Float[Array, "n"]) -> Float[Array, "2 2"]:
        """Information about slope and offset; a slope that is not there is known."""
        x, weight = jnp.stack([s, jnp.ones_like(s)]), seen * prior * (1 - prior)
        return (x * weight[None]) @ x.T + jnp.diag(held) + (0 if scored else jnp.diag(jnp.array([1e6, 0], s.dtype)))

    def maximize(clean: Float[Array, "n"], line: Float[Array, "2"]) -> tuple[Array, Array, Array, Array]:
        absent, present = seen * (1 - clean), seen * clean
        wrong = jnp.stack([absent @ given, present @ denied], 1)
        total = wrong + jnp.stack([absent @ denied, present @ given], 1)
        rates = (wrong + pseudo[..., 0]) / (total + jnp.sum(pseudo, axis=2))
        prior = jax.nn.sigmoid(line[0] * s + line[1])
        rest = seen * (clean - prior)
        target = jnp.array([float(scored), 0], s.dtype)
        slope = jnp.stack([s @ rest, jnp.sum(rest)]) - held * (line - target)
        return line + jnp.clip(jnp.linalg.solve(curvature(prior), slope), -1, 1), rates, wrong, total

    def expect(line: Float[Array, "2"], rates: Float[Array, "raters 2"]) -> tuple[Array, Array]:
        wrong, right = jnp.log(rates), jnp.log1p(-rates)
        prior = line[0] * s + line[1]
        present = jax.nn.log_sigmoid(prior) + given @ right[:, 1] + denied @ wrong[:, 1]
        absent = jax.nn.log_sigmoid(-prior) + given @ wrong[:, 0] + denied @ right[:, 0]
        return jax.nn.sigmoid(present - absent), jnp.sum(jnp.logaddexp(present, absent))

    def step(state: Any) -> Any:
        clean, line, rates, _, _, _, k = state
        new_line, new_rates, wrong, total = maximize(clean, line)
        change = jnp.maximum(jnp.max(jnp.abs(new_rates - rates)), jnp.max(jnp.abs(new_line - line)) / 10)
        return expect(new_line, new_rates)[0], new_line, new_rates, wrong, total, change, k + 1

    majority = (jnp.sum(given, axis=1) + 0.5 * (1 - seen)) / jnp.maximum(votes, 1)
    share = (seen @ majority + 0.5) / (jnp.sum(seen) + 1)
    line = jnp.stack([jnp.array(float(scored), s.dtype), jnp.log(share) - jnp.log1p(-share)])
    empty = jnp.zeros(pseudo.shape[:2], s.dtype)
    start = majority, line, empty, empty, empty, jnp.array(1, s.dtype), jnp.array(0)
    state = jax.lax.while_loop(lambda state: (state[5] > _TOLERANCE) & (state[6] < _STEPS), step, start)
    clean, line, rates, wrong, total, _, _ = state
    # Louis: how the score of each parameter differs between a present and an absent clean label is what is not known.
    known = given + denied
    unsure = jnp.stack([known * rates[None, :, 0] - given, denied - known * rates[None, :, 1]], 2).reshape(len(s), -1)
    unsure = jnp.concatenate([unsure, jnp.stack([seen * s, seen], 1)], 1)
    lost = unsure.T @ ((clean * (1 - clean))[:, None] * unsure)
    complete = jnp.diag(((total + jnp.sum(pseudo, axis=2)) * rates * (1 - rates)).ravel())
    complete = jax.scipy.linalg.block_diag(complete, curvature(jax.nn.sigmoid(line[0] * s + line[1])))
    post, says = jnp.stack([1 - clean, clean], 1), jnp.stack([rates[:, 0], 1 - rates[:, 1]], 1)
    gain, yes = _gain(post, says, jnp.arange(2.0)), post @ jnp.mean(says, axis=0)
    return Clear(clean, yes, line, rates, wrong, total, complete - lost, expect(line, rates)[1], gain)


@partial(jax.jit, static_argnames="scored")
def fit_graded(y: Int8[Array, "n q raters"], s: Float[Array, "n q"], *, scored: bool) -> Graded:
    """The graded model of every class; arguments as in `fit_clear`."""
    return jax.vmap(partial(_graded_one, scored=scored), in_axes=(1, 1))(y, s)


def _graded_one(y: Int8[Array, "n raters"], s: Float[Array, "n"], *, scored: bool) -> Graded:
    given, denied = (y == 1).astype(s.dtype), (y == 0).astype(s.dtype)
    known, coarse, fine = given + denied, jnp.asarray(_DEGREES), jnp.asarray(FINE)
    raters, seen = y.shape[1], jnp.any(y >= 0, axis=1).astype(s.dtype)
    centre, centre_weight, mean_weight = (jnp.array(x, s.dtype) for x in (_CENTRE, _CENTRE_WEIGHT, _MEAN_WEIGHT))

    def yes(ab: Float[Array, "raters 2"], u: Float[Array, "u"]) -> Float[Array, "raters u"]:
        return jnp.clip(jax.nn.sigmoid(ab[:, :1] + ab[:, 1:] * u[None]), 1e-6, 1 - 1e-6)

    def log_prior(slope: Float[Array, ""], u: Float[Array, "u"]) -> Float[Array, "n u"]:
        return jax.nn.log_softmax(-((u[None] - slope * s[:, None]) ** 2) / 2, axis=1)

    def expect(
        ab: Float[Array, "raters 2"], slope: Float[Array, ""], u: Float[Array, "u"]
    ) -> tuple[Float[Array, "n u"], Float[Array, ""]]:
        p = yes(ab, u)
        joint = given @ jnp.log(p) + denied @ jnp.log1p(-p) + log_prior(slope, u)
        return jax.nn.softmax(joint, axis=1), jnp.sum(jax.scipy.special.logsumexp(joint, axis=1))

    def maximize(ab: Float[Array, "raters 2"], post: Float[Array, "n u"]) -> Float[Array, "raters 2"]:
        """Two Newton steps of a logistic regression per rater, drawn towards the mean of the raters."""
        agreed, total = given.T @ post, known.T @ post
        mean = jnp.mean(ab, axis=0)
        x = jnp.stack([jnp.ones_like(coarse), coarse], 1)
        for _ in range(2):
            p = yes(ab, coarse)
            drawn = mean_weight[None] * (ab - mean[None]) + (centre_weight * (mean - centre) / raters)[None]
            hessian = jnp.einsum("ru,ui,uj->rij", total * p * (1 - p), x, x) + jnp.diag(mean_weight)[None]
            direction = jnp.linalg.solve(hessian, ((agreed - total * p) @ x - drawn)[..., None])[..., 0]
            ab = ab + jnp.clip(direction, -1, 1)
        return ab

    def step(state: Any) -> Any:
        ab, slope, _, k = state
        post, _ = expect(ab, slope, coarse)
        new_slope = s @ (seen * (post @ coarse)) / ((seen * s) @ s + 1) if scored else slope
        new = maximize(ab, post)
        return new, new_slope, jnp.maximum(jnp.max(jnp.abs(new - ab)), jnp.abs(new_slope - slope)), k + 1

    share = (jnp.sum(given, axis=0) + 1) / (jnp.sum(known, axis=0) + 2)
    start = jnp.stack([2 * (jnp.log(share) - jnp.log1p(-share)), jnp.full_like(share, 2)], 1)
    state = start, jnp.array(0.3 if scored else 0, s.dtype), jnp.array(1, s.dtype), jnp.array(0)
    state = jax.lax.while_loop(lambda state: (state[2] > _GRADED_TOLERANCE) & (state[3] < _GRADED_STEPS), step, state)
    ab, slope, _, _ = state

    active = jnp.any(y >= 0, axis=0).astype(s.dtype)
    active = active / jnp.maximum(jnp.sum(active), 1)

    def cut(ab: Float[Array, "raters 2"], shift: float = 0.0) -> Float[Array, "u"]:
        """P(most raters say yes) by degree; the mean of this panel, off by `shift` errors, is that of a sample."""
        p, share = yes(ab, fine), jnp.sum(active**2)
        mean = active @ p
        rise = (active @ (ab[:, 1:] * p * (1 - p))) * (fine[1] - fine[0])
        error = (active @ (p - mean[None]) ** 2) * share / jnp.maximum(1 - share, share) + rise**2 / 12
        return jax.scipy.stats.norm.cdf((mean - 0.5) / jnp.sqrt(error + 1e-6) + shift)

    def rates(ab: Float[Array, "raters 2"], slope: Float[Array, ""], shift: float = 0.0) -> Float[Array, "raters 2"]:
        mass = seen @ jnp.exp(log_prior(slope, fine)) / jnp.maximum(jnp.sum(seen), 1)
        present, p = cut(ab, shift), yes(ab, fine)
        absent, present = mass * (1 - present) + 1e-9, mass * present + 1e-9
        return jnp.stack([p @ absent / jnp.sum(absent), (1 - p) @ present / jnp.sum(present)], 1)

    post, likelihood = expect(ab, slope, fine)
    p = yes(ab, fine)
    by_a, by_b = given - known * (post @ p.T), given * (post @ fine)[:, None] - known * (post @ (fine[None] * p).T)
    by_slope = (seen * s * (post @ fine - slope * s))[:, None]
    score = jnp.concatenate([jnp.stack([by_a, by_b], 2).reshape(len(s), -1), by_slope], 1)
    held = jnp.concatenate([jnp.tile(mean_weight, raters), jnp.ones(1, s.dtype)])
    covariance = jnp.linalg.inv(score.T @ score + jnp.diag(held))
    to_ab, to_slope = jax.jacobian(rates, argnums=(0, 1))(ab, slope)
    change = jnp.concatenate([to_ab.reshape(2 * raters, -1), to_slope.reshape(2 * raters, 1)], 1)
    variance = jnp.sum((change @ covariance) * change, axis=1).reshape(raters, 2)
    # Other raters would draw the line elsewhere: Student's t of as many raters, as a multiple of the normal at 95 %.
    freedom = jnp.maximum(1 / jnp.maximum(jnp.sum(active**2), 1e-6) - 1, 1)
    student = 1 + 1 / freedom + 2.8 / freedom**2
    variance += (student * (rates(ab, slope, 1.0) - rates(ab, slope, -1.0)) / 2) ** 2
    found = jnp.clip(rates(ab, slope), 1e-6, 1 - 1e-6)
    return Graded(post @ cut(ab), post @ (active @ p), found, variance, slope, likelihood, _gain(post, p, cut(ab)))


def _gain(
    post: Float[Array, "n u"], yes: Float[Array, "raters u"], clean: Float[Array, "u"]
) -> Float[Array, "n raters"]:
    """Mutual information of a rater's answer and the clean label, bits; `yes`, `clean` are P(1) by latent value."""

    def surprise(p: Array) -> Array:
        return -p * jnp.log2(jnp.maximum(p, 1e-12))

    present, agreed = (post @ clean)[:, None], post @ yes.T
    both = post @ (yes * clean[None]).T
    answers = surprise(agreed) + surprise(1 - agreed) + surprise(present) + surprise(1 - present)
    together = [both, agreed - both, present - both, 1 - agreed - present + both]
    return jnp.maximum(answers - sum(map(surprise, together)), 0)
