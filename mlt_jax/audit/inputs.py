"""Predictions and features that are not what an audit needs, each named in a sentence that says what to do.

An audit needs P(label = 1) from a model that did not see the example's labels. What gives other inputs away:

- *In-sample predictions.* A score that has seen its label is what the example looks like plus a push towards the label.
  Of two examples with the same score the one that looks less like the class was pushed more, so it has the label more
  often. How much an example looks like a class is told by the scores of the *other* classes. Given an honest score they
  say nothing more about the label, or speak for it; given an in-sample score they speak against it. The same holds for
  heads on features of a network that was trained on these labels.
- *Partly in-sample predictions.* Where the model saw some of the examples, all labels of these agree with it, and
  labels of the others do not: disagreement comes in rows.
- *Misplaced rows.* Scores that are unrelated to the labels, but fit those of the rows before or after.
- *Near-duplicates.* Examples with a neighbour that is ten times nearer than usual and has the same given labels, also
  where the scores do not explain them.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from mlt_jax.labels import Labels

# Most rows and classes that are looked at, drawn at random and by frequency, and rows that are compared with all others
# for near-duplicates: they bound the time.
_ROWS, _CLASSES, _SAMPLE = 10_000, 40, 500
_FEWEST = 20  # given positives and negatives of a class that is looked at
_CHANCE = 5.0  # standard deviations that are no chance
_BOUND = 13.8  # logit of a probability of 1 - 1e-6, where `as_logits` cuts them off
# What the other classes' scores add to an in-sample score, in proportion to what they say alone, is below this: it is
# above -0.05 for honest predictions of noisy and of clean VOC labels and on the real sets, -0.1 to -0.7 in-sample.
_AGAINST = -0.08
_BINS, _FOLDS, _RIDGE = 50, 5, 10.0
# AUC at which labels and predictions agree too well, whatever the other classes say.
_PERFECT = 0.995
# What scores are worth in rows with disagreement, in proportion to other rows, is below this: it is 0.85 to 1.08 for
# honest predictions of noisy VOC labels and on the real sets, 0.6 where a network saw half of the examples.
_IN_ROWS = 0.75
# A near-duplicate is nearer than this share of the distance within which 1 % of the examples are. Share of examples
# that have one; correlation of what scores leave unexplained of the labels of both: 0.24 on user tags, 1 for copies.
_NEAR, _MANY, _ALIKE = 0.1, 0.05, 0.5
_PRODUCTS = 2 * 10**10  # rows x rows x components that are compared at most


def check_predictions(
    labels: Labels,
    scores: Float[np.ndarray, "n q"],
    *,
    features: Any = None,
    groups: Any = None,
) -> tuple[str, ...]:
    """Sentences about inputs that an audit cannot trust, none where they look right.

    Args:
      labels: as given.
      scores: (n, q) logits that the audit reads: of predictions, or of heads cross-fitted on `features`.
      features: (n, d), where heads were fitted on them: looked through for near-duplicates.
      groups: n ids of examples that were kept in one fold; near-duplicates within a group are no trouble.
    """
    known = np.ones(scores.shape, bool) if labels.observed is None else labels.observed
    y = labels.values.astype(np.float32)
    positives, negatives = (y * known).sum(0), ((1 - y) * known).sum(0)
    classes = np.flatnonzero((positives >= _FEWEST) & (negatives >= _FEWEST))
    classes = np.sort(classes[np.argsort(-positives[classes], kind="stable")[:_CLASSES]])
    if not len(classes):
        return ()
    name = "probs" if features is None else "features"
    rows = np.sort(np.random.default_rng(0).permutation(len(y))[:_ROWS])
    part = np.ix_(rows, classes)
    every = scores[:, classes], y[:, classes], known[:, classes]
    found = _numbers(*every) or _misplaced(*every, name) or _seen(scores[part], y[part], known[part], name)
    if features is not None:
        found += _duplicates(np.asarray(features), *every, groups)
    return tuple(found)


def _numbers(s: np.ndarray, y: np.ndarray, known: np.ndarray) -> list[str]:
    """Predictions that are decisions: no probability lies between 0 and 1, and logits are at their bounds."""
    if (np.abs(s) < _BOUND)[known].any():
        return []
    if ((s > 0) == y)[known].mean() > 0.999:
        return ["probs are the labels themselves; pass what a model predicts for examples that it did not train on"]
    return [
        "probs are only 0 and 1, which does not say how sure they are: the ranking is coarse, and rates are guesses; "
        "pass probabilities"
    ]


def _seen(s: np.ndarray, y: np.ndarray, known: np.ndarray, name: str) -> list[str]:
    """Scores that have seen the labels."""
    rank = _ranks(s, known)
    area, _ = _area(rank, y, known)
    if np.median(area) >= _PERFECT:
        how = f"agree with the given labels almost everywhere (AUC {np.median(area):.3f})"
        return [f"{name} {how}: there is nothing to re-check, or {_remedy(name)}"]
    share, z = _added(rank, y, known)
    if share < _AGAINST and z < -_CHANCE:
        how = f"know the given labels better than the examples can tell (AUC {np.median(area):.2f})"
        return [f"{name} {how}: {_remedy(name)}; noise looks smaller than it is"]
    left, z = _by_rows(rank, y, known)
    if left < _IN_ROWS and z > _CHANCE:
        how = f"predict {100 * (1 - left):.0f} % less in examples of which another label disagrees with them"
        return [f"{name} {how}: {_remedy(name, 'some of ')}; or some examples were labelled carelessly"]
    return []


def _remedy(name: str, part: str = "") -> str:
    if name == "features":
        return f"their network was trained on {part}these labels; pass features of one that was not"
    return (
        f"the model was trained on {part}these labels (in-sample); pass predictions for examples that it did not train "
        "on, by folds"
    )


def _ranks(s: np.ndarray, known: np.ndarray) -> Float[np.ndarray, "n q"]:
    """Ranks of the known scores of each class, from 0 to 1, equal ones shared; 0.5 where not known."""
    from scipy.stats import rankdata  # slow to import, and only needed here

    rank = rankdata(np.where(known, s, np.inf), axis=0) - 0.5
    return np.where(known, rank / np.maximum(known.sum(0), 1), 0.5)


def _area(rank: np.ndarray, y: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AUC of each class, and its standard deviation under chance."""
    on, n = y * known, known.sum(0)
    positives = on.sum(0)
    negatives = n - positives
    area = ((rank * on).sum(0) * n - positives**2 / 2) / (positives * negatives)
    return area, np.sqrt((n + 1) / (12 * positives * negatives))


def _within(x: np.ndarray, weight: np.ndarray, cell: np.ndarray, size: int) -> np.ndarray:
    """x without its mean over the cell that each entry is in; 0 where the weight is."""
    sums, counts = (np.bincount(cell.ravel(), v.ravel(), size) for v in (x * weight, weight))
    return (x - (sums / np.maximum(counts, 1e-9))[cell]) * weight


def _cells(rank: np.ndarray) -> tuple[np.ndarray, int]:
    """The bin of each entry among the bins of all classes, and how many there are."""
    q = rank.shape[1]
    return np.minimum((rank * _BINS).astype(int), _BINS - 1) + _BINS * np.arange(q), _BINS * q


def _added(rank: np.ndarray, y: np.ndarray, known: np.ndarray) -> tuple[float, float]:
    """What the other classes' scores say about a label beside its own score, in proportion to what they say alone.

    Their say is a ridge regression by folds. "Beside" is the correlation within 50 bins of the own score. The median
    over the classes of which the others know something, and the sum's standard score; 0 with fewer than 3 such classes.
    """
    from scipy.special import ndtri

    n, q = rank.shape
    weight = known.astype(float)
    x = ndtri(np.clip(rank, 0.5 / n, 1 - 0.5 / n))
    excess = _within(y, weight, np.broadcast_to(np.arange(q), rank.shape), q)
    fold = np.random.default_rng(0).permutation(n) % _FOLDS
    others = np.zeros(rank.shape)
    alone = 1e9 * np.eye(q)[:, :, None] * np.eye(q)[:, None]  # keeps a class's own score out of its regression
    for k in range(_FOLDS):
        train, test = fold != k, fold == k
        gram = x[train].T @ x[train] + _RIDGE * np.eye(q)
        beta = np.linalg.solve(gram + alone, (x[train].T @ excess[train]).T[:, :, None])[:, :, 0]
        others[test] = x[test] @ beta.T
    say = _ranks(others, known)
    cell, size = _cells(rank)
    say_within, y_within = _within(say, weight, cell, size), _within(y, weight, cell, size)
    say_alone = (say - 0.5) * weight
    beside, plain = (
        (a * b).sum(0) / np.sqrt(np.maximum((a**2).sum(0) * (b**2).sum(0), 1e-9))
        for a, b in ((say_within, y_within), (say_alone, excess))
    )
    spreads = (np.bincount(cell.ravel(), v.ravel(), size) for v in (say_within**2, y_within**2, weight))
    of_say, of_y, count = (v.reshape(q, -1) for v in spreads)
    variance = (of_say * of_y / np.maximum(count, 1)).sum(1)
    z = (say_within * y_within).sum(0) / np.sqrt(np.maximum(variance, 1e-9))
    use = plain * np.sqrt(known.sum(0)) > 3
    if use.sum() < 3:
        return 0.0, 0.0
    return float(np.median(beside[use] / plain[use])), float(z[use].sum() / np.sqrt(use.sum()))


def _by_rows(rank: np.ndarray, y: np.ndarray, known: np.ndarray) -> tuple[float, float]:
    """How well scores predict in rows whose other labels disagree with theirs, in proportion to the other rows.

    A label disagrees where it is the rarer one in its bin. "How well" is AUC - 1/2, of which noise takes the same share
    everywhere; the median over the classes, and the standard score of the differences.
    """
    weight = known.astype(float)
    cell, size = _cells(rank)
    on, count = (np.bincount(cell.ravel(), v.ravel(), size) for v in (y * weight, weight))
    given = ((on + 0.5) / (count + 1))[cell]
    excess = _within(np.where(given < 0.5, y, 1 - y), weight, cell, size)
    variance = given * (1 - given) * weight
    elsewhere, spread = (v.sum(1, keepdims=True) - v for v in (excess, variance))
    elsewhere = elsewhere / np.sqrt(np.maximum(spread, 1e-3))
    much = elsewhere > np.median(elsewhere, axis=0)
    parts = [known & ~much, known & much]
    use = np.min([[(v * part).sum(0) for v in (y, 1 - y)] for part in parts], axis=(0, 1)) >= _FEWEST / 2
    if use.sum() < 3:
        return 1.0, 0.0
    parts = [part[:, use] for part in parts]
    (low, low_error), (high, high_error) = (_area(_ranks(rank[:, use], part), y[:, use], part) for part in parts)
    z = ((low - high) / np.hypot(low_error, high_error)).sum() / np.sqrt(use.sum())
    return float(np.median(high - 0.5) / max(np.median(low - 0.5), 1e-3)), float(z)


def _misplaced(s: np.ndarray, y: np.ndarray, known: np.ndarray, name: str) -> list[str]:
    """Scores that fit the labels of other rows better than those of their own, or the absence of labels, or nothing.

    The correlation of scores with labels that stand k rows below, for all k at once, by Fourier transforms.
    """
    s, y, known = s[:_ROWS], y[:_ROWS], known[:_ROWS]
    n, q = s.shape
    if n < 4 * _FEWEST:
        return []
    one, other = (_ranks(s, known) - 0.5) * known, (y - (y * known).sum(0) / np.maximum(known.sum(0), 1)) * known
    one, other = (v / np.sqrt(np.maximum((v**2).sum(0), 1e-9)) for v in (one, other))
    products = np.fft.rfft(one, axis=0) * np.conj(np.fft.rfft(other, axis=0))
    fit = np.fft.irfft(products.sum(1), n) * np.sqrt(n / q)  # standard scores, under chance
    best = int(fit.argmax())
    if best and fit[best] > 2 * _CHANCE and fit[best] > fit[0] + _CHANCE:
        rows = best if best <= n // 2 else best - n
        where = f"{abs(rows)} row{'s' if abs(rows) > 1 else ''} {'above' if rows > 0 else 'below'}"
        return [f"{name} fit the labels that stand {where} them, not their own: rows are shifted; pass both with ids"]
    area, deviation = _area(_ranks(s, known), y, known)
    turned = 0.5 - area > _CHANCE * deviation
    if turned.sum() > q / 2:
        below = f"AUC {np.median(area):.2f}, below 0.5, in {int(turned.sum())} of {q} classes"
        return [f"{name} are lower where a label is given than elsewhere ({below}); pass P(label = 1), not 1 - p"]
    if fit[0] < _CHANCE / 2:
        return [
            f"{name} say nothing about the given labels of any class: rows or columns may be in another order; pass "
            "both with ids and class names"
        ]
    return []


def _duplicates(x: np.ndarray, s: np.ndarray, y: np.ndarray, known: np.ndarray, groups: Any) -> list[str]:
    """Features of examples that are nearly the same and were given the same labels, in different groups."""
    n = len(x)
    if x.shape[1] < 8 or n < 200:  # in few dimensions anything has a near neighbour
        return []
    some = np.sort(np.random.default_rng(0).permutation(n)[:_SAMPLE])
    x = np.asarray(x[:, : max(32, _PRODUCTS // (n * _SAMPLE))], np.float32)
    square = (x**2).sum(1)
    distance = np.maximum(square[some, None] + square[None] - 2 * x[some] @ x.T, 0)
    same = np.arange(n)[None] == some[:, None]
    if groups is not None:
        ids = np.asarray(groups)
        same |= ids[None] == ids[some, None]
    distance = np.sqrt(np.where(same, np.inf, distance))
    usual = np.partition(distance, max(n // 100, 10), axis=1)[:, max(n // 100, 10)]
    near, mate = distance.min(1) < _NEAR * usual, distance.argmin(1)
    if near.mean() < _MANY:
        return []
    # What the score does not explain of the labels of the one and of the other.
    excess = _within(y, known.astype(float), *_cells(_ranks(s, known)))
    one, other = excess[some[near]], excess[mate[near]]
    alike = (one * other).sum() / max(np.sqrt((one**2).sum() * (other**2).sum()), 1e-9)
    if alike < _ALIKE:
        return []
    remedy = "pass groups= (--groups) that keep them in one fold" if groups is None else "put them into one group"
    return [
        f"about {100 * near.mean():.0f} % of the examples have a near-duplicate in features with the same given "
        f"labels, which tells heads their mistakes; {remedy}"
    ]
