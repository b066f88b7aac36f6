"""The rules of `pairs` on lists of co-occurring labels: many classes at once, with all partners, exactly.

A label that is in no list of the class is 1 only in the rest of the examples. If these are the selected negatives, then
`a = m_i / n_S-` and `b = e = 0`, and the system of such a partner has the same solution whichever label it is: no given
label is wrong, and all unselected negatives are. It counts as often as there are such labels. If the rest is not
selected, then `a = b = 0`, and these partners have no solution.

Sums over the partners of a class are those of a sorted list, in float64.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int64, Shaped

from mlt_jax.estimator.pairs import Choice


class Rule(NamedTuple):
    """How the partners' solutions give one T, see `estimate_all`."""

    aggregate: str
    num_partners: int | None  # of those that occur together with the class; None for all labels
    seed: Any  # uint64 for drawing partners or their order; None where nothing is drawn


class Listed(NamedTuple):
    """The labels in the lists of some classes: pairs of a class and a partner, in any order."""

    classes: Int64[np.ndarray, "rows"]
    size: Float[np.ndarray, "rows 4"]  # of the four groups of each class: S+, S-, U+, U-
    rest: int  # the group that has the labels that are in no list
    row: Int64[np.ndarray, "k"]  # place of the pair's class in `classes`
    label: Shaped[np.ndarray, "k"]  # its partner
    ones: list[np.ndarray]  # how often the partner is 1 in the four groups


class _Solutions(NamedTuple):
    """Solutions of the partners of some classes; one may stand for several partners."""

    row: Int64[np.ndarray, "s"]
    raw: Float[np.ndarray, "2 s"]  # rho_neg, rho_pos
    prior: Float[np.ndarray, "s"]
    number: Float[np.ndarray, "s"]  # partners with this solution, 0 if there is none
    weight: Float[np.ndarray, "s"]  # of the rule "residual": the sum over them
    priority: Float[np.ndarray, "s"]  # the rule "first" takes the least; not used if it is not finite


def choose_listed(listed: Listed, partner: Float[np.ndarray, "q"], rule: Rule) -> Choice:
    """`pairs.choose` of some classes; `partner` is how often each label is 1."""
    q, rows = len(partner), len(listed.classes)
    found = _solutions(listed, partner, rule)
    rates = np.where((found.raw < 0) & (found.raw > -0.3 / q), 0, found.raw)
    inside = ((rates >= 0) & (rates <= 1)).all(0) & (rates.sum(0) < 1)
    valid = (found.number > 0) & (found.prior >= 0) & (found.prior <= 1) & inside
    row, number = found.row, np.where(valid, found.number, 0)
    partners = np.bincount(row, number, minlength=rows)
    if rule.aggregate == "mean":
        share = number / np.maximum(partners, 1)[row]
        mean = [np.bincount(row, x * share, minlength=rows) for x in (*rates, found.prior)]
        return _choice(np.stack(mean), partners)
    if rule.aggregate == "first":
        cost = found.priority
    else:
        weight, points = (number, rates) if rule.aggregate == "medoid" else (found.weight, found.raw)
        x, y = np.clip(points, 0, 1)
        cost = _distances(row, x, weight) + _distances(row, y, weight)
    candidates = np.flatnonzero(valid)
    candidates = candidates[np.lexsort((cost[candidates], row[candidates]))]
    solved, at = np.unique(row[candidates], return_index=True)
    chosen = np.zeros((3, rows))
    chosen[:, solved] = np.stack([*rates, found.prior])[:, candidates[at]]
    return _choice(chosen, partners)


def _choice(rates_and_prior: Float[np.ndarray, "3 rows"], partners: Float[np.ndarray, "rows"]) -> Choice:
    fields: Any = rates_and_prior[:2].T, rates_and_prior[2], partners
    return Choice(*fields)


def _solutions(listed: Listed, partner: Float[np.ndarray, "q"], rule: Rule) -> _Solutions:
    """Solutions of the partners in the lists, then for each class that of all other labels."""
    size, row = listed.size, listed.row
    rows = len(size)
    n = size[0].sum()
    safe = np.maximum(size, 1)
    a, b = listed.ones[1] / safe[row, 1], listed.ones[0] / safe[row, 0]
    m_j = (size[:, 0] + size[:, 2]) / n
    raw, prior, defined = _solve(m_j[row], partner[listed.label] / n, (listed.ones[0] + listed.ones[2]) / n, a, b)
    priority, of_others = priorities(listed, partner, rule)
    number = (defined & np.isfinite(priority)).astype(float)
    weight = number * np.abs(prior * (1 - prior) * (b - a))

    others = _others(listed, partner)
    ones = partner.sum() - np.bincount(row, partner[listed.label], minlength=rows)
    kept = (size[:, 0] + size[:, 2]) / np.maximum(n - size[:, 1], 1)
    share = 1 - size[:, 1] / n
    if listed.rest != 1 or rule.num_partners is not None:
        others[:] = 0
    return _Solutions(
        np.append(row, np.arange(rows)),
        np.append(raw, np.stack([np.zeros(rows), 1 - kept]), axis=1),
        np.append(prior, share),
        np.append(number, np.where(size[:, 1] < n, others, 0)),
        np.append(weight, np.where(others > 0, share * (1 - share) * ones / safe[:, 1], 0)),
        np.append(priority, of_others),
    )


def _others(listed: Listed, partner: Float[np.ndarray, "q"]) -> Float[np.ndarray, "rows"]:
    """How many labels that occur are in no list of each class; the class itself is in its own, if it ever occurs."""
    told = _told(partner, listed.size[0].sum())
    return told.sum() - np.bincount(listed.row, told[listed.label], minlength=len(listed.classes))


def _told(partner: Float[np.ndarray, "q"], n: float) -> Bool[np.ndarray, "q"]:
    """Labels that occur often enough to differ from 0 in the precision of tables."""
    return partner > n * np.finfo(jnp.result_type(float)).eps


def _solve(m_j: Any, m_i: Any, e: Any, a: Any, b: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`pairs.estimate_pair` in float64: rates (2, k), prior and where they are defined; 0 elsewhere."""
    least = np.finfo(jnp.result_type(float)).eps  # as on tables
    gap = b - a
    defined = np.abs(gap) > least
    gap = np.where(defined, gap, 1)
    prior, v = (m_i - a) / gap, (e - a * m_j) / gap
    defined &= (np.abs(prior) > least) & (np.abs(1 - prior) > least)
    prior = np.where(defined, prior, 0.5)
    raw = np.stack([(m_j - v) / (1 - prior), 1 - v / prior])
    return np.where(defined, raw, 0), np.where(defined, prior, 0), defined


def priorities(listed: Listed, partner: Float[np.ndarray, "q"], rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """In which order each class uses its listed partners, and the first of all others: least first, inf is never."""
    q, rows = len(partner), len(listed.classes)
    own = listed.classes[listed.row] == listed.label
    if rule.seed is None:
        first = np.full(rows, np.inf)
        if rule.aggregate == "first":
            first = _first_missing(listed, _told(partner, listed.size[0].sum()))
        return np.where(own, np.inf, listed.label), first
    drawn = np.where(own, np.inf, _uniform(rule.seed, listed.classes[listed.row], listed.label, q))
    if rule.num_partners is not None:
        drawn[listed.ones[0] + listed.ones[2] == 0] = np.inf
        order = np.lexsort((drawn, listed.row))
        place = np.arange(len(order)) - np.searchsorted(listed.row[order], listed.row[order])
        drawn[order[place >= rule.num_partners]] = np.inf
        return drawn, np.full(rows, np.inf)
    others = np.maximum(_others(listed, partner), 1)
    least = _uniform(rule.seed, listed.classes, listed.classes, q)  # its own place: no partner has drawn there
    return drawn, 1 - (1 - least) ** (1 / others)  # the least of so many draws


def _first_missing(listed: Listed, told: Bool[np.ndarray, "q"]) -> Float[np.ndarray, "rows"]:
    """The first label, of those that are told, that is in no list of each class; inf if all are."""
    labels = np.append(np.flatnonzero(told), np.inf)
    some = told[listed.label]
    row, place = listed.row[some], (np.cumsum(told) - 1)[listed.label[some]]
    order = np.lexsort((place, row))
    row, place = row[order], place[order]
    without_gap = place == np.arange(len(row)) - np.searchsorted(row, row)
    return labels[np.bincount(row, without_gap, minlength=len(listed.classes)).astype(np.int64)]


def _uniform(seed: Any, j: np.ndarray, i: np.ndarray, q: int) -> Float[np.ndarray, "k"]:
    """Uniform numbers of pairs of labels, in which order or block they ever come.

    References:
      Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    z = (j.astype(np.uint64) * np.uint64(q) + i.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15) + seed
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(float) * 2.0**-53


def _distances(row: np.ndarray, x: np.ndarray, weight: np.ndarray) -> Float[np.ndarray, "s"]:
    """`sum_i weight_i |x_r - x_i|` over the points i of the same row, for each point r in [0, 1]."""
    order = np.argsort(row + 0.5 * x)  # points that are so close that this confuses them add the same
    row, x, weight = row[order], x[order], weight[order]
    ends = np.searchsorted(row, np.arange(row[-1] + 2 if len(row) else 1))
    sums = [np.append(0, np.cumsum(each)) for each in (weight, weight * x)]
    below, moment = (each[1:] - each[ends[row]] for each in sums)
    mass, whole = (np.diff(each[ends])[row] for each in sums)
    found = np.empty_like(x)
    found[order] = x * (2 * below - mass) + whole - 2 * moment
    return found
