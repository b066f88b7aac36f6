"""Sums of several vectors in one pass over memory, which is what limits the speed on large tables."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Options of `jax.jit` that allow sums in any order: only then does XLA vectorise several at once.
ANY_ORDER = {"xla_cpu_enable_fast_math": True}
ANY_ORDER |= {f"xla_cpu_fast_math_honor_{what}": True for what in ("nans", "infs", "division", "functions")}


@jax.custom_jvp
def sums(*terms: Float[Array, "q"]) -> tuple[Float[Array, ""], ...]:
    """Sums of several vectors in one fused reduction: under jit the vectors are never written to memory."""
    return tuple(jax.lax.reduce(terms, (np.zeros((), terms[0].dtype),) * len(terms), _add, (0,)))


@sums.defjvp
def _sums_jvp(terms: Any, tangents: Any) -> Any:
    return sums(*terms), tuple(map(jnp.sum, tangents))


def _add(left: Any, right: Any) -> Any:
    return tuple(x + y for x, y in zip(left, right, strict=True))
