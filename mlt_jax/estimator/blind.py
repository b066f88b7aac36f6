"""Noise rates from labels and out-of-sample scores alone, whichever kind of noise it is.

Two models are fitted. *Class-dependent* noise leaves plateaus: P(given = 1 | score) levels off at rho_neg and at
1 - rho_pos, and `estimator.curves` reads both. Noise that prefers *ambiguous* examples leaves none, and
`estimator.counting` counts contradictions instead. No likelihood can decide between them where the ends of the score
are not pure. What tells them apart is how much of the label's uncertainty the plateaus explain, over all classes
(`plateau_weight`): nearly all of it on simulated class-dependent noise, next to nothing on real labels. Labels that are
*swapped* for others leave traces of their own (`estimator.assumption`): where most classes show them, the curve is read
too, and rho_neg is at least what the swaps make.

Rates of several classes are shrunk towards each other under the class-dependent model (empirical Bayes): they are
modelled as draws from a common distribution whose variance is estimated, so rates that differ beyond their errors stay
apart.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32

from mlt_jax.arguments import check_choice, check_switch
from mlt_jax.estimator.assumption import Swaps, find_swaps, likely_cells
from mlt_jax.estimator.counting import count_rates
from mlt_jax.estimator.curves import Bins, Curve, fit_curves
from mlt_jax.estimator.evidence import Evidence, judge, score_blocks
from mlt_jax.labels import as_labels, as_matrix
from mlt_jax.transition import Status, TransitionEstimate, as_matrices, check_assume, implied_prior

RULES = ("auto", "curve", "count")
# Least standard deviation of the rates over classes: part of their errors is common and does not show in their spread.
_LEAST_SPREAD = 0.01
# Least standard error of a rate, and its part in proportion to the rate: the curve is only approximately right.
_LEAST_ERROR, _PROPORTIONAL, _INFLATION = 0.005, np.array([0.015, 0.05]), 1.3
# How much of the spread of the rates over classes may be due to classes whose best scores are not pure.
_DOUBTED = np.array([0.0, 0.5])
# A class whose own evidence weighs less than this beside that of the others has status SHARED.
_OWN_EVIDENCE = 0.1
# Where the weight of the class-dependent model is one half, and how steeply it changes there (see `plateau_weight`).
_PLATEAU, _STEEPNESS = 0.13, 8
# Standard errors of both rates where labels are swapped, in proportion.
_SWAP_ERROR = 0.4
# Rates of a side that count as none in `side_test`: real labels are never quite clean, nor the curve quite right.
_NEGLIGIBLE = (0.005, 0.02)


class SideTest(NamedTuple):
    """P-values of two hypotheses: about no given positive is wrong (rho_neg), about no given negative is (rho_pos)."""

    by_class: Float[np.ndarray, "q 2"]  # NaN where the rates are not identifiable
    overall: Float[np.ndarray, "2"]  # of all identifiable classes together; NaN if there are none


def estimate_from_scores(
    scores: Any,
    labels: Any,
    *,
    rule: str = "auto",
    assume: str = "general",
    share: bool = True,
    observed: Any = None,
    coding: str = "01",
) -> TransitionEstimate:
    """Transition matrices of all classes from out-of-sample scores, with standard errors.

    Args:
      scores: (n, q), larger for more probable labels, by a model that never saw the example's labels. Only their order
        within a class is used.
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
      rule: `"curve"` where you know that noise depends on the class alone, `"count"` where you know that it prefers
        ambiguous examples, `"auto"` to let the data decide.
      assume: `"missing"` (rho_neg = 0) or `"partial"` (rho_pos = 0) where that is known.
      share: shrink the rates of the classes towards each other where at least 4 are identifiable.

    Returns:
      Estimates with one status per class.

      - `POSTERIOR`: noise looks class-dependent, or labels are swapped; the rates are the limits of the curve, with the
        swaps that were found. `SHARED` if the class's own evidence weighs less than a tenth beside that of the others.
      - `COUNTED`: no plateaus, the rates are counted; intervals are as wide as that rule's errors on real sets.
      - `TOO_FEW` with fewer than 10 given positives or negatives, `UNIDENTIFIABLE` where the scores do not predict the
        labels (5 % false discoveries over the classes). In these T has the mean rates of the other classes, or is the
        identity if there are none, and the errors are so large that intervals are [0, 1].

      `residual` is the misfit of the curve; `partners` is 0.
    """
    check_assume(assume)
    check_choice("rule", rule, RULES, ", ".join(map(repr, RULES)))
    check_switch("share", share)
    checked = as_labels(labels, coding=coding, observed=observed)
    whole = [as_matrix(scores, checked, name="scores")]
    return estimate_from_blocks(whole, checked, rule=rule, assume=assume, share=share)


def estimate_from_blocks(
    blocks: Iterable[Float32[np.ndarray, "n _"]],
    labels: Any,
    *,
    rule: str = "auto",
    assume: str = "general",
    share: bool = True,
) -> TransitionEstimate:
    """`estimate_from_scores` where the scores of all classes do not fit into memory.

    Args:
      blocks: the columns of the scores in order, some classes at a time, such as `crossfit.logit_blocks`.
      labels: what `evidence.as_columns` returns; the rest is as in `estimate_from_scores`.
    """
    free = np.array([assume != "missing", assume != "partial"])
    auto, swaps = rule == "auto", None
    evidence, curve, likely = _fit_blocks(blocks, labels, assume, find_likely=auto and bool(free.all()))
    found = evidence.identifiable
    if likely is not None:
        swaps = find_swaps(likely, labels, evidence, curve)
    plateaus = plateau_weight(curve, evidence.bins, found) if auto and swaps is None else 1.0
    weight = 0.0 if rule == "count" else plateaus
    stderr = np.where(free, np.maximum(curve.stderr, _LEAST_ERROR), 0)
    own = np.ones_like(stderr)
    rates = np.asarray(curve.rates, float)
    if share and found.sum() >= 4:
        rates, stderr, own, spread = _shrink(rates, np.where(free, stderr, 1), found)
        stderr = np.hypot(stderr, _DOUBTED * np.maximum(spread - _LEAST_SPREAD, 0))
        rates, stderr = np.where(free, np.clip(rates, 0, None), 0), np.where(free, stderr, 0)
    stderr = np.hypot(_INFLATION * np.minimum(stderr, 0.3), _PROPORTIONAL * rates)
    if swaps is not None:
        rho_neg, error = _swapped(rates, evidence.frequency, swaps)
        stderr = np.hypot(stderr, np.stack([error, _SWAP_ERROR * rates[:, 1]], axis=1))
        rates[:, 0] = np.maximum(rates[:, 0], rho_neg)
    counted = count_rates(curve, evidence.bins)
    rates = np.where(free, weight * rates + (1 - weight) * counted.rates, 0)
    stderr = np.where(free, weight * stderr + (1 - weight) * counted.stderr, 0)
    guess = rates[found].mean(0) if found.any() else np.zeros(2)
    rates, stderr = (
        np.where(found[:, None], v, other) for v, other in ((rates, guess), (stderr, np.where(free, 1, 0)))
    )
    rates /= np.maximum(1, rates.sum(1, keepdims=True) / 0.99)
    T = as_matrices(jnp.asarray(rates, evidence.bins.rank.dtype))
    shared = (own < _OWN_EVIDENCE)[:, free].all(1)
    status = np.where(weight < 0.5, Status.COUNTED, np.where(shared, Status.SHARED, Status.POSTERIOR))
    status = np.where(evidence.enough, np.where(found, status, Status.UNIDENTIFIABLE), Status.TOO_FEW)
    return TransitionEstimate(
        T=T,
        prior=implied_prior(T, jnp.asarray(evidence.frequency, T.dtype)),
        stderr=jnp.asarray(stderr, T.dtype),
        status=jnp.asarray(status, jnp.int32),
        partners=jnp.zeros(len(T), jnp.int32),
        residual=jnp.asarray(np.where(found, curve.misfit, 0), T.dtype),
    )


def _fit_blocks(
    blocks: Iterable[Float32[np.ndarray, "n _"]], labels: Any, assume: str, *, find_likely: bool
) -> tuple[Evidence, Curve, Any]:
    """Evidence and curves of all classes, and `likely_cells` if asked for: what is left of scores seen once."""
    bins, curves, likely = [], [], []
    for block in score_blocks(blocks, labels):
        bins.append(block.bins())
        curves.append(fit_curves(bins[-1], assume))
        if find_likely:
            likely.append(likely_cells(block, curves[-1].clean))
    joined = Bins(*(jnp.concatenate(x) for x in zip(*bins, strict=True)))
    curve = Curve(*(np.concatenate(x) for x in zip(*curves, strict=True)))
    if not find_likely:
        return judge(joined), curve, None
    from scipy.sparse import hstack  # only needed where swaps are looked for

    return judge(joined), curve, hstack(likely, format="csc")


def plateau_weight(curve: Curve, bins: Bins, identifiable: Bool[np.ndarray, "q"]) -> float:
    """The weight of the class-dependent model, 0 to 1, from all identifiable classes together.

    If nothing but the score's uncertainty made labels differ, a second draw of a label would contradict a clean one at
    the rates E[g (1 - g)] / E[1 - g] and E[g (1 - g)] / E[g] with g = P(given = 1 | score). The curve's limits are
    compared with these: `floor` and `ceiling`, the shares that plateaus explain, medians over the classes. A ceiling
    counts as far as the score decides the clean label (`purity`), since a weak score reaches no plateau. The weight is
    one half where floor^2 + ceiling purity^2 is 0.13: it is below 0.09 on the five real sets, from 0.19 on under
    class-dependent noise of the paper's settings.
    """
    if not identifiable.any():
        return 0.0
    total, g, c = (np.asarray(v, float)[identifiable] for v in (bins.total, curve.given, curve.clean))
    doubt = (total * g * (1 - g)).sum(1)
    floor, ceiling = (
        float(np.median(rate * (total * mass).sum(1) / np.maximum(doubt, 1e-9)))
        for rate, mass in zip(curve.rates[identifiable].T, (1 - g, g), strict=True)
    )
    purity = float(np.mean((total * c**2).sum(1) / np.maximum((total * c).sum(1), 1e-9)))
    evidence = min(floor, 1) ** 2 + min(ceiling, 1) * purity**2
    return 1 / (1 + (_PLATEAU / max(evidence, 1e-9)) ** _STEEPNESS)


def side_test(scores: Any, labels: Any, *, observed: Any = None, coding: str = "01") -> SideTest:
    """P-values of next to no noise on a side, from out-of-sample scores; arguments as in `estimate_from_scores`."""
    checked = as_labels(labels, coding=coding, observed=observed)
    return side_test_from_blocks([as_matrix(scores, checked, name="scores")], checked)


def side_test_from_blocks(blocks: Iterable[Float32[np.ndarray, "n _"]], labels: Any) -> SideTest:
    """`side_test`; arguments as in `estimate_from_blocks`.

    The hypotheses are rho_neg at most 0.005 and rho_pos at most 0.02.

    Likelihood-ratio tests of a parameter on its bound: under the hypothesis the statistic is 0 with probability 1/2 and
    else chi-square with 1 degree of freedom. It is divided by the misfit of the curve where that is above 1. `overall`
    tests the sum over the classes. The curve is only approximately right, so call a side noisy below 0.001 rather
    than below 0.05. What is tested is the limit at the end of the score: noise that spares the clear examples does not
    show.

    References:
      Self and Liang, "Asymptotic properties of maximum likelihood estimators ... under nonstandard conditions", 1987.
    """
    from scipy.stats import binom, chi2, norm  # slow to import, and only needed here

    evidence, free, _ = _fit_blocks(blocks, labels, "general", find_likely=False)
    held = [fit_curves(evidence.bins, *side) for side in zip(("missing", "partial"), _NEGLIGIBLE, strict=True)]
    lost = np.stack([2 * (free.likelihood - one.likelihood) for one in held], axis=1).astype(float)
    lost = np.where(free.rates > _NEGLIGIBLE, np.maximum(lost, 0) / np.maximum(free.misfit, 1)[:, None], 0)
    found = evidence.identifiable
    p = np.where(lost > 0, norm.sf(np.sqrt(lost)), 1)
    m = int(found.sum())
    freedom = np.arange(1, m + 1)[:, None]
    overall = (binom.pmf(freedom, m, 0.5) * chi2.sf(lost[found].sum(0), freedom)).sum(0)
    return SideTest(np.where(found[:, None], p, np.nan), overall if m else np.full(2, np.nan))


def _swapped(rates: np.ndarray, frequency: np.ndarray, swaps: Swaps) -> tuple[np.ndarray, np.ndarray]:
    """rho_neg by the swaps alone, and its error. Scores that see the partner keep swaps out of the curve's lower end.

    Missed labels whose partner the test did not find may have gone to any class; the error holds their mean.
    """
    prior = np.clip((frequency - rates[:, 0]) / np.maximum(1 - rates.sum(1), 0.05), 0, 0.99)
    missed, received = prior * rates[:, 1], np.zeros(len(prior))
    np.add.at(received, swaps.partner, missed[:, None] * swaps.share)
    elsewhere = (missed * np.clip(1 - swaps.share.sum(1), 0, 1)).mean()
    return received / (1 - prior), np.hypot(_SWAP_ERROR * received, elsewhere) / (1 - prior)


def _shrink(rates: np.ndarray, stderr: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, ...]:
    """Posterior means, their errors, the weight of each class's own rate, and the standard deviation over classes.

    The latter is Paule and Mandel's (1982). Classes that are not `found` get the mean over the others, with weight 0.
    """
    use = found[:, None]
    variance = np.where(use, stderr**2, 1.0)

    def weighted_mean(between: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = use / (variance + between)
        return (weight * rates).sum(0) / weight.sum(0), weight

    low, high = np.zeros(2), np.ones(2)
    for _ in range(30):  # bisection for the variance between classes at which chi-square equals its expectation
        middle = (low + high) / 2
        mean, weight = weighted_mean(middle)
        wider = (weight * (rates - mean) ** 2).sum(0) > use.sum() - 1
        low, high = np.where(wider, middle, low), np.where(wider, high, middle)
    between = np.maximum(high, _LEAST_SPREAD**2)
    mean, weight = weighted_mean(between)
    shrinkage = np.where(use, variance / (variance + between), 1.0)
    posterior = np.where(use, (1 - shrinkage) * variance, between)
    error = np.sqrt(posterior + shrinkage**2 / weight.sum(0))
    return shrinkage * mean + (1 - shrinkage) * rates, error, 1 - shrinkage, np.sqrt(between)
