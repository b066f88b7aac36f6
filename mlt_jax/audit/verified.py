"""Noise rates from labels that people have re-checked: valid whatever the noise is, not only where it is by class.

Cells are drawn with known probabilities and decided. A decided cell stands for 1 / probability cells, so the wrong
labels among those given and among those not given are weighted counts, and the rates are ratios of them:

    rho_neg = false / (absent cells not given + false),    rho_pos = missed / (given and right + missed)

Counts are small, so their uncertainty is Clopper and Pearson's with the effective counts of a weighted sample (Korn and
Graubard), half-way between its two ends (mid-p), and one more unseen mistake is thought to have the weight that a model
of the decisions expects (Fay and Feuer take the largest weight). Pairs drawn from both counts give the intervals of the
rates. The point estimates are pulled towards the other classes as far as the decisions allow; the intervals are not.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit, logit, ndtri, stdtrit

from mlt_jax.arguments import check_number, check_seed
from mlt_jax.audit.propose import Decisions, check_decisions, read_inputs
from mlt_jax.labels import Labels, as_labels, as_matrix
from mlt_jax.transition import Status, TransitionEstimate, as_matrices

FEWEST = 5  # decisions on given and on other cells of a class, for its own rates
_DRAWS, _FOLDS, _STEPS = 4000, 5, 25
_FACTORS = (2.0, 3.0, 4.0, 5.0, 8.0, 12.0, 20.0, 32.0)


class _Prior(NamedTuple):
    """Normal priors of a `_Model`: means of intercept and slope, standard deviations of both and of class effects."""

    mean: tuple[float, float]
    spread: tuple[float, float]
    of_class: float


# A model of the score alone, and one that corrects P(wrong) as it was before the decisions: narrow, as decisions on
# suspicious cells say little about the others.
_FREE, _ANCHORED = _Prior((-2.0, 1.0), (10.0, 1.0), 1.0), _Prior((0.0, 1.0), (0.5, 0.25), 0.5)


class Verified(NamedTuple):
    """What decisions tell about all labels."""

    found: TransitionEstimate  # status `VERIFIED`, or `TOO_FEW`: rates by the model of the decisions, interval [0, 1]
    interval: Float[np.ndarray, "q 2 2"]  # `[j, rate, end]` of rho_neg and rho_pos, 95 % unless told otherwise
    share: float  # of all labels that is wrong
    share_interval: Float[np.ndarray, "2"]
    wrong: Float[np.ndarray, "n q"]  # P(given label is wrong), by the decisions; 0 or 1 where decided
    decided: Int[np.ndarray, "q 2"]  # decisions used for rates, on cells not given and given
    more: Int[np.ndarray, "q 2"]  # further decisions on the class that would halve each interval
    share_more: int  # further decisions overall that would halve the interval of the share


def verified(
    labels: Any,
    scores: Any,
    decisions: Decisions,
    *,
    wrong: Any = None,
    level: int | float = 0.95,
    observed: Any = None,
    coding: str = "01",
    seed: int = 0,
) -> Verified:
    """Noise rates, the share of wrong labels and P(wrong), with intervals that assume nothing about the noise.

    The share of wrong labels is the mean of a model of the decisions (a logistic regression on the score, cross-fitted)
    plus the weighted mean of what it misses, the model weighted for least variance. A class needs 5 decisions on given
    labels and 5 on others, or all there are.

    Args:
      labels, observed, coding: (n, q), see `as_labels`.
      scores: (n, q) out-of-sample logits of P(label = 1).
      decisions: see `Decisions`; `Proposal.decide` makes them. Cells that were proposed but not decided belong to them.
      wrong: (n, q) P(given label is wrong) before the decisions, such as `Audit.wrong`: P(wrong) is then that of
        `recalibrate`, which ranks better than the score and the decisions alone. Rates and intervals do not use it.
      level: of the intervals.
      seed: of folds and draws.

    Raises:
      ValueError: the decisions do not stand for all labels, as the most suspicious cells alone (see `refusal`).

    References:
      Angelopoulos et al., "PPI++: efficient prediction-powered inference", 2023.
      Zrnic and Candès, "Active statistical inference", ICML 2024; "Cross-prediction-powered inference", PNAS 2024.
      Korn and Graubard, "Confidence intervals for proportions with small expected number of positive counts estimated
      from survey data", Survey Methodology 1998.
      Fay and Feuer, "Confidence intervals for directly standardized rates", Statistics in Medicine 1997.
    """
    checked, s, known = read_inputs(labels, scores, observed, coding)
    cells = check_decisions(decisions, checked, known)
    check_number("level", level, lambda x: 0 < x < 1, "a number between 0 and 1")
    check_seed(seed)
    if reason := refusal(checked, cells):
        raise ValueError(f"decisions: {reason}")
    proposed, every = cells, Decisions(*(part[cells.label >= 0] for part in cells))
    before = None if wrong is None else as_matrix(wrong, checked, name="wrong", low=0, high=1)
    wrong = _fit(s, checked.values, every, np.ones(len(every.label), bool)).predict(s, checked.values) * known
    cells = Decisions(*(part[np.isfinite(every.probability)] for part in every))
    share, share_interval, share_more = _overall(s, checked.values, known, cells, level, seed)
    counts = _count(checked.values, known, proposed, cells, wrong)
    rng = np.random.default_rng(seed)
    draws = _rates(counts, rng)
    interval = _ends(draws, level)
    few = np.asarray(~counts.enough.all(axis=1) | (counts.size.sum(axis=1) == 0))
    interval[few] = [0, 1]
    expected = np.stack([(wrong * known * (checked.values == side)).sum(axis=0) for side in (0, 1)], axis=1)
    fallback = _ratios(expected[..., None], counts.size)[..., 0]
    rates = np.where(few[:, None], fallback, _shrunk(draws, ~few))
    rates = np.clip(rates, interval[..., 0], interval[..., 1])
    found = TransitionEstimate(
        T=as_matrices(jnp.asarray(rates, jnp.float32)),
        prior=jnp.asarray(_prior(np.where(few[:, None], expected, counts.wrong), counts.size), jnp.float32),
        stderr=jnp.asarray(np.where(few[:, None], np.nan, draws.std(axis=2)), jnp.float32),
        status=jnp.where(jnp.asarray(few), int(Status.TOO_FEW), int(Status.VERIFIED)).astype(jnp.int32),
        partners=jnp.zeros(len(few), jnp.int32),
        residual=jnp.zeros(len(few), jnp.float32),
    )
    decided = counts.decided
    more = _halving(counts, interval, few, level, rng)
    ranked = _known(wrong, checked, every) if before is None else _corrected(before, checked, known, every)
    return Verified(found, interval, share, share_interval, ranked, decided, more, share_more)


def recalibrate(
    labels: Any, wrong: Any, decisions: Decisions, *, observed: Any = None, coding: str = "01"
) -> Float[np.ndarray, "n q"]:
    """P(given label is wrong) of every cell, (n, q), by any decisions: those on the most suspicious cells do as well.

    A logistic correction of P(wrong), one for given labels and one for the others, with an effect of each class. All
    of it is pulled to no correction, so that few decisions change little. Decided cells have 0 or 1, cells that are
    not labelled 0.

    Args:
      labels, observed, coding: (n, q), see `as_labels`.
      wrong: (n, q) P(given label is wrong) before the decisions, such as `Audit.wrong`.
      decisions: see `Decisions`.

    Raises:
      ValueError: nothing is decided, or an argument is not as described.
    """
    checked = as_labels(labels, observed=observed, coding=coding)
    before = as_matrix(wrong, checked, name="wrong", low=0, high=1)
    known = np.ones(before.shape, bool) if checked.observed is None else checked.observed
    cells = check_decisions(decisions, checked, known)
    cells = Decisions(*(part[cells.label >= 0] for part in cells))
    if not len(cells.label):
        raise ValueError("decisions: none is decided; decide some cells first")
    return _corrected(before, checked, known, cells)


def _corrected(
    before: Float[np.ndarray, "n q"], labels: Labels, known: Bool[np.ndarray, "n q"], cells: Decisions
) -> Float[np.ndarray, "n q"]:
    """`recalibrate` by decisions of which none is open."""
    odds = logit(np.clip(before.astype(float), 1e-4, 1 - 1e-4))
    s = np.where(labels.values == 1, -odds, odds)  # as a score: towards the label 1
    model = _fit(s, labels.values, cells, np.ones(len(cells.label), bool), _ANCHORED)
    return _known(model.predict(s, labels.values) * known, labels, cells)


def refusal(labels: Any, decisions: Decisions) -> str | None:
    """Why rates cannot be read from these decisions; None where they can.

    A cell drawn with probability p stands for 1 / p cells. Decisions from which rates follow stand for all labels,
    about; the most suspicious cells alone stand for themselves, and would make every label look wrong.
    """
    checked = as_labels(labels)
    drawn = np.isfinite(decisions.probability)
    known = checked.values.size if checked.observed is None else int(checked.observed.sum())
    if not (decisions.label[drawn] >= 0).any():
        return (
            "no decision has the probability with which its cell was proposed, so the decisions may be on suspicious "
            "cells alone; decide cells of propose_cells (mlt audit --propose). They serve the ranking"
        )
    stand = (1 / decisions.probability[drawn]).sum()
    if not known / 2 <= stand <= 2 * known:
        return (
            f"{int(drawn.sum())} proposed cells stand for {stand:,.0f} of {known:,} labels, as the most suspicious "
            "cells alone do; decide cells of one propose_cells (mlt audit --propose). They serve the ranking"
        )
    return None


class _Model(NamedTuple):
    """logit P(wrong) = intercept + slope * score towards the other label + effect of the class, by given label."""

    intercept: Float[np.ndarray, "2"]
    slope: Float[np.ndarray, "2"]
    effect: Float[np.ndarray, "2 q"]

    def predict(self, s: Any, given: Any, column: Any = None) -> np.ndarray:
        g = given.astype(int)
        effect = self.effect[g, np.arange(s.shape[-1]) if column is None else column]
        return expit(self.intercept[g] + self.slope[g] * np.where(given == 1, -s, s) + effect)


class _Counts(NamedTuple):
    """Weighted mistakes of q classes by given label, as effective counts; index 1: not given, given."""

    size: Int[np.ndarray, "q 2"]  # labelled cells
    decided: Int[np.ndarray, "q 2"]
    seen: Int[np.ndarray, "q 2"]  # decided to be wrong
    unseen: Float[np.ndarray, "q 2"]  # estimated wrong among the undecided
    variance: Float[np.ndarray, "q 2"]
    weight: Float[np.ndarray, "q 2"]  # that one more mistake would have
    enough: Bool[np.ndarray, "q 2"]

    @property
    def wrong(self) -> Float[np.ndarray, "q 2"]:
        return self.seen + self.unseen


def _fit(s: np.ndarray, labels: np.ndarray, cells: Decisions, use: np.ndarray, prior: _Prior = _FREE) -> _Model:
    """The model of the decisions in `use`, by penalised maximum likelihood, each given label apart."""
    q = s.shape[1]
    given, x = labels[cells.example, cells.column], s[cells.example, cells.column]
    mistaken = cells.label != given
    parts = []
    for side in (0, 1):
        member = use & (given == side)
        column, y = cells.column[member], mistaken[member].astype(float)
        inputs = np.stack([np.ones(member.sum()), np.where(side, -1, 1) * x[member]], axis=1)
        t, effect = np.array([0.0, 1.0]), np.zeros(q)
        center, penalty = np.array(prior.mean), np.array(prior.spread) ** -2
        for _ in range(_STEPS):
            p = expit(inputs @ t + effect[column])
            curvature = np.maximum(p * (1 - p), 1e-6)
            gradient = inputs.T @ (y - p) - penalty * (t - center)
            of_class = np.bincount(column, y - p, q) - effect / prior.of_class**2
            diagonal = np.bincount(column, curvature, q) + prior.of_class**-2
            cross = np.stack([np.bincount(column, curvature * inputs[:, k], q) for k in (0, 1)])
            hessian = inputs.T @ (curvature[:, None] * inputs) + np.diag(penalty)
            # Class effects are eliminated first: their block is diagonal.
            step = np.linalg.solve(hessian - (cross / diagonal) @ cross.T, gradient - (cross / diagonal) @ of_class)
            step = np.clip(step, -2, 2)
            t, effect = t + step, effect + np.clip((of_class - step @ cross) / diagonal, -2, 2)
        parts.append((t, effect))
    (intercept, slope), effects = np.stack([t for t, _ in parts], axis=1), np.stack([effect for _, effect in parts])
    return _Model(intercept, slope, effects)


def _known(wrong: np.ndarray, labels: Labels, cells: Decisions) -> np.ndarray:
    wrong[cells.example, cells.column] = cells.label != labels.values[cells.example, cells.column]
    return wrong.astype(np.float32)


def _overall(
    s: np.ndarray, labels: np.ndarray, known: np.ndarray, cells: Decisions, level: int | float, seed: int
) -> tuple[float, np.ndarray, int]:
    """Share of wrong labels, its interval, and how many more decisions halve it."""
    m, total = len(cells.label), int(known.sum())
    given = labels[cells.example, cells.column]
    mistaken = (cells.label != given).astype(float)
    weight = 1 / cells.probability
    side = given if np.bincount(given, minlength=2).min() >= FEWEST else np.zeros(m, int)
    size = np.bincount(labels[known] if side is given else np.zeros(total, int), minlength=2)
    weight = np.maximum(weight * (size / np.maximum(np.bincount(side, weight, 2), 1e-30))[side], 1)
    fold = np.random.default_rng(seed).permutation(m) % _FOLDS
    predicted, mean = np.zeros(m), 0.0
    for k in range(_FOLDS):
        model = _fit(s, labels, cells, fold != k)
        out = fold == k
        predicted[out] = model.predict(s[cells.example, cells.column][out], given[out], cells.column[out])
        mean += (model.predict(s, labels) * known).sum() / total / _FOLDS
    # Cells of one probability are a stratum: what is alike in it does not vary.
    stratum = np.unique(np.stack([given, np.round(cells.probability, 9)]), axis=1, return_inverse=True)[1].ravel()

    count = np.bincount(stratum)
    freedom = np.maximum(count - 1, 1)

    def spread(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Covariances of two weighted sums by stratum; a cell alone in its stratum is compared with all others."""
        means = [np.where(count > 1, np.bincount(stratum, v) / count, np.average(v, weights=weight)) for v in (a, b)]
        product = (a - means[0][stratum]) * (b - means[1][stratum])
        return np.bincount(stratum, weight * (weight - 1) * product) * count / freedom

    power = np.clip(spread(mistaken, predicted).sum() / max(spread(predicted, predicted).sum(), 1e-30), 0, 1)
    rest = mistaken - power * predicted
    share = float(np.clip(power * mean + (weight * rest).sum() / total, 0, 1))
    seen = int(mistaken.sum())
    # Strata that happen to show no mistake would look certain: never less than the model expects.
    by_stratum, modelled = spread(rest, rest), float((weight * (weight - 1) * predicted * (1 - predicted)).sum())
    # Student's t for the degrees of freedom that the strata leave (Satterthwaite).
    degrees = by_stratum.sum() ** 2 / max((by_stratum**2 / freedom).sum(), 1e-30)
    wider = (stdtrit(max(degrees, 1), (1 + level) / 2) / ndtri((1 + level) / 2)) ** 2
    variance = max(by_stratum.sum() * wider, modelled)
    expected = float(np.average(weight, weights=weight * np.maximum(predicted, 1e-30)))
    rng = np.random.default_rng(seed)

    unseen = np.array([max(share * total - seen, 0)])
    variance /= max(1 - unseen[0] / max(total - m, 1), 0.01)  # as of independent mistakes, which `_unseen` expects

    def ends(factor: float) -> np.ndarray:
        draws = _unseen(total, m, unseen, variance, expected, factor, rng)
        return np.quantile(share + (draws - unseen) / total, [(1 - level) / 2, (1 + level) / 2]).clip(0, 1)

    interval = ends(1.0)
    half = [factor for factor in _FACTORS if np.ptp(ends(factor)) <= np.ptp(interval) / 2]
    return share, interval, min([*(int(np.ceil((factor - 1) * m)) for factor in half), total - m])


def _count(labels: np.ndarray, known: np.ndarray, proposed: Decisions, cells: Decisions, wrong: np.ndarray) -> _Counts:
    """Counts of mistakes with weights that add up to the labelled cells of each class and given label."""
    q = labels.shape[1]
    size = np.stack([(known & (labels == side)).sum(axis=0) for side in (0, 1)], axis=1)

    def add(of: Decisions, values: Any) -> np.ndarray:
        group = 2 * of.column + labels[of.example, of.column]
        return np.bincount(group, values, 2 * q).reshape(q, 2)

    given = labels[cells.example, cells.column]
    mistaken, p = cells.label != given, wrong[cells.example, cells.column]
    raw = 1 / cells.probability
    weight = np.maximum(raw * (size / np.maximum(add(cells, raw), 1e-30))[cells.column, given], 1)
    decided = add(cells, np.ones(len(raw))).astype(int)
    drawn = np.isfinite(proposed.probability)
    proposed = Decisions(*(np.asarray(part)[drawn] for part in proposed))
    stand = add(proposed, 1 / proposed.probability)
    enough = (decided >= np.minimum(FEWEST, size)) & (stand >= size / 2) & (stand <= 2 * size)
    return _Counts(
        size=size,
        decided=decided,
        seen=add(cells, mistaken).astype(int),
        unseen=add(cells, mistaken * (weight - 1)),
        variance=add(cells, mistaken * weight * (weight - 1)),
        weight=add(cells, weight * p) / np.maximum(add(cells, p), 1e-30),
        enough=enough,
    )


def _unseen(
    size: Any, decided: Any, unseen: np.ndarray, variance: Any, weight: Any, factor: float, rng: np.random.Generator
) -> Float[np.ndarray, "*groups draws"]:
    """Numbers of mistakes among now undecided cells that weighted counts allow, after `factor` times the decisions.

    Args:
      size, decided: cells in all and decided.
      unseen, variance: estimated mistakes among the undecided cells, and the variance of that for independent (Poisson)
        mistakes; that of a share p is 1 - p times as large.
      weight: that one more mistake would have.
    """
    left = np.maximum(size - decided * factor, 0)
    ratio = left / np.maximum(size - decided, 1)
    # With more decisions more of the mistakes are seen, and each stands for fewer.
    found, unseen = (1 - ratio) * unseen, ratio * unseen
    variance, weight = variance * ratio / factor, np.maximum(weight / factor, 1)
    open_share = np.maximum(weight - 1, 1e-9) / weight

    def draw(y: Any, v: Any) -> np.ndarray:
        """Mistakes, by Beta distributions of the effective numbers of mistakes and of right labels."""
        hits = np.where(v > 0, y**2 / np.maximum(v, 1e-30), 0)
        p = np.maximum(y / np.maximum(left, 1e-30), 1e-12)
        right = np.maximum(hits * (1 - p) / p + open_share, 1e-9)
        draws = rng.beta(np.where(hits > 0, hits, 1)[..., None], right[..., None], (*hits.shape, _DRAWS // 2))
        return left[..., None] * np.where(hits[..., None] > 0, draws, 0)

    # Whole mistakes: with few cells left the truth is often an end of the range.
    low = np.floor(draw(unseen, variance))
    high = np.ceil(draw(unseen + weight * open_share, variance + weight**2 * open_share))
    return found[..., None] + rng.permuted(np.concatenate([low, high], axis=-1), axis=-1)


def _ratios(mistakes: Float[np.ndarray, "q 2 draws"], size: Int[np.ndarray, "q 2"]) -> Float[np.ndarray, "q 2 draws"]:
    """rho_neg and rho_pos of numbers of missed and of false labels."""
    missed, false = mistakes[:, 0], mistakes[:, 1]
    absent, present = size[:, :1] - missed + false, size[:, 1:] - false + missed
    return np.stack([false / np.maximum(absent, 1e-9), missed / np.maximum(present, 1e-9)], axis=1).clip(0, 1)


def _rates(counts: _Counts, rng: np.random.Generator, factor: float = 1.0) -> Float[np.ndarray, "q 2 draws"]:
    unseen = _unseen(counts.size, counts.decided, counts.unseen, counts.variance, counts.weight, factor, rng)
    return _ratios(counts.seen[..., None] + unseen, counts.size)


def _ends(draws: Float[np.ndarray, "q 2 draws"], level: int | float) -> Float[np.ndarray, "q 2 2"]:
    return np.moveaxis(np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=2), 0, 2)


def _prior(wrong: Float[np.ndarray, "q 2"], size: Int[np.ndarray, "q 2"]) -> Float[np.ndarray, "q"]:
    return (size[:, 1] - wrong[:, 1] + wrong[:, 0]).clip(0) / np.maximum(size.sum(axis=1), 1)


def _shrunk(draws: Float[np.ndarray, "q 2 draws"], use: Bool[np.ndarray, "q"]) -> Float[np.ndarray, "q 2"]:
    """Means of the draws, weighted by a normal distribution of the logits over the classes (Paule and Mandel)."""
    z = logit(draws.clip(1e-4, 1 - 1e-4))
    center, variance = z.mean(axis=2), z.var(axis=2).clip(1e-6)
    low, high = np.zeros(2), np.full(2, 16.0)
    if use.sum() < 2:
        return draws.mean(axis=2)

    def mean(between: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = use[:, None] / (variance + between)
        return (weight * center).sum(axis=0) / weight.sum(axis=0), weight

    for _ in range(30):  # bisection for the variance at which chi-square equals its expectation
        middle = (low + high) / 2
        mu, weight = mean(middle)
        wider = (weight * (center - mu) ** 2).sum(axis=0) > use.sum() - 1
        low, high = np.where(wider, middle, low), np.where(wider, high, middle)
    between = high.clip(0.01)
    mu, _ = mean(between)
    density = np.exp(-((z - mu[:, None]) ** 2) / (2 * between[:, None]))
    density += 1e-12  # a class far from all others keeps its own mean
    return (density * draws).sum(axis=2) / density.sum(axis=2)


def _halving(
    counts: _Counts, interval: np.ndarray, few: np.ndarray, level: int | float, rng: np.random.Generator
) -> Int[np.ndarray, "q 2"]:
    """Further decisions on each class after which its intervals would be half as wide."""
    width = interval[..., 1] - interval[..., 0]
    decided, size = counts.decided.sum(axis=1)[:, None], counts.size.sum(axis=1)[:, None]
    needed = np.broadcast_to(size - decided, width.shape).copy()
    for factor in reversed(_FACTORS):
        ends = _ends(_rates(counts, rng, factor), level)
        half = (ends[..., 1] - ends[..., 0] <= width / 2) & ~few[:, None]
        needed = np.where(half, np.minimum(np.ceil((factor - 1) * decided), needed), needed)
    return needed.astype(int)
