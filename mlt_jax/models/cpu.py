"""Settings that make XLA's CPU backend train convolutional networks faster; no effect on the numbers' meaning."""

import ctypes
import os
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec

import jaxlib

_FLAG = "xla_cpu_experimental_ynn_fusion_type"
_CHOICE = "LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE"
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # malloc.h


def alone() -> bool:
    """Whether JAX can find nothing but CPUs here; does not start a backend, which would be too late for `tune`."""
    chosen = os.environ.get("JAX_PLATFORMS", "")
    plugins = entry_points(group="jax_plugins") or find_spec("jax_plugins") or find_spec("libtpu")
    return chosen == "cpu" if chosen else not plugins


def tune() -> list[str]:
    """A description of each setting made; call it before the first JAX computation of the process.

    - Convolutions go to Eigen and not to YNNPACK, whose kernel gradients are slow (12 % of a ResNet-50 train step).
      The flag is experimental and an unknown one ends the process, so it is set for jaxlib 0.10 only; one that
      `XLA_FLAGS` has already stays.
    - glibc keeps the memory of a step for the next instead of returning it and faulting it in again (15 %).
    """
    done = []
    flags = os.environ.get("XLA_FLAGS", "")
    if _FLAG not in flags and jaxlib.__version__.startswith("0.10."):
        os.environ["XLA_FLAGS"] = f"{flags} --{_FLAG}={_CHOICE}".strip()
        done.append("convolutions by Eigen")
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None and mallopt(_M_ARENA_MAX, 1) and mallopt(_M_MMAP_MAX, 0):
            mallopt(_M_TRIM_THRESHOLD, -1)
            done.append("memory kept between steps")
    return done
