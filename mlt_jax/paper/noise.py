"""Label noise for experiments: transition matrices, corruption of clean labels, and the rates a corruption realised.

Convention: `T[j, clean, noisy]`, rows sum to 1, `rho_neg = T[j, 0, 1]`, `rho_pos = T[j, 1, 0]`; labels are (n, q), 0/1.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Key, Shaped

from mlt_jax.arguments import check_choice, check_integer, check_key, check_number, shown
from mlt_jax.labels import check_binary, dense
from mlt_jax.transition import as_matrices, as_transition

# The eight (rho_neg, rho_pos) of the paper's estimation tables: MLML, PML, ULF, ALF, two rates each.
_ONE_RATE = ((0.0, 0.2), (0.0, 0.6), (0.2, 0.0), (0.6, 0.0), (0.1, 0.1), (0.2, 0.2))
_VOC = (*_ONE_RATE, (0.017, 0.2), (0.034, 0.4))
SETTINGS: dict[str, tuple[tuple[float, float], ...]] = {
    "voc2007": _VOC,
    "voc2012": _VOC,
    "coco": (*_ONE_RATE, (0.008, 0.2), (0.015, 0.4)),
}

# Flip probability of each PMD noise type, before scaling, as a function of the margin in [0, 1].
PMD_TYPES: dict[str, Callable[[Array], Array]] = {
    "I": lambda margin: (1 - margin**2) / 2,
    "II": lambda margin: 1 - margin**3,
    "III": lambda margin: 1 - (margin**3 + margin**2 + margin) / 3,
}


def transition(rho_neg: ArrayLike, rho_pos: ArrayLike, num_classes: int | None = None) -> Float[Array, "q 2 2"]:
    """Transition matrices `[[1 - rho_neg, rho_neg], [rho_pos, 1 - rho_pos]]` per class.

    Args:
      rho_neg, rho_pos: scalar or (q,), with `rho_neg + rho_pos < 1`, the paper's Assumption 1 (label assum1).
      num_classes: for how many classes two scalars hold; by default for one.
    """
    rates = [dense(rate, name).astype(float) for name, rate in (("rho_neg", rho_neg), ("rho_pos", rho_pos))]
    if num_classes is not None:
        check_integer("num_classes", num_classes, 1)
    for name, rate in zip(("rho_neg", "rho_pos"), rates, strict=True):
        if rate.ndim > 1 or rate.size == 0:
            raise ValueError(f"{name}: has shape {rate.shape}; pass a scalar or one rate per class")
        if not np.all((rate >= 0) & (rate <= 1)):
            raise ValueError(f"{name}: ranges from {rate.min()} to {rate.max()}; pass rates in [0, 1]")
    sizes = {rate.size for rate in rates if rate.ndim} | ({num_classes} if num_classes is not None else set())
    if len(sizes) > 1:
        shapes = f"rho_neg {rates[0].shape}, rho_pos {rates[1].shape}, num_classes {num_classes}"
        raise ValueError(f"rho_neg, rho_pos: {shapes} disagree; pass scalars or one rate for each class")
    neg, pos = np.broadcast_arrays(*rates, np.empty(sizes.pop() if sizes else 1))[:2]
    if np.any(neg + pos >= 1):
        worst = np.argmax(neg + pos)
        raise ValueError(
            f"rho_neg + rho_pos: class {worst} has {neg[worst]} + {pos[worst]} >= 1; Assumption 1 needs a sum below 1"
        )
    return jnp.asarray(np.stack([1 - neg, neg, pos, 1 - pos], axis=1).reshape(-1, 2, 2), dtype=float)


def named_transition(
    kind: str, rate: ArrayLike, num_classes: int, *, labels_per_example: float | None = None
) -> Float[Array, "q 2 2"]:
    """Transition matrices of one of the paper's noise types.

    n_a = 1.5 does not give the ALF rates that the paper prints for VOC (0.016 and 0.032 against 0.017 and 0.034): for
    those use `transition(*SETTINGS[...][k])`.

    Args:
      kind: "mlml", (rho_neg, rho_pos) = (0, rate); "pml", (rate, 0); "ulf", (rate, rate); or "alf",
        (n_a / (q - n_a) * rate, rate): as many false labels as missing ones.
      labels_per_example: n_a, the mean number of labels; only "alf" reads it.
    """
    kind = kind.lower() if isinstance(kind, str) else kind
    check_choice("kind", kind, ("mlml", "pml", "ulf", "alf"), '"mlml", "pml", "ulf" or "alf"')
    check_integer("num_classes", num_classes, 1)
    rate = dense(rate, "rate").astype(float)
    if not np.all((rate >= 0) & (rate <= 1)):
        raise ValueError(f"rate: {rate if rate.ndim == 0 else shown(rate)}; pass rates in [0, 1]")
    if kind != "alf":
        return transition(rate * (kind != "mlml"), rate * (kind != "pml"), num_classes)
    remedy = f'for "alf" the mean number of labels per example, above 0 and below num_classes = {num_classes}'
    if labels_per_example is None:
        raise ValueError(f"labels_per_example: None; pass {remedy}")
    check_number("labels_per_example", labels_per_example, lambda x: 0 < x < num_classes, remedy)
    return transition(labels_per_example / (num_classes - labels_per_example) * rate, rate, num_classes)


def corrupt(
    key: Key[Array, ""], labels: Shaped[Array | np.ndarray, "n q"], T: Float[Array | np.ndarray, "q 2 2"]
) -> Shaped[Array, "n q"]:
    """Noisy labels, (n, q), dtype of `labels`: each label flipped on its own with the rates of its class.

    The class-dependent, instance-independent noise of the paper's section "Problem Setting".
    """
    labels = check_binary("labels", labels)
    check_key(key)
    if not isinstance(T, jax.core.Tracer):
        T = as_transition(T, labels.shape[1])
    T, present = jnp.asarray(T), labels.astype(bool)
    flip = jax.random.bernoulli(key, jnp.where(present, T[None, :, 1, 0], T[None, :, 0, 1]))
    return (present ^ flip).astype(labels.dtype)


def corrupt_pairwise(
    key: Key[Array, ""],
    labels: Shaped[Array | np.ndarray, "n q"],
    rate: float,
    *,
    pairs: Shaped[Array | np.ndarray, " q"] | None = None,
) -> Shaped[Array, "n q"]:
    """Noisy labels, (n, q): with probability `rate`, present class u is mistaken for `pairs[u]`, if that is absent.

    u is switched off and its pair on. The default pair is the next class, `(u + 1) % q`.
    All mistakes are drawn from the clean labels, at once: whether the pair is absent is read there, so no mistake
    depends on another, and in a chain u -> v -> w with u and v present only v can move.
    When two classes of an example are mistaken for the same v, both go off and v comes on once.
    """
    labels = check_binary("labels", labels)
    q = labels.shape[1]
    check_key(key)
    check_number("rate", rate, lambda x: 0 <= x <= 1, "a probability in [0, 1]")
    target = (np.arange(q) + 1) % q if pairs is None else dense(pairs, "pairs")
    if target.shape != (q,) or target.dtype.kind not in "iu" or np.any((target < 0) | (target >= q)):
        raise ValueError(f"pairs: is {target}; pass for each of the {q} classes the index of its pair")
    if np.any(target == np.arange(q)):
        raise ValueError(f"pairs: class {np.argmax(target == np.arange(q))} is its own pair; pass another class")
    present = labels.astype(bool)
    mistaken = present & ~present[:, target] & jax.random.bernoulli(key, 1.0 * rate, labels.shape)
    added = jnp.zeros_like(present).at[:, target].max(mistaken)
    return (present & ~mistaken | added).astype(labels.dtype)


def pmd_flip_probabilities(
    labels: Shaped[Array | np.ndarray, "n q"],
    posteriors: Float[Array | np.ndarray, "n q"],
    *,
    kind: str | int,
    level: float,
) -> Float[Array, "n q"]:
    """Probability that each present label is flipped by PMD noise, zero for absent labels; see `corrupt_pmd`."""
    name = {1: "I", 2: "II", 3: "III"}.get(kind, "") if isinstance(kind, int) else kind
    if not isinstance(name, str) or name.upper() not in PMD_TYPES:
        raise ValueError(f'kind: {shown(kind)} is unknown; pass 1, 2, 3 or "I", "II", "III"')
    check_number("level", level, lambda x: 0 <= x <= 1, "a mean flip probability in [0, 1]")
    present = check_binary("labels", labels).astype(bool)
    host = dense(posteriors, "posteriors")
    if host.shape != present.shape:
        raise ValueError(f"posteriors: has shape {host.shape}; pass {present.shape}, as labels")
    if not np.all((host >= 0) & (host <= 1)):
        raise ValueError(f"posteriors: range from {host.min()} to {host.max()}; pass probabilities in [0, 1]")
    eta = jnp.asarray(host, dtype=float)
    rival, _ = _rival(present, eta)
    tau = PMD_TYPES[name.upper()](jnp.clip(eta - rival, 0, 1))
    tau = jnp.where(present & jnp.isfinite(rival), tau, 0)
    total = max(int(present.sum()), 1)
    attainable = int((tau > 0).sum()) / total
    if level > attainable:
        raise ValueError(f"level: is {level}, but only {attainable} of the present labels can flip; pass a lower level")
    factor = _solve_factor(tau, level * total)
    return jnp.minimum(factor * tau, 1)


def corrupt_pmd(
    key: Key[Array, ""],
    labels: Shaped[Array | np.ndarray, "n q"],
    posteriors: Float[Array | np.ndarray, "n q"],
    *,
    kind: str | int,
    level: float,
) -> Shaped[Array, "n q"]:
    """Noisy labels, (n, q), under polynomial-margin-diminishing noise of type 1, 2 or 3 (or "I", "II", "III").

    Present class u goes off and s, the example's most probable absent class, comes on, with probability
    `min(1, factor * tau(margin))` (`PMD_TYPES`), margin = eta_u - eta_s. The margin is clipped to [0, 1]: the
    definition takes u as the most likely class, so that it is never negative; where u is *less* likely than s, it is
    confused as at a tie. Several u of one example share s: all that flip go off, s comes on once. Not for jit: the
    checks and the solution read values.

    Args:
      posteriors: (n, q), eta: clean `P(class present | example)`.
      level: mean flip probability over present labels, for which the factor is solved; ValueError where it cannot be
        (a label with tau = 0, or in an example with no absent class, never flips).
    """
    labels = check_binary("labels", labels)
    check_key(key)
    present = labels.astype(bool)
    flip = jax.random.bernoulli(key, pmd_flip_probabilities(labels, posteriors, kind=kind, level=level))
    _, s = _rival(present, jnp.asarray(dense(posteriors, "posteriors"), dtype=float))
    added = jnp.arange(present.shape[1])[None, :] == s
    return (present & ~flip | added & flip.any(axis=1, keepdims=True)).astype(labels.dtype)


def _rival(present: Bool[Array, "n q"], posteriors: Float[Array, "n q"]) -> tuple[Float[Array, "n 1"], Array]:
    """Posterior (-inf where every class is present) and index of each example's most probable absent class."""
    absent = jnp.where(present, -jnp.inf, posteriors)
    return absent.max(axis=1, keepdims=True), absent.argmax(axis=1, keepdims=True)


@jax.jit
def _solve_factor(tau: Float[Array, "n q"], wanted: ArrayLike) -> Float[Array, ""]:
    """Factor c with `sum(min(1, c * tau)) = wanted`, by bisection: the sum never falls as c grows."""

    def halve(_: ArrayLike, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        short = jnp.minimum(middle * tau, 1).sum() < wanted
        return jnp.where(short, middle, low), jnp.where(short, high, middle)

    # At 1 / (smallest positive tau) every label that can flip does.
    top = 1 / jnp.where(tau > 0, tau, 1).min()
    return jax.lax.fori_loop(0, 100, halve, (jnp.zeros_like(top), top))[1]


def realised_transition(
    clean: Shaped[Array | np.ndarray, "n q"], noisy: Shaped[Array | np.ndarray, "n q"]
) -> Float[Array, "q 2 2"]:
    """Empirical transition matrices, (q, 2, 2): how often each clean value of each class was flipped. Scoring only.

    A clean value that no example of the class has gets the identity row (nothing was flipped).
    """
    was, now = (check_binary(*pair).astype(bool) for pair in (("clean", clean), ("noisy", noisy)))
    if was.shape != now.shape:
        raise ValueError(f"noisy: has shape {now.shape}, clean {was.shape}; pass labels of the same examples")
    neg, pos = (
        jnp.sum(group & (was != now), axis=0).astype(float) / jnp.maximum(group.sum(axis=0), 1).astype(float)
        for group in (~was, was)
    )
    return as_matrices(jnp.stack([neg, pos], axis=1))
