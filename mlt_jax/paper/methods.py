"""The paper's methods and estimators by the names its tables print: what "Reweight-Ours" or "CSRA" is made of.

To add one, write a file that registers it, and pass it to `experiments/run.py` or `experiments/tables.py`:

    # my_method.py
    from mlt_jax.paper.methods import ESTIMATORS, METHODS, Estimator, Method

    METHODS["MyLoss"] = Method(loss=lambda logits, labels, T: my_loss(logits, labels))
    ESTIMATORS["Mine"] = Estimator(lambda evidence: my_transition(evidence.probs, evidence.labels))  # -> (q, 2, 2)
    METHODS["Reweight-Mine"] = METHODS["Reweight"]._replace(estimator="Mine")

    # python experiments/run.py --plugins my_method.py --methods Standard MyLoss Reweight-Mine
"""

import importlib.util
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mlt_jax.estimator.anchors import dual_t, t_estimator
from mlt_jax.estimator.auto import estimate
from mlt_jax.estimator.blind import estimate_from_scores
from mlt_jax.estimator.correlations import estimate_all
from mlt_jax.estimator.selection import select_clean
from mlt_jax.labels import as_labels
from mlt_jax.models.revision import make_revision, with_delta
from mlt_jax.paper.cdr import make_cdr
from mlt_jax.training import losses
from mlt_jax.training.methods import ALIASES, CHOSEN, ESTIMATORS, METHODS, Estimator, Evidence, Method, Truth
from mlt_jax.transition import Status, apply_assumption, from_matrices

__all__ = ["ALIASES", "CHOSEN", "ESTIMATORS", "METHODS", "Estimator", "Evidence", "Method", "Truth", "load_plugins"]


def anchors(evidence: Evidence, *, rule: Callable[..., Any], quantile: float | None = None) -> Any:
    """T-estimator or Dual-T, with the identity's row on the noise-free side where there is one.

    The paper does not say so, but its released code resets that row: with rho_pos = 0 left to be estimated, Dual-T max
    has an error of 9.4 at (0.6, 0) on VOC2007, reset 2.3; printed 2.7.
    """
    return apply_assumption(rule(evidence.probs, evidence.labels, quantile=quantile), evidence.assume)


def released_dual_t(probs: Any, labels: Any, *, quantile: float) -> Any:
    """Dual-T with the bug behind the paper's "97%" rows: (q, 2, 2).

    The released code zeroes the top 3 % of P(noisy = v) in the very array from which Dual-T then takes the predicted
    label, so the surest negatives are predicted positive and the surest positives negative.
    """
    posterior = np.stack([1 - np.asarray(probs, float), np.asarray(probs, float)])
    kept = np.where(posterior >= np.quantile(posterior, quantile, axis=1, keepdims=True, method="higher"), 0, posterior)
    predicted = (kept[1] > kept[0]).astype(float)
    # The anchors of predictions that are all 0 or 1 are the identity: what is left is P(noisy | predicted).
    return t_estimator(probs, labels, quantile=quantile) @ dual_t(predicted, labels)


def ours(evidence: Evidence, *, aggregate: str = "residual", tau: float = 0.5, random_order: bool = False) -> Any:
    """The paper's estimator: small-loss selection, label correlations, Dual-T where a class has no valid partner.

    Its code's rule, `residual`, not the medoid of its text: with it the gold row comes out as printed. As there, nobody
    asks whether a class's correlations are due to chance.
    """
    selected = select_clean(evidence.losses, evidence.labels, tau=tau, assume=evidence.assume)
    key = jax.random.key(evidence.seed) if random_order else None
    found = estimate_all(evidence.labels, selected, aggregate=aggregate, assume=evidence.assume, stderr=True, key=key)
    lost = (found.status == Status.TOO_FEW) | (found.partners == 0)
    other = from_matrices(anchors(evidence, rule=dual_t), as_labels(evidence.labels))
    return jax.tree.map(lambda x, y: jnp.where(lost.reshape(-1, *[1] * (x.ndim - 1)), y, x), found, other)


def blind(evidence: Evidence) -> Any:
    """This library's default on features, without knowledge of a noise-free side."""
    return estimate_from_scores(evidence.scores, as_labels(evidence.labels))


def auto(evidence: Evidence) -> Any:
    """This library's default for whatever there is: features, else the losses and probabilities of the warm-up."""
    if evidence.features is not None:
        return estimate_from_scores(evidence.scores, as_labels(evidence.labels), assume=evidence.assume)
    return estimate(evidence.labels, losses=evidence.losses, probs=evidence.probs, assume=evidence.assume)


def gold(evidence: Evidence, truth: Truth) -> Any:
    """The paper's estimator where exactly the right labels are selected."""
    selected = np.asarray(evidence.labels) == np.asarray(truth.clean)
    return estimate_all(evidence.labels, selected, aggregate="residual", assume=evidence.assume)


def true_transition(evidence: Evidence, truth: Truth) -> Any:
    """The T by which the labels were corrupted."""
    if truth.T is None:
        raise ValueError("truth: there is no one T behind noise that depends on the instance; leave this method out")
    return truth.T


ESTIMATORS |= {
    "auto": Estimator(auto),
    "T-estimator max": Estimator(partial(anchors, rule=t_estimator)),
    "T-estimator 97%": Estimator(partial(anchors, rule=t_estimator, quantile=0.97)),
    "Dual T-estimator max": Estimator(partial(anchors, rule=dual_t)),
    "Dual T-estimator 97%": Estimator(partial(anchors, rule=dual_t, quantile=0.97)),
    "Dual T-estimator 97%, as released": Estimator(partial(anchors, rule=released_dual_t, quantile=0.97)),
    "Our estimator": Estimator(ours),
    "Our estimator (joint)": Estimator(partial(ours, aggregate="joint")),
    "Our estimator (medoid)": Estimator(partial(ours, aggregate="medoid")),
    "Our estimator (R=1)": Estimator(partial(ours, aggregate="first", random_order=True)),
    "Our estimator (Avg.)": Estimator(partial(ours, aggregate="mean")),
    "Our estimator (tau=0.4)": Estimator(partial(ours, tau=0.4)),
    "Our estimator (tau=0.6)": Estimator(partial(ours, tau=0.6)),
    "Our estimator, blind": Estimator(blind),
    "Our estimator gold": Estimator(gold, oracle=True),
    "True T": Estimator(true_transition, oracle=True),
}


def _gce(logits: Any, labels: Any, T: Any) -> Any:
    return losses.gce(logits, labels)


def _wsic(outputs: Any, labels: Any, T: Any) -> Any:
    clean_logits, noisy_logits = outputs
    return losses.wsic(clean_logits, noisy_logits, labels)


def _revision(outputs: Any, labels: Any, T: Any) -> Any:
    logits, delta = outputs
    return losses.revision_bce(logits, labels, T, delta)


_reweight = Method(loss=losses.reweighted_bce, start="warm", estimator=CHOSEN)
_revised = Method(loss=_revision, update=make_revision, wrap=with_delta)
_ours = _reweight._replace(estimator="Our estimator")
METHODS |= {
    "Standard": Method(),
    "GCE": Method(loss=_gce),
    "GCE, warm start": Method(loss=_gce, start="warm"),
    "CDR": Method(update=make_cdr),
    "AGCN": Method(model="agcn"),
    "CSRA": Method(model="csra"),
    "WSIC": Method(model="wsic", loss=_wsic),
    # With the T that the user chose.
    "Reweight": _reweight,
    "Forward": _reweight._replace(loss=losses.forward_bce),
    "Backward": _reweight._replace(loss=losses.backward_bce),
    "Revision": _revised._replace(estimator=CHOSEN, start="Reweight"),
    "AGCN+Reweight": _reweight._replace(model="agcn"),
    "CSRA+Reweight": _reweight._replace(model="csra"),
    # With the T of the paper's rows.
    "Reweight-T max": _reweight._replace(estimator="T-estimator max"),
    "Reweight-T 97%": _reweight._replace(estimator="T-estimator 97%"),
    "Reweight-DualT max": _reweight._replace(estimator="Dual T-estimator max"),
    "Reweight-DualT 97%": _reweight._replace(estimator="Dual T-estimator 97%"),
    "Reweight-DualT 97%, as released": _reweight._replace(estimator="Dual T-estimator 97%, as released"),
    "Reweight-Ours": _ours,
    "Reweight-Ours, blind": _reweight._replace(estimator="Our estimator, blind"),
    "Reweight-TrueT": _reweight._replace(estimator="True T"),
    "Backward-Ours": _ours._replace(loss=losses.backward_bce),
    "Forward-Ours": _ours._replace(loss=losses.forward_bce),
    "Revision-Ours": _revised._replace(estimator="Our estimator", start="Reweight-Ours"),
    "AGCN+Reweight-Ours": _ours._replace(model="agcn"),
    "CSRA+Reweight-Ours": _ours._replace(model="csra"),
    "Reweight-Ours (tau=0.4)": _reweight._replace(estimator="Our estimator (tau=0.4)"),
    "Reweight-Ours (tau=0.6)": _reweight._replace(estimator="Our estimator (tau=0.6)"),
}
ALIASES |= {
    "Standard+Reweight-Ours": "Reweight-Ours",
    "Reweight-Ours (tau=0.5)": "Reweight-Ours",
    "recipe": "Our estimator",
    "dual-t": "Dual T-estimator max",
    "t": "T-estimator max",
}
# Methods that read spatial maps (b, h, w, d), not pooled features.
MAP_MODELS = ("agcn", "csra")
# Their authors train these heads so many times as fast as the backbone before them.
HEAD_FACTORS = {"agcn": 10, "csra": 10}
# A deep head wants smaller steps: mAP on noisy validation labels, VOC2007 at (0,0.2), was .56 at the others' 5e-4, .61
# at this and .59 at 5e-5.
FROZEN_RATES = {"agcn": 1.5e-4}


def head_rates(learning_rate: float) -> dict[str, float]:
    """Learning rates of the heads that have their own in a whole network."""
    return {head: factor * learning_rate for head, factor in HEAD_FACTORS.items()}


def head_of(model: str, dataset: str) -> str:
    """The head of `models.HEADS` for a method's model: CSRA has other settings on COCO."""
    return "csra-coco" if (model, dataset) == ("csra", "coco") else model


def needs_maps(name: str) -> bool:
    """Whether the method of that name reads spatial maps."""
    name = ALIASES.get(name, name)
    return name in METHODS and METHODS[name].model in MAP_MODELS


def load_plugins(paths: Iterable[Path]) -> None:
    """Runs Python files that register methods and estimators, each once."""
    for path in paths:
        if not path.is_file():
            raise ValueError(f"plugins: {path} is no file; pass Python files that register methods")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"plugins: {path} is no Python file; pass files that end in .py")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
