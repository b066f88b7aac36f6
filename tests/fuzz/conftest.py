"""Fuzzing sees the library as its users do: no checks of shapes by jaxtyping, and JAX's usual promotion."""

import jax
import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

_SLOW = dict(deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("fuzz-ci", derandomize=True, database=None, **_SLOW)
settings.register_profile("fuzz", print_blob=True, **_SLOW)


@pytest.fixture(autouse=True, scope="package")
def as_users_do():
    usual = {"jax_numpy_rank_promotion": "allow", "jax_numpy_dtype_promotion": "standard"}
    strict = {name: getattr(jax.config, name) for name in usual}
    for name, value in usual.items():
        jax.config.update(name, value)
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    for name, value in strict.items():
        jax.config.update(name, value)
