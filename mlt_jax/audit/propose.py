"""Which cells people should decide, so that rates can be read from the decisions: see `audit.verified`."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8
from scipy.special import expit

from mlt_jax.arguments import check_choice, check_integer, check_number, check_seed, shown
from mlt_jax.labels import Labels, as_labels, as_matrix, dense

_STRATA = {0: 5, 1: 2}  # of a class's cells not given and of those given, by score; twice as many of all classes
_GIVEN_SHARE = 0.25  # of a class's decisions that go to given labels


class Proposal(NamedTuple):
    """m cells to decide, in random order: whoever stops early has still decided a random part."""

    example: Int[np.ndarray, "m"]  # row
    column: Int[np.ndarray, "m"]  # class
    given: UInt8[np.ndarray, "m"]
    wrong: Float[np.ndarray, "m"]  # P(given label is wrong), as far as known before
    probability: Float[np.ndarray, "m"]  # with which the cell was drawn; 1 for the most suspicious

    def decide(self, labels: Any) -> "Decisions":
        """The decisions by the right label of each cell, (m,) or (n, q): 0, 1, or -1 where undecided."""
        if hasattr(labels, "iloc") and getattr(labels, "ndim", 0) == 2:
            raise TypeError(
                "labels: a DataFrame, whose order a proposal does not know; pass .loc[index, columns].to_numpy(), in "
                "the order of the labels that it was made of"
            )
        right, m = dense(labels, "labels"), len(self.example)
        least = tuple(int(part.max(initial=-1)) + 1 for part in (self.example, self.column))
        if right.shape != (m,) and (right.ndim != 2 or min(np.subtract(right.shape, least)) < 0):
            raise ValueError(f"labels: shape {right.shape}; pass ({m},), the right label of each cell, or (n, q)")
        right = right[self.example, self.column] if right.ndim == 2 else right
        if not np.isin(right, (-1, 0, 1)).all():
            raise ValueError("labels: not all are 0, 1 or -1 (undecided); pass these")
        return Decisions(self.example, self.column, right.astype(np.int8), self.probability)


class Decisions(NamedTuple):
    """What people found to be the right label of m cells, and with which probability each cell was proposed."""

    example: Int[np.ndarray, "m"]  # row
    column: Int[np.ndarray, "m"]  # class
    label: Int[np.ndarray, "m"]  # right label: 0, 1, or -1 where proposed but not decided
    probability: Float[np.ndarray, "m"]  # NaN where unknown: such cells serve the ranking alone


def propose_cells(
    labels: Any,
    scores: Any,
    budget: int,
    *,
    per: str = "class",
    suspects: int | float = 0.1,
    wrong: Any = None,
    observed: Any = None,
    coding: str = "01",
    seed: int = 0,
) -> Proposal:
    """Cells to have decided by people: the most suspicious ones and a stratified random sample, with probabilities.

    Strata are ranges of the score among given labels and among the others. The others get three quarters of a class's
    budget, half of it spread evenly and half by the error sqrt(p (1 - p)) that the score expects of a cell.

    Args:
      labels, observed, coding: (n, q), see `as_labels`.
      scores: (n, q) out-of-sample logits of P(label = 1).
      budget: cells per class, or in all.
      per: "class": `budget` cells of every class, for rates by class; "all": in all, for the share of wrong labels.
      suspects: share of the budget for the most suspicious cells, which are taken for certain.
      wrong: (n, q) P(label is wrong), which says what is suspicious; by default the score's own.
      seed: of the draw.
    """
    checked, s, known = read_inputs(labels, scores, observed, coding)
    check_choice("per", per, ("class", "all"), '"class" or "all"')
    check_integer("budget", budget, 2, remedy="2 or more")
    check_number("suspects", suspects, lambda x: 0 <= x < 1, "a share in [0, 1)")
    check_seed(seed)
    rng, p = np.random.default_rng(seed), expit(np.where(checked.values == 1, -s, s).astype(float))
    suspicion = p if wrong is None else as_matrix(wrong, checked, name="wrong", low=0, high=1)
    q = s.shape[1]
    picked = []
    for columns in [[j] for j in range(q)] if per == "class" else [list(range(q))]:
        cells = np.flatnonzero(known[:, columns])
        part = [array[:, columns].ravel()[cells] for array in (suspicion, p, checked.values)]
        chosen, probability = _draw(rng, part[0], part[1], part[2], budget, suspects, by_class=per == "class")
        row, place = np.divmod(cells[chosen], len(columns))
        picked.append((row, np.asarray(columns)[place], probability))
    example, column, probability = (np.concatenate(part) for part in zip(*picked, strict=True))
    order = rng.permutation(len(example))
    example, column = example[order], column[order]
    return Proposal(example, column, checked.values[example, column], suspicion[example, column], probability[order])


def read_inputs(
    labels: Any, scores: Any, observed: Any, coding: str
) -> tuple[Labels, Float32[np.ndarray, "n q"], Bool[np.ndarray, "n q"]]:
    """Labels, scores and the mask of labelled cells, checked."""
    checked = as_labels(labels, observed=observed, coding=coding)
    s = as_matrix(scores, checked, name="scores")
    return checked, s, np.ones(s.shape, bool) if checked.observed is None else checked.observed


def check_decisions(decisions: Decisions, labels: Labels, known: np.ndarray) -> Decisions:
    """Decisions as arrays of one length, each about a labelled cell, none twice."""
    if not isinstance(decisions, Decisions):
        raise TypeError(f"decisions: {shown(decisions)}; pass `Decisions`, as `Proposal.decide` makes them")
    try:
        example, column, label, probability = (np.asarray(part, float) for part in decisions)
    except (ValueError, TypeError):
        raise TypeError("decisions: not all are numbers; pass rows, columns, labels and probabilities") from None
    if {part.ndim for part in (example, column, label, probability)} != {1}:
        raise ValueError("decisions: not all parts are lists of numbers; pass (m,) of each")
    sizes = {len(part) for part in (example, column, label, probability)}
    if len(sizes) > 1 or 0 in sizes:
        raise ValueError(f"decisions: parts of length {sorted(sizes)}; pass as many of each, one or more")
    n, q = known.shape

    def first(bad: np.ndarray, what: str) -> None:
        if bad.any():
            k = int(bad.argmax())
            raise ValueError(f"decisions: entry {k} (row {example[k]:g}, column {column[k]:g}) {what}")

    whole = np.all([np.trunc(part) == part for part in (example, column, label)], axis=0)
    first(~whole, "is not in whole numbers; correct it")
    example, column, label = (part.astype(int) for part in (example, column, label))
    first((example < 0) | (example >= n) | (column < 0) | (column >= q), f"is outside the labels {(n, q)}; drop it")
    first(~known[example, column], "is not labelled; drop it")
    first(~np.isin(label, (-1, 0, 1)), "has another label than 0, 1 or -1 (undecided)")
    first(~np.isnan(probability) & ~((probability > 0) & (probability <= 1)), "has a probability outside (0, 1]")
    twice = np.ones(len(example), bool)
    twice[np.unique(example * q + column, return_index=True)[1]] = False
    first(twice, "occurs twice; pass it once")
    return Decisions(example, column, label, probability)


def _draw(
    rng: np.random.Generator,
    suspicion: np.ndarray,
    p: np.ndarray,
    given: np.ndarray,
    budget: int,
    suspects: int | float,
    *,
    by_class: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions drawn and their probabilities: the most suspicious for certain, the others by strata."""
    sure = np.argsort(-suspicion, kind="stable")[: round(suspects * budget)]
    rest = np.setdiff1d(np.arange(len(p)), sure)
    left = min(budget - len(sure), len(rest))
    if left == 0:
        return sure, np.ones(len(sure))
    spread = np.sqrt(p * (1 - p))
    mass = np.array([np.sum(spread[rest][given[rest] == side]) for side in (0, 1)])
    of_given = _GIVEN_SHARE if by_class else np.clip(mass[1] / max(mass.sum(), 1e-9), 0.1, 0.5)
    sizes = np.array([(given[rest] == side).sum() for side in (0, 1)])
    number = int(np.clip(round(of_given * left), max(left - sizes[0], sizes[1] > 0), sizes[1]))
    number -= number == left and sizes[0] > 0
    chosen, probability = [sure], [np.ones(len(sure))]
    for side, amount in ((0, left - number), (1, number)):
        cells = rest[given[rest] == side]
        if not amount:
            continue
        size = spread[cells] / max(spread[cells].sum(), 1e-30) + 1 / len(cells)
        # Two cells or more of each stratum, so that all of it is represented and its variance is seen.
        strata = min(_STRATA[side] if by_class else 2 * _STRATA[side], max(amount // 2, 1))
        order = np.argsort(p[cells], kind="stable")
        mass_below = np.cumsum(size[order]) - size[order] / 2
        stratum = np.minimum((mass_below / size.sum() * strata).astype(int), strata - 1)
        members = [cells[order[stratum == h]] for h in range(strata)]
        for group, drawn in zip(members, _spread([len(group) for group in members], amount), strict=True):
            chosen.append(rng.choice(group, drawn, replace=False))
            probability.append(np.full(drawn, drawn / max(len(group), 1)))
    return np.concatenate(chosen), np.concatenate(probability)


def _spread(sizes: list[int], amount: int) -> list[int]:
    """`amount` over groups of these sizes, as evenly as possible."""
    taken = np.zeros(len(sizes), int)
    for _ in range(amount):
        taken[np.argmin(np.where(taken < sizes, taken, amount + 1))] += 1
    return taken.tolist()
