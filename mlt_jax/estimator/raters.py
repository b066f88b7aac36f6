"""Several raters: the noise of each, the consensus with P(right), their agreement, and whom to ask next.

Two models of a class are fitted by EM, and the data choose.

Clear: a label is present or absent and raters err independently of each other, each with its own T (Dawid and Skene).
EM starts from the majority vote and runs twice: with a weak Beta prior on every rate, then with the Beta distribution
of the rates over raters that the first run suggests. A rater with few judgements gets about the mean rates of the
others, one with many keeps its own.

Graded: a label is present to a degree u, normal over the examples, and rater r says yes with probability
sigmoid(a_r + b_r u). Doubtful examples divide the raters and strict raters differ from lenient ones, so mistakes are
not independent. The clean label is what most raters would say: 1 where the mean probability of yes is above 1/2, a mean
that is only known with the error of a sample, these raters. T follows by averaging over u. Opinions, such as emotions
in a text, are of this kind.

With out-of-sample scores the model that made them is one more rater: the log odds of the clean label, or the mean of u,
are linear in the score of the example (Raykar et al.).

Standard errors are from the observed information, not from counts: clean labels are not known, and that costs
information. For clear labels it is what known clean labels would give minus what is lost (Louis), a sum of outer
products with one term per cell; for graded ones the sum of the outer products of the cells' scores.

References:
  Dawid and Skene, "Maximum likelihood estimation of observer error-rates using the EM algorithm", 1979.
  Bock and Aitkin, "Marginal maximum likelihood estimation of item parameters: application of an EM algorithm", 1981.
  Louis, "Finding the observed information matrix when using the EM algorithm", 1982.
  Raykar et al., "Learning from crowds", JMLR 2010.
  Krippendorff, "Computing Krippendorff's alpha-reliability", 2011.
"""

from enum import IntEnum
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Int8, UInt8

from mlt_jax.arguments import check_choice, check_integer, check_number, shown
from mlt_jax.estimator.rater_models import FINE, Clear, fit_clear, fit_graded
from mlt_jax.labels import dense

# Pseudo-counts (wrong, right) of the weak prior of a rate: mean 1/4, worth two judgements.
_WEAK = 0.5, 1.5
# Candidates for how many judgements the common distribution of the rates is worth, and for its mean.
_STRENGTHS, _MEANS = np.array([2.0, 4, 8, 16, 32]), np.linspace(0.01, 0.7, 30) ** 1.5
# Log likelihood ratio (with the BIC's penalty) from which a class chooses its model by itself.
_DECISIVE = 10.0
_FEWEST = 10
_LARGEST = 1e9  # of a score: squares of much larger ones are beyond float32
# Standard deviation of a rate of which nothing is known.
_UNKNOWN = 12**-0.5
# What labels of a long table look like as text.
_CODES = {text: code for code, texts in ((0, "0 0.0 false"), (1, "1 1.0 true"), (-1, "-1 -1.0 nan none <na>"))
          for text in texts.split()} | {"": -1}  # fmt: skip
# Numbers held at a time (examples x classes x raters or degrees); bounds the memory.
_CELLS = 2**24


class RaterStatus(IntEnum):
    """Where the T of a rater for a class comes from."""

    ESTIMATED = 0  # mostly from the rater's own judgements
    POOLED = 1  # too few judgements of present or of absent labels: mostly the rates of the other raters
    TOO_FEW = 2  # all raters together have too few present, or absent, labels: mostly the weak prior
    NOT_JUDGED = 3  # the rater never judged the class: the rates of the other raters
    UNIDENTIFIABLE = 4  # fewer than three raters (scores count as one), or raters that share no examples: a guess


class Raters(NamedTuple):
    """What several raters' labels of n examples and q classes say; nothing is NaN."""

    T: Float[np.ndarray, "raters q 2 2"]  # T[rater, class, clean, given], rows sum to 1
    stderr: Float[np.ndarray, "raters q 2"]  # of (rho_neg, rho_pos)
    status: Int[np.ndarray, "raters q"]  # see `RaterStatus`
    prior: Float[np.ndarray, "q"]  # P(clean = 1)
    clean_probs: Float[np.ndarray, "n q"]  # P(clean = 1 | all judgements, and the score); the prior if there are none
    yes_probs: Float[np.ndarray, "n q"]  # P(one more rater says 1): soft labels
    alpha: Float[np.ndarray, "q"]  # Krippendorff's, nominal; 0 where all labels are alike or no cell has two
    alpha_overall: float  # of all classes: 1 - observed / expected disagreement, each summed over the classes
    graded: Bool[np.ndarray, "q"]  # which model: labels of degrees (True), or present and absent (False)
    evidence: Float[np.ndarray, "q"]  # log likelihood ratio for graded labels, with the BIC's penalty
    slope: Float[np.ndarray, "q"]  # of the scores in that model; 0 without scores
    gain: Float[np.ndarray, "n q raters"]  # bits that a judgement would tell about the clean label; see `ask_next`
    judged: Bool[np.ndarray, "n q raters"]  # who judged what

    @property
    def rho_neg(self) -> Float[np.ndarray, "raters q"]:
        """P(given = 1 | clean = 0)."""
        return self.T[:, :, 0, 1]

    @property
    def rho_pos(self) -> Float[np.ndarray, "raters q"]:
        """P(given = 0 | clean = 1)."""
        return self.T[:, :, 1, 0]

    @property
    def consensus(self) -> UInt8[np.ndarray, "n q"]:
        """The more probable label, 0/1."""
        return (self.clean_probs > 0.5).astype(np.uint8)

    @property
    def right(self) -> Float[np.ndarray, "n q"]:
        """P(consensus is right)."""
        return np.maximum(self.clean_probs, 1 - self.clean_probs)

    def interval(self, level: float = 0.95) -> Float[np.ndarray, "raters q 2 2"]:
        """Normal intervals `[rater, class, rate, end]` of rho_neg and rho_pos, clipped to [0, 1]."""
        check_number("level", level, lambda x: 0 < x < 1, "a number between 0 and 1")
        half = NormalDist().inv_cdf((1 + level) / 2) * self.stderr
        rates = np.stack([self.rho_neg, self.rho_pos], 2)
        return np.clip(np.stack([rates - half, rates + half], 3), 0, 1)


class Questions(NamedTuple):
    """Which rater to ask about which cell, the most informative first."""

    example: Int[np.ndarray, "k"]
    column: Int[np.ndarray, "k"]
    rater: Int[np.ndarray, "k"]
    gain: Float[np.ndarray, "k"]  # expected reduction of the entropy of the clean label, in bits (per unit of cost)


class RaterTable(NamedTuple):
    """A long table as an array, the result of `rater_array`."""

    labels: Int8[np.ndarray, "n q raters"]  # 0/1, -1 where there is no judgement
    examples: tuple[Any, ...]
    classes: tuple[Any, ...]
    raters: tuple[Any, ...]


def estimate_raters(labels: Any, *, scores: Any = None, observed: Any = None, model: str = "auto") -> Raters:
    """T of every rater and class, consensus with P(right), and agreement.

    Args:
      labels: (n, q, raters) of 0/1; -1 or NaN where a rater did not judge.
      scores: (n, q) logits of P(label = 1) by a model that did not train on the example. Any scale will do: a slope
        per class is fitted. They count as one more rater.
      observed: (n, q, raters) True where there is a judgement; entries of `labels` elsewhere are ignored.
      model: "clear", "graded" (see the module), or "auto": a class takes the more likely one if the evidence is
        decisive, and else the one that is more likely for all classes together.

    Returns:
      `Raters`. One or two raters alone cannot tell their noise from the prior: the status is `UNIDENTIFIABLE`, and the
      standard errors are at least 0.29, that of a rate of which nothing is known.

    Raises:
      ValueError: a wrong shape, a label that is neither 0, 1, -1 nor NaN, scores that are not finite, an unknown model.
    """
    check_choice("model", model, ("auto", "clear", "graded"), '"auto", "clear" or "graded"')
    judgements = _as_judgements(labels, observed)
    n, q, raters = judgements.shape
    scored = scores is not None
    s = _as_scores(scores, judgements) if scored else np.zeros((n, q), np.float32)
    size = max(1, _CELLS // (n * max(raters, len(FINE))))
    blocks = [slice(start, start + size) for start in range(0, q, size)]

    def fit(function: Any, *prior: np.ndarray) -> Any:
        inputs = ((judgements[:, k], s[:, k], *(x[k] for x in prior)) for k in blocks)
        parts = [function(*map(jnp.asarray, block), scored=scored) for block in inputs]
        return jax.tree.map(lambda *x: np.concatenate([np.asarray(part) for part in x]), *parts)

    weak = np.broadcast_to(np.array(_WEAK, np.float32), (q, raters, 2, 2))
    first = fit(fit_clear, weak)
    common = _common(first)
    clear = fit(fit_clear, common.pseudo.astype(np.float32))
    graded = fit(fit_graded)
    seen = (judgements >= 0).any(2)
    positives = (graded.clean.T * seen).sum(0)
    evidence = graded.likelihood - clear.likelihood + 0.5 * np.log(np.maximum(seen.sum(0), 1))
    chosen = np.where(np.abs(evidence) > _DECISIVE, evidence, evidence.sum()) > 0
    chosen = np.full(q, model == "graded") if model != "auto" else chosen
    chosen &= np.minimum(positives, seen.sum(0) - positives) >= _FEWEST

    def choose(of_graded: np.ndarray, of_clear: np.ndarray) -> np.ndarray:
        return np.where(chosen.reshape(-1, *[1] * (of_clear.ndim - 1)), of_graded, of_clear)

    clean = choose(graded.clean, clear.clean).T
    rates = choose(graded.rates, clear.rates).transpose(1, 0, 2)
    variance = choose(graded.variance, _clear_variance(clear, common))
    status = _status(judgements, clean, common, scored)
    stderr = np.clip(np.sqrt(variance), 1e-4, 0.5).transpose(1, 0, 2)
    apart, expected = _disagreement(judgements)
    return Raters(
        T=np.stack([1 - rates[..., 0], rates[..., 0], rates[..., 1], 1 - rates[..., 1]], 2).reshape(raters, q, 2, 2),
        stderr=np.where((status == RaterStatus.UNIDENTIFIABLE)[:, :, None], np.maximum(stderr, _UNKNOWN), stderr),
        status=status,
        prior=(clean * seen).sum(0) / np.maximum(seen.sum(0), 1) + np.where(seen.any(0), 0, clean.mean(0)),
        clean_probs=clean,
        yes_probs=choose(graded.yes, clear.yes).T,
        alpha=np.where(expected > 0, 1 - apart / np.where(expected > 0, expected, 1), 0),
        alpha_overall=float(1 - apart.sum() / expected.sum()) if expected.sum() > 0 else 0.0,
        graded=chosen,
        evidence=evidence,
        slope=choose(graded.slope, clear.line[:, 0]),
        gain=choose(graded.gain, clear.gain).transpose(1, 0, 2),
        judged=judgements >= 0,
    )


def ask_next(found: Raters, *, most: int | None = None, cost: Any = None, available: Any = None) -> Questions:
    """Whom to ask about which cell: for each cell the rater whose answer tells most about its clean label.

    The gain of a question is the mutual information of the answer and the clean label, given all judgements so far:
    the expected reduction of its entropy. Nobody is asked about a cell twice.

    Args:
      found: the result of `estimate_raters`.
      most: how many questions; by default one for every cell that somebody is left for.
      cost: (raters,) what an answer of each costs; questions are ranked by gain per cost.
      available: (raters,) True for those who can be asked; by default all.

    Raises:
      ValueError: costs that are not positive, or of another length than there are raters.
    """
    if not isinstance(found, Raters):
        raise TypeError(f"found: {shown(found)}; pass the result of `estimate_raters`")
    if most is not None:
        check_integer("most", most, 0)
    n, q, raters = found.judged.shape
    cost = _per_rater("cost", np.ones(raters) if cost is None else cost, raters)
    if not (np.isfinite(cost) & (cost > 0)).all():
        raise ValueError(f"cost: {cost.tolist()}; pass positive numbers")
    free = np.ones(raters, bool) if available is None else _per_rater("available", available, raters).astype(bool)
    gain = np.where(found.judged | ~free, -1, found.gain / cost)
    best = gain.max(2).ravel()
    cells = np.flatnonzero(best >= 0)
    cells = cells[np.argsort(-best[cells], kind="stable")][:most]
    example, column = np.unravel_index(cells, (n, q))
    return Questions(example, column, gain.argmax(2).ravel()[cells], best[cells])


def rater_array(
    table: Any,
    *,
    example: str = "example",
    column: str = "class",
    rater: str = "rater",
    label: str = "label",
    examples: Any = None,
    classes: Any = None,
) -> RaterTable:
    """The (n, q, raters) array of a long table with a row per judgement, as annotation tools export it.

    Args:
      table: a DataFrame, or anything whose columns are had by name, such as a dict of lists.
      example, column, rater, label: what the four columns are called. A label is 0 or 1, a number, a bool or
        text; an empty one, None, NaN or -1 is a gap.
      examples, classes: all names in the order of the result, such as the rows of `scores`; by default those that
        occur, sorted.

    Raises:
      ValueError: a missing column, an unknown name or label, or two different judgements of a cell by one rater.
    """
    if not (hasattr(table, "keys") and hasattr(table, "__getitem__")):
        raise TypeError(f"table: {shown(table)}; pass a DataFrame, or a dict of lists")
    for what, name in (("example", example), ("column", column), ("rater", rater), ("label", label)):
        if not isinstance(name, str):
            raise TypeError(f"{what}: {shown(name)}; pass the name of a column")
        if name not in table:
            raise ValueError(f'table: column "{name}" is missing; pass it, or say what it is called')
    codes = [_CODES.get(str(value).strip().lower()) for value in table[label]]
    if None in codes:
        row = codes.index(None)
        raise ValueError(
            f"table: row {row} has label {list(table[label])[row]!s}; pass 0 or 1 (empty, NaN or -1: a gap)"
        )
    for what, known in (("examples", examples), ("classes", classes)):
        if known is not None and np.ndim(known) != 1:
            raise ValueError(f"{what}: {shown(known)}; pass a list of names")
    given = np.array(codes, np.int8)
    wanted = ((example, examples), (column, classes), (rater, None))
    names, places = zip(*(_places(table[name], known, name) for name, known in wanted), strict=True)
    labels = np.full([len(known) for known in names], -1, np.int8)
    judged = given >= 0
    cell = tuple(place[judged] for place in places)
    labels[cell] = given[judged]
    if bad := np.flatnonzero(labels[cell] != given[judged]).tolist():
        row = int(np.flatnonzero(judged)[bad[0]])
        who, what, whose = (known[place[row]] for known, place in zip(names, places, strict=True))
        raise ValueError(f"table: row {row}, {whose!r} judges {who!r}, {what!r} twice and differently; keep one")
    return RaterTable(labels, *names)


def _places(values: Any, names: Any, column: str) -> tuple[tuple[Any, ...], np.ndarray]:
    """The names, and the place of every value among them."""
    values = list(values) if isinstance(values, list | tuple) else np.asarray(values).tolist()
    for row, value in enumerate(values):
        if value is None or value != value:
            raise ValueError(f'table: row {row}, column "{column}" is empty; drop the row, or give it a name')
    in_order = sorted(set(values), key=lambda name: (isinstance(name, str), name))
    names = tuple(in_order if names is None else np.asarray(names).tolist())
    place = {name: k for k, name in enumerate(names)}
    for row, value in enumerate(values):
        if value not in place:
            raise ValueError(f'table: row {row}, column "{column}" is {value!r}, not among the names that were passed')
    return names, np.array([place[value] for value in values], int)


class _Common(NamedTuple):
    """The distribution of the rates over raters, that the first run of the clear model suggests."""

    pseudo: Float[np.ndarray, "q raters 2 2"]  # [class, rater, rate, wrong or right]
    uncertainty: Float[np.ndarray, "q 2 2"]  # covariance of its means
    told: Float[np.ndarray, "q raters 2"]  # what is known of a rate, in judgements of known clean labels


def _covariance(clear: Clear) -> Float[np.ndarray, "q p p"]:
    """Of the logits of the rates, p = 2 raters, in float64: the information may be nearly singular."""
    full = np.asarray(clear.information, float)
    unit = np.sqrt(np.maximum(np.diagonal(full, axis1=1, axis2=2), 1e-9))
    values, vectors = np.linalg.eigh(full / (unit[:, :, None] * unit[:, None]))
    inverse = np.einsum("qik,qk,qjk->qij", vectors, 1 / np.maximum(values, 1e-6), vectors)
    return (inverse / (unit[:, :, None] * unit[:, None]))[:, :-2, :-2]


def _common(first: Clear) -> _Common:
    """A mean per class, and one strength for all classes that three raters judged, the weakest for the others.

    The strength is that of `_STRENGTHS` with the largest beta-binomial likelihood, averaged over means, times its
    inverse. Judgements count as far as they tell about the rate, see `told`.
    """
    from scipy.special import betaln, logsumexp  # slow to import, and only needed here

    rates, total, wrong = (np.asarray(x, float) for x in (first.rates, first.total, first.wrong))
    q, raters, _ = rates.shape
    covariance, binomial = _covariance(first), rates * (1 - rates)
    precision = 1 / np.diagonal(covariance, axis1=1, axis2=2).reshape(rates.shape)
    told = np.clip(precision / binomial - sum(_WEAK), 0, total)
    rate = wrong / np.maximum(total, 1e-9)
    a, b = (_STRENGTHS[:, None, None, None] * m[:, None, None, None, None] for m in (_MEANS, 1 - _MEANS))
    evidence = betaln(told * rate + a, told * (1 - rate) + b) - betaln(a, b)
    enough = (total.sum(2) > 0).sum(1)[:, None] >= 3
    evidence = logsumexp(evidence.sum(3), axis=0).sum(1, where=enough) - np.log(_STRENGTHS)[:, None]
    strength = np.where(enough, _STRENGTHS[evidence.argmax(0)], _STRENGTHS[0])[:, None]
    weight = strength * told / (strength + told)
    size = weight.sum(1, keepdims=True) + sum(_WEAK)
    mean, part = ((weight * rate).sum(1, keepdims=True) + _WEAK[0]) / size, weight / size
    pull = (part * binomial).reshape(q, -1)[:, :, None] * np.tile(np.eye(2), (raters, 1))
    common = np.einsum("qis,qij,qjt->qst", pull, covariance, pull)
    # What the mean of these raters differs from that of all, and the weak prior in it.
    own = (mean * (1 - mean) / (strength + 1) * part**2).sum(1) + (1 - part.sum(1)) ** 2 / 16
    pseudo = np.broadcast_to(np.stack([strength * mean, strength * (1 - mean)], 3), (q, raters, 2, 2))
    return _Common(pseudo, common + own[:, None] * np.eye(2), told)


def _clear_variance(clear: Clear, common: _Common) -> Float[np.ndarray, "q raters 2"]:
    """Of the rates: by the observed information, and by the uncertainty of the mean that they are drawn to."""
    rates, covariance = np.asarray(clear.rates, float), _covariance(clear)
    q, raters, _ = rates.shape
    binomial = (rates * (1 - rates)).reshape(q, -1)
    held = common.pseudo.sum(3).reshape(q, -1) * binomial  # the prior's precision, in logits
    moved = (covariance * held[:, None]).reshape(q, 2 * raters, raters, 2).sum(2)
    mean = common.pseudo[:, 0, :, 0] / common.pseudo[:, 0].sum(2)
    moved = moved / (mean * (1 - mean))[:, None]
    variance = np.diagonal(covariance, axis1=1, axis2=2) + ((moved @ common.uncertainty) * moved).sum(2)
    return (variance * binomial**2).reshape(rates.shape)


def _status(
    judgements: Int8[np.ndarray, "n q raters"], clean: Float[np.ndarray, "n q"], common: _Common, scored: bool
) -> Int[np.ndarray, "raters q"]:
    known = judgements >= 0
    seen, judged = known.any(2), known.any(0).T
    positives = (clean * seen).sum(0)
    present, every = np.einsum("nq,nqr->rq", clean, known), known.sum(0).T
    often = np.minimum(present, every - present) >= _FEWEST
    told = common.told.transpose(1, 0, 2)
    status = np.full(judged.shape, RaterStatus.ESTIMATED, np.int32)
    status[(told < common.pseudo.sum(3).transpose(1, 0, 2)).any(2)] = RaterStatus.POOLED
    status[:, np.minimum(positives, seen.sum(0) - positives) < _FEWEST] = RaterStatus.TOO_FEW
    status[often & (told < sum(_WEAK)).any(2)] = RaterStatus.UNIDENTIFIABLE
    status[:, judged.sum(0) + scored < 3] = RaterStatus.UNIDENTIFIABLE
    status[~judged] = RaterStatus.NOT_JUDGED
    return status


def _disagreement(judgements: Int8[np.ndarray, "n q raters"]) -> tuple[np.ndarray, np.ndarray]:
    """Observed and expected disagreement of every class, (q,), over the cells that at least two raters judged."""
    ones, zeros = (judgements == 1).sum(2).astype(float), (judgements == 0).sum(2).astype(float)
    votes = ones + zeros
    pairable = votes >= 2
    total, positive = (votes * pairable).sum(0), (ones * pairable).sum(0)
    observed = (2 * ones * zeros / np.where(pairable, votes - 1, 1)).sum(0, where=pairable)
    expected = 2 * positive * (total - positive) / np.maximum(total - 1, 1)
    return observed, expected


def _as_judgements(labels: Any, observed: Any) -> Int8[np.ndarray, "n q raters"]:
    """Checked labels: 0/1, -1 where there is no judgement."""
    array = dense(labels.labels if isinstance(labels, RaterTable) else labels, "labels")
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(f"labels: shape {array.shape}, dtype {array.dtype}; pass (n, q, raters) of 0/1, -1 for gaps")
    gap = np.isnan(array) | (array == -1) if array.dtype.kind in "if" else np.zeros(array.shape, bool)
    if observed is not None:
        mask = dense(observed, "observed")
        if mask.shape != array.shape or not np.isin(mask, (0, 1)).all():
            raise ValueError(f"observed: shape {mask.shape}, dtype {mask.dtype}; pass {array.shape} of True or False")
        gap = gap | (mask == 0)
    bad = ~gap & (array != 0) & (array != 1)
    if bad.any():
        place = np.unravel_index(bad.argmax(), bad.shape)
        where = ", ".join(f"{what} {int(k)}" for what, k in zip(("row", "column", "rater"), place, strict=True))
        raise ValueError(f"labels: {where} is {array[place]!s}; pass 0 or 1, and -1 or NaN for gaps")
    return np.where(gap, -1, array).astype(np.int8)


def _as_scores(scores: Any, judgements: Int8[np.ndarray, "n q raters"]) -> Float[np.ndarray, "n q"]:
    """Checked scores, less their mean over the judged cells of a class."""
    s, shape, seen = dense(scores, "scores"), judgements.shape[:2], (judgements >= 0).any(2)
    if s.shape != shape or s.dtype.kind not in "iuf":
        raise ValueError(f"scores: shape {s.shape}, dtype {s.dtype}; pass {shape} logits")
    fine = np.abs(s) <= _LARGEST
    if not fine.all():
        row, column = np.argwhere(~fine)[0]
        remedy = f"pass finite logits, at most {_LARGEST:g} in size"
        raise ValueError(f"scores: row {row}, column {column} is {s[row, column]}; {remedy}")
    mean = (s * seen).sum(0) / np.maximum(seen.sum(0), 1)
    return (s - mean).astype(np.float32)


def _per_rater(name: str, values: Any, raters: int) -> np.ndarray:
    array = dense(values, name)
    if array.shape != (raters,):
        raise ValueError(f"{name}: shape {array.shape}; pass one value for each of the {raters} raters")
    return array
