"""Fuzzing sees the library as its users do: no checks of shapes by jaxtyping, and JAX's usual promotion."""

import jax
import jaxtyping
import pytest
from fuzzing import at_length
from hypothesis import HealthCheck, settings

_SLOW = dict(deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("fuzz-ci", derandomize=True, database=None, **_SLOW)
settings.register_profile("fuzz", print_blob=True, **_SLOW)


@pytest.fixture(autouse=True, scope="module")  # without __init__.py a package is the whole session
def as_users_do():
    _configure(promotion=("allow", "standard"), fast=not at_length())  # CI is to compile fast
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    _configure(promotion=("raise", "strict"), fast=False)


def _configure(*, promotion, fast):
    for name, value in zip(("jax_numpy_rank_promotion", "jax_numpy_dtype_promotion"), promotion, strict=True):
        jax.config.update(name, value)
    jax.config.update("jax_disable_most_optimizations", fast)
