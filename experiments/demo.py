"""The main job end to end on simulated data: train on noisy labels, then ask how noisy each label is.

make demo            about half a minute on 2 cores, no data and no network needed
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

import mlt_jax
from mlt_jax.noise import corrupt, transition

N, FEATURES, CLASSES, EPOCHS, BATCH = 12_000, 32, 10, 10, 128
NAMES = ["sky", "sea", "beach", "boat", "person", "dog", "ball", "grass", "house", "car"]


def simulate(key: Key[Array, ""]) -> tuple[Float[Array, "n d"], Float[Array, "n q"]]:
    """Features and clean labels that share latent causes, so that labels are correlated."""
    scene, mix, noise, draw = jax.random.split(key, 4)
    latent = jax.random.normal(scene, (N, 4))
    effects = jax.random.normal(mix, (4, FEATURES + CLASSES)) * jnp.where(
        jnp.arange(FEATURES + CLASSES) < FEATURES, 1, 4
    )
    signal = latent @ effects
    features = signal[:, :FEATURES] + 0.3 * jax.random.normal(noise, (N, FEATURES))
    clean = jax.random.bernoulli(draw, jax.nn.sigmoid(signal[:, FEATURES:] - 4))
    return features, clean.astype(jnp.float32)


def train(features: Float[Array, "n d"], labels: Float[Array, "n q"]) -> Float[np.ndarray, "epochs n q"]:
    """Predicted probabilities of a linear model trained on the labels as they are, after each of the last 5 epochs."""
    adam = optax.adam(3e-3)

    def loss(params: dict[str, Array], x: Array, y: Array) -> Array:
        return optax.sigmoid_binary_cross_entropy(x @ params["w"] + params["b"][None], y).mean()

    @jax.jit
    def epoch(params: dict[str, Array], state: optax.OptState, key: Array) -> tuple[dict[str, Array], optax.OptState]:
        order = jax.random.permutation(key, N)[: N // BATCH * BATCH].reshape(-1, BATCH)

        def step(carry: tuple, rows: Array) -> tuple[tuple, None]:
            params, state = carry
            updates, state = adam.update(jax.grad(loss)(params, features[rows], labels[rows]), state)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, state), order)[0]

    params = {"w": jnp.zeros((FEATURES, CLASSES)), "b": jnp.zeros(CLASSES)}
    state, history = adam.init(params), []
    for key in jax.random.split(jax.random.key(1), EPOCHS):
        params, state = epoch(params, state, key)
        history.append(np.asarray(jax.nn.sigmoid(features @ params["w"] + params["b"][None])))
    return np.stack(history[-5:])


def main() -> None:
    """Simulates, corrupts, trains, estimates; prints a table with the truth beside it."""
    data, flips, rates = jax.random.split(jax.random.key(0), 3)
    features, clean = simulate(data)
    T = transition(*np.asarray(jax.random.uniform(rates, (2, CLASSES), maxval=0.3)))
    labels = corrupt(flips, clean, T)
    found = mlt_jax.estimate(np.asarray(labels), probs=train(features, labels))
    interval = np.asarray(found.interval())
    rate_header = f"{'95 % interval':>16} {'true':>6}"
    print(f"{'class':8} {'rho_neg':>8}{rate_header}  {'rho_pos':>8}{rate_header}  status")
    for j, name in enumerate(NAMES):
        cells = []
        for rate, (low, high), true in zip(
            (found.rho_neg[j], found.rho_pos[j]), interval[j], (T[j, 0, 1], T[j, 1, 0]), strict=True
        ):
            cells.append(f"{rate:8.3f} {low:7.3f} -{high:6.3f} {true:6.3f}")
        print(f"{name:8} {'  '.join(cells)}  {mlt_jax.Status(int(found.status[j])).name.lower()}")
    error, nothing = (float(jnp.abs(x - T).sum() / 2) for x in (found.T, jnp.eye(2)[None]))
    print(f"\nsummed error of T: {error:.2f}; doing nothing (T = identity): {nothing:.2f}")
    print("intervals are of sampling alone: that small losses pick easy examples is not in them")
    blind = mlt_jax.estimate(np.asarray(labels), features=np.asarray(features))
    print(f"from the features alone, by cross-fitted curves: {float(jnp.abs(blind.T - T).sum() / 2):.2f}")


if __name__ == "__main__":
    main()
