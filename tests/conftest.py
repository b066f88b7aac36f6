"""The test session is strict: 8 virtual devices, no silent rank or dtype promotion, warnings are errors."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import numpy as np
import pytest
from paths import DATA

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="session")
def real_data():
    """Opens one of the real data files by name; skips where they are not at hand."""

    def load(name: str) -> dict[str, np.ndarray]:
        if not (DATA / name).exists():
            pytest.skip(f"real data {name} not found in {DATA} (set MLT_JAX_DATA)")
        with np.load(DATA / name, allow_pickle=False) as archive:
            return dict(archive)

    return load
