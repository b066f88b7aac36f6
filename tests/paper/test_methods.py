import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from simulate import correlated_labels, flip

from mlt_jax import models
from mlt_jax.paper import methods
from mlt_jax.paper.methods import ESTIMATORS, METHODS, ORACLES, Evidence, Method, Truth
from mlt_jax.training import losses

KEY = jax.random.key(0)
T = jnp.array([[[0.9, 0.1], [0.3, 0.7]]])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_plain_losses_of_the_registry_are_the_library_s():
    logits, labels = jnp.array([[0.3], [-1.2]]), jnp.array([[1.0], [0.0]])
    g = sigmoid(np.array([[0.3], [-1.2]]))
    given = np.where(labels == 1, g, 1 - g)
    assert np.allclose(METHODS["Standard"].loss(logits, labels, None), -np.log(given))
    assert np.allclose(METHODS["GCE"].loss(logits, labels, None), (1 - given**0.7) / 0.7, atol=1e-6)
    noisy = 0.1 * (1 - g) + 0.7 * g
    noisy = np.where(labels == 1, noisy, 1 - noisy)
    assert np.allclose(METHODS["Reweight-Ours"].loss(logits, labels, T), -given / noisy * np.log(given), atol=1e-6)
    assert np.allclose(METHODS["Forward-Ours"].loss(logits, labels, T), -np.log(noisy), atol=1e-6)


def test_reweight_has_forward_s_gradient_but_for_a_factor_of_the_class():
    """Which is why both give the same linear head under Adam, whose step does not depend on a gradient's scale."""
    logits = jnp.linspace(-4, 4, 9)[:, None]
    for label in (0.0, 1.0):
        labels = jnp.full((9, 1), label)
        reweight, forward = (
            jax.grad(lambda x, f=f, y=labels: f(x, y, T).sum())(logits)
            for f in (losses.reweighted_bce, losses.forward_bce)
        )
        assert np.allclose(forward, (1 - 0.1 - 0.3) * reweight, atol=1e-6)


@pytest.fixture(scope="module")
def evidence():
    rng = np.random.default_rng(0)
    clean = correlated_labels(rng, n=3000, q=5)
    labels = flip(rng, clean, 0.1, 0.2)
    probs = np.clip(0.15 + 0.6 * clean + 0.1 * rng.normal(size=clean.shape), 0.02, 0.98).astype(np.float32)
    found = -np.log(np.where(labels == 1, probs, 1 - probs))[None]
    truth = Truth(np.broadcast_to(np.array([[0.9, 0.1], [0.2, 0.8]], np.float32), (5, 2, 2)), clean)
    return Evidence(labels, found, probs, None, "general", 0), truth


def test_estimators_by_name_are_the_library_s(evidence):
    given, truth = evidence
    errors = {
        name: np.abs(np.asarray(estimator(given)) - truth.T)[:, [0, 1], [1, 0]].sum()
        for name, estimator in ESTIMATORS.items()
        if name != "Our estimator, blind"
    }
    assert errors["Our estimator"] < 0.3 < errors["T-estimator max"]
    assert errors["T-estimator 97%"] != errors["T-estimator max"]
    rows = np.asarray(ESTIMATORS["Dual T-estimator 97%"](given)).sum(axis=2)
    assert np.allclose(rows, 1, atol=1e-5)
    assert errors["Our estimator (R=1)"] != errors["Our estimator (Avg.)"]
    other = ESTIMATORS["Our estimator (R=1)"](given._replace(seed=5))
    assert not np.allclose(other, ESTIMATORS["Our estimator (R=1)"](given)), "the first partner is a random one"


def test_only_oracles_see_the_truth(evidence):
    given, truth = evidence
    assert not set(Evidence._fields) & {"clean", "T", "true_T", "truth"}
    settings = {"aggregate", "tau", "random_order", "rule", "quantile"}
    for estimator in ESTIMATORS.values():
        assert len(inspect.signature(estimator).parameters.keys() - settings) == 1
    assert ORACLES["True T"](given, truth) is truth.T
    gold = np.abs(np.asarray(ORACLES["Our estimator gold"](given, truth)) - truth.T)[:, [0, 1], [1, 0]].sum()
    assert gold < 0.3
    with pytest.raises(ValueError, match="no one T"):
        ORACLES["True T"](given, truth._replace(T=None))


def test_told_a_clean_side_our_estimator_gives_it_no_noise(evidence):
    given, truth = evidence
    labels = truth.clean & given.labels
    given = given._replace(labels=labels, losses=-np.log(np.where(labels == 1, given.probs, 1 - given.probs))[None])
    found = np.asarray(ESTIMATORS["Our estimator"](given._replace(assume="missing")))
    assert found[:, 0, 1].max() < 1e-6
    for name in ("T-estimator 97%", "Dual T-estimator max"):
        free, found_told = (ESTIMATORS[name](given._replace(assume=word)) for word in ("general", "partial"))
        assert np.allclose(found_told[:, 1], [0, 1])
        assert np.allclose(found_told[:, 0], free[:, 0])
    assert np.abs(found[:, 1, 0] - 0.2).max() < 0.1


def test_every_method_names_what_exists():
    for name, method in METHODS.items():
        assert method.model in models.HEADS, name
        assert method.estimator is None or method.estimator in ESTIMATORS | ORACLES, name
        assert method.start in ("fresh", "warm", *METHODS), name
    assert methods.find("Standard+Reweight-Ours") is METHODS["Reweight-Ours"]
    with pytest.raises(ValueError, match="method: 'Reweigh' is unknown; pass one of Standard, GCE"):
        methods.find("Reweigh")


def test_adam_is_the_default_update_rule():
    params = {"w": jnp.ones(2)}
    rule = methods.adam(0.1, clip=float("inf"), noise_rate=0.3)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = rule.update(params, rule.init(params), params)
    assert np.allclose(updates["w"], -0.1, atol=1e-5)
    assert isinstance(rule, optax.GradientTransformation)
    assert Method() == METHODS["Standard"]
