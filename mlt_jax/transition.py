"""What an answer is: noise transition matrices of q classes with their uncertainty, and checks and conversions of them.

`T[j, clean, noisy]`, rows sum to 1; `rho_neg = T[j, 0, 1]`, `rho_pos = T[j, 1, 0]`.
"""

from enum import IntEnum
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mlt_jax.labels import Labels


class Status(IntEnum):
    """How a class's T came about.

    A guess is what the rule gives all the same where that is a valid T; else the T that counts every unselected label
    as wrong; else (a selection that leaves out most of a class says nothing) the identity.
    """

    CORRELATION = 0  # from label correlations
    FALLBACK = 1  # given by the caller: a known T, an anchor method's, or the `fallback` of `estimate_all`
    TOO_FEW = 2  # too few (selected) positives or negatives; T is a guess
    UNIDENTIFIABLE = 3  # correlations, or scores, are not beyond chance; T is a guess
    POSTERIOR = 4  # from the ends of the predicted posterior, see `estimator.curves`


class TransitionEstimate(NamedTuple):
    """Estimated noise of q classes; T, prior, status, partners and residual are never NaN."""

    T: Float[Array, "q 2 2"]  # T[j, clean, noisy]
    prior: Float[Array, "q"]  # P(clean_j = 1)
    stderr: Float[Array, "q 2"]  # of rho_neg, rho_pos: from correlations if asked for, from scores always; else NaN
    status: Int[Array, "q"]  # see `Status`
    partners: Int[Array, "q"]  # joint: partners correlated with j at 95 %; other rules: with a valid system; else 0
    residual: Float[Array, "q"]  # chi-square per degree of freedom, of the line over all partners or of the curve over
    # 20 bins of the score; 1 is sampling noise alone, 0 where nothing was fitted

    @property
    def rho_neg(self) -> Float[Array, "q"]:
        """P(noisy_j = 1 | clean_j = 0)."""
        return self.T[:, 0, 1]

    @property
    def rho_pos(self) -> Float[Array, "q"]:
        """P(noisy_j = 0 | clean_j = 1)."""
        return self.T[:, 1, 0]

    def interval(self, level: float = 0.95) -> Float[Array, "q 2 2"]:
        """Intervals `[j, rate, end]` of rho_neg and rho_pos: estimate -+ z * stderr, cut to [0, 1]."""
        z = NormalDist().inv_cdf((1 + level) / 2)
        rates = jnp.stack([self.rho_neg, self.rho_pos], axis=1)
        return jnp.clip(jnp.stack([rates - z * self.stderr, rates + z * self.stderr], axis=2), 0, 1)

    def save(self, path: str | Path) -> None:
        """Writes one npz file, without pickle."""
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in self._asdict().items()}
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "TransitionEstimate":
        """Reads what `save` wrote."""
        with np.load(path, allow_pickle=False) as archive:
            missing = set(cls._fields) - set(archive.files)
            if missing:
                raise ValueError(
                    f"path: {path} has no {sorted(missing)}; pass a file written by TransitionEstimate.save"
                )
            return cls(**{name: jnp.asarray(archive[name]) for name in cls._fields})


def as_transition(T: Any, num_classes: int, *, name: str = "T") -> Float[Array, "q 2 2"]:
    """T as a checked (q, 2, 2) array of row-stochastic matrices."""
    array = np.asarray(T, float)
    if array.shape != (num_classes, 2, 2):
        raise ValueError(f"{name}: shape {array.shape}; pass ({num_classes}, 2, 2), T[j, clean, noisy]")
    bad = ~((array >= 0).all((1, 2)) & np.isclose(array.sum(2), 1, atol=1e-4).all(1))
    if bad.any():
        j = int(bad.argmax())
        raise ValueError(f"{name}: class {j} is {array[j].tolist()}; pass rows of probabilities that sum to 1")
    return jnp.asarray(array, jnp.result_type(float))


def implied_prior(T: Float[Array, "q 2 2"], frequency: Float[Array, "q"]) -> Float[Array, "q"]:
    """P(clean = 1) that T makes of the observed P(noisy = 1), cut to [0, 1]."""
    spread = T[:, 1, 1] - T[:, 0, 1]
    return jnp.clip((frequency - T[:, 0, 1]) / jnp.where(jnp.abs(spread) > 1e-3, spread, 1), 0, 1)


def as_matrices(rates: Float[Array, "q 2"]) -> Float[Array, "q 2 2"]:
    """T from rates (rho_neg, rho_pos); a rate below 0 is 0."""
    rho_neg, rho_pos = jnp.where(rates > 0, rates, 0).T  # also turns -0 into 0
    return jnp.stack([jnp.stack([1 - rho_neg, rho_neg], 1), jnp.stack([rho_pos, 1 - rho_pos], 1)], 1)


def check_assume(assume: str) -> None:
    """Raises unless `assume` is one of the three."""
    if assume not in ("general", "missing", "partial"):
        raise ValueError(f'assume: {assume!r}; pass "general", "missing" (rho_neg = 0) or "partial" (rho_pos = 0)')


def apply_assumption(T: Any, assume: str) -> Float[np.ndarray, "q 2 2"]:
    """T with the row of the side that `assume` calls noise-free set to the identity's; a copy, float32.

    The released code resets T-estimator's and Dual-T's rows so (`paper.methods`).
    """
    check_assume(assume)
    found = np.array(T, np.float32)
    if assume != "general":
        side = 0 if assume == "missing" else 1
        found[:, side] = np.eye(2, dtype=np.float32)[side]
    return found


def from_matrices(T: Any, labels: Labels) -> TransitionEstimate:
    """An estimate that has only T, (q, 2, 2): status `FALLBACK`, the prior that T implies, no standard errors."""
    q = labels.values.shape[1]
    T = as_transition(T, q)
    size = len(labels.values) if labels.observed is None else np.maximum(labels.observed.sum(axis=0), 1)
    return TransitionEstimate(
        T=T,
        prior=implied_prior(T, jnp.asarray(labels.values.sum(axis=0) / size, T.dtype)),
        stderr=jnp.full((q, 2), jnp.nan, T.dtype),
        status=jnp.full(q, Status.FALLBACK, jnp.int32),
        partners=jnp.zeros(q, jnp.int32),
        residual=jnp.zeros(q, T.dtype),
    )


def given_probability(clean: Array, rho_neg: Array, kept: Array) -> Array:
    """P(given = 1) = rho_neg + kept P(clean = 1), with `kept = 1 - rho_neg - rho_pos`; kept inside (0, 1) by 1e-6."""
    return jnp.clip(rho_neg + kept * clean, 1e-6, 1 - 1e-6)
