import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from simulate import correlated_labels, flip

from mlt_jax import TransitionEstimate, estimate, models
from mlt_jax.models.csra import head_logits
from mlt_jax.models.revision import DELTA_RATE, make_revision, with_delta
from mlt_jax.paper.cdr import WEIGHT_DECAY, keep_important, kth_largest, make_cdr
from mlt_jax.paper.methods import CHOSEN, ESTIMATORS, METHODS, Evidence, Method, Truth, load_plugins, needs_maps
from mlt_jax.training import losses
from mlt_jax.training.methods import WarmUp, adam

KEY = jax.random.key(0)
T = jnp.array([[[0.9, 0.1], [0.3, 0.7]]])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def leaky(x):
    return np.where(x > 0, x, 0.2 * x)


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


def test_csras_heads_are_summed():
    one, two = (models.csra.CSRA(3, 2, rngs=models.nnx.Rngs(params=KEY), heads=h, weight=0.5) for h in (1, 2))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2, 2, 3)), jnp.float32)
    kernel = two.kernel1[...]
    scores = x.reshape(4, 4, 3) @ (kernel / jnp.linalg.norm(kernel, axis=0, keepdims=True))
    one.kernel0[...] = two.kernel0[...]
    second = scores.mean(1) + 0.5 * scores.max(1)
    assert np.allclose(two(x, train=True), one(x, train=True) + second, atol=1e-6)
    with pytest.raises(ValueError, match="heads: 3; pass one of 1, 2, 4"):
        models.csra.CSRA(3, 2, rngs=models.nnx.Rngs(params=KEY), heads=3)


def test_agcn_is_its_equations():
    """Class by class, position by position, transforming every position first as its authors do."""
    rng, (b, side, d, q) = np.random.default_rng(0), (3, 2, 6, 4)
    model = models.build("agcn", num_classes=q, key=KEY, size=d)
    x = rng.normal(size=(b, side, side, d)).astype(np.float32)
    bias = {name: jnp.asarray(rng.normal(size=v.shape), v.dtype) for name, v in model.params.items() if "bias" in name}
    p = model.params | bias
    norm = {"scale": jnp.array([1.5, 0.5, 2.0]), "bias": jnp.array([0.1, -0.2, 0.3])}
    p["norm"] = norm
    stats = {"norm": {"mean": jnp.array([0.5, 0.0, -0.5]), "var": jnp.array([2.0, 1.0, 0.5])}}
    logits = np.asarray(model.apply(p, stats, x, False)[0])
    p = {name: np.asarray(value, float) for name, value in p.items() if name != "norm"}
    for image in range(b):
        rows = x[image].reshape(-1, d).astype(float)
        maps = rows @ p["scores"]
        transformed = rows @ p["transform"] + p["transform_bias"]
        V = np.stack([sum(sigmoid(maps[at, j]) * transformed[at] for at in range(len(rows))) for j in range(q)])
        H = V + leaky(leaky(p["static_graph"] @ V) @ p["static"] + p["static_bias"])
        g = H.mean(0) @ p["all_classes"] + p["all_classes_bias"]
        mean, var = (np.asarray(stats["norm"][name], float) for name in ("mean", "var"))
        g = leaky((g - mean) / np.sqrt(var + 1e-5) * np.asarray(norm["scale"]) + np.asarray(norm["bias"]))
        D = np.stack([sigmoid(np.concatenate([g, H[i]]) @ p["graph"] + p["graph_bias"]) for i in range(q)])
        Z = V + leaky(leaky(D @ H) @ p["dynamic"] + p["dynamic_bias"])
        second = np.array([Z[j] @ p["last"][:, j] + p["last_bias"][j] for j in range(q)])
        assert np.allclose(logits[image], (maps.max(0) + second) / 2, atol=1e-4)


def test_agcns_batch_norm_moves_its_statistics_in_training_only():
    model = models.build("agcn", num_classes=3, key=KEY, size=4)
    x = np.random.default_rng(0).normal(size=(5, 2, 2, 4)).astype(np.float32)
    assert model.apply(model.params, model.stats, x, False)[1] is model.stats
    moved = model.apply(model.params, model.stats, x, True)[1]["norm"]["mean"]
    assert np.abs(moved).min() > 0


@pytest.mark.parametrize("head", ["csra", "agcn"])
def test_heads_of_maps_refuse_pooled_features(head):
    model = models.build(head, num_classes=3, key=KEY, size=4)
    with pytest.raises((ValueError, TypeError), match=r"pass maps \(b, h, w, d\)|x"):
        model.apply(model.params, model.stats, np.ones((5, 4), np.float32), False)


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
    loss = METHODS["WSIC"].loss((clean, noisy), label, None)
    assert loss.item() == pytest.approx(np.log1p(np.exp(2.5)) + np.log1p(np.exp(7.5)))


def test_cdr_follows_the_gradient_only_where_gradient_times_value_is_large():
    # |g * w|: 1, 6, 4, 0.5; a quarter noise keeps three of the four, times 3/4. The bias is no matrix: as it is.
    params = {"w": jnp.array([[1.0, 2.0], [-4.0, 0.5]]), "b": jnp.array([1.0])}
    grads = {"w": jnp.array([[1.0, -3.0], [1.0, 1.0]]), "b": jnp.array([7.0])}
    rule = keep_important(0.25)
    kept, _ = rule.update(grads, rule.init(params), params)
    assert np.allclose(kept["w"], [[0.75, -2.25], [0.75, 0.0]])
    assert kept["b"].item() == 7


def test_cdrs_threshold_is_one_for_all_kernels_and_its_rate_is_state():
    params = {"a": jnp.ones((1, 2)), "c": jnp.ones((1, 1, 1, 2)), "vector": jnp.ones(3)}
    grads = {"a": jnp.array([[4.0, 3.0]]), "c": jnp.array([2.0, 1.0]).reshape(1, 1, 1, 2), "vector": jnp.zeros(3)}
    step = jax.jit(lambda state: keep_important(0.9).update(grads, state, params)[0])
    half, none, all_noise = (step(keep_important(rate).init(params)) for rate in (0.5, 0.0, 1.0))
    assert np.allclose(half["a"], [[2.0, 1.5]])
    assert np.allclose(half["c"], 0)
    assert np.allclose(none["c"].ravel(), [2, 1])
    assert not np.any(all_noise["a"])


def test_cdrs_unimportant_weights_only_decay():
    params = {"w": jnp.array([[1.0, 2.0]])}
    rule = make_cdr(0.1, clip=10.0, noise_rate=0.5)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = rule.update({"w": jnp.array([[0.1, 3.0]])}, rule.init(params), params)
    assert updates["w"][0, 0] == pytest.approx(-0.1 * WEIGHT_DECAY * 1.0)
    assert updates["w"][0, 1] == pytest.approx(-0.1 * (1 + WEIGHT_DECAY * 2.0), rel=1e-4)


@pytest.mark.parametrize("k", [1, 2, 50, 99, 100])
def test_kth_largest_is_that_of_a_sort(k):
    x = np.abs(np.random.default_rng(0).normal(size=100)).astype(np.float32)
    x[:5] = [0, 0, 1e-40, 1e30, x[7]]
    assert kth_largest(jnp.asarray(x), k) == np.sort(x)[-k]


def test_revision_weighs_by_t_plus_delta_and_learns_delta_slowly():
    model = with_delta(models.build("linear", num_classes=1, key=KEY, size=1), num_classes=1)
    params = {
        "net": {"kernel": jnp.zeros((1, 1)), "bias": jnp.zeros(1)},
        "delta": jnp.array([[[-0.1, 0.1], [0.0, 0.0]]]),
    }
    outputs, _ = model.apply(params, {}, jnp.ones((1, 1)), True)
    # g = 1/2; T + delta = [[.8, .2], [.3, .7]]: P(noisy = 1) = .45, weight .5 / .45, loss log 2.
    loss = METHODS["Revision-Ours"].loss(outputs, jnp.ones((1, 1)), T)
    assert loss.item() == pytest.approx(0.5 / 0.45 * np.log(2))
    rule = make_revision(0.01, clip=float("inf"), noise_rate=0.0)
    grads = jax.tree.map(jnp.ones_like, params)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = rule.update(grads, rule.init(params), params)
    assert updates["net"]["kernel"].item() == pytest.approx(-0.01, rel=1e-4)
    assert updates["delta"][0, 0, 0] == pytest.approx(-0.01 * DELTA_RATE, rel=1e-4)
    assert model.apply(params, {}, jnp.ones((1, 1)), False)[0].shape == (1, 1)


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


def test_a_resnet_takes_any_head():
    images = np.zeros((2, 32, 32, 3), np.uint8)
    for head in models.HEADS:
        model = models.build("small", num_classes=3, key=KEY, head=head)
        outputs, stats = jax.eval_shape(lambda m=model: m.apply(m.params, m.stats, images, True))
        assert jax.tree.leaves(outputs)[0].shape == (2, 3)
        assert jax.tree.structure(stats) == jax.tree.structure(model.stats)
    with pytest.raises(ValueError, match="head: 'mlp'; pass one of linear, csra"):
        models.build("small", num_classes=3, key=KEY, head="mlp")


def test_adam_is_the_default_update_rule():
    params = {"w": jnp.ones(2)}
    rule = adam(0.1, clip=float("inf"), noise_rate=0.3)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = rule.update(params, rule.init(params), params)
    assert np.allclose(updates["w"], -0.1, atol=1e-5)
    assert isinstance(rule, optax.GradientTransformation)
    assert Method() == METHODS["Standard"]
