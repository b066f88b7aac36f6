"""Tests of class-dependent noise: does a given label depend on more than its own clean label?

Where the score leaves no doubt about the clean label, class-dependent noise makes the given label a coin toss that
knows nothing of the other labels. So take the examples in which a class is nearly surely present (its upper end) or
absent (its lower end) and count, for each partner, another class that is often given there:

- upper end: is the class *missed* more often where the partner is given? It is, if one is mistaken for the other;
- lower end: is the class *falsely given* more often where the partner is given? It is, if careless raters give many
  labels at once.

The ends are not quite pure. The examples there that are really of the other kind may well go with the partner: that is
true co-occurrence, and allowed. The fitted curve says how many there are (`curves`), and the tests suppose the worst,
that every one of them goes with the partner. What is left is hypergeometric given the margins. So the p-values are
mostly too large, however the labels truly co-occur. At the upper end, examples in which the score finds the partner
likely as well are left out: features that cannot tell two classes apart look like swapped labels.

The tests see mistakes that depend on other labels, not mistakes that depend on the example alone: no noise at all, in a
class that is hard to tell, explains ambiguous examples that are missed more often just as well.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from mlt_jax.estimator.crossfit import cross_val_logits
from mlt_jax.estimator.curves import Curve, at_scores, fit_curves
from mlt_jax.estimator.evidence import Evidence, ScoreBlock, gather
from mlt_jax.labels import Labels, as_labels, as_logits, as_matrix

# With more classes pages leave the test out: it fits a curve to each.
MOST_TESTED = 200
# An example belongs to the upper, lower end up to this P(clean label is the other one | score), by the curve.
_DOUBT = (0.1, 0.02)
# Added to it for every example at the end: the curve is only approximately right.
_LEAST_DOUBT = (0.01, 0.002)
# At the upper end of a class, partners with this P(clean = 1 | score) or more do not count.
_LIKELY = 0.5
# Partners tested per class and end: those given most often there, in at least `_FEWEST` of the examples.
_PARTNERS, _FEWEST = 8, 5
# A test has fired below this p-value.
_LEVEL = 0.05
# Upper tails at which the distribution of the number of impure examples is cut into steps.
_TAILS = (0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 3e-3, 1e-3, 1e-4, 1e-6)
_TESTS = ("missed", "instead", "false")
# Swaps are the kind of noise from this share of the classes on; it is decided on so many classes, the most frequent.
_MANY, _SAMPLE = 0.4, 64


class AssumptionTest(NamedTuple):
    """Whether the noise of each class is class-dependent."""

    p: Float[np.ndarray, "q"]  # small: it is not; 1 where nothing could be tested
    tested: Bool[np.ndarray, "q"]
    test: tuple[str, ...]  # which test fired, p below 0.05: "missed", "instead" or "false"; "" for none
    partner: Int[np.ndarray, "q"]  # with which other class; -1 for none
    sentences: tuple[str, ...]  # the same in words


class _End(NamedTuple):
    """Counts at one end of every class, a column per partner. Odd labels are those that the end lacks when clean."""

    partner: Int[np.ndarray, "q m"]
    size: Float[np.ndarray, "q m"]  # examples
    odd: Float[np.ndarray, "q m"]  # with an odd label
    beside: Float[np.ndarray, "q m"]  # with the partner given
    both: Float[np.ndarray, "q m"]
    use: Bool[np.ndarray, "q m"]  # whether the partner is tested
    p: Float[np.ndarray, "q m"]


def assumption_test(
    labels: Any,
    *,
    probs: Any = None,
    features: Any = None,
    scores: Any = None,
    seed: int = 0,
    observed: Any = None,
    coding: str = "01",
) -> AssumptionTest:
    """P-value and sentence of each class: does its given label depend on its own clean label alone?

    Three tests per class; the p-value is corrected for all of them and their partners (Bonferroni):

    - `"missed"`: where it is surely present, it is missed more often where the partner is given;
    - `"instead"`: the same seen from the partner, which is missed more often where this class is given;
    - `"false"`: where it is surely absent, it is given more often where the partner is given.

    Where a pair fires, the assumption is broken in one of its classes or in both.

    Args:
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
      probs: (n, q) out-of-sample predictions of P(label = 1).
      features: (n, d), a row per example from any network, on which heads are cross-fitted.
      scores: (n, q) out-of-sample logits, such as those of `cross_val_logits`.
      seed: of the folds, with `features`.

    Returns:
      `AssumptionTest`. A class is not tested, p = 1, where its scores do not predict it or where no other class is
      given at least 5 times in the examples at its ends.

    Raises:
      ValueError: not exactly one of probs, features and scores.
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    found = [name for name, x in (("probs", probs), ("features", features), ("scores", scores)) if x is not None]
    if len(found) != 1:
        raise ValueError(f"probs: {' and '.join(found) or 'nothing'} given; pass one of probs, features and scores")
    if features is not None:
        logits = cross_val_logits(features, checked, seed=seed)
    else:
        logits = as_logits(probs, checked) if probs is not None else as_matrix(scores, checked, name="scores")
    evidence = gather(logits, checked)
    upper, lower = _ends(logits, checked, evidence, fit_curves(evidence.bins))
    return _verdict(upper, lower, checked)


class Swaps(NamedTuple):
    """For which partners the labels of each class are swapped, and how often."""

    partner: Int[np.ndarray, "q m"]
    share: Float[np.ndarray, "q m"]  # of the missed labels of a class; 0 where the test of the pair did not fire


def likely_cells(block: ScoreBlock, clean: Float[np.ndarray, "b bins"]) -> Any:
    """P(clean = 1 | score) where it is at least one half, csc_array (n, b) of float32: what `find_swaps` needs."""
    import scipy.sparse as sp  # only needed where swaps are looked for

    present = np.asarray(at_scores(clean, block.scores, block.known))
    column, row = np.nonzero(((present >= _LIKELY) & block.known).T)
    ends = np.searchsorted(column, np.arange(present.shape[1] + 1))
    return sp.csc_array((present[row, column], row.astype(np.int32), ends.astype(np.int32)), shape=present.shape)


def find_swaps(likely: Any, labels: Any, evidence: Evidence, curve: Curve) -> Swaps | None:
    """What labels are swapped for, if that is what the noise is: if 40 % of the classes and at least 2 show it.

    A swap is a class missed at its upper end with the partner given in its place. The share is how much more often the
    partner is given where the class is missed than where it is not.

    Args:
      likely: `likely_cells` of all classes, (n, q).
      labels: what `evidence.as_columns` returns.
    """

    def test(part: np.ndarray) -> tuple[_End, np.ndarray]:
        upper = _upper_end(likely, labels, evidence, curve, part)
        return upper, upper.use & (upper.p * upper.use.sum(1, keepdims=True) < _LEVEL)

    most = np.argsort(-evidence.frequency * evidence.identifiable, kind="stable")[:_SAMPLE]
    upper, found = test(most)
    involved = {int(k) for j, m in np.argwhere(found) for k in (j, upper.partner[j, m])}
    if len(involved) < max(2, _MANY * min(len(most), evidence.identifiable.sum())):
        return None
    upper, found = test(np.arange(len(evidence.frequency)))
    missed, beside = upper.both / np.maximum(upper.odd, 1), upper.beside - upper.both
    share = missed - beside / np.maximum(upper.size - upper.odd, 1)
    return Swaps(upper.partner, np.where(found, np.clip(share, 0, 1), 0))


def _upper_end(likely: Any, labels: Any, evidence: Evidence, curve: Curve, classes: Int[np.ndarray, "k"]) -> _End:
    """The upper end of the classes by `_count`, from the likely cells alone: never n x q, nor q x q."""
    import scipy.sparse as sp

    present = likely[:, classes]
    shape, k = present.shape, len(classes)
    sparse = not isinstance(labels, Labels)
    given = labels.by_class[:, classes] if sparse else sp.csc_array(labels.values[:, classes])
    given, ones = given.astype(np.float32), sp.csc_array((np.ones_like(present.data), *_pattern(present)), shape=shape)
    partner_given = given - given.multiply(ones)
    doubt = 1 - present.data
    sure = (doubt <= _DOUBT[0]) & np.repeat(evidence.identifiable[classes], np.diff(present.indptr))
    at_end = sp.csc_array((sure.astype(np.float32), *_pattern(present)), shape=shape)
    impure = sp.csc_array((sure * (doubt + np.float32(_LEAST_DOUBT[0])), *_pattern(present)), shape=shape)
    odd_there = at_end - at_end.multiply(given)
    beside = (at_end.T @ partner_given).tocsr()
    row, column = np.repeat(np.arange(k), np.diff(beside.indptr)), beside.indices
    order = np.lexsort((column, -beside.data, row))
    order = order[(row != column)[order] & (beside.data > 0)[order]]
    place = np.arange(len(order)) - np.searchsorted(row[order], row[order])
    order, place = order[place < _PARTNERS], place[place < _PARTNERS]
    partner = np.zeros((k, min(_PARTNERS, k - 1)), int)
    partner[row[order], place] = column[order]
    pairs = np.repeat(np.arange(k), partner.shape[1]), partner.ravel()

    def at_pairs(products: Any) -> Float[np.ndarray, "k m"]:
        return np.asarray(products.tocsr()[pairs] if partner.size else [], float).reshape(partner.shape)

    def counted(cells: Any) -> Float[np.ndarray, "k m"]:
        """Sums over the examples in which the partner counts: where it is observed and not likely."""
        if sparse or labels.observed is None:
            seen = np.broadcast_to(np.asarray(cells.sum(0), float)[:, None], partner.shape)
        else:
            column = np.repeat(np.arange(k), np.diff(cells.indptr))
            seen = np.zeros(partner.shape)
            for place, others in enumerate(classes[partner].T):
                known = labels.observed[cells.indices, others[column]]
                seen[:, place] = np.bincount(column, cells.data * known, minlength=k)
        return seen - at_pairs(cells.T @ ones)

    size, odds, wrong = map(counted, (at_end, odd_there, impure))
    both, beside = at_pairs(odd_there.T @ partner_given), at_pairs(beside)
    use = (beside >= _FEWEST) & (odds > 0) & (partner != np.arange(k)[:, None])
    kept = np.maximum(1 - curve.rates[classes].sum(1), 0)
    p = np.where(use, _tail(size, odds, beside, both, np.maximum(wrong, 0) * kept[:, None]), 1.0)
    return _End(partner, size, odds, beside, both, use, p)


def _pattern(cells: Any) -> tuple[np.ndarray, np.ndarray]:
    return cells.indices, cells.indptr


def _ends(
    scores: Float[np.ndarray, "n q"],
    labels: Labels,
    evidence: Evidence,
    curve: Curve,
) -> tuple[_End, _End]:
    """The upper and the lower end of the classes, beside each other."""
    given = labels.values
    kept = np.maximum(1 - curve.rates.sum(1), 0)
    known = np.ones(given.shape, bool) if labels.observed is None else labels.observed
    present = np.asarray(at_scores(curve.clean, scores, known))
    testable = known & evidence.identifiable
    unlikely = known & (present < _LIKELY)
    upper = _count(np.where(testable, 1 - present, 1), given == 0, kept, given, unlikely, 0)
    lower = _count(np.where(testable, present, 1), given == 1, kept, given, known, 1)
    return upper, lower


def _count(
    doubt: Float[np.ndarray, "n q"],
    odd: Bool[np.ndarray, "n q"],
    kept: Float[np.ndarray, "q"],
    given: UInt8[np.ndarray, "n q"],
    counts: Bool[np.ndarray, "n q"],
    end: int,
) -> _End:
    """One end of every class. `doubt` is P(the end is the wrong one), `counts` where a class counts as a partner."""
    at_end = (doubt <= _DOUBT[end]).T.astype(np.float32)
    odd_there = at_end * odd.T
    impure = at_end * (doubt.T + np.float32(_LEAST_DOUBT[end]))
    partner_counts, partner_given = counts.astype(np.float32), (given * counts).astype(np.float32)
    beside = at_end @ partner_given
    np.fill_diagonal(beside, -1)
    partner = np.argsort(-beside, axis=1, kind="stable")[:, : min(_PARTNERS, len(beside) - 1)]
    size, odds, wrong, both, beside = (
        np.take_along_axis(x, partner, 1).astype(float)
        for x in (at_end @ partner_counts, odd_there @ partner_counts, impure @ partner_counts,
                  odd_there @ partner_given, beside)
    )  # fmt: skip
    use = (beside >= _FEWEST) & (odds > 0)
    p = np.where(use, _tail(size, odds, beside, both, wrong * kept[:, None]), 1.0)
    return _End(partner, size, odds, beside, both, use, p)


def _tail(size: np.ndarray, odd: np.ndarray, beside: np.ndarray, both: np.ndarray, impure: np.ndarray) -> np.ndarray:
    """P(at least `both` odd labels beside the partner) where Poisson(`impure`) many of them are sure to be.

    The Poisson distribution is cut into steps, each counted at its upper edge: a bound from above.
    """
    from scipy.stats import hypergeom, poisson  # slow to import, and only needed here

    p, before = np.zeros(size.shape), 1.0
    for tail in _TAILS:
        sure = np.minimum(poisson.isf(tail, impure), np.clip(np.minimum(odd, beside), 0, None))
        p += (before - tail) * hypergeom.sf(both - sure - 1, size - sure, beside - sure, odd - sure)
        before = tail
    return np.clip(p + before, 0, 1)


def _verdict(upper: _End, lower: _End, labels: Labels) -> AssumptionTest:
    """One p-value per class from all pairs in which it occurs, and what it says."""
    q = labels.values.shape[1]
    # The upper end once more, seen from the partner.
    p_pair, use_pair = np.ones((q, q)), np.zeros((q, q), bool)
    np.put_along_axis(p_pair, upper.partner, upper.p, 1)
    np.put_along_axis(use_pair, upper.partner, upper.use, 1)
    pairs = np.stack([upper.use.sum(1), use_pair.sum(0), lower.use.sum(1)])
    least = np.stack([upper.p.min(1, initial=1), p_pair.min(0), lower.p.min(1, initial=1)])
    by_test = np.where(pairs > 0, np.minimum(least * pairs, 1), 1)
    p, tested = np.minimum(by_test.min(0) * (pairs > 0).sum(0).clip(1), 1), pairs.sum(0) > 0
    test = tuple(_TESTS[best] if fired else "" for best, fired in zip(by_test.argmin(0), p < _LEVEL, strict=True))
    names = [f"'{name}'" for name in labels.classes or (f"class {j}" for j in range(q))]
    partner, sentences = np.full(q, -1), []
    for j, kind in enumerate(test):
        if not kind:
            nothing = "no sign that its mistakes depend on other labels" if tested[j] else "could not be tested"
            sentences.append(f"{names[j]}: {nothing}" + (f" (p = {p[j]:.2g})." if tested[j] else "."))
            continue
        end = lower if kind == "false" else upper
        row = int(p_pair[:, j].argmin()) if kind == "instead" else j
        column = int((end.partner[row] == j).argmax() if kind == "instead" else end.p[row].argmin())
        partner[j] = row if kind == "instead" else end.partner[row, column]
        size, odd, beside, both = (int(x[row, column]) for x in (end.size, end.odd, end.beside, end.both))
        other = names[partner[j]]
        counts = f"in {both} of {beside} examples with {other}, in {odd - both} of {size - beside} without"
        swapped = (
            f"in {both} of {odd} examples that lack a sure {other}, in {beside - both} of {size - odd} that have it"
        )
        fact = {
            "missed": f"surely present, it is missing {counts}",
            "instead": f"given {swapped}",
            "false": f"surely absent, it is given {counts}",
        }[kind]
        sentences.append(f"{names[j]}: {fact} (p = {p[j]:.2g}): mistakes of the two go together.")
    return AssumptionTest(p, tested, test, partner, tuple(sentences))
