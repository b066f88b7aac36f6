import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax import models
from mlt_jax.training import losses

KEY = jax.random.key(0)


def test_wsic_predicts_by_the_clean_net_and_is_judged_by_both():
    model = models.build("wsic", num_classes=1, key=KEY, size=2)
    params = {
        "kernel": jnp.array([[1.0], [0.0]]),
        "bias": jnp.array([0.5]),
        "residual_kernel": jnp.array([[0.0], [2.0]]),
        "residual_bias": jnp.array([-1.0]),
    }
    x = jnp.array([[2.0, 3.0]])
    assert model.apply(params, {}, x, False)[0].item() == 2.5
    clean, noisy = model.apply(params, {}, x, True)[0]
    assert (clean.item(), noisy.item()) == (2.5, 7.5)
    label = jnp.zeros((1, 1))
    loss = losses.wsic(clean, noisy, label)
    assert loss.item() == pytest.approx(np.log1p(np.exp(2.5)) + np.log1p(np.exp(7.5)))
