import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax import models
from mlt_jax.models.revision import REVISION_RATE, make_revision, with_delta
from mlt_jax.training import losses

KEY = jax.random.key(0)


T = jnp.array([[[0.9, 0.1], [0.3, 0.7]]])


def test_revision_weighs_by_t_plus_delta_and_learns_both_slowly():
    model = with_delta(models.build("linear", num_classes=1, key=KEY, size=1), num_classes=1)
    params = {
        "net": {"kernel": jnp.zeros((1, 1)), "bias": jnp.zeros(1)},
        "delta": jnp.array([[[-0.1, 0.1], [0.0, 0.0]]]),
    }
    (logits, delta), _ = model.apply(params, {}, jnp.ones((1, 1)), True)
    # g = 1/2; T + delta = [[.8, .2], [.3, .7]]: P(noisy = 1) = .45, weight .5 / .45, loss log 2.
    loss = losses.revision_bce(logits, jnp.ones((1, 1)), T, delta)
    assert loss.item() == pytest.approx(0.5 / 0.45 * np.log(2))
    rule = make_revision(0.01, clip=float("inf"), noise_rate=0.0)
    grads = jax.tree.map(jnp.ones_like, params)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = rule.update(grads, rule.init(params), params)
    assert pytest.approx(5e-7) == REVISION_RATE * 5e-5, "its authors' rate, where the paper's is 5e-5"
    assert updates["net"]["kernel"].item() == pytest.approx(-0.01 * REVISION_RATE, rel=1e-4)
    assert updates["delta"][0, 0, 0] == pytest.approx(-0.01 * REVISION_RATE, rel=1e-4)
    assert model.apply(params, {}, jnp.ones((1, 1)), False)[0].shape == (1, 1)
