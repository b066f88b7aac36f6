import jax
import jax.numpy as jnp
import numpy as np

from mlt_jax import models

KEY = jax.random.key(0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def leaky(x):
    return np.where(x > 0, x, 0.2 * x)


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


def test_batch_statistics_are_shared_over_a_mapped_axis():
    x = jax.random.normal(jax.random.key(1), (2, 4, 3, 3, 16))
    whole, mapped = (models.build("agcn", num_classes=3, key=KEY, size=16, axis_name=name) for name in (None, "batch"))
    expected, stats = whole.apply(whole.params, whole.stats, x.reshape(8, 3, 3, 16), True)
    run = jax.pmap(lambda part: mapped.apply(mapped.params, mapped.stats, part, True), axis_name="batch")
    found, shared = run(x)
    np.testing.assert_allclose(found.reshape(8, 3), expected, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b, atol=1e-6), shared, stats)
