"""Labels to audit, with predictions and known noise, for the tests of audits and of their pages."""

import numpy as np
from simulate import flip

from mlt_jax.audit.audit import audit_labels

N, Q = 3000, 4  # everywhere the same, so that a process compiles an audit once
RHO_NEG, RHO_POS = np.array([0.05, 0.1, 0.0, 0.3]), np.array([0.3, 0.1, 0.4, 0.0])
T = np.stack([1 - RHO_NEG, RHO_NEG, RHO_POS, 1 - RHO_POS], axis=1).reshape(Q, 2, 2)

# Names that would harm a page if they were taken for markup.
EVIL = '<script>document.title = "owned"</script>'
CLASSES = ("cat", EVIL, "\"dog\" & 'mouse'", "</script><img src=x onerror=alert(1)>")


def exact_predictions():
    """Clean and noisy labels (N, Q), and exact P(clean = 1) of each cell."""
    rng = np.random.default_rng(0)
    pi = 1 / (1 + np.exp(-rng.normal(-1, 3, (N, Q))))
    clean = (rng.random((N, Q)) < pi).astype(np.uint8)
    return clean, flip(rng, clean, RHO_NEG, RHO_POS), pi


def simulated_audit(*, n=N, rho=(0.1, 0.3), seed=0, **options):
    """An audit of labels with evil names, T as known: estimating is tested elsewhere."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-0.5, 3, (n, 4))
    clean = rng.random((n, 4)) < 1 / (1 + np.exp(-logits))
    labels = clean ^ (rng.random((n, 4)) < np.where(clean, rho[1], rho[0]))
    probs = 1 / (1 + np.exp(-logits + rng.normal(0, 0.5, (n, 4))))
    known = np.tile([[1 - rho[0], rho[0]], [rho[1], 1 - rho[1]]], (4, 1, 1))
    ids = [f"<b>{i}</b>" if i % 2 else f"image {i}.jpg" for i in range(n)]
    return audit_labels(labels, probs=probs, **{"classes": CLASSES, "ids": ids, "T": known} | options)
