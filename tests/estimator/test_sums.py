import jax
import jax.numpy as jnp
import numpy as np

from mlt_jax.estimator.sums import ANY_ORDER, sums


def vectors(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def test_each_vector_has_its_own_sum():
    x = vectors(3, 1000)
    expected = np.asarray(x, float).sum(1)
    for add in (sums, jax.jit(sums), jax.jit(sums, compiler_options=ANY_ORDER)):
        np.testing.assert_allclose(add(*x), expected, rtol=1e-4)
    np.testing.assert_allclose(jax.vmap(sums)(*vectors(2, 5, 40)), vectors(2, 5, 40).sum(2), rtol=1e-4)


def test_all_sums_are_one_pass():
    primitives = [equation.primitive.name for equation in jax.make_jaxpr(sums)(*vectors(4, 10)).eqns]
    inside = jax.make_jaxpr(lambda *x: sums(*(y * y for y in x)))(*vectors(4, 10))
    assert len(primitives) == 1
    assert str(inside).count("reduce[") == 1


def test_gradients_in_both_directions_are_those_of_plain_sums():
    def of(add):
        return lambda x, w: jnp.stack(add(w * x, jnp.abs(x), w * w)) @ jnp.array([1.0, -2.0, 0.5])

    x, w = vectors(2, 30)
    ours, plain = of(sums), of(lambda *terms: [jnp.sum(term) for term in terms])
    for grad in (jax.grad, jax.jacfwd):
        for a, b in zip(grad(ours, argnums=(0, 1))(x, w), grad(plain, argnums=(0, 1))(x, w), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
