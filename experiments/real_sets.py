"""Data sets with real noisy labels and better ones for the same cells, as tasks of one form.

The better labels are agreement among people or experts, not truth. A folder holds any of

| file | given labels | better labels |
|---|---|---|
| `emotions_deu.npz` | one rater with 4,000 posts or more, five of them | majority of three or more others |
| `emotions_so.npz` | one rater of three | the other two, where they agree |
| `captions_voc.npz` | classes that the first caption names | VOC's annotation |
| `tags_flickr.npz` | the user's tags | MIRFLICKR's annotation |
| `xray_nih.npz` | findings mined from reports | radiologists; the rates are those of 810 other X-rays |
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from mlt_jax import cross_val_logits

# A class counts with this many positives among the given and among the better labels.
_FEWEST, _FEWEST_CAPTIONS, _FEWEST_XRAYS = 50, 10, 45


class Task(NamedTuple):
    """Given labels of n examples and q classes, what may be seen of them, and what they are measured against."""

    set: str  # name of the data set
    given: UInt8[np.ndarray, "n q"]  # 0/1; 0 where not observed
    observed: Bool[np.ndarray, "n q"]
    scores: Float[np.ndarray, "n q"]  # out-of-sample logits of P(given = 1)
    features: Float[np.ndarray, "n d"] | None
    better: Int[np.ndarray, "n q"]  # 0/1, -1 where unknown; for scoring only
    truth: Float[np.ndarray, "q 2"]  # rho_neg, rho_pos by the better labels; for scoring only
    use: Bool[np.ndarray, "q"]  # classes with enough positives to be scored


def real_sets(folder: str | Path) -> dict[str, list[Task]]:
    """The tasks of every set in the folder, by set: one per rater, or one.

    Scores are cross-fitted on the features (15 seconds for all sets); those of the X-rays come with the file.

    Raises:
      ValueError: the folder has none of the files.
    """
    found = {}
    for name, tasks in _SETS.items():
        path = Path(folder).expanduser() / f"{name}.npz"
        if path.is_file():
            with np.load(path, allow_pickle=False) as archive:
                found[name] = list(tasks(dict(archive)))
    if not found:
        raise ValueError(f"folder: {folder} has none of {', '.join(_SETS)} as npz; pass the folder that does")
    return found


def rates(given: Any, better: Any) -> tuple[Float[np.ndarray, "q 2"], Int[np.ndarray, "q"]]:
    """rho_neg and rho_pos (q, 2) of the given labels against better ones, where both are known (>= 0).

    Returns:
      The rates, and the number of positives by whichever side has fewer.
    """
    known = (given >= 0) & (better >= 0)
    absent, present, on = known & (better == 0), known & (better == 1), known & (given == 1)
    false, missed = (absent & on).sum(0), (present & ~on).sum(0)
    sizes = np.maximum([absent.sum(0), present.sum(0)], 1)
    return np.stack([false, missed] / sizes, axis=1), np.minimum(present.sum(0), on.sum(0))


def _task(name: str, features: np.ndarray, given: np.ndarray, better: np.ndarray, fewest: int = _FEWEST) -> Task:
    """A task with cross-fitted scores; given is -1 where not observed."""
    observed, labels, x = given >= 0, (given == 1).astype(np.uint8), features.astype(np.float32)
    truth, positives = rates(given, better)
    scores = cross_val_logits(x, labels, observed=observed)
    return Task(name, labels, observed, scores, x, better, truth, positives >= fewest)


def _emotions_deu(file: dict[str, np.ndarray]) -> Iterator[Task]:
    raters = file["raters"]
    for k in range(raters.shape[2]):
        seen = raters[:, 0, k] >= 0
        if seen.sum() < 4000:
            continue
        others = np.delete(raters[seen], k, axis=2)
        yes, no = (others == 1).sum(2), (others == 0).sum(2)
        better = np.where((yes + no >= 3) & (yes != no), yes > no, -1)
        yield _task("emotions_deu", file["features"][seen], raters[seen, :, k], better)


def _emotions_so(file: dict[str, np.ndarray]) -> Iterator[Task]:
    for k in range(3):
        one, other = np.moveaxis(np.delete(file["raters"], k, axis=2), 2, 0)
        yield _task("emotions_so", file["features"], file["raters"][:, :, k], np.where(one == other, one, -1))


def _captions_voc(file: dict[str, np.ndarray]) -> Iterator[Task]:
    yield _task("captions_voc", file["features"], file["noisy"], file["clean"], _FEWEST_CAPTIONS)


def _tags_flickr(file: dict[str, np.ndarray]) -> Iterator[Task]:
    yield _task("tags_flickr", file["features"], file["noisy"], file["clean"])


def _xray_nih(file: dict[str, np.ndarray]) -> Iterator[Task]:
    given = file["noisy"]
    probs = file["probs"].astype(np.float32).mean(0).clip(1e-4, 1 - 1e-4)
    truth, _ = rates(file["g14_noisy"], file["g14_clean"])
    use = (file["g14_clean"] == 1).sum(0) >= _FEWEST_XRAYS
    scores = np.log(probs) - np.log1p(-probs)
    labels = (given == 1).astype(np.uint8)
    yield Task("xray_nih", labels, given >= 0, scores, None, file["clean"], truth, use)


_SETS: dict[str, Callable[[dict[str, np.ndarray]], Iterator[Task]]] = {
    "emotions_deu": _emotions_deu,
    "emotions_so": _emotions_so,
    "captions_voc": _captions_voc,
    "tags_flickr": _tags_flickr,
    "xray_nih": _xray_nih,
}
