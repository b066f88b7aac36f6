import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
from paths import ROOT

SPEC = importlib.util.spec_from_file_location("bench_conv", ROOT / "experiments" / "bench_conv.py")
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)


def test_winograd_is_the_convolution():
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((2, 7, 6, 3), (3, 3, 3, 4)))
    ways = {name: bench.CONVS[name] for name in ("winograd2", "winograd4")}
    found = jax.jit(lambda x, k: {name: conv(x, k, 1) for name, conv in ways.items()})(x, kernel)
    for maps in found.values():
        np.testing.assert_allclose(maps, bench._xla(x, kernel, 1), rtol=1e-4, atol=1e-4)
