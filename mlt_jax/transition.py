"""Noise transition matrices T of q classes: the result type of every estimator, checks and conversions.

`T[j, clean, noisy]`, rows sum to 1; `rho_neg = T[j, 0, 1]`, `rho_pos = T[j, 1, 0]`.
"""

from collections.abc import Sequence
from enum import IntEnum
from html import escape
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mlt_jax.arguments import check_choice, check_integer, check_number, shown
from mlt_jax.files.arrays import load_npz
from mlt_jax.labels import Labels
from mlt_jax.outputs import atomic


class Status(IntEnum):
    """Where the T of a class comes from.

    With `TOO_FEW` and `UNIDENTIFIABLE` T is a guess. From correlations it is the first valid one of: the rule's result;
    the T by which every unselected label is wrong; the identity. From scores: see `estimate_from_scores`.
    """

    CORRELATION = 0  # estimated from label correlations, see `estimate_all`
    FALLBACK = 1  # not estimated here: a known T, one by an anchor method, or the `fallback` of `estimate_all`
    TOO_FEW = 2  # too few given (by correlations: selected) positives or negatives
    UNIDENTIFIABLE = 3  # no significant correlations, or scores that do not predict the labels
    POSTERIOR = 4  # estimated from scores: the limits of P(given label = 1 | score), see `estimate_from_scores`
    COUNTED = 5  # estimated from scores by counting contradictions: noise prefers ambiguous examples
    SHARED = 6  # as POSTERIOR, but mostly the rates of the other classes: this one's scores say little
    VERIFIED = 7  # from decisions of people on cells drawn with known probabilities, see `verified`

    def __str__(self) -> str:
        """The status as a word."""
        return self.name.lower()


class TransitionEstimate(NamedTuple):
    """Estimated noise of q classes; only `stderr` may be NaN.

    Attributes:
      T: `T[j, clean, noisy]`, rows sum to 1.
      prior: P(clean_j = 1).
      stderr: of (rho_neg, rho_pos); NaN if not requested, or if T is a guess or a fallback (from scores, a guess that
        is the mean rates has errors).
      status: see `Status`.
      partners: how many partners are correlated with j at 95 % (joint rule), or have a valid solution (other rules),
        whatever the status; 0 if correlations were not used.
      residual: chi-square per degree of freedom of the fit, to the line of `estimator.line` or to the curve of
        `estimator.curves`: 1 for sampling noise alone, 0 if T is not from a fit.
    """

    T: Float[Array, "q 2 2"]
    prior: Float[Array, "q"]
    stderr: Float[Array, "q 2"]
    status: Int[Array, "q"]
    partners: Int[Array, "q"]
    residual: Float[Array, "q"]

    @property
    def statuses(self) -> tuple[str, ...]:
        """The status of each class as a word."""
        return tuple(str(Status(int(code))) for code in np.asarray(self.status))

    def __repr__(self) -> str:
        """The table of the first classes."""
        if not _is_plain(self):
            return f"TransitionEstimate({', '.join(f'{k}={v!r}' for k, v in self._asdict().items())})"
        header, *rows = self.rows(most=8)
        left = len(self.T) - len(rows)
        lines = [f"{a:>8} {b:>26} {c:>26}  {d}" for a, b, c, d in (header, *rows)]
        return "\n".join([f"TransitionEstimate of {len(self.T)} classes", *lines, *([f"{left} more"] if left else [])])

    def _repr_html_(self) -> str:
        return html_table(self.rows(most=50))

    def rows(self, names: Sequence[str] | None = None, *, most: int | None = None) -> list[tuple[str, ...]]:
        """A header, and the class, both rates in percent with 95 % intervals, and the status of each class, as text."""
        if names is not None and (not isinstance(names, Sequence) or len(names) < len(self.T)):
            raise ValueError(f"names: {shown(names)}; pass a list of {len(self.T)} names")
        if most is not None:
            check_integer("most", most, 0)
        rates, ends = np.asarray(jnp.stack([self.rho_neg, self.rho_pos], 1)), np.asarray(self.interval())

        def text(j: int, side: int) -> str:
            low, high = 100 * ends[j, side]
            return f"{100 * rates[j, side]:.1f}" + (f" ({low:.1f} to {high:.1f})" if np.isfinite(low) else "")

        called = names or range(len(rates))
        cells = [(str(called[j]), text(j, 0), text(j, 1), self.statuses[j]) for j in range(len(rates))[:most]]
        return [("class", "falsely given, %", "missed, %", "status"), *cells]

    @property
    def rho_neg(self) -> Float[Array, "q"]:
        """P(noisy_j = 1 | clean_j = 0)."""
        return self.T[:, 0, 1]

    @property
    def rho_pos(self) -> Float[Array, "q"]:
        """P(noisy_j = 0 | clean_j = 1)."""
        return self.T[:, 1, 0]

    def interval(self, level: float = 0.95) -> Float[Array, "q 2 2"]:
        """Normal intervals `[j, rate, end]` of rho_neg and rho_pos, clipped to [0, 1]; NaN where `stderr` is.

        Counted rates have normal intervals of arcsin sqrt rate, which are not symmetric.
        """
        check_number("level", level, lambda x: 0 < x < 1, "a number between 0 and 1")
        z = NormalDist().inv_cdf((1 + level) / 2) * jnp.array([-1, 1], self.stderr.dtype)[None, None]
        rates = jnp.stack([self.rho_neg, self.rho_pos], axis=1)[:, :, None]
        stderr = self.stderr[:, :, None]
        spread = stderr / jnp.maximum(2 * jnp.sqrt(rates * (1 - rates)), 1e-6)
        angles = jnp.clip(jnp.arcsin(jnp.sqrt(rates)) + z * spread, 0, jnp.pi / 2)
        counted = (self.status == Status.COUNTED)[:, None, None]
        return jnp.where(counted, jnp.sin(angles) ** 2, jnp.clip(rates + z * stderr, 0, 1))

    def save(self, path: str | Path, *, classes: Sequence[str] | None = None) -> None:
        """Writes one npz file, without pickle, with the names of the classes where they are known."""
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in self._asdict().items()}
        if classes is not None:
            arrays["classes"] = np.array(list(classes), str)
        with atomic(path, "wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | Path, *, classes: Sequence[str] | None = None) -> "TransitionEstimate":
        """Reads what `save` wrote, in the order of `classes` where the file has names too.

        Raises:
          OSError: it cannot be opened.
          ValueError: it is not what `save` wrote, or its classes have other names.
        """
        try:
            arrays = load_npz(path)
        except ValueError as error:
            raise ValueError(f"path: {error}") from None
        if missing := set(cls._fields) - set(arrays):
            raise ValueError(f"path: {path} has no {sorted(missing)}; pass a file that `save` has written")
        found = cls(**{name: jnp.asarray(arrays[name]) for name in cls._fields})
        names = arrays.get("classes")
        if names is None or classes is None:
            return found
        place = {name: k for k, name in enumerate(names.tolist())}
        if odd := sorted(set(classes) ^ set(place)):
            where = "the labels" if odd[0] in classes else path
            raise ValueError(f'path: {path} is of other classes, "{odd[0]}" is only in {where}; pass the right one')
        order = np.array([place[name] for name in classes])
        return cls(*(value[order] for value in found))


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """The rows as an HTML table, the first as its header."""
    lines = [f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in row)}</tr>"
             for tag, part in (("th", rows[:1]), ("td", rows[1:])) for row in part]  # fmt: skip
    return f"<table>{''.join(lines)}</table>"


def _is_plain(found: "TransitionEstimate") -> bool:
    """Whether it holds numbers of q classes, and not what `jit`, `vmap` or `tree.map` put in their place."""
    arrays = all(isinstance(x, np.ndarray | jax.Array) and not isinstance(x, jax.core.Tracer) for x in found)
    return arrays and found.T.ndim == 3


def as_transition(T: Any, num_classes: int, *, name: str = "T") -> Float[Array, "q 2 2"]:
    """T as a checked (q, 2, 2) array of row-stochastic matrices."""
    try:
        array = np.asarray(T, float)
    except (ValueError, TypeError):
        raise TypeError(f"{name}: {shown(T)}; pass ({num_classes}, 2, 2) real numbers, T[j, clean, noisy]") from None
    if array.shape != (num_classes, 2, 2):
        raise ValueError(f"{name}: shape {array.shape}; pass ({num_classes}, 2, 2), T[j, clean, noisy]")
    bad = ~((array >= 0).all((1, 2)) & np.isclose(array.sum(2), 1, atol=1e-4).all(1))
    if bad.any():
        j = int(bad.argmax())
        raise ValueError(f"{name}: class {j} is {array[j].tolist()}; pass rows of probabilities that sum to 1")
    return jnp.asarray(array, jnp.result_type(float))


def implied_prior(T: Float[Array, "q 2 2"], frequency: Float[Array, "q"]) -> Float[Array, "q"]:
    """P(clean = 1) from T and the observed frequency P(noisy = 1), clipped to [0, 1]."""
    spread = T[:, 1, 1] - T[:, 0, 1]
    return jnp.clip((frequency - T[:, 0, 1]) / jnp.where(jnp.abs(spread) > 1e-3, spread, 1), 0, 1)


def as_matrices(rates: Float[Array, "q 2"]) -> Float[Array, "q 2 2"]:
    """T from rates (rho_neg, rho_pos); negative rates count as 0."""
    rho_neg, rho_pos = jnp.where(rates > 0, rates, 0).T  # also turns -0 into 0
    return jnp.stack([jnp.stack([1 - rho_neg, rho_neg], 1), jnp.stack([rho_pos, 1 - rho_pos], 1)], 1)


def check_assume(assume: str) -> None:
    """Raises ValueError unless `assume` is "general", "missing" or "partial"."""
    remedy = '"general", "missing" (rho_neg = 0) or "partial" (rho_pos = 0)'
    check_choice("assume", assume, ("general", "missing", "partial"), remedy)


def apply_assumption(T: Any, assume: str) -> Float[np.ndarray, "q 2 2"]:
    """A float32 copy of T (q, 2, 2) in which the row that `assume` states to be noise-free is that of the identity.

    The paper's released code does so for T-estimator and Dual-T (`paper.methods`).
    """
    check_assume(assume)
    found = np.array(T, np.float32)
    if assume != "general":
        side = 0 if assume == "missing" else 1
        found[:, side] = np.eye(2, dtype=np.float32)[side]
    return found


def from_matrices(T: Any, labels: Labels) -> TransitionEstimate:
    """The estimate that consists of a given T, (q, 2, 2): status `FALLBACK`, the implied prior, `stderr` NaN."""
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
    """P(given = 1) = rho_neg + kept P(clean = 1), where kept = 1 - rho_neg - rho_pos; clipped to [1e-6, 1 - 1e-6]."""
    return jnp.clip(rho_neg + kept * clean, 1e-6, 1 - 1e-6)
