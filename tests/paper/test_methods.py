import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from simulate import correlated_labels, flip

from mlt_jax import TransitionEstimate, estimate, models
from mlt_jax.paper.methods import CHOSEN, ESTIMATORS, METHODS, Evidence, Method, Truth, load_plugins, needs_maps
from mlt_jax.training import losses
from mlt_jax.training.methods import WarmUp, adam

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
    return Evidence(labels, warm_up=lambda: WarmUp(({}, {}), found, probs)), truth


def matrices(name, *given):
    """T by the estimator of that name."""
    found = ESTIMATORS[name].estimate(*given)
    return np.asarray(getattr(found, "T", found)) if isinstance(found, TransitionEstimate) else np.asarray(found)


def test_estimators_by_name_are_the_library_s(evidence):
    given, truth = evidence
    errors = {
        name: np.abs(matrices(name, given) - truth.T)[:, [0, 1], [1, 0]].sum()
        for name, estimator in ESTIMATORS.items()
        if name != "Our estimator, blind" and not estimator.oracle
    }
    assert errors["Our estimator"] < 0.3 < errors["T-estimator max"]
    assert errors["T-estimator 97%"] != errors["T-estimator max"]
    rows = matrices("Dual T-estimator 97%", given).sum(axis=2)
    assert np.allclose(rows, 1, atol=1e-5)
    assert errors["Our estimator (R=1)"] != errors["Our estimator (Avg.)"]
    other = matrices("Our estimator (R=1)", dataclasses.replace(given, seed=5))
    assert not np.allclose(other, matrices("Our estimator (R=1)", given)), "the first partner is a random one"


def test_only_oracles_see_the_truth(evidence):
    given, truth = evidence
    assert not {field.name for field in dataclasses.fields(Evidence)} & {"clean", "T", "true_T", "truth"}
    settings = {"aggregate", "tau", "random_order", "rule", "quantile"}
    for estimator in ESTIMATORS.values():
        assert len(inspect.signature(estimator.estimate).parameters.keys() - settings) == 1 + estimator.oracle
    assert {name for name, estimator in ESTIMATORS.items() if estimator.oracle} == {"Our estimator gold", "True T"}
    assert ESTIMATORS["True T"].estimate(given, truth) is truth.T
    gold = np.abs(matrices("Our estimator gold", given, truth) - truth.T)[:, [0, 1], [1, 0]].sum()
    assert gold < 0.3
    with pytest.raises(ValueError, match="no one T"):
        ESTIMATORS["True T"].estimate(given, truth._replace(T=None))


def test_a_side_known_to_be_noise_free_gets_no_noise(evidence):
    given, truth = evidence
    labels = truth.clean & given.labels
    losses = -np.log(np.where(labels == 1, given.probs, 1 - given.probs))[None]
    warm = WarmUp(({}, {}), losses, given.probs)
    given = dataclasses.replace(given, labels=labels, warm_up=lambda: warm)
    found = matrices("Our estimator", dataclasses.replace(given, assume="missing"))
    assert found[:, 0, 1].max() < 1e-6
    for name in ("T-estimator 97%", "Dual T-estimator max"):
        free, held = (matrices(name, dataclasses.replace(given, assume=word)) for word in ("general", "partial"))
        assert np.allclose(held[:, 1], [0, 1])
        assert np.allclose(held[:, 0], free[:, 0])
    assert np.abs(found[:, 1, 0] - 0.2).max() < 0.1


def test_every_method_names_what_exists():
    for name, method in METHODS.items():
        assert method.model in models.HEADS, name
        assert method.estimator in (None, CHOSEN, *ESTIMATORS), name
        assert method.start in ("fresh", "warm", *METHODS), name


def test_the_default_reads_features_and_else_the_warm_up(evidence):
    given, _ = evidence
    default, recipe = matrices("auto", given), estimate(given.labels, losses=given.losses, probs=given.probs)
    assert np.allclose(default, recipe.T)
    x = np.random.default_rng(0).normal(size=(3000, 4)) + given.labels[:, :4]
    with_features = dataclasses.replace(given, features=x, warm_up=None)
    assert np.allclose(matrices("auto", with_features), estimate(given.labels, features=x).T)
    with pytest.raises(ValueError, match="losses: none; this estimator needs a warm-up"):
        matrices("Our estimator", with_features)


def test_a_plugin_is_run_from_its_file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from mlt_jax.paper.methods import METHODS\nMETHODS['M'] = METHODS['GCE']\n")
    monkeypatch.delitem(METHODS, "M", raising=False)
    load_plugins([tmp_path / "mine.py"])
    assert METHODS.pop("M") is METHODS["GCE"]
    (tmp_path / "mine.txt").write_text("")
    for name in ("mine.txt", "gone.py"):
        with pytest.raises(ValueError, match=f"plugins: .*{name} is no"):
            load_plugins([tmp_path / name])


def test_methods_on_maps_are_known_by_name():
    assert needs_maps("CSRA+Reweight")
    assert needs_maps("AGCN")
    assert not needs_maps("Standard+Reweight-Ours")


def test_adam_is_the_default_update_rule():
    params = {"w": jnp.ones(2)}
    rule = adam(0.1, clip=float("inf"), noise_rate=0.3)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = rule.update(params, rule.init(params), params)
    assert np.allclose(updates["w"], -0.1, atol=1e-5)
    assert isinstance(rule, optax.GradientTransformation)
    assert Method() == METHODS["Standard"]
