"""Losses, metrics and noise models: finite numbers for any finite logits, labels and T."""

import numpy as np
import pytest
from fuzzing import Call, arguments, budget, finite, key, one_of, probs, run, share, transition, transitions
from hypothesis import given
from hypothesis import strategies as st

from mlt_jax.paper import noise
from mlt_jax.training import losses, metrics

RATES = {"rho_neg": share, "rho_pos": share, "num_classes": one_of(1, 3)}


def logits(case):
    s = case.scores.astype(np.float32)
    return st.sampled_from([s, 0 * s, 100 * s, -1e4 * s, 1e-30 * s])


def clean(case):
    return st.sampled_from([case.values, case.values.astype(bool), case.values.astype(np.float32)])


def predictions(case):
    return probs(case).map(np.asarray).filter(lambda p: p.ndim == 2)


def ignored(case):
    return st.sampled_from([None, case.rng.random((case.n, case.q)) < 0.5, np.ones((case.n, case.q), bool)])


def change(case):
    return st.sampled_from([np.zeros((case.q, 2, 2)), case.rng.normal(size=(case.q, 2, 2))])


def partners(case):
    return st.sampled_from([(np.arange(case.q) + 1) % case.q, np.zeros(case.q, int)])


def t_holds(result, _):
    transitions(result)


def labels_hold(result, _):
    assert set(np.unique(np.asarray(result, float))) <= {0, 1}


def scores_hold(result, _):
    """Every score is a fraction; NaN where no class has a positive."""
    values = np.array(list(result.values()) if isinstance(result, dict) else result, float)
    assert ((values >= 0) & (values <= 1) | np.isnan(values)).all()


GIVEN = {"logits": logits, "labels": clean}
SCORED = {"labels": clean, "ignore": ignored}
FLIPPED = {"labels": clean, "key": key}
PMD = {"labels": clean, "posteriors": predictions, "kind": one_of(1, 2, 3, "I", "iii"), "level": share}
CALLS = {
    "bce": Call(losses.bce, GIVEN, finite, spoil=False),
    "reweighted_bce": Call(losses.reweighted_bce, {**GIVEN, "T": transition}, finite, spoil=False),
    "forward_bce": Call(losses.forward_bce, {**GIVEN, "T": transition}, spoil=False),
    "backward_bce": Call(losses.backward_bce, {**GIVEN, "T": transition}, finite, spoil=False),
    "revision_bce": Call(losses.revision_bce, {**GIVEN, "T": transition, "delta": change}, finite, spoil=False),
    "gce": Call(losses.gce, {**GIVEN, "power": one_of(0.1, 0.7, 1.0)}, finite, spoil=False),
    "average_precision": Call(metrics.average_precision, {**SCORED, "scores": logits}, scores_hold, spoil=False),
    "f1_scores": Call(metrics.f1_scores, {**SCORED, "probs": predictions}, scores_hold, spoil=False),
    "evaluate": Call(metrics.evaluate, {**SCORED, "probs": predictions}, scores_hold, spoil=False),
    "transition_error": Call(metrics.transition_error, {"T": transition, "true_T": transition}, finite),
    "transition": Call(noise.transition, RATES, t_holds),
    "named_transition": Call(
        noise.named_transition,
        {
            "kind": one_of("mlml", "PML", "ulf", "alf"),
            "rate": share,
            "num_classes": one_of(1, 3),
            "labels_per_example": one_of(0.5, 1.5),
        },
        t_holds,
        also=tuple(RATES),
    ),
    "corrupt": Call(noise.corrupt, {**FLIPPED, "T": transition}, labels_hold),
    "corrupt_pairwise": Call(noise.corrupt_pairwise, {**FLIPPED, "rate": share, "pairs": partners}, labels_hold),
    "corrupt_pmd": Call(noise.corrupt_pmd, {**PMD, "key": key}, labels_hold),
    "realised_transition": Call(noise.realised_transition, {"clean": clean, "noisy": clean}, t_holds),
}


@pytest.mark.parametrize("name", CALLS)
def test_any_input_ends_in_finite_numbers_or_an_error_that_names_its_argument(name):
    call = CALLS[name]

    @budget(len(CALLS), share=0.1)
    @given(arguments(call))
    def fuzz(given_):
        run(call, given_)

    fuzz()
