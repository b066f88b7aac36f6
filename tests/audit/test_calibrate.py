import numpy as np
import pytest
from audited import N, T

from mlt_jax import (
    audit_labels,
)


@pytest.mark.parametrize(("slope", "offset"), [(0.5, 0.0), (2.0, 1.0), (1.0, -2.0)])
def test_predictions_that_are_over_or_underconfident_are_calibrated_through_T(exact, audit, slope, offset):
    _, labels, pi = exact
    logit = slope * np.log(pi / (1 - pi)) + offset
    crooked = audit_labels(labels, probs=1 / (1 + np.exp(-logit)), T=T)
    assert np.abs(crooked.wrong - audit.wrong).mean() < 0.02


def test_a_class_whose_predictions_say_nothing_gets_its_base_rates(exact):
    _, labels, pi = exact
    probs = pi.copy()
    probs[:, 0] = np.random.default_rng(1).random(N)
    audit = audit_labels(labels, probs=probs, T=T)
    assert audit.slope[0] == 0
    assert len(np.unique(audit.wrong[:, 0])) == 2  # one for given, one for not given
    prior = float(audit.found.prior[0])
    expected = 0.3 * prior / (0.3 * prior + 0.95 * (1 - prior))
    np.testing.assert_allclose(audit.wrong[labels[:, 0] == 0, 0], expected, rtol=1e-3)
