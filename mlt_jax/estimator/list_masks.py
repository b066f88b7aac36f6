"""The joint rule on lists where a few cells are unobserved: exact, as by tables, and never q x q.

A class then has a fourth list, the examples where it is unobserved, and of each list counts not only the labels that
are 1 but also those that are unobserved. A label that is in no list of the class, neither as 1 nor as unobserved, says
what any other does that is 1 as often and unobserved as often. So the sums over all partners, which make the cloud (see
`line.group_cloud`), are those over the distinct (ones, unobserved cells) of labels, times how many labels have them;
then the labels in the lists are taken out and put in as they are.
"""

from functools import reduce
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int64

from mlt_jax.estimator import line
from mlt_jax.estimator.lists import (
    MOST_POSITIVES,
    conclude_lists,
    group_places,
    in_blocks,
    list_cells,
    list_sizes,
    rows_of,
    unpacked,
)
from mlt_jax.estimator.sparse_counts import SparseLabels, SparseMask
from mlt_jax.transition import TransitionEstimate, check_assume

_UPPER = [(g, h) for g in range(4) for h in range(g, 4)]
# A pair in an example, a different pair, and a class with a kind of labels, in units of 1500 multiplications.
_COUNT_TIME, _PAIR_TIME, _KIND_TIME = 1.0, 8.0, 5.0


def masked_lists_pay(labels: SparseLabels, mask: SparseMask) -> bool:
    """Whether lists take less time than tables, by times measured on a CPU; False where counts are too large."""
    n, q = labels.by_example.shape
    given, hidden, stored = (
        np.diff(m.indptr).astype(np.int64) for m in (labels.by_example, labels.unobserved, mask.cells)
    )
    pairs = (given + hidden) @ (given + hidden + stored)
    kinds = _kinds(labels)
    if max(kinds.ones.max(), kinds.hidden.max()) > MOST_POSITIVES:
        return False
    time = _COUNT_TIME * pairs + _PAIR_TIME * min(pairs, q**2) + _KIND_TIME * q * len(kinds.number)
    return bool(time < 8 * n * q**2 / 1500)


def estimate_masked(
    labels: SparseLabels, mask: SparseMask, *, assume: str, fallback: Any, min_selected: int, max_memory: int
) -> TransitionEstimate:
    """`estimate_all` by the joint rule from lists where some cells are unobserved."""
    check_assume(assume)
    return conclude_lists((_masked_clouds(labels, mask, assume, max_memory), None), fallback, min_selected)


class _Kinds(NamedTuple):
    """Labels by how often they are 1 and how often unobserved."""

    ones: Float[np.ndarray, "d"]
    hidden: Float[np.ndarray, "d"]
    number: Float[np.ndarray, "d"]  # labels of each kind
    of_label: Int64[np.ndarray, "q"]


def _kinds(labels: SparseLabels) -> _Kinds:
    q = labels.by_example.shape[1]
    ones, hidden = (np.bincount(m.indices, minlength=q) for m in (labels.by_example, labels.unobserved))
    (one, gone), of_label, number = np.unique(np.stack([ones, hidden]), axis=1, return_inverse=True, return_counts=True)
    return _Kinds(one.astype(float), gone.astype(float), number.astype(float), of_label.ravel())


def _masked_clouds(labels: SparseLabels, mask: SparseMask, assume: str, max_memory: int) -> line.Cloud:
    """Clouds of all classes, as `line.group_cloud` makes them of tables; float64."""
    n, q = labels.by_example.shape
    cells, kinds = list_cells(labels, mask), _kinds(labels)
    hidden = sp.csr_array(labels.unobserved.T.astype(np.int64))
    right = sp.hstack([cells.by_example, labels.unobserved.astype(np.int64)], format="csr")
    lengths = np.diff(right.indptr).astype(np.int64)
    once = (
        sp.csr_array((np.ones(len(m.data), np.int64), m.indices, m.indptr), m.shape) for m in (cells.by_class, hidden)
    )
    work = sum(m @ lengths for m in once) + len(kinds.number) + 1
    order = np.argsort(group_places(mask.selected, assume))

    def clouds(first: int, end: int) -> line.Cloud:
        listed, unseen = rows_of(cells.by_class, first, end), rows_of(hidden, first, end)
        size = np.append(list_sizes(listed), np.diff(unseen.indptr)[:, None], axis=1).astype(float)
        pairs, ones, gone = _pairs(listed @ right, unseen @ right, first)
        row, label = np.divmod(pairs, q)
        kind = kinds.of_label[label]

        def terms(ones: Any, gone: Any, own: Any, of: _Kinds) -> np.ndarray:
            counts: list[Any] = [(ones, of.ones), (gone, of.hidden), (size.T[:, own], n)]
            groups = [_groups(lists, total, assume) for lists, total in counts]
            return _terms(*([group[k] for k in order] for group in groups))

        nothing = np.zeros((4, 1))
        each = _Kinds(kinds.ones[kind], kinds.hidden[kind], kinds.number, kinds.of_label)
        all_rows = np.arange(end - first)
        total = terms(nothing[:, :, None], nothing[:, :, None], all_rows[:, None], kinds) @ kinds.number
        change = terms(ones, gone, row, each) * (row + first != label) - terms(nothing, nothing, row, each)
        total += np.stack([np.bincount(row, x, minlength=end - first) for x in change])
        return _cloud(total, np.stack([_groups(size.T, n, assume)[k] for k in order], 1))

    ends = np.append(0, np.cumsum(work))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *in_blocks(ends, clouds, max_memory))


def _pairs(listed: Any, unseen: Any, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places row * q + label of all labels in the lists of some classes, and of the class itself.

    And how often each is 1, and how often unobserved, in the four lists (4, k).
    """
    rows, q = listed.shape[0], listed.shape[1] // 2
    own = np.arange(rows) * (q + 1) + first
    parts = []
    for m in (listed, unseen):
        row = np.repeat(np.arange(rows), np.diff(m.indptr))
        parts.append((row * q + m.indices % q, m.indices >= q))
    places = np.unique(np.concatenate([own, *(place for place, _ in parts)]))
    counts = np.zeros((2, 4, len(places)))
    for (place, gone), lists in zip(parts, (unpacked(listed.data), [unseen.data]), strict=True):
        at = np.searchsorted(places, place)
        for k, x in enumerate(lists, start=0 if len(lists) == 3 else 3):
            counts[gone.astype(np.int64), k, at] = x
    return places, counts[0], counts[1]


def _groups(lists: Any, total: Any, assume: str) -> list[Any]:
    """What the three lists of observed cells and the rest have, of what the four lists and all examples have."""
    kept, stored, negative, unseen = lists
    if assume == "missing":  # all positives count as selected
        kept, stored = kept + stored, 0 * stored
    if assume == "partial":  # all negatives do: they are the rest
        negative = 0 * negative
    return [kept, stored, negative, total - kept - stored - negative - unseen]


def _terms(ones: list[Any], gone: list[Any], size: list[Any]) -> Float[np.ndarray, "terms ..."]:
    """What a partner adds to the sums of a class: see `line.group_cloud` and `counts.group_means`.

    `ones` and `gone` are how often it is 1, and unobserved, in the four groups of the class.
    """
    total = [size[g] - gone[g] for g in range(4)]
    seen = [total[g] / np.maximum(size[g], 1) for g in range(4)]
    mean = [ones[g] / np.maximum(total[g], 1) for g in range(4)]
    number = sum(total)
    share = sum(ones) / np.maximum(number, 1)
    for unselected, same, other in ((2, 0, 1), (3, 1, 0)):
        stretch = seen[unselected] / np.where(seen[same] > 0, seen[same], 1)
        mean[unselected] = mean[other] + stretch * (mean[unselected] - mean[other])
    used = reduce(np.logical_and, ((total[g] > 0) | (size[g] == 0) for g in range(4)))
    spread = share * (1 - share)
    varied = used & (spread > 0)
    unit = np.where(varied, 1 / np.where(varied, spread, 1), 0)
    gap = total[0] * total[1] / np.maximum(total[0] + total[1], 1) * (mean[0] - mean[1]) ** 2 * unit
    weight = unit * number
    moments = [weight * mean[g] * mean[h] for g, h in _UPPER]
    parts = [*moments, *(used * each for each in total), used, varied & (number > 0), gap > line.CHI2_95, gap]
    return np.stack(np.broadcast_arrays(*(np.asarray(part, float) for part in parts)))


def _cloud(total: Float[np.ndarray, "terms rows"], size: Float[np.ndarray, "rows 4"]) -> line.Cloud:
    """The clouds from the sums over the partners."""
    moments, (used, dimension, partners, contrast) = total[:10], total[14:]
    mass = (total[10:14] / np.maximum(used, 1)).T
    whole = np.maximum(mass.sum(1), 1)
    moment = np.zeros((len(size), 4, 4))
    for (g, h), x in zip(_UPPER, moments, strict=True):
        moment[:, g, h] = moment[:, h, g] = x
    centred = np.eye(4) - (mass / whole[:, None])[:, None]
    root = np.sqrt(mass / whole[:, None])
    gram = np.einsum("jga,jab,jhb->jgh", centred, moment, centred) * root[:, :, None] * root[:, None]
    found: Any = (size, mass, gram, dimension, contrast, partners)
    return line.Cloud(*found)
