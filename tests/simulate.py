"""Simulated and really labelled data with known noise, for several test files."""

import numpy as np


def correlated_labels(rng, *, n, q, strength=1.5):
    """Clean labels (n, q) that share two latent causes."""
    latent, effect, bias = rng.normal(size=(n, 2)), strength * rng.normal(size=(2, q)), 0.7 * rng.normal(size=q) - 1
    return (rng.random((n, q)) < 1 / (1 + np.exp(-latent @ effect - bias))).astype(np.uint8)


def flip(rng, clean, rho_neg, rho_pos):
    """Noisy labels: each label flipped on its own, with the rates of its clean value."""
    chance = rng.random(clean.shape)
    return np.where(clean == 1, chance >= rho_pos, chance < rho_neg).astype(np.uint8)


def unbiased(rng, *, n=5000, q=8, rho_neg=0.1, rho_pos=0.2, keep=1.0):
    """Noisy labels and a selection of right labels, all of them or a random share."""
    clean = correlated_labels(rng, n=n, q=q)
    labels = flip(rng, clean, rho_neg, rho_pos)
    return labels, (labels == clean) & (rng.random(clean.shape) < keep)


def t_error(estimate, rho_neg, rho_pos):
    """The paper's summed estimation error."""
    return float(np.abs(np.asarray(estimate.rho_neg) - rho_neg).sum() + np.abs(estimate.rho_pos - rho_pos).sum())


def scored(rng, *, n=5000, q=40, rho_neg=0.1, rho_pos=0.2, width=3):
    """Scores and noisy labels of q independent classes whose clean posterior is logistic in the score."""
    scores = width * rng.normal(size=(n, q)) - 2
    clean = rng.random((n, q)) < 1 / (1 + np.exp(-scores))
    chance = rng.random((n, q))
    labels = np.where(clean, chance >= rho_pos, chance < rho_neg).astype(np.uint8)
    return scores.astype(np.float32), labels
