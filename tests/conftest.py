"""The test session is strict: 8 virtual devices, no silent rank or dtype promotion, warnings are errors."""

import os
from pathlib import Path

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import jaxtyping
import numpy as np
import pytest
from paths import DATA, GOLDEN

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True, scope="module")
def room_for_others():
    """Drops what earlier files have compiled once it fills 6 GB: workers share the machine with what they start."""
    yield
    pages = Path("/proc/self/statm")
    if pages.exists() and int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > 6e9:
        jax.clear_caches()


@pytest.fixture(scope="session")
def real_data():
    """Opens one of the real data files by name; skips where they are not at hand."""

    def load(name: str) -> dict[str, np.ndarray]:
        if not (DATA / name).exists():
            pytest.skip(f"real data {name} not found in {DATA} (set MLT_JAX_DATA)")
        with np.load(DATA / name, allow_pickle=False) as archive:
            return dict(archive)

    return load


@pytest.fixture(scope="session")
def golden():
    """Opens golden file 1, 2 or 3: noisy labels of 20 classes, the mask and T that the paper's released code makes.

    `probs` (epochs, n, 6) are the predictions it made them of, for the classes `columns`; all 20 are too large to ship.
    """

    def load(k: int) -> dict[str, np.ndarray]:
        with np.load(GOLDEN / f"golden_{k}.npz", allow_pickle=False) as archive:
            found = dict(archive)
        found["selected"] = np.unpackbits(found["selected"], axis=0)[: len(found["labels"])].astype(bool)
        return found

    return load


@pytest.fixture
def unchecked_shapes():
    """Lets a wrong shape through to the function's own check, as it would be for a user."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
