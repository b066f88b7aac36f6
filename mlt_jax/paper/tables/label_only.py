"""Studies for which labels suffice: errors of the gold selection by number of examples, of single partners; counts."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8

from mlt_jax.estimator.pairs import estimate_pair
from mlt_jax.paper import printed as paper
from mlt_jax.paper.methods import Evidence, Truth, gold
from mlt_jax.training.metrics import transition_error

PERSON = 49  # in COCO's alphabetical order from 0; the paper's "class 50" and T^49


def gold_error(
    clean: UInt8[np.ndarray, "n q"], labels: UInt8[np.ndarray, "n q"], T: Float[np.ndarray, "q 2 2"], *, assume: str
) -> float:
    """Summed T error of the paper's estimator where exactly the right labels are selected."""
    found = gold(Evidence(labels, assume=assume), Truth(T, clean)).T
    return transition_error(found, T)


def partner_groups() -> dict[str, np.ndarray]:
    """Indices of the labels that the paper's validation_coco says are correlated with "person" (A), and the rest (B).

    Its bold rows, from its printed frequencies: they differ by 0.015 or more.
    """
    rows = paper.tables()["validation_coco"].rows
    gap = np.array([abs(row.values[0].mean - row.values[1].mean) for row in rows])
    others = np.arange(len(gap)) != PERSON
    return {"label A": np.flatnonzero(others & (gap >= 0.0145)), "label B": np.flatnonzero(others & (gap < 0.0145))}


def partner_error(
    clean: UInt8[np.ndarray, "n q"],
    labels: UInt8[np.ndarray, "n q"],
    T: Float[np.ndarray, "q 2 2"],
    *,
    assume: str,
    group: str,
) -> dict[str, float]:
    """Error of person's T from one partner alone, mean over the partners of the group whose system is valid.

    Exactly the right labels are selected. `partners` says how many were valid, of `asked`.
    """
    y, right = labels[:, PERSON] == 1, labels[:, PERSON] == clean[:, PERSON]
    on, off = y & right, ~y & right
    chosen = partner_groups()[group]
    partners = labels[:, chosen].astype(np.float32)
    m_j = np.full(len(chosen), y.mean(), np.float32)
    frequencies = m_j, partners.mean(0), (partners * y[:, None]).mean(0), partners[off].mean(0), partners[on].mean(0)
    pair = estimate_pair(*map(jnp.asarray, frequencies))
    rates = np.stack([pair.rho_neg, pair.rho_pos])
    rates = np.where((rates < 0) & (rates > -0.3 / clean.shape[1]), 0, rates)
    rates = np.stack([np.where(assume == "missing", 0, rates[0]), np.where(assume == "partial", 0, rates[1])])
    prior = np.asarray(pair.prior)
    valid = np.asarray(pair.defined) & (rates >= 0).all(0) & (rates.sum(0) < 1) & (prior >= 0) & (prior <= 1)
    true = np.array([T[PERSON, 0, 1], T[PERSON, 1, 0]])
    errors = np.abs(rates - true[:, None]).sum(0)[valid]
    return {
        "T_error": float(errors.mean()) if len(errors) else float("nan"),
        "partners": float(valid.sum()),
        "asked": float(len(chosen)),
    }


def frequencies(clean: UInt8[np.ndarray, "n q"]) -> dict[str, float]:
    """How often label i (from 1) is absent where "person" is absent and where it is present."""
    person = clean[:, PERSON] == 1
    found = {}
    for i in range(clean.shape[1]):
        for value, rows in enumerate((~person, person)):
            found[f"i={i + 1} P(Y^i=0|Y^50={value})"] = float((clean[rows, i] == 0).mean())
    return found
