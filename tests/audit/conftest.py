import pytest
from audited import T, exact_predictions

from mlt_jax.audit.audit import audit_labels


@pytest.fixture(scope="session")
def exact():
    """Clean and noisy labels, and exact P(clean = 1) of each cell."""
    return exact_predictions()


@pytest.fixture(scope="session")
def audit(exact):
    _, labels, pi = exact
    return audit_labels(labels, probs=pi, T=T, classes=list("abcd"))
