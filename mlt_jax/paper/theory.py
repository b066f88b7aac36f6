"""Theorems 1 to 6 of the paper as functions: what identifies T and what does not, and how far an estimate can be off.

For one class j and one partner i: `T[clean, noisy]` of class j, `prior = P(clean_j = 1)`, `M[clean_j, noisy_i]`,
`E[noisy_j, noisy_i]`. Functions of one pair are pure and take `jax.vmap`; functions of labels take all classes at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from mlt_jax.labels import check_binary

_Matrix = Float[Array | np.ndarray, "2 2"]
_Labels = Shaped[Array | np.ndarray, "n q"]


class CorrelationTable(NamedTuple):
    """How often class i is absent, given class j absent or present; matrices are (q, q), indexed `[j, i]`."""

    absent_given_absent: Float[Array, "q q"]  # P(Y_i = 0 | Y_j = 0)
    absent_given_present: Float[Array, "q q"]  # P(Y_i = 0 | Y_j = 1)
    difference: Float[Array, "q q"]  # first minus second: Assumption 2 says it is not zero
    n0: Int[Array, " q"]  # examples without class j
    n1: Int[Array, " q"]  # examples with class j
    defined: Bool[Array, " q"]  # False where class j is never, or always, present: frequencies without examples are 0


def correlation_table(labels: _Labels) -> CorrelationTable:
    """Frequencies that test Assumption 2 (label assum2), for all pairs of classes; the paper's table validation_coco.

    The diagonal is the class against itself (1 and 0): row i=50 of the paper's table.
    """
    present = check_binary("labels", labels).astype(bool)
    n1 = present.sum(axis=0, dtype=jnp.int32)
    n0 = len(present) - n1
    both, ones, zeros = _count(present, present), n1.astype(float), n0.astype(float)
    defined = (n0 > 0) & (n1 > 0)
    given_absent = (zeros[:, None] - (ones[None, :] - both)) / jnp.maximum(zeros, 1)[:, None]
    given_present = (ones[:, None] - both) / jnp.maximum(ones, 1)[:, None]
    difference = jnp.where(defined[:, None], given_absent - given_present, 0)
    return CorrelationTable(given_absent, given_present, difference, n0, n1, defined)


def hoeffding_threshold(n0: ArrayLike, n1: ArrayLike, *, confidence: ArrayLike = 0.95) -> Float[Array, "..."]:
    """Difference of two frequencies, over n0 and over n1 examples, beyond which their probabilities differ.

    Each frequency is within `sqrt(log(4 / alpha) / (2 n))` of its probability except with probability alpha / 2
    (Hoeffding, both sides), so both are except with alpha = 1 - confidence, and equal probabilities give frequencies
    within the sum of the two.
    For COCO's class 50, "person" (n0 = 36907, n1 = 45174), that is 0.01467: the paper's 0.015, rounded; both mark the
    same 46 partners. It holds for one pair: for q - 1 pairs together, divide alpha by q - 1. Hoeffding applied
    once to the difference would give `sqrt(log(2 / alpha) / 2 * (1 / n0 + 1 / n1))`, here 0.0095.
    """
    log_term = jnp.log(4 / _risk(confidence)) / 2
    return jnp.sqrt(log_term / jnp.asarray(n0, dtype=float)) + jnp.sqrt(log_term / jnp.asarray(n1, dtype=float))


def observed_pair(T: _Matrix, prior: ArrayLike, M: _Matrix) -> Float[Array, "2 2"]:
    """Distribution of two noisy labels, `E[noisy_j, noisy_i] = T' P M` (label system)."""
    return _observe(_shaped("T", T, 2, 2), jnp.asarray(prior, dtype=float), _shaped("M", M, 2, 2))


def observed_triple(T: _Matrix, prior: ArrayLike, tables: Float[Array | np.ndarray, "2 2 2"]) -> Float[Array, "2 2 2"]:
    """Distribution of three noisy labels, `[noisy_j, noisy_i, noisy_k]`; tables: `P(noisy_i, noisy_k | clean_j)`."""
    flat = _shaped("tables", tables, 2, 2, 2).reshape(2, 4)
    return _observe(_shaped("T", T, 2, 2), jnp.asarray(prior, dtype=float), flat).reshape(2, 2, 2)


def second_solution_pair(
    T: _Matrix, prior: ArrayLike, M: _Matrix, *, shrink: float = 0.5
) -> tuple[Float[Array, "2 2"], Float[Array, ""], Float[Array, "2 2"]]:
    """Another valid (T, prior, M) with the same `observed_pair`: Theorem 1, two noisy labels do not identify T.

    The larger rate of T is multiplied by `shrink` in [0, 1): the data do not determine it. It is the proof's T1 = A T,
    M1 = B M with b_- = 0 and a_- = -alpha < 0 (or, for rho_pos, the mirror image). Any T of Assumption 1 with some
    noise and any M will do: M's rows only mix. The proof's reference to Lemma lemma1.5 is not enough: with its a_+ and
    b_+, A and B are both stochastic only as identity or permutation, so some noise in T is needed.
    """
    return _second_solution(_shaped("T", T, 2, 2), jnp.asarray(prior, dtype=float), _shaped("M", M, 2, 2), shrink)


def second_solution_triple(
    T: _Matrix, prior: ArrayLike, tables: Float[Array | np.ndarray, "2 2 2"], *, shrink: float = 0.5
) -> tuple[Float[Array, "2 2"], Float[Array, ""], Float[Array, "2 2 2"]]:
    """Another valid (T, prior, tables) with the same `observed_triple`: Theorem 3, free tables leave T open.

    tables: `P(noisy_i, noisy_k | clean_j)`, not assumed independent: 9 parameters against 7 frequencies. Seen as one
    partner with four values, the partners fall under Theorem 1, and so would any number of them. One of the new tables
    is a mixture of the old two, hence no product even where both were, as Theorem 2 needs. (The paper's proof only
    permutes labels, which its own definition of identifiability allows.)
    """
    flat = _shaped("tables", tables, 2, 2, 2).reshape(2, 4)
    T1, prior1, flat1 = _second_solution(_shaped("T", T, 2, 2), jnp.asarray(prior, dtype=float), flat, shrink)
    return T1, prior1, flat1.reshape(2, 2, 2)


def solve_three_labels(
    joint: Float[Array | np.ndarray, "2 2 2"],
) -> tuple[Float[Array, "2 2"], Float[Array, ""], Float[Array, "2 2"], Float[Array, "2 2"]]:
    """(T, prior, M_i, M_k) from three noisy labels, where noisy_i and noisy_k are independent given clean_j: Theorem 2.

    joint: `[noisy_j, noisy_i, noisy_k]`. With E the table of (i, k) and E_1 its part with noisy_j = 1,
    `E_1 E^-1 = M_i' diag(T[:, 1]) M_i'^-1`: its eigenvalues are rho_neg (the smaller, by Assumption 1) and 1 - rho_pos.
    Not finite where i or k is uncorrelated with j (Assumption 2). In float32 good to 0.002 where the rows of M_i, and
    of M_k, differ by 0.2 or more; below that use x64.
    """
    joint = _shaped("joint", joint, 2, 2, 2)
    ratio = joint[1] @ _inverse(joint.sum(axis=0))
    centre, half = (ratio[0, 0] + ratio[1, 1]) / 2, (ratio[0, 0] - ratio[1, 1]) / 2
    # Written so that nothing cancels; below zero only by rounding, or where no independent model fits.
    gap = jnp.sqrt(jnp.maximum(half**2 + ratio[0, 1] * ratio[1, 0], 0))
    ones = jnp.stack([centre - gap, centre + gap])
    T = jnp.stack([1 - ones, ones], axis=1)
    with_i, with_k = (_inverse(T.T) @ joint.sum(axis=axis) for axis in (2, 1))
    return T, with_i[1].sum(), with_i / with_i.sum(axis=1, keepdims=True), with_k / with_k.sum(axis=1, keepdims=True)


def solve_known_correlation(E: _Matrix, M: _Matrix) -> tuple[Float[Array, "2 2"], Float[Array, ""]]:
    """(T, prior) from two noisy labels and a known M: Theorem 4 (labels eq6, eq7).

    `E M^-1 = T' P`, and the rows of T sum to 1, so its column sums are the prior (the same number as eq6).
    Not finite where the rows of M are equal, or the prior is 0 or 1.
    """
    scaled = (_shaped("E", E, 2, 2) @ _inverse(_shaped("M", M, 2, 2))).T
    return scaled / scaled.sum(axis=1, keepdims=True), scaled[1].sum()


def sensitivity(E: _Matrix, M: _Matrix) -> Float[Array, ""]:
    """C of Theorem 5: largest |derivative| of rho_neg or rho_pos by e00, e01, e10, rho'_+ = M[1, 0], rho'_- = M[0, 1].

    Of label eq7 by automatic differentiation; e11 takes up what the other three leave.
    """
    E, M = _shaped("E", E, 2, 2), _shaped("M", M, 2, 2)

    def rates(theta: Float[Array, " 5"]) -> Float[Array, " 2"]:
        e00, e01, e10, lost, gained = theta
        table = jnp.stack([e00, e01, e10, 1 - e00 - e01 - e10]).reshape(2, 2)
        T, _ = solve_known_correlation(table, jnp.stack([1 - gained, gained, lost, 1 - lost]).reshape(2, 2))
        return jnp.stack([T[0, 1], T[1, 0]])

    return jnp.abs(jax.jacfwd(rates)(jnp.stack([E[0, 0], E[0, 1], E[1, 0], M[1, 0], M[0, 1]]))).max()


def estimation_error_bound(
    *,
    sensitivity: ArrayLike,
    bias: ArrayLike,
    n: ArrayLike,
    selected_ratio: ArrayLike,
    num_partners: ArrayLike,
    confidence: ArrayLike,
) -> Float[Array, "..."]:
    """Bound on the entrywise L1 error of one class's T that holds with probability `confidence`: Theorem 5.

    Half the bound is one on |d rho_neg| + |d rho_pos|. What holds of the printed statement:

    - To first order in the frequencies, and under Assumption 4, `8 C Delta` and both tails follow, as printed. The
      variance of a frequency over k selected examples is x (1 - x) / k, at most 1 / (4 lambda_1 n), without the proof's
      further 4; Bernstein needs the centred rates (Lemma 6 writes E[X^2] = Var - E^2), which also lie within 1.
    - The proof takes the five frequencies as independent. They are not; the final bound replaces the ten derivatives
      by the largest, which leaves a margin (the tests compare it with simulation).
    - The R estimates share their examples, so 1 / R is not exact (measured: 2.4 to 3.6 times that variance).
      `num_partners=1` gives what holds for the mean of any R estimates, however dependent.
    - It is loose: tens of times the mean error of one simulated partner (n = 20,000) in the tests.

    Args:
      sensitivity: C. All arguments broadcast.
      bias: Delta of Assumption 3.
      selected_ratio: lambda_1, selected positives over n.
      num_partners: R.
    """
    C, Delta, size, ratio, R = (
        jnp.asarray(value, dtype=float) for value in (sensitivity, bias, n, selected_ratio, num_partners)
    )
    risk = _risk(confidence)
    variance = 3 / (4 * size) + 1 / (2 * ratio * size)
    chebyshev = 4 * C * jnp.sqrt(variance * 2 / (R * risk))
    log_term = jnp.log(4 / risk)
    bernstein = 4 * C * jnp.sqrt(variance * 2 * log_term / R) + 8 * log_term / (3 * R)
    return 8 * C * Delta + jnp.minimum(chebyshev, bernstein)


def generalization_bound(
    *,
    n: ArrayLike,
    num_classes: int,
    lipschitz: ArrayLike,
    loss_bound: ArrayLike,
    input_bound: ArrayLike,
    weight_norms: Sequence[float] | Float[Array | np.ndarray, " d"],
    T: Float[Array | np.ndarray, "q 2 2"],
    confidence: ArrayLike,
    as_printed: bool = False,
) -> Float[Array, "..."]:
    """Bound on expected minus empirical reweighted risk that holds with probability `confidence`: Theorem 6.

    U, the largest possible weight, comes from T. Lemma 2's proof reaches U times the unweighted complexity and then
    drops the U, so here it multiplies the complexity term. Even U takes the weight as constant: where it depends on the
    network's output, the slope of weight times loss can exceed U (rates (0.0001, 0.2): 2.3 against 1.25), though at all
    the paper's noise settings it does not.

    Args:
      lipschitz, loss_bound, input_bound: L, M and B.
      weight_norms: Frobenius bounds M_1 .. M_d of the layers.
      as_printed: leaves U out of the complexity term.
    """
    T = _shaped("T", T, num_classes, 2, 2)
    U = 1 / (1 - jnp.maximum(T[:, 0, 1], T[:, 1, 0])).min()
    norms, size = jnp.asarray(weight_norms, dtype=float), jnp.asarray(n, dtype=float)
    L, M, B = (jnp.asarray(value, dtype=float) for value in (lipschitz, loss_bound, input_bound))
    depth_term = jnp.sqrt(2 * len(norms) * jnp.log(2.0)) + 1
    complexity = 2 * B * num_classes * L * depth_term * norms.prod() / jnp.sqrt(size)
    deviation = U * M * jnp.sqrt(jnp.log(1 / _risk(confidence)) / (2 * size))
    return (complexity if as_printed else U * complexity) + deviation


def selection_bias(
    labels: _Labels, clean: _Labels, selected: Bool[Array | np.ndarray, "n q"]
) -> tuple[Float[Array, "q q"], Float[Array, "q q"]]:
    """(Delta_0, Delta_1) of label eq10, each (q, q) `[j, i]`: what selection adds to the estimator's M. Scoring only.

    Delta_0: P(noisy_i = 1) among selected examples with noisy_j = 0, less that among all with clean_j = 0.
    Delta_1: P(noisy_i = 0) among selected examples with noisy_j = 1, less that among all with clean_j = 1.
    The diagonal is 0 (a class is no partner of itself); NaN where a group is empty.
    """
    noisy, truth, chosen = (
        check_binary(*pair).astype(bool) for pair in (("labels", labels), ("clean", clean), ("selected", selected))
    )
    if not noisy.shape == truth.shape == chosen.shape:
        shapes = f"labels {noisy.shape}, clean {truth.shape}, selected {chosen.shape}"
        raise ValueError(f"labels, clean, selected: {shapes} differ; pass the same examples and classes")

    def positive_rate(group: Bool[Array, "n q"]) -> Float[Array, "q q"]:
        return _count(group, noisy) / group.sum(axis=0).astype(float)[:, None]

    partner = ~jnp.eye(noisy.shape[1], dtype=bool)
    in_negatives = positive_rate(chosen & ~noisy) - positive_rate(~truth)
    in_positives = positive_rate(truth) - positive_rate(chosen & noisy)
    return jnp.where(partner, in_negatives, 0), jnp.where(partner, in_positives, 0)


def assumption_4_holds(
    estimates: Float[Array | np.ndarray, "R q 2 2"],
    T: Float[Array | np.ndarray, "q 2 2"],
    aggregated: Float[Array | np.ndarray, "q 2 2"],
) -> Bool[Array, " q"]:
    """Whether each class's aggregated estimate is no farther (L1) from T than the mean of its R. Scoring only.

    Assumption 4 (label assum4). It calls the mean the minimiser of summed L1 distance; that is the median.
    """
    estimates = jnp.asarray(estimates)
    T, aggregated = (_shaped(name, x, *estimates.shape[1:]) for name, x in (("T", T), ("aggregated", aggregated)))
    return jnp.abs(aggregated - T).sum(axis=(1, 2)) <= jnp.abs(estimates.mean(axis=0) - T).sum(axis=(1, 2))


def _observe(T: Float[Array, "2 2"], prior: Float[Array, ""], M: Float[Array, "2 m"]) -> Float[Array, "2 m"]:
    return T.T @ (jnp.stack([1 - prior, prior])[:, None] * M)


def _second_solution(
    T: Float[Array, "2 2"], prior: Float[Array, ""], M: Float[Array, "2 m"], shrink: float
) -> tuple[Float[Array, "2 2"], Float[Array, ""], Float[Array, "2 m"]]:
    if not 0 <= shrink < 1:
        raise ValueError(f"shrink: is {shrink}; pass a factor in [0, 1)")
    rates = jnp.stack([T[0, 1], T[1, 0]])
    if not isinstance(rates, jax.core.Tracer) and not (rates.max() > 0 and rates.sum() < 1):
        raise ValueError(f"T: rates are {rates.tolist()}; pass some noise, with rho_neg + rho_pos < 1")
    row = jnp.argmax(rates)
    weight = jnp.stack([1 - prior, prior])
    # Row `row` of T steps away from the other; its share of the examples falls, and the other row of M takes them over.
    alpha = (1 - shrink) * rates[row] / (1 - rates.sum())
    share = alpha * weight[row] / (alpha + weight[1 - row])
    weight = weight.at[row].divide(1 + alpha)
    return (
        T.at[row].set((1 + alpha) * T[row] - alpha * T[1 - row]),
        jnp.where(row == 1, weight[1], 1 - weight[0]),
        M.at[1 - row].set((1 - share) * M[1 - row] + share * M[row]),
    )


def _inverse(matrix: Float[Array, "2 2"]) -> Float[Array, "2 2"]:
    (a, b), (c, d) = matrix
    return jnp.stack([d, -b, -c, a]).reshape(2, 2) / (a * d - b * c)


def _count(group: Bool[Array, "n q"], labels: Bool[Array, "n q"]) -> Float[Array, "q q"]:
    # Sums of ones in float32 are exact up to 2**24 examples, given full precision on every device.
    return jnp.matmul(group.T.astype(float), labels.astype(float), precision="highest")


def _risk(confidence: ArrayLike) -> Float[Array, "..."]:
    if not np.all((np.asarray(confidence) > 0) & (np.asarray(confidence) < 1)):
        raise ValueError(f"confidence: is {confidence}; pass a probability above 0 and below 1")
    return jnp.asarray(1 - np.asarray(confidence, float), dtype=float)


def _shaped(name: str, array: ArrayLike, *shape: int) -> Array:
    if np.shape(array) != shape:
        raise ValueError(f"{name}: has shape {np.shape(array)}; pass {shape}")
    return jnp.asarray(array, dtype=float)
