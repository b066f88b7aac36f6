import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from simulate import correlated_labels, flip

from mlt_jax import TransitionEstimate, dual_t, estimate, models, t_estimator
from mlt_jax.paper.methods import (
    CHOSEN,
    ESTIMATORS,
    METHODS,
    Evidence,
    Method,
    Truth,
    head_of,
    head_rates,
    load_plugins,
    needs_maps,
    released_dual_t,
)
from mlt_jax.paper.noise import transition
from mlt_jax.training import losses
from mlt_jax.training.methods import WarmUp, adam
from mlt_jax.training.metrics import transition_error
from mlt_jax.transition import Status

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
    """Which is why both give the same linear head under Adam, whose step does not depend on a gradient's scale.

    It is due to the stop-gradient of the weight: let through, as T-Revision does, the gradients are others.
    """
    logits = jnp.linspace(-4, 4, 9)[:, None]
    for label in (0.0, 1.0):
        labels = jnp.full((9, 1), label)
        reweight, forward = (
            jax.grad(lambda x, f=f, y=labels: f(x, y, T).sum())(logits)
            for f in (losses.reweighted_bce, losses.forward_bce)
        )
        assert np.allclose(forward, (1 - 0.1 - 0.3) * reweight, atol=1e-6)
        through = jax.grad(lambda x, y=labels: losses.revision_bce(x, y, T, jnp.zeros((1, 2, 2))).sum())(logits)
        ratio = np.asarray(through / forward)
        assert ratio.max() > ratio.min() + 0.5


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


def test_dual_t_as_released_swaps_the_predictions_of_the_surest(evidence):
    # Of 100 examples the surest 3 (97 to 99) and the least sure 3 (0 to 2) are taken for the other value.
    probs = np.linspace(0.005, 0.995, 100)[:, None]
    labels = (np.arange(100) >= 50).astype(np.uint8)[:, None]
    right, released = dual_t(probs, labels, quantile=0.97), released_dual_t(probs, labels, quantile=0.97)
    anchor = np.asarray(t_estimator(probs, labels, quantile=0.97)[0])
    np.testing.assert_allclose(right[0], anchor, atol=1e-6)
    swapped = np.array([[47, 3], [3, 47]]) / 50
    np.testing.assert_allclose(released[0], anchor @ swapped, atol=1e-6)
    assert matrices("Dual T-estimator 97%, as released", evidence[0]).sum(axis=2) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("k", "rates", "copied", "in_place"), [(1, (0.1, 0.1), 5.5, 12.6), (2, (0.034, 0.4), 5.2, 10.9)]
)
def test_dual_t_as_released_has_the_replayed_errors_on_real_probabilities(real_data, k, rates, copied, in_place):
    given = real_data(f"golden/golden_{k}.npz")
    true = transition(*rates, 20)
    for rule, expected in ((dual_t, copied), (released_dual_t, in_place)):
        found = rule(given["probs"][-1].astype(float), given["labels"], quantile=0.97)
        assert transition_error(found, true) == pytest.approx(expected, rel=0.07)


def test_the_paper_s_recipe_falls_back_to_dual_t_only_where_it_has_no_solution(evidence):
    given, _ = evidence
    labels, probs = given.labels.copy(), given.probs
    labels[:, 4] = 0
    labels[:20, 4] = 1  # too few to select 50
    losses = -np.log(np.where(labels == 1, probs, 1 - probs))[None]
    given = dataclasses.replace(given, labels=labels, warm_up=lambda: WarmUp(({}, {}), losses, probs))
    found = ESTIMATORS["Our estimator"].estimate(given)
    assert (np.asarray(found.status) == Status.FALLBACK).tolist() == [False] * 4 + [True]
    np.testing.assert_allclose(found.T[4], dual_t(probs, labels)[4], rtol=1e-6)


def test_heads_have_their_authors_settings():
    assert head_rates(5e-5) == {"agcn": pytest.approx(5e-4), "csra": pytest.approx(5e-4)}
    assert [head_of("csra", "coco"), head_of("csra", "voc2007"), head_of("linear", "coco")] == [
        "csra-coco", "csra", "linear",
    ]  # fmt: skip


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
