"""Every kind of prediction that people bring, honest or not: T, intervals, ranking, and whether a warning came.

    python experiments/probabilities.py --data DIR [--settings 7] [--seed 0] [--kinds NAME ...] [--out FILE.md]

DIR holds the features and labels of VOC2007, and those of VOC2012 for the external model. Noise of the paper's settings
is drawn by the seed; every model sees the noisy labels alone. Columns: the summed error of T; its mean error over the
mean half width of its 95 % intervals, of the side where that is larger; how many of the true rates the intervals cover;
average precision of finding the flipped labels, ours and cleanlab's best score in hindsight (`pip install
'mlt_jax[bench]'`); and the warning. A row that is off by more than three half widths must carry one, an honest row must
not; the last line says whether that holds. Where DIR has a folder `real`, the warnings of its sets follow, of which
there should be none. About 6 minutes on 2 cores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from audit import cleanlab_scores, ranked
from real_sets import real_sets
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from mlt_jax import audit_labels
from mlt_jax.data import load
from mlt_jax.estimator.crossfit import deal_folds, principal_components
from mlt_jax.paper.noise import SETTINGS, corrupt, transition
from mlt_jax.training.metrics import transition_error

FOLDS, COMPONENTS, TREE_COMPONENTS, DUPLICATES = 5, 128, 32, 0.3
# A row that is off by more half widths than this must carry a warning.
MOST_OFF = 3


@dataclass(frozen=True)
class Options:
    """Where the features are and what to measure."""

    data: Path
    settings: tuple[int, ...] = (7,)
    """of the paper's eight, see `mlt_jax.paper.noise.SETTINGS`"""
    seed: int = 0
    kinds: tuple[str, ...] = ()
    """all by default"""
    out: Path | None = None
    """Markdown file to write the tables to"""


class Data(NamedTuple):
    """Noisy labels, features, and the clean labels, which serve the scores and the external model alone."""

    x: np.ndarray
    labels: np.ndarray
    clean: np.ndarray
    outside: tuple[np.ndarray, np.ndarray]  # features and clean labels of other images
    seed: int


class Kind(NamedTuple):
    """What is passed to the audit."""

    honest: bool
    inputs: Callable[[Data], dict[str, Any]]
    data: Callable[[Data], Data] = lambda d: d


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)), in float64."""
    return 1 / (1 + np.exp(-np.asarray(z, float)))


def logit(p: np.ndarray) -> np.ndarray:
    """Of probabilities, kept off 0 and 1."""
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return np.log(p) - np.log1p(-p)


# A model maps (features, labels) for training and features to predict into probabilities.
Model = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]


def per_class(make: Callable[[], Any], x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> np.ndarray:
    """One scikit-learn classifier for each class."""
    found = np.zeros((len(new), y.shape[1]))
    for j in range(y.shape[1]):
        found[:, j] = make().fit(x, y[:, j]).predict_proba(new)[:, 1]
    return found


def together(make: Callable[[], Any], x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> np.ndarray:
    """One scikit-learn classifier for all classes."""
    return np.stack([p[:, 1] for p in make().fit(x, y).predict_proba(new)], axis=1)


def logistic(C: float, balanced: bool = False) -> Model:
    """Logistic regression on standardised components."""
    weight = "balanced" if balanced else None
    return partial(per_class, lambda: LogisticRegression(C=C, class_weight=weight, solver="newton-cholesky"))


def bce(z: jax.Array, y: jax.Array) -> jax.Array:
    """Cross-entropy of each label."""
    return optax.sigmoid_binary_cross_entropy(z, y)


def focal(z: jax.Array, y: jax.Array) -> jax.Array:
    """Focal loss, gamma = 2."""
    p = jax.nn.sigmoid(z)
    return jnp.where(y == 1, 1 - p, p) ** 2 * bce(z, y)


def asymmetric(z: jax.Array, y: jax.Array) -> jax.Array:
    """Asymmetric loss: gamma = 4 and a margin of 0.05 for negatives."""
    p = jnp.clip(jax.nn.sigmoid(z) - 0.05, 0, 1)
    return jnp.where(y == 1, bce(z, y), -(p**4) * jnp.log1p(-jnp.minimum(p, 1 - 1e-6)))


def network(loss: Callable[[jax.Array, jax.Array], jax.Array] = bce, epochs: int = 15, hidden: bool = False) -> Model:
    """A layer of 256 and a head, by Adam; `hidden`: what it gives are the activations of that layer."""

    def fit(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        order = np.concatenate([rng.permutation(len(x))[: len(x) // 128 * 128] for _ in range(epochs)])
        sizes = ((x.shape[1], 256), (256, y.shape[1]))
        start = [(rng.normal(size=s) * np.sqrt(2 / s[0]), np.zeros(s[1])) for s in sizes]
        weights = _train(jax.tree.map(lambda w: jnp.asarray(w, jnp.float32), start),
                         jnp.asarray(x[order], jnp.float32).reshape(-1, 128, x.shape[1]),
                         jnp.asarray(y[order], jnp.float32).reshape(-1, 128, y.shape[1]), loss)  # fmt: skip
        layer = np.asarray(_hidden(weights, jnp.asarray(new, jnp.float32)))
        return layer if hidden else sigmoid(layer @ np.asarray(weights[1][0]) + np.asarray(weights[1][1]))

    return fit


def _hidden(weights: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ weights[0][0] + weights[0][1][None])


@partial(jax.jit, static_argnames="loss")
def _train(weights: Any, x: jax.Array, y: jax.Array, loss: Callable[..., jax.Array]) -> Any:
    adam = optax.adam(1e-3)

    def cost(w: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return loss(_hidden(w, x) @ w[1][0] + w[1][1][None], y).sum(1).mean()

    def step(carry: Any, batch: Any) -> tuple[Any, None]:
        w, state = carry
        change, state = adam.update(jax.grad(cost)(w, *batch), state)
        return (optax.apply_updates(w, change), state), None

    return jax.lax.scan(step, (weights, adam.init(weights)), (x, y))[0][0]


def out_of_sample(model: Model, data: Data, width: int = COMPONENTS) -> np.ndarray:
    """Predictions by folds."""
    x, fold = data.x[:, :width], deal_folds(len(data.x), folds=FOLDS, seed=data.seed)
    found = np.zeros(data.labels.shape)
    for k in range(FOLDS):
        train, test = fold != k, fold == k
        found[test] = model(x[train], data.labels[train], x[test], data.seed)
    return found


def in_sample(model: Model, data: Data, width: int = COMPONENTS) -> np.ndarray:
    """Predictions for what the model was trained on."""
    return model(data.x[:, :width], data.labels, data.x[:, :width], data.seed)


def recalibrated(data: Data, how: str) -> np.ndarray:
    """Logistic predictions, calibrated by folds: Platt's sigmoid or isotonic regression."""
    z = logit(out_of_sample(logistic(1), data))
    fold, found = deal_folds(len(z), folds=FOLDS, seed=data.seed + 1), np.zeros(z.shape)
    for k in range(FOLDS):
        train, test = fold != k, fold == k
        for j in range(z.shape[1]):
            if how == "platt":
                fitted = LogisticRegression(C=1e6).fit(z[train, j : j + 1], data.labels[train, j])
                found[test, j] = fitted.predict_proba(z[test, j : j + 1])[:, 1]
            else:
                fitted = IsotonicRegression(out_of_bounds="clip").fit(z[train, j], data.labels[train, j])
                found[test, j] = fitted.predict(z[test, j])
    return found


def half(data: Data) -> np.ndarray:
    """Predictions by a network that was trained on every other example."""
    seen = np.arange(len(data.x)) % 2 == 0
    return network(epochs=60)(data.x[seen], data.labels[seen], data.x, data.seed)


def with_duplicates(data: Data) -> Data:
    """A part of the examples twice, nearly: the same given labels, features that differ by a thousandth."""
    rng = np.random.default_rng(data.seed)
    rows = rng.choice(len(data.x), int(DUPLICATES * len(data.x)), replace=False)
    x = np.concatenate([data.x, data.x[rows] * (1 + 1e-3 * rng.normal(size=(len(rows), data.x.shape[1])))])
    labels, clean = (np.concatenate([v, v[rows]]) for v in (data.labels, data.clean))
    return data._replace(x=x.astype(np.float32), labels=labels, clean=clean)


def forest() -> Any:
    """60 trees."""
    return RandomForestClassifier(60, min_samples_leaf=2, random_state=0)


def boosting() -> Any:
    """40 rounds."""
    return HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=8)


def neighbours(k: int) -> Model:
    """The share of the k nearest that have the label."""
    return partial(together, lambda: KNeighborsClassifier(k))


def honest(model: Model, change: Callable[[np.ndarray], np.ndarray] = lambda p: p, width: int = COMPONENTS) -> Kind:
    """A model by folds."""
    return Kind(True, lambda d: {"probs": change(out_of_sample(model, d, width))})


def wrong(inputs: Callable[[Data], Any]) -> Kind:
    """Predictions that are not what they should be."""
    return Kind(False, lambda d: {"probs": inputs(d)})


KINDS: dict[str, Kind] = {
    "logistic, C = .01": honest(logistic(0.01)),
    "logistic, C = 1": honest(logistic(1)),
    "logistic, C = 100": honest(logistic(100)),
    "logistic, balanced": honest(logistic(1, balanced=True)),
    "network": honest(network()),
    "network, logits x 3": honest(network(), lambda p: sigmoid(3 * logit(p))),
    "network, logits x 0.3": honest(network(), lambda p: sigmoid(0.3 * logit(p))),
    "network, label smoothing": honest(network(lambda z, y: bce(z, 0.9 * y + 0.05))),
    "network, ASL": honest(network(asymmetric)),
    "network, focal": honest(network(focal)),
    "network, positive weights": honest(network(lambda z, y: jnp.where(y == 1, 10, 1) * bce(z, y))),
    "forest": honest(partial(together, forest), width=TREE_COMPONENTS),
    "boosting": honest(partial(per_class, boosting), width=TREE_COMPONENTS),
    "10 nearest neighbours": honest(neighbours(10)),
    "50 nearest neighbours": honest(neighbours(50)),
    "logistic, Platt": Kind(True, lambda d: {"probs": recalibrated(d, "platt")}),
    "logistic, isotonic": Kind(True, lambda d: {"probs": recalibrated(d, "isotonic")}),
    "external model": Kind(True, lambda d: {"probs": logistic(0.1)(*d.outside, d.x, 0)}),
    "features": Kind(True, lambda d: {"features": d.x}),
    "in-sample, network": wrong(partial(in_sample, network(epochs=60))),
    "in-sample, network, 15 epochs": wrong(partial(in_sample, network())),
    "in-sample, logistic": wrong(partial(in_sample, logistic(1))),
    "in-sample, forest": wrong(partial(in_sample, partial(together, forest), width=TREE_COMPONENTS)),
    "in-sample, 10 nearest neighbours": wrong(partial(in_sample, neighbours(10))),
    "half in-sample": wrong(half),
    "features of a network trained on these labels": Kind(
        False, lambda d: {"features": in_sample(network(epochs=60, hidden=True), d)}
    ),
    "30 % duplicates, 10 nearest neighbours": Kind(
        False, lambda d: {"probs": out_of_sample(neighbours(10), d)}, with_duplicates
    ),
    "30 % duplicates, features": Kind(False, lambda d: {"features": d.x}, with_duplicates),
    "rows shifted by 1": wrong(lambda d: np.roll(out_of_sample(logistic(1), d), 1, axis=0)),
    "rows shuffled": wrong(lambda d: np.random.default_rng(1).permutation(out_of_sample(logistic(1), d))),
    "1 - p": wrong(lambda d: 1 - out_of_sample(logistic(1), d)),
    "0/1 predictions": wrong(lambda d: (out_of_sample(logistic(1), d) > 0.5).astype(float)),
    "the labels themselves": wrong(lambda d: d.labels.astype(float)),
}


def noisy(options: Options, setting: int) -> Data:
    """VOC2007 with the noise of a setting."""
    data, outside = (load(name, features=options.data) for name in ("voc2007", "voc2012"))
    assert data.features is not None
    assert outside.features is not None
    both = np.concatenate([data.features, outside.features]).astype(np.float32)
    x = np.asarray(principal_components(both, len(both), COMPONENTS).values)
    n = len(data.features)
    T = transition(*SETTINGS["voc2007"][setting], num_classes=data.labels.shape[1])
    labels = np.asarray(corrupt(jax.random.key(8 * options.seed + setting), data.labels, T))
    return Data(x[:n], labels, data.labels, (x[n:], outside.labels), options.seed)


class Row(NamedTuple):
    """What came of one kind of prediction."""

    kind: str
    honest: bool
    error: float  # of T, summed over the classes
    off: float  # mean error over mean half width, of the worse side
    covered: float  # share of the rates that their intervals hold
    ap: float
    ap_cleanlab: float  # NaN where it is not installed or refuses the input
    warnings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether a warning came where it must, and none where it must not."""
        return not self.warnings if self.honest else bool(self.warnings) or self.off <= MOST_OFF


def measure(name: str, data: Data, T: np.ndarray) -> Row:
    """The audit of one kind."""
    kind = KINDS[name]
    data = kind.data(data)
    inputs = kind.inputs(data)
    audit = audit_labels(data.labels, **inputs)
    truth, rates = T[:, [0, 1], [1, 0]], np.stack([audit.found.rho_neg, audit.found.rho_pos], axis=1)
    low, high = np.moveaxis(np.asarray(audit.found.interval()), 2, 0)
    off = np.abs(rates - truth).mean(0) / np.maximum((high - low).mean(0) / 2, 1e-9)
    covered = float(((truth >= low - 1e-6) & (truth <= high + 1e-6)).mean())
    flipped = data.labels != data.clean
    theirs = cleanlab_scores(data.labels, np.asarray(inputs["probs"])) if "probs" in inputs else None
    best = max(ranked(flipped, score) for score in theirs[0].values()) if theirs else np.nan
    error = float(transition_error(audit.found.T, T))
    return Row(name, kind.honest, error, float(off.max()), covered, ranked(flipped, audit.wrong), best, audit.warnings)


def table(rows: list[Row], rates: tuple[float, float]) -> str:
    """Markdown; `worst` is what taking every label as right would cost."""
    worst = 20 * sum(rates)
    head = f"| VOC2007 {rates} | T error (of {worst:.1f}) | off | covered, % | AP | cleanlab's | warning |"
    lines = [head, "|---" * 7 + "|"]
    for row in rows:
        theirs = "" if np.isnan(row.ap_cleanlab) else f"{row.ap_cleanlab:.3f}"
        numbers = f"{row.error:.2f} | {row.off:.1f} | {100 * row.covered:.0f} | {row.ap:.3f} | {theirs}"
        lines.append(f"| {row.kind} | {numbers} | {'; '.join(row.warnings) or 'none'} |")
    failed = [row.kind for row in rows if not row.passed]
    return "\n".join([*lines, "", f"Warnings fail on: {', '.join(failed) or 'nothing'}."])


def main(options: Options) -> None:
    """Measures every kind in every setting; prints and writes the tables."""
    parts = []
    for setting in options.settings:
        rates = SETTINGS["voc2007"][setting]
        data = noisy(options, setting)
        T = np.asarray(transition(*rates, num_classes=data.labels.shape[1]))
        rows = []
        for name in options.kinds or KINDS:
            rows.append(measure(name, data, T))
            print(rows[-1], flush=True)
        parts.append(table(rows, rates))
    if (options.data / "real").is_dir():
        lines = ["| real set, honest predictions | warning |", "|---|---|"]
        for name, tasks in real_sets(options.data / "real").items():
            said = [
                w for t in tasks for w in audit_labels(t.given, probs=sigmoid(t.scores), observed=t.observed).warnings
            ]
            said += [w for t in tasks if t.features is not None
                     for w in audit_labels(t.given, features=t.features, observed=t.observed).warnings]  # fmt: skip
            lines.append(f"| {name} | {'; '.join(said) or 'none'} |")
        parts.append("\n".join(lines))
    print("\n\n".join(parts))
    if options.out:
        options.out.write_text("# Kinds of predictions\n\n" + "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options))
