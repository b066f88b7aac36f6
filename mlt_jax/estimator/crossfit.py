"""Out-of-sample scores from given features: per class a ridge logistic regression ("head"), trained by folds."""

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int
from tqdm import tqdm

from mlt_jax.arguments import check_integer, check_number, check_seed, shown
from mlt_jax.estimator.evidence import label_block
from mlt_jax.labels import Labels, as_labels, dense, groups_in_rows, in_rows
from mlt_jax.transition import as_transition, given_probability

# Newton steps, and conjugate-gradient steps in each: more do not lower the loss on real features.
_STEPS, _INNER = 4, 8
# Cells (examples x classes x folds) solved together; bounds the memory.
_CELLS = 2**24


def cross_val_logits(
    features: Any,
    labels: Any,
    *,
    folds: int = 5,
    seed: int = 0,
    T: Any = None,
    l2: float = 0.03,
    components: int = 512,
    groups: Any = None,
    observed: Any = None,
    coding: str = "01",
) -> np.ndarray:
    """Logits (n, q), float32, of each example by heads trained without its fold.

    Args:
      features: (n, d) real numbers, from any network, or `Components`.
      labels: (n, q), any form that `as_labels` takes, with its `observed` and `coding`.
      folds: number of folds, 2 to n.
      seed: of the random assignment of examples to folds.
      T: (q, 2, 2); with it the heads predict the *clean* label, by forward correction: the loss compares the given
        label with T's probability of it. Without it they predict the given label.
      l2: weight of the ridge penalty, for features scaled to a total variance of 100.
      components: how many principal components features are reduced to; `Components` are used as they are.
      groups: n ids (patients, near-duplicates); examples of one group are in one fold, see `deal_folds`.

    Raises:
      ValueError: `folds` out of range or more than the groups, or features that are not (n, d), or not finite.

    References:
      Forward correction: Patrini et al., "Making deep neural networks robust to label noise", CVPR 2017.
    """
    checked = as_labels(labels, coding=coding, observed=observed)
    logits = np.empty(checked.values.shape, np.float32)
    start = 0
    for found in logit_blocks(
        features, checked, folds=folds, seed=seed, T=T, l2=l2, components=components, groups=groups
    ):
        logits[:, start : start + found.shape[1]] = found
        start += found.shape[1]
    return logits


def logit_blocks(
    features: Any,
    labels: Any,
    *,
    folds: int = 5,
    seed: int = 0,
    T: Any = None,
    l2: float = 0.03,
    components: int = 512,
    groups: Any = None,
) -> Iterator[Float32[np.ndarray, "n _"]]:
    """Yields the columns of `cross_val_logits`, some classes at a time, in order: all of them may not fit into memory.

    Args:
      labels: what `evidence.as_columns` returns; the rest is as in `cross_val_logits`.
    """
    n, q = (labels.values if isinstance(labels, Labels) else labels.by_class).shape
    check_integer("folds", folds, 2, remedy=f"2 to {n}, the number of examples")
    if folds > n:
        raise ValueError(f"features: {n} examples for {folds} folds; pass more examples, or fewer folds")
    check_seed(seed)
    check_number("l2", l2, lambda x: 0 <= x < float("inf"), "a number, 0 or more")
    check_integer("components", components, 1)
    rows = labels.rows if isinstance(labels, Labels) else None
    x = principal_components(features, n, components, rows=rows).values
    fold = deal_folds(n, folds=folds, seed=seed, groups=groups_in_rows(groups, rows))
    train = jnp.asarray(fold[:, None] != np.arange(folds))
    rates = jnp.zeros((q, 2)) if T is None else as_transition(T, q)[:, jnp.array([0, 1]), jnp.array([1, 0])]
    rates = rates.astype(x.dtype)
    block = max(1, _CELLS // (n * folds))
    for start in tqdm(range(0, q, block), desc="heads", unit="block", delay=2, leave=False, disable=None):
        part = slice(start, start + block)
        y, known = label_block(labels, part)
        heads = head_logits(x, jnp.asarray(y, x.dtype), jnp.asarray(known), train, rates[part], l2)
        yield np.asarray(heads)[np.arange(n), fold]


def deal_folds(n: int, *, folds: int, seed: int = 0, groups: Any = None) -> Int[np.ndarray, "n"]:
    """The fold of each of n examples, (n,), dealt at random to folds of about equal size.

    Args:
      n: number of examples.
      folds: number of folds.
      seed: of the deal.
      groups: n ids, numbers or strings. Examples of a group stay together: what two pictures of one patient, or two
        copies of one post, share beside the label would else tell a head of one what label the other was given. Large
        groups are dealt before small ones, each to the fold that is the smallest so far.

    Raises:
      ValueError: groups that are not n ids, or fewer of them than folds.
    """
    rng = np.random.default_rng(seed)
    if groups is None:
        return rng.permutation(n) % folds
    try:
        ids = np.asarray(groups)
    except ValueError:
        raise ValueError(f"groups: {shown(groups)}; pass ({n},), the id of each example's group") from None
    if ids.shape != (n,):
        raise ValueError(f"groups: shape {ids.shape}; pass ({n},), the id of each example's group")
    if ids.dtype.kind not in "biufUSO":
        raise TypeError(f"groups: dtype {ids.dtype}; pass numbers or strings")
    loose = ids.dtype.kind in "fOU"  # NumPy makes text of a NaN among text
    missing = np.array([str(name) in ("None", "nan", "<NA>", "NaT") for name in ids] if loose else [False])
    if missing.any():
        raise ValueError(f"groups: example {int(missing.argmax())} has none; give it an id of its own")
    ids = ids.astype(str) if ids.dtype.kind == "O" else ids
    group, sizes = np.unique(ids, return_inverse=True, return_counts=True)[1:]
    if len(sizes) < folds:
        raise ValueError(f"groups: {len(sizes)} distinct ones for {folds} folds; pass more groups, or fewer folds")
    shuffled = rng.permutation(len(sizes))
    smallest = [(0, k) for k in range(folds)]
    fold = np.empty(len(sizes), int)
    octave = -np.floor(np.log2(sizes[shuffled]))  # sorted by size itself, groups of distinct sizes would not be dealt
    for g in shuffled[np.argsort(octave, kind="stable")].tolist():
        filled, fold[g] = smallest[0]
        heapq.heapreplace(smallest, (filled + int(sizes[g]), int(fold[g])))
    return fold[group]


class Components(NamedTuple):
    """Principal components of features; functions that take features take these too and skip the computation."""

    values: Float[Array, "n k"]  # scaled to a total variance of 100


def principal_components(
    features: Any, n: int, components: int = 512, *, rows: tuple[Any, ...] | None = None
) -> Components:
    """The first principal components of (n, d) features; `Components` of n examples are returned unchanged.

    The rows of a DataFrame are put in the order of `rows`, the labels' names of the examples, where both have names.
    Two steps of randomised subspace iteration take a tenth of the time of an eigendecomposition. The last components
    are approximate: they keep 89 instead of 90 % of the variance of 2,048 ResNet features.
    """
    if isinstance(features, Components) and len(features.values) == n:
        return features
    if hasattr(features, "iloc"):
        features = in_rows(features, rows, "features")
    x = dense(features.values if isinstance(features, Components) else features, "features")
    if x.ndim != 2 or len(x) != n or not x.shape[1] or x.dtype.kind not in "fiu":
        raise ValueError(f"features: shape {x.shape}, dtype {x.dtype}; pass ({n}, d) real numbers, a row per example")
    with np.errstate(over="ignore"):  # too large for float32 becomes inf, which is reported below
        x = x.astype(np.float32)
    if not np.isfinite(x).all():
        raise ValueError(f"features: row {int((~np.isfinite(x)).any(1).argmax())} is not finite; drop or correct it")
    x = np.ldexp(x, -int(np.frexp(np.abs(x).max())[1]))  # exact; squares of very large or small features would not be
    x = x - x.mean(0)
    second = x.T @ x / n
    axes = np.random.default_rng(0).normal(size=(len(second), min(components, *x.shape))).astype(np.float32)
    for _ in range(2):
        axes = np.linalg.qr(second @ axes)[0]
    axes = axes @ np.linalg.eigh(axes.T @ second @ axes)[1][:, ::-1]
    z = x @ axes
    total = float((z**2).sum() / n)
    return Components(jnp.asarray(z * np.float32(10 / np.sqrt(total) if total > 0 else 0)))


@jax.jit
def head_logits(
    x: Float[Array, "n k"],
    y: Float[Array, "n q"],
    known: Bool[Array, "n q"],
    train: Bool[Array, "n folds"],
    rates: Float[Array, "q 2"],
    l2: float | Array,
) -> Float[Array, "n folds q"]:
    """Logits of all examples by the heads of every fold, fitted to the examples in `train`.

    The model is P(given = 1) = rho_neg + (1 - rho_neg - rho_pos) sigmoid(logit), with `rates` (rho_neg, rho_pos) known.
    Newton's method with the expected Hessian (Fisher scoring) runs on all heads at once, a column each. Its linear
    systems are solved by preconditioned conjugate gradients: principal components are uncorrelated, so the Hessian is
    nearly diagonal and few iterations suffice.
    """
    n, shape = len(x), (len(x), train.shape[1], y.shape[1])
    weight = (train[:, :, None] & known[:, None]).reshape(n, -1).astype(x.dtype)
    weight /= jnp.maximum(jnp.sum(weight, axis=0, keepdims=True), 1)
    y = jnp.broadcast_to(y[:, None], shape).reshape(n, -1)
    # Below a kept share of 0.1 a head could not be distinguished from a constant.
    rho_neg, kept = (jnp.tile(r, shape[1])[None] for r in (rates[:, 0], jnp.maximum(1 - jnp.sum(rates, axis=1), 0.1)))
    x = jnp.concatenate([x, jnp.ones((n, 1), x.dtype)], axis=1)
    variance = jnp.mean(x**2, axis=0)[:, None]
    penalty = jnp.full(variance.shape, l2, x.dtype).at[-1].set(0)

    def dot(u: Float[Array, "k h"], v: Float[Array, "k h"]) -> Float[Array, "1 h"]:
        return jnp.sum(u * v, axis=0, keepdims=True)

    def newton(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        w, z = carry
        clean = jax.nn.sigmoid(z)
        p, slope = given_probability(clean, rho_neg, kept), kept * clean * (1 - clean)
        factor = weight * slope / (p * (1 - p))
        curvature = factor * slope
        diagonal = jnp.sum(curvature, axis=0, keepdims=True) * variance + penalty + 1e-8

        def conjugate_gradient(state: Any, _: None) -> tuple[Any, None]:
            step, z_step, residual, direction, norm_squared = state
            z_direction = x @ direction
            image = x.T @ (curvature * z_direction) + penalty * direction  # the Hessian times the direction
            step_size = norm_squared / jnp.maximum(dot(direction, image), 1e-30)
            residual = residual - step_size * image
            new_norm_squared = dot(residual, residual / diagonal)
            new_direction = residual / diagonal + new_norm_squared / jnp.maximum(norm_squared, 1e-30) * direction
            return (step + step_size * direction, z_step + step_size * z_direction, residual, new_direction,
                    new_norm_squared), None  # fmt: skip

        score = x.T @ (factor * (y - p)) - penalty * w
        state = jnp.zeros_like(w), jnp.zeros_like(z), score, score / diagonal, dot(score, score / diagonal)
        step, z_step = jax.lax.scan(conjugate_gradient, state, None, length=_INNER)[0][:2]

        def move(step_size: Float[Array, "*_"]) -> tuple[Float[Array, "k h"], Float[Array, "n h"]]:
            """Exactly the old ones at size 0, even where the step is not finite, as it may be without a penalty."""
            still = step_size == 0
            return w + jnp.where(still, 0, step_size * step), z + jnp.where(still, 0, step_size * z_step)

        def loss(step_size: Float[Array, ""]) -> Float[Array, "1 h"]:
            new, new_z = move(step_size)
            p = given_probability(jax.nn.sigmoid(new_z), rho_neg, kept)
            entropy = -jnp.log(jnp.where(y == 1, p, 1 - p))
            found = jnp.sum(weight * entropy, axis=0, keepdims=True) + dot(penalty / 2 * new, new)
            return jnp.where(jnp.isfinite(found + jnp.sum(new_z * 0, axis=0, keepdims=True)), found, jnp.inf)

        step_sizes = jnp.array([1, 0.3, 0.1, 0], x.dtype)  # nearly always 1
        step_size = step_sizes[jnp.argmin(jax.lax.map(loss, step_sizes), axis=0)]
        return move(step_size), None

    share = jnp.clip((jnp.sum(weight * y, axis=0) - rho_neg[0]) / kept[0], 0.01, 0.99)
    start = jnp.zeros((x.shape[1], y.shape[1]), x.dtype).at[-1].set(jnp.log(share) - jnp.log1p(-share))
    (_, z), _ = jax.lax.scan(newton, (start, x @ start), None, length=_STEPS)
    return z.reshape(shape)
