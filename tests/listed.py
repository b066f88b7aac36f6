"""Labels that are rare, and what two estimates of them must have in common, for the tests of lists."""

import numpy as np

from mlt_jax import Status, TransitionEstimate


def rare_labels(seed, n=400, q=12):
    """Labels of three topics, and a random selection of few or most cells."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, 3, n)
    share = 0.3 * rng.random() * rng.random(q)
    labels = rng.random((n, q)) < np.where(topic[:, None] == np.arange(q) % 3, 3, 0.3) * share
    if seed % 5 == 0:
        labels[:, 0], labels[:, 1] = False, True
    selected = rng.random((n, q)) < rng.choice([0.05, 0.5, 0.9, 0.99])
    if seed % 7 == 0:
        selected[:, 2], selected[:, 3] = True, False
    return labels.astype(np.uint8), selected


def assert_same(found, expected, fields=TransitionEstimate._fields):
    np.testing.assert_array_equal(found.status, expected.status)
    known = np.asarray(expected.status) == Status.CORRELATION  # ties of the others may be broken either way
    for name in fields:
        pair = (np.asarray(getattr(each, name))[known] for each in (found, expected))
        np.testing.assert_allclose(*pair, atol=1e-4 if name == "residual" else 1e-5, rtol=1e-4, err_msg=name)
    return known.sum()
