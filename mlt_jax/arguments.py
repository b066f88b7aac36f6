"""Checks of arguments that are one number, word or switch; errors name the argument, what was found, what to pass."""

import numbers
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np


def check_choice(name: str, value: Any, allowed: Iterable[str], remedy: str) -> None:
    """Raises ValueError unless `value` is one of the words `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}: {shown(value)}; pass {remedy}")


def check_number(name: str, value: Any, fine: Callable[[float], bool], remedy: str) -> None:
    """Raises TypeError unless `value` is one real number, ValueError unless it is `fine`; NaN never is."""
    if isinstance(value, jax.core.Tracer):
        return
    scalar = isinstance(value, np.ndarray | jax.Array) and value.ndim == 0 and value.dtype.kind in "iuf"
    if isinstance(value, bool) or not (scalar or isinstance(value, numbers.Real)):
        raise TypeError(f"{name}: {shown(value)}; pass {remedy}")
    if not (value == value and fine(value)):
        raise ValueError(f"{name}: {value}; pass {remedy}")


def check_integer(name: str, value: Any, low: int, high: int | None = None, remedy: str = "") -> None:
    """Raises TypeError unless `value` is one whole number, ValueError unless it lies in [low, high]."""
    if isinstance(value, jax.core.Tracer):
        return
    remedy = remedy or (f"a whole number, {low} or more" if high is None else f"a whole number from {low} to {high}")
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}: {shown(value)}; pass {remedy}")
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name}: {number}; pass {remedy}")


def check_seed(seed: Any) -> None:
    """Raises unless `seed` is a whole number from 0 on, as NumPy takes them."""
    check_integer("seed", seed, 0)


def check_switch(name: str, value: Any) -> None:
    """Raises TypeError unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: {shown(value)}; pass True or False")


def check_key(key: Any, name: str = "key") -> None:
    """Raises TypeError unless `key` is one key of `jax.random`, of either kind."""
    new = isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    old = isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and key.ndim == 1
    if not (new or old):
        raise TypeError(f"{name}: {shown(key)}; pass jax.random.key(seed)")


def shown(value: Any) -> str:
    """A value as an error shows it: what is short as it is, else its type and shape."""
    if value is None or isinstance(value, str | numbers.Number):
        return repr(value)[:80]
    shape = f" of shape {value.shape}" if hasattr(value, "shape") else ""
    return f"{type(value).__name__}{shape}"


def shuffled(names: Iterable[Any]) -> bool:
    """Whether names of rows are the row numbers 0, 1, ..., but not in this order."""
    found = list(map(str, names))
    counted = list(map(str, range(len(found))))
    return found != counted and sorted(found) == sorted(counted)
