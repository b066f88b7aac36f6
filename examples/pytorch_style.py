"""A PyTorch user's loop with numpy arrays only: cross-fitted predictions, an audit, weights for the loss, cleanlab.

python examples/pytorch_style.py

Replace `fit` and `predict` by your own training; nothing else changes, and no JAX code is needed.
"""

import numpy as np

from mlt_jax import audit_labels, clean_labels, find_label_issues, importance_weights, label_quality, to_cleanlab_joint

N, FEATURES, CLASSES, FOLDS = 4000, 20, ("beach", "dog", "sunset", "car"), 5


def fit(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None, steps: int = 300) -> np.ndarray:
    """Stands for your training: logistic regression by gradient descent on a loss with a weight per label.

    In PyTorch: `loss = (weights * F.binary_cross_entropy_with_logits(logits, y, reduction="none")).mean()`.
    """
    w = np.zeros((x.shape[1] + 1, y.shape[1]))
    x = np.hstack([x, np.ones((len(x), 1))])
    for _ in range(steps):
        error = 1 / (1 + np.exp(-x @ w)) - y
        w -= x.T @ (error if weights is None else weights * error) / len(x) + 1e-4 * w
    return w


def predict(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Stands for `torch.sigmoid(model(x)).cpu().numpy()`."""
    return 1 / (1 + np.exp(-(x @ w[:-1] + w[-1])))


def main() -> dict[str, float]:
    """Prints each step; returns the numbers."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, FEATURES))
    clean = (x @ rng.normal(size=(FEATURES, len(CLASSES))) + rng.normal(size=(N, len(CLASSES))) > 3).astype(int)
    labels = np.where(rng.random(clean.shape) < np.where(clean, 0.3, 0.02), 1 - clean, clean)  # 30 % missed, 2 % false

    # 1. Out-of-sample predictions: each example by a model that never saw it.
    fold, probs = rng.permutation(N) % FOLDS, np.empty(labels.shape)
    for k in range(FOLDS):
        probs[fold == k] = predict(fit(x[fold != k], labels[fold != k]), x[fold == k])

    # 2. The audit: how noisy is each class, which labels are wrong.
    audit = audit_labels(labels, probs=probs, classes=CLASSES)
    for name, rho_neg, rho_pos in zip(CLASSES, audit.found.rho_neg, audit.found.rho_pos, strict=True):
        print(f"{name:8} falsely given {100 * float(rho_neg):4.1f} %   missed {100 * float(rho_pos):4.1f} %")
    issues = find_label_issues(audit)
    precision = (labels != clean)[issues.example, issues.column].mean()
    print(f"{len(issues.wrong)} suspects, {100 * precision:.0f} % of them wrong")
    print("examples to look at first:", np.argsort(label_quality(audit, per="example"))[:5])

    # 3. Train again: on relabelled data, or on the given ones with a weight for each.
    scores = {}
    for name, weights, y in (("as given", None, labels), ("relabelled", None, clean_labels(audit)),
                             ("weighted", importance_weights(audit), labels)):  # fmt: skip
        predicted = predict(fit(x, y, weights), x) > 0.5
        scores[name] = 2 * float((predicted & (clean == 1)).sum()) / float(predicted.sum() + clean.sum())
        print(f"trained on labels {name:10} F1 against the clean ones {scores[name]:.3f}")

    # 4. cleanlab takes the same T: joint[class, noisy, clean] for `confident_joint=`.
    print("cleanlab's confident joint of", CLASSES[0], to_cleanlab_joint(audit.found, labels)[0].tolist())
    return scores | {"precision": float(precision)}


if __name__ == "__main__":
    main()
