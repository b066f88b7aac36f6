"""Every public function, any input: a sound result, or one error that names the argument; no warning, no NaN."""

import inspect

import numpy as np
import pytest
from fuzzing import (
    Call,
    arguments,
    assume,
    at_length,
    audits,
    budget,
    class_names,
    coding,
    counts_of,
    decisions,
    estimated,
    features,
    finite,
    groups,
    judged,
    key,
    labels,
    losses,
    mask,
    menu,
    observed,
    one_of,
    probability,
    probs,
    raters,
    row_names,
    run,
    scores,
    seed,
    share,
    switch,
    tables,
    transition,
    transitions,
    within,
)
from hypothesis import given
from hypothesis import strategies as st

import mlt_jax
import mlt_jax.audit
import mlt_jax.estimator

OF_LABELS = {"labels": labels, "observed": observed, "coding": coding}
RULE = {
    "aggregate": menu(*mlt_jax.estimator.AGGREGATES),
    "assume": assume,
    "num_partners": menu(None, 1, 2),
    "key": key,
    "fallback": lambda case: transition(case) if at_length() else st.none(),
    "min_selected": counts_of(0, 5),
}
FOLDS = {"seed": seed, "groups": groups}
HEADS = {
    **OF_LABELS,
    "features": features,
    **FOLDS,
    "folds": menu(5, 2, 3),
    "T": transition,
    "l2": share,
    "components": menu(512, 1),
}
SIDES = ("selected", "unselected")
SELECTED = {"selected": mask, "unselected": mask}
AUDIT = {
    **OF_LABELS,
    **FOLDS,
    "probs": probs,
    "features": features,
    "losses": losses,
    "T": estimated,
    "assume": assume,
    "method": one_of("auto", "curve", "count", "recipe", "dual-t", "t"),
    "ids": row_names,
    "classes": class_names,
}
THRESHOLD = {"threshold": share, "most": counts_of(0)}
PEOPLE = {**OF_LABELS, "scores": scores, "decisions": decisions}
ANCHORS = {**OF_LABELS, "probs": probs, "quantile": share}


def t_holds(result, arguments):
    transitions(result)


def weights_hold(result, arguments):
    within(result, 0, 1e3)


def p_values_hold(result, arguments):
    for values in (result.by_class, result.overall):
        within(values[~np.isnan(values)], 0, 1)


def verdict_holds(result, arguments):
    within(result.p, 0, 1)
    assert all(isinstance(sentence, str) and sentence for sentence in result.sentences)


def pair_holds(result, arguments):
    for part in result:
        finite(part)


def fraction(case):
    return st.sampled_from([0.0, 0.1, 0.5, 1.0, np.float32(0.3), np.linspace(0, 1, 5)])


def long_table(case):
    row, column = np.nonzero(np.ones((case.n, case.q)))
    votes = {"example": row, "class": column, "rater": row * 0, "label": case.values[row, column]}
    words = {name: list(map(str, values)) for name, values in votes.items()}
    gaps = {**words, "label": ["", None, "nan", "1"] * len(row)}
    return st.sampled_from([votes, words, {name: values[: len(row)] for name, values in gaps.items()}])


def found(case):
    return estimated(case).filter(lambda T: isinstance(T, mlt_jax.TransitionEstimate))


def proposal(case):
    return st.builds(mlt_jax.propose_cells, st.just(case.values), st.just(case.scores), st.just(4))


CALLS = {
    "as_labels": Call(
        mlt_jax.as_labels,
        {**OF_LABELS, "num_classes": counts_of(), "classes": class_names},
    ),
    "count": Call(mlt_jax.count, {**OF_LABELS, **SELECTED}, either=SIDES),
    "select_clean": Call(
        mlt_jax.select_clean,
        {**OF_LABELS, "losses": losses, "tau": share, "assume": assume, "max_memory": menu(2**30, 0, 1000)},
    ),
    "losses_from_probs": Call(mlt_jax.losses_from_probs, {**OF_LABELS, "probs": probs}, finite),
    "estimate_all": Call(
        mlt_jax.estimate_all,
        {**OF_LABELS, **SELECTED, **RULE, "stderr": menu(False, True), "max_memory": menu(2**30, 0, 1000)},
        either=SIDES,
    ),
    "estimate_from_tables": Call(mlt_jax.estimate_from_tables, {"tables": tables, **RULE}),
    "estimate_pair": Call(mlt_jax.estimate_pair, dict.fromkeys(("m_j", "m_i", "e", "a", "b"), fraction), pair_holds),
    "bootstrap": Call(
        mlt_jax.bootstrap,
        {
            **OF_LABELS,
            "key": key,
            "selected": mask,
            "num_samples": menu(2, 1, 7),
            "aggregate": RULE["aggregate"],
            "assume": assume,
            "min_selected": menu(50, 0),
        },
        probability,
    ),
    "estimate": Call(
        mlt_jax.estimate,
        {
            **OF_LABELS,
            **FOLDS,
            "losses": losses,
            "probs": probs,
            "features": features,
            "method": AUDIT["method"],
            "assume": assume,
            "aggregate": RULE["aggregate"],
            "tau": share,
            "quantile": share,
            "min_selected": counts_of(0),
        },
    ),
    "noisy_sides": Call(
        mlt_jax.noisy_sides,
        {**OF_LABELS, **FOLDS, "probs": probs, "features": features},
        p_values_hold,
        either=("probs", "features"),
    ),
    "assumption_test": Call(
        mlt_jax.assumption_test,
        {**OF_LABELS, "probs": probs, "features": features, "scores": scores, "seed": seed},
        verdict_holds,
        either=("probs", "features", "scores"),
    ),
    "estimate_from_scores": Call(
        mlt_jax.estimate_from_scores,
        {**OF_LABELS, "scores": scores, "rule": one_of("auto", "curve", "count"), "assume": assume, "share": switch},
    ),
    "cross_val_logits": Call(mlt_jax.cross_val_logits, HEADS, finite),
    "cross_val_probs": Call(mlt_jax.cross_val_probs, HEADS, probability),
    "t_estimator": Call(mlt_jax.t_estimator, ANCHORS, t_holds),
    "dual_t": Call(mlt_jax.dual_t, ANCHORS, t_holds),
    "audit_labels": Call(mlt_jax.audit_labels, AUDIT),
    "find_label_issues": Call(mlt_jax.find_label_issues, {"source": audits, **THRESHOLD}, also=tuple(AUDIT)),
    "issues_frame": Call(mlt_jax.issues_frame, {"source": audits, **THRESHOLD}, also=tuple(AUDIT)),
    "label_quality": Call(
        mlt_jax.label_quality,
        {"source": audits, "per": one_of("cell", "example", "class")},
        probability,
        also=tuple(AUDIT),
    ),
    "clean_labels": Call(mlt_jax.clean_labels, {"source": audits, "threshold": share}, probability, also=tuple(AUDIT)),
    "importance_weights": Call(
        mlt_jax.importance_weights, {"source": labels, "probs": probs, "T": transition}, weights_hold, also=tuple(AUDIT)
    ),
    "to_cleanlab_joint": Call(mlt_jax.to_cleanlab_joint, {**OF_LABELS, "T": estimated}, finite),
    "from_cleanlab_joint": Call(mlt_jax.from_cleanlab_joint, {"joint": transition}, t_holds),
    "propose_cells": Call(
        mlt_jax.propose_cells,
        {
            **OF_LABELS,
            "scores": scores,
            "budget": counts_of(10, 1000),
            "per": one_of("class", "all"),
            "suspects": share,
            "wrong": probs,
            "seed": seed,
        },
    ),
    "verified": Call(mlt_jax.verified, {**PEOPLE, "wrong": probs, "level": share, "seed": seed}),
    "recalibrate": Call(mlt_jax.recalibrate, {**OF_LABELS, "wrong": probs, "decisions": decisions}, probability),
    "estimate_raters": Call(
        mlt_jax.estimate_raters,
        {
            "labels": raters,
            "scores": lambda case: scores(case) if at_length() else st.none(),
            "observed": lambda case: st.none(),
            "model": one_of("auto", "clear", "graded"),
        },
    ),
    "ask_next": Call(
        mlt_jax.ask_next,
        {
            "found": judged,
            "most": counts_of(0),
            "cost": one_of([1.0], [1, 2, 3]),
            "available": one_of([True, False, 1]),
        },
    ),
    "Tables.merge": Call(mlt_jax.Tables.merge, {"self": tables, "other": tables}),
    "Tables.update": Call(mlt_jax.Tables.update, {"self": tables, **OF_LABELS, "selected": mask}, also=("other",)),
    "TransitionEstimate.interval": Call(mlt_jax.TransitionEstimate.interval, {"self": found, "level": share}),
    "TransitionEstimate.rows": Call(
        mlt_jax.TransitionEstimate.rows, {"self": found, "names": class_names, "most": counts_of(0)}
    ),
    "Raters.interval": Call(mlt_jax.Raters.interval, {"self": judged, "level": share}, probability),
    "Proposal.decide": Call(mlt_jax.Proposal.decide, {"self": proposal, "labels": labels}),
    "Audit": Call(lambda self: self._repr_html_(), {"self": audits}),
    "rater_array": Call(
        mlt_jax.rater_array,
        {
            "table": long_table,
            "example": one_of("example"),
            "column": one_of("class"),
            "rater": one_of("rater"),
            "label": one_of("label"),
            "examples": row_names,
            "classes": class_names,
        },
    ),
}


# Parameters and names that are not fuzzed, and why.
PARAMETERS_LEFT_OUT = {
    "mesh": "devices, not data",
    "name": "how a caller's errors call the labels",
    "inputs": "the arguments of audit_labels",
    "options": "those of cross_val_logits",
    "kwargs": "those of count",
}
NAMES_LEFT_OUT = {
    **dict.fromkeys(("AGGREGATES", "Status", "RaterStatus"), "constants"),
    **dict.fromkeys(
        ("AssumptionTest", "Decisions", "Issues", "Labels", "Verified"),
        "results without methods, made by the functions above",
    ),
    "refusal": "a sentence about decisions that `verified` has checked",
}


def public():
    """Functions and classes with methods that users import from `mlt_jax`, its estimator and its audit."""
    names = {name: getattr(mlt_jax, name) for name in mlt_jax.__all__}
    for room in (mlt_jax.estimator, mlt_jax.audit):
        names |= {name: value for name, value in vars(room).items() if name[0] != "_" and not inspect.ismodule(value)}
    return names


def test_every_public_name_is_fuzzed_or_left_out_for_a_reason():
    fuzzed = {name.split(".")[0] for name in CALLS}
    assert set(public()) - set(NAMES_LEFT_OUT) == fuzzed
    assert set(NAMES_LEFT_OUT) <= set(public())


def test_every_parameter_is_fuzzed():
    for name, call in CALLS.items():
        parameters = set(inspect.signature(call.function).parameters) - set(PARAMETERS_LEFT_OUT)
        assert parameters <= set(call.kinds), name


@pytest.mark.parametrize("name", CALLS)
def test_any_input_ends_in_a_sound_result_or_an_error_that_names_its_argument(name):
    call = CALLS[name]

    @budget(len(CALLS), share=0.8)
    @given(arguments(call))
    def fuzz(given_):
        run(call, given_)

    fuzz()
