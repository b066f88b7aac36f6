import numpy as np
import pytest

from mlt_jax.paper.methods import METHODS  # fills the registries
from mlt_jax.training.methods import ESTIMATORS, Evidence, Method, WarmUp, find_estimator, find_method


def test_names_and_other_names_are_found_and_unknown_ones_listed():
    assert find_method("Standard+Reweight-Ours") is METHODS["Reweight-Ours"]
    assert find_estimator("recipe") is ESTIMATORS["Our estimator"]
    with pytest.raises(ValueError, match="method: 'Reweigh' is unknown; pass one of Standard, GCE"):
        find_method("Reweigh")
    with pytest.raises(ValueError, match="estimator: 'guess' is unknown; pass one of auto, T-estimator max"):
        find_estimator("guess")


def test_the_warm_up_is_made_when_it_is_first_read():
    labels, made = np.zeros((4, 2), np.uint8), []
    warm = WarmUp(({}, {}), np.ones((1, 4, 2), np.float32), np.full((4, 2), 0.5, np.float32))
    evidence = Evidence(labels, warm_up=lambda: (made.append(1), warm)[1])
    assert not made
    assert evidence.probs is warm.probs
    assert made
    with pytest.raises(ValueError, match="probs: none; this estimator needs a warm-up"):
        _ = Evidence(labels).probs


def test_methods_are_equal_when_they_train_alike():
    assert Method() == METHODS["Standard"]
    assert Method(model="csra") == METHODS["CSRA"]
    assert Method() != METHODS["GCE"]
