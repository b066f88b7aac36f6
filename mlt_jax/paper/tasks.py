"""Noisy copies of a data set as tasks to train on: labels drawn by a seed, 90 % to train on and 10 % to validate on."""

from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from mlt_jax.data import Dataset
from mlt_jax.training.loop import Task
from mlt_jax.training.methods import Truth

VALIDATION = 0.1


class Noisy(NamedTuple):
    """Labels as some noise and a seed made them."""

    labels: UInt8[np.ndarray, "n q"]
    T: Float[np.ndarray, "q 2 2"] | None  # None for noise that depends on the instance, or that nobody knows
    assume: str = "general"  # the side that is known to be noise-free


def make_task(
    train: Dataset,
    test: Dataset,
    noisy: Noisy,
    *,
    parts: tuple[Dataset, Dataset] | None = None,
    known: bool = True,
    features: Float[np.ndarray, "n d"] | None = None,
) -> Task:
    """The task of a data set with these noisy labels.

    Args:
      train: with clean labels, or those that there are.
      test: with clean labels.
      noisy: all labels of `train`, corrupted.
      parts: the rows of `train` to train and to validate on, where they were taken before (`split_rows`).
      known: whether the labels of `train` are the truth.
      features: of all of `train`, for estimators alone, where it has images.
    """
    rows, others = split_rows(len(train.ids))
    kept, held_out = parts or (train.take(rows), train.take(others))
    return Task(
        kept._replace(labels=noisy.labels[rows], ignore=None),
        held_out._replace(labels=noisy.labels[others], ignore=None),
        test,
        Truth(noisy.T, train.labels[rows]) if known else None,
        noisy.assume,
        None if features is None else features[rows],
    )


@cache
def split_rows(n: int) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " k"]]:
    """Rows to train on and rows to validate on, 90 % and 10 % of n, the same for every seed."""
    order = np.random.default_rng(1).permutation(n)
    cut = max(1, round(VALIDATION * n))
    return np.sort(order[cut:]), np.sort(order[:cut])
