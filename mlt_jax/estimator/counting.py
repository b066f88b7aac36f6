"""Noise that prefers ambiguous examples: rates by counting, with what real annotators taught.

Where people miss and confuse the doubtful examples, the rates at the ends of the score are far below the rates overall,
and no curve can read them off. What can be counted is how often the given label contradicts a confident score: among
examples whose P(given = 1) is at least its mean over the given positives (`misses`), and among the lower ranks when as
many examples are called positive as were given (`extras`). How these counts relate to the rates, and P(wrong) to the
score, was fitted to five sets with real noisy labels and better ones beside them (people's emotion labels twice, words
of captions, user tags, report-mined X-ray findings); `experiments/real_noise.py` repeats the comparison, and
docs/results.md says how the rule fares on a set that it was not fitted to.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mlt_jax.estimator.curves import Bins, Curve

# logit rho_pos = 0.63 logit misses - 0.4 logit P(given = 1) + 0.2 logit ceiling - 0.94: rare labels are missed more.
_MISSES, _FREQUENCY, _CEILING, _POS = 0.63, -0.4, 0.2, -0.94
_LEAST_CEILING = 0.02
# logit rho_neg = 1.34 logit extras + 0.41.
_EXTRAS, _NEG = 1.34, 0.41
# Standard deviation of the rules' errors on the real sets, of arcsin sqrt rate: rho_neg, rho_pos. Its slope in
# -logit P(given = 1): rare labels have the least certain rho_pos, and the most certain rho_neg.
_SPREAD, _SPREAD_SLOPE = np.array([0.064, 0.17]), np.array([-0.006, 0.02])
# An interval that nearly reaches 0 does so where the curve allows 0: up to this multiple of its spread.
_STRETCH = 1.5
# P(wrong): coefficients of (logit disagreement, logit base rate, logit P(given = 1), 1) for given 0 and given 1.
_WRONG = np.array([[0.73, 0.65, -0.72, -0.42], [0.53, 0.72, 0.37, 0.26]])
# Weight of the disagreement itself beside the fitted P(wrong): a set of another kind is then never ranked much worse.
_OWN = 0.35


class Counted(NamedTuple):
    """Rates by counting, a row per class."""

    rates: Float[np.ndarray, "q 2"]  # rho_neg, rho_pos
    stderr: Float[np.ndarray, "q 2"]  # for intervals of arcsin sqrt rate, see `TransitionEstimate.interval`


def _logit(p: np.ndarray, least: float = 1e-6) -> np.ndarray:
    p = np.clip(p, least, 1 - least)
    return np.log(p) - np.log1p(-p)


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


class Signs(NamedTuple):
    """What is counted of each class, and what its rates are read from."""

    misses: Float[np.ndarray, "q"]  # share not given among the confident
    extras: Float[np.ndarray, "q"]  # share given among the lower ranks
    frequency: Float[np.ndarray, "q"]  # P(given = 1)
    ceiling: Float[np.ndarray, "q"]  # rho_pos by the curve


def count_signs(curve: Curve, bins: Bins) -> Signs:
    """Counts how often the given label contradicts a confident score."""
    positives, total = (np.asarray(v, float) for v in (bins.positives, bins.total))
    given = np.asarray(curve.given, float)
    size = np.maximum(total.sum(1), 1)
    frequency = np.clip(positives.sum(1) / size, 0.5 / size, 1 - 0.5 / size)
    sure = (total * given**2).sum(1) / np.maximum((total * given).sum(1), 1e-9)
    top = total * (given >= sure[:, None])
    misses = (top * (1 - given)).sum(1) / np.maximum(top.sum(1), 1e-9)
    before = np.cumsum(total, axis=1) - total
    lower = np.clip((1 - frequency)[:, None] * size[:, None] - before, 0, total)  # of tied scores, a part
    extras = (lower * given).sum(1) / np.maximum(lower.sum(1), 1e-9)
    return Signs(misses, extras, frequency, np.maximum(curve.rates[:, 1], _LEAST_CEILING))


def count_rates(curve: Curve, bins: Bins) -> Counted:
    """Rates of all classes from the fitted P(given = 1), with intervals as wide as the rule's errors on real sets."""
    misses, extras, frequency, ceiling = count_signs(curve, bins)
    rho_pos = _sigmoid(_MISSES * _logit(misses) + _FREQUENCY * _logit(frequency) + _CEILING * _logit(ceiling) + _POS)
    rates = np.stack([_sigmoid(_EXTRAS * _logit(extras) + _NEG), rho_pos], axis=1)
    positives = np.asarray(bins.positives, float).sum(1)
    counts = np.stack([np.asarray(bins.total, float).sum(1) - positives, positives], axis=1)
    rule = np.maximum(_SPREAD - _SPREAD_SLOPE * _logit(frequency)[:, None], 0.02)
    spread = np.sqrt(rule**2 + 1 / (4 * np.maximum(counts, 1)))
    reach = np.arcsin(np.sqrt(rates)) / 1.95
    open_end = (curve.rates <= 1.96 * curve.stderr) & (reach <= _STRETCH * spread)
    spread = np.where(open_end, np.maximum(spread, reach), spread)
    return Counted(rates, 2 * spread * np.sqrt(rates * (1 - rates)))


def counted_wrong(
    given_probs: Float[np.ndarray, "n q"], labels: np.ndarray, rates: Float[np.ndarray, "q 2"], frequency: np.ndarray
) -> Float[np.ndarray, "n q"]:
    """P(given label is wrong) where noise prefers ambiguous examples.

    Args:
      given_probs: P(given = 1 | score), calibrated.
      labels: (n, q) given 0/1 labels.
      rates: (rho_neg, rho_pos) of each class.
      frequency: (q,) P(given = 1).
    """
    frequency = np.clip(np.asarray(frequency, float), 1e-4, 1 - 1e-4)
    base = base_rates(rates, frequency)
    y = np.asarray(labels) == 1
    against = np.where(y, 1 - given_probs, given_probs)
    coefficients = _WRONG[:, :, None]
    constant = coefficients[:, 1] * _logit(base) + coefficients[:, 2] * _logit(frequency) + coefficients[:, 3]
    z = np.where(y, _WRONG[1, 0], _WRONG[0, 0]) * _logit(against, 1e-4) + np.where(y, constant[1], constant[0])
    return (1 - _OWN) * _sigmoid(z) + _OWN * against


def base_rates(rates: Float[np.ndarray, "q 2"], frequency: np.ndarray) -> Float[np.ndarray, "2 q"]:
    """P(wrong) of the labels given as 0 and of those given as 1 of each class, from its rates."""
    rho_neg, rho_pos = np.asarray(rates, float).T
    frequency = np.clip(np.asarray(frequency, float), 1e-4, 1 - 1e-4)
    prior = np.clip((frequency - rho_neg) / np.maximum(1 - rho_neg - rho_pos, 0.02), 0.05 * frequency, 0.95)
    absent, present = rho_pos * prior / (1 - frequency), rho_neg * (1 - prior) / frequency
    return np.stack([np.clip(absent, 1e-4, 0.9), np.clip(present, 0.005, 0.97)])
