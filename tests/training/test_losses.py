import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax.paper.noise import transition
from mlt_jax.training import losses

T = transition(np.array([0.1, 0.2, 0.0]), np.array([0.3, 0.4, 0.5]))
# g = 0.2 and 0.8 at these logits, in a row of label 0 and a row of label 1.
LOGITS = jnp.log(jnp.array([[0.25, 4.0, 0.25], [0.25, 4.0, 0.25]], jnp.float32))
LABELS = jnp.array([[0, 0, 0], [1, 1, 1]], jnp.float32)
GIVEN_T = {
    "reweighted_bce": losses.reweighted_bce,
    "forward_bce": losses.forward_bce,
    "backward_bce": losses.backward_bce,
}
ALL = {
    "bce": losses.bce,
    "gce": losses.gce,
    **{name: lambda h, y, f=f: f(h, y, T) for name, f in GIVEN_T.items()},
    "revision_bce": lambda h, y: losses.revision_bce(h, y, T, jnp.full(T.shape, 0.01)),
}

G = np.array([0.2, 0.8, 0.2])
L1, L0 = -np.log(G), -np.log(1 - G)
RN, RP = np.array([0.1, 0.2, 0.0]), np.array([0.3, 0.4, 0.5])
NOISY_ONE = np.array([0.1 * 0.8 + 0.7 * 0.2, 0.2 * 0.2 + 0.6 * 0.8, 0.5 * 0.2])  # 0.22, 0.52, 0.1
BY_HAND = {
    "bce": [L0, L1],
    "reweighted_bce": [(1 - G) / (1 - NOISY_ONE) * L0, G / NOISY_ONE * L1],
    "forward_bce": [-np.log(1 - NOISY_ONE), -np.log(NOISY_ONE)],
    "backward_bce": [((1 - RP) * L0 - RN * L1) / (1 - RN - RP), ((1 - RN) * L1 - RP * L0) / (1 - RN - RP)],
    "gce": [(1 - (1 - G) ** 0.7) / 0.7, (1 - G**0.7) / 0.7],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_values_equal_the_equations(name):
    np.testing.assert_allclose(jax.jit(ALL[name])(LOGITS, LABELS), np.stack(BY_HAND[name]), rtol=1e-5)


def test_first_reweighted_values_are_these_numbers():
    # y = 0: 0.8 / 0.78 * 0.223144; y = 1: 0.2 / 0.22 * 1.609438
    found = losses.reweighted_bce(LOGITS, LABELS, T)
    np.testing.assert_allclose(found[:, 0], [0.2288653, 1.463125], rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("far", [50.0, 200.0])
def test_values_and_gradients_are_finite_far_out(name, far):
    logits = jnp.array([[far, -far, far], [-far, far, -far], [far, far, -far]], jnp.float32)
    labels = jnp.array([[0, 1, 0], [1, 1, 1], [0, 1, 1]], jnp.float32)
    value, gradient = jax.jit(jax.value_and_grad(lambda h: ALL[name](h, labels).sum()))(logits)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("f", [*GIVEN_T.values(), lambda h, y, T: losses.revision_bce(h, y, T, jnp.zeros(T.shape))])
def test_with_no_noise_each_corrected_loss_is_bce(f):
    clean = jnp.tile(jnp.eye(2), (3, 1, 1))
    np.testing.assert_allclose(f(LOGITS, LABELS, clean), losses.bce(LOGITS, LABELS), rtol=1e-3)


def test_the_weight_is_constant_for_the_gradient():
    weight = losses.importance(LOGITS, LABELS, T)
    found = jax.grad(lambda h: losses.reweighted_bce(h, LABELS, T).sum())(LOGITS)
    np.testing.assert_allclose(found, weight * (jax.nn.sigmoid(LOGITS) - LABELS), rtol=1e-5)


def test_forward_gradient_agrees_with_differences():
    eps, where = 1e-2, (1, 0)
    moved = [losses.forward_bce(LOGITS.at[where].add(s * eps), LABELS, T)[where] for s in (1, -1)]
    found = jax.grad(lambda h: losses.forward_bce(h, LABELS, T).sum())(LOGITS)[where]
    np.testing.assert_allclose(found, (moved[0] - moved[1]) / (2 * eps), rtol=1e-3)


def test_backward_is_unbiased_for_the_clean_loss():
    both = jnp.stack([losses.backward_bce(LOGITS[:1], jnp.full((1, 3), y), T)[0] for y in (0.0, 1.0)], axis=1)
    expected = jnp.einsum("qcy,qy->qc", T, both)  # mean over the noisy label, for each clean one
    np.testing.assert_allclose(expected, np.stack([L0, L1], axis=1), rtol=1e-5)


def test_revision_passes_gradient_through_the_weight_to_delta_and_to_the_network():
    delta = jnp.zeros(T.shape)
    to_delta = jax.grad(lambda d: losses.revision_bce(LOGITS, LABELS, T, d).sum())(delta)
    assert np.abs(to_delta).min() > 0, "also where a rate is 0"
    # d/dh of (g / noisy) * -log g at y = 1 of class 0: g' = .16, noisy' = .6 * .16.
    to_logits = jax.grad(lambda h: losses.revision_bce(h, LABELS, T, delta).sum())(LOGITS)
    expected = 0.16 / 0.22 * L1[0] - 0.2 / 0.22**2 * 0.6 * 0.16 * L1[0] - 0.2 / 0.22 * 0.8
    assert to_logits[1, 0] == pytest.approx(expected, rel=1e-4)


def test_revision_does_not_renormalise():
    delta = jnp.zeros(T.shape).at[0, 1, 1].set(0.1)  # the row sums to 1.1: P(noisy = 1) = .24, P(noisy = 0) as before
    found, before = (losses.revision_bce(LOGITS, LABELS, T, d) for d in (delta, jnp.zeros(T.shape)))
    assert found[1, 0] == pytest.approx(0.2 / 0.24 * L1[0], rel=1e-5)
    np.testing.assert_allclose(found[0], before[0], rtol=1e-6)
    assert np.isfinite(losses.revision_bce(LOGITS, LABELS, T, -2 * T)).all()


def test_backward_stays_finite_where_T_is_singular():
    singular = transition(np.array([0.4]), np.array([0.55])) + jnp.array([[[-0.05, 0.05], [0.05, -0.05]]])
    logits, labels = jnp.array([[0.0], [0.0]]), jnp.array([[0.0], [1.0]])
    value, slope = jax.value_and_grad(lambda h: losses.backward_bce(h, labels, singular).sum())(logits)
    assert np.isfinite(value)
    # Divided by 0.05, not by 1 - .45 - .6 = -.05: each label's loss keeps its sign.
    np.testing.assert_allclose(slope.ravel(), [0.5 * (0.4 + 0.45) / 0.05, -0.5 * (0.55 + 0.6) / 0.05], rtol=1e-4)


def test_a_label_that_T_rules_out_has_a_finite_loss():
    never = jnp.tile(jnp.array([[1.0, 0.0], [1.0, 0.0]]), (3, 1, 1))  # no label is ever given
    swapped = jnp.tile(jnp.array([[0.0, 1.0], [1.0, 0.0]]), (3, 1, 1))
    for matrices in (never, swapped):
        for scale in (1, 1e4):
            assert np.isfinite(losses.reweighted_bce(scale * LOGITS, LABELS, matrices)).all()
            assert np.isfinite(losses.forward_bce(scale * LOGITS, LABELS, matrices)).all()
