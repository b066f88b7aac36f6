import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax import models
from mlt_jax.models.csra import head_logits

KEY = jax.random.key(0)


def test_csra_adds_a_tenth_of_the_attended_score_to_the_mean():
    # Scores 0 and log 3 at two positions: softmax 1/4, 3/4; mean log(3)/2, attended 3/4 log 3, maximum log 3.
    scores = jnp.log(jnp.array([1.0, 3.0])).reshape(1, 2, 1)
    assert head_logits(scores, temperature=1.0, weight=0.1)[0, 0] == pytest.approx(np.log(3) * (0.5 + 0.075))
    assert head_logits(scores, temperature=jnp.inf, weight=0.1)[0, 0] == pytest.approx(np.log(3) * (0.5 + 0.1))


def test_csra_divides_each_classs_weights_by_their_norm():
    model = models.build("csra", num_classes=2, key=KEY, size=2)
    x = jnp.array([[[[3.0, 4.0]]]])  # one position: mean and attended score are the same
    params = {"kernel0": jnp.array([[3.0, 10.0], [4.0, 0.0]])}
    logits = model.apply(params, {}, x, True)[0]
    assert np.allclose(logits, [[1.1 * 5.0, 1.1 * 3.0]])


def test_cocos_csra_has_six_heads_and_half_the_attended_score():
    model = models.build("csra-coco", num_classes=2, key=KEY, size=2)
    params = {f"kernel{head}": jnp.array([[3.0, 10.0], [4.0, 0.0]]) for head in range(6)}
    logits = model.apply(params, {}, jnp.array([[[[3.0, 4.0]]]]), True)[0]
    assert np.allclose(logits, [[6 * 1.5 * 5.0, 6 * 1.5 * 3.0]])


def test_csras_heads_are_summed():
    one, two = (models.csra.CSRA(3, 2, rngs=models.nnx.Rngs(params=KEY), heads=h, weight=0.5) for h in (1, 2))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2, 2, 3)), jnp.float32)
    kernel = two.kernel1[...]
    scores = x.reshape(4, 4, 3) @ (kernel / jnp.linalg.norm(kernel, axis=0, keepdims=True))
    one.kernel0[...] = two.kernel0[...]
    second = scores.mean(1) + 0.5 * scores.max(1)
    assert np.allclose(two(x, train=True), one(x, train=True) + second, atol=1e-6)
    with pytest.raises(ValueError, match="heads: 3; pass one of 1, 2, 4, 6"):
        models.csra.CSRA(3, 2, rngs=models.nnx.Rngs(params=KEY), heads=3)
