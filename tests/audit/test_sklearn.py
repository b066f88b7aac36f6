import numpy as np
import pandas as pd
import pytest
from simulate import unbiased
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

from mlt_jax import (
    Status,
    audit_labels,
    clean_labels,
    estimate,
)
from mlt_jax.audit.sklearn import LabelAuditor, NoiseTransition

# The other checks fit on continuous features; labels are 0/1 and come with losses or probabilities.
APPLY = {
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
    "check_mixin_order",
}


# These need no more than labels of two values. One that sets parameters to values of other types is left out: in tests
# the types of parameters are checked.
FITTED = {
    "check_complex_data", "check_dict_unchanged",
    "check_dont_overwrite_parameters", "check_dtype_object", "check_estimator_sparse_array",
    "check_estimator_sparse_matrix", "check_estimator_sparse_tag", "check_estimators_dtypes",
    "check_estimators_empty_data_messages", "check_estimators_fit_returns_self", "check_estimators_nan_inf",
    "check_estimators_overwrite_params", "check_estimators_pickle", "check_estimators_unfitted",
    "check_f_contiguous_array_estimator", "check_fit1d", "check_fit2d_1feature", "check_fit2d_1sample",
    "check_fit2d_predict1d", "check_fit_check_is_fitted", "check_fit_idempotent", "check_fit_score_takes_y",
    "check_methods_sample_order_invariance", "check_methods_subset_invariance", "check_n_features_in",
    "check_n_features_in_after_fitting", "check_pipeline_consistency", "check_positive_only_tag_during_fit",
    "check_readonly_memmap_input", "check_requires_y_none",
}  # fmt: skip


class TwoValues(LabelAuditor):
    """Takes the checks' y of several values as 0/1."""

    def fit(self, X, y):
        return super().fit(X, None if y is None else (np.asarray(y) > 0).astype(int))


@pytest.fixture(scope="module")
def data():
    labels, selected = unbiased(np.random.default_rng(0), n=3000, q=5)
    rng = np.random.default_rng(1)
    losses = np.where(selected, rng.normal(0.2, 0.05, labels.shape), rng.normal(0.8, 0.1, labels.shape))
    return pd.DataFrame(labels, columns=list("abcde")), losses


@pytest.mark.parametrize("kind", [NoiseTransition, LabelAuditor])
def test_scikit_learns_own_checks_that_apply_pass(kind):
    done = set()
    for estimator, check in estimator_checks_generator(kind()):
        name = check.func.__name__
        if name in APPLY:
            check(estimator)
            done.add(name)
    assert done == APPLY


def test_the_auditor_passes_all_checks_that_fit_on_two_values():
    ran = set()
    for estimator, check in estimator_checks_generator(TwoValues()):
        name = check.func.__name__
        if name in FITTED:
            check(estimator)
            ran.add(name)
    assert ran == FITTED


def test_the_auditor_predicts_clean_labels_of_new_examples():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(4000, 6)), 2 * rng.normal(size=(6, 3))
    clean = (x @ w + rng.logistic(size=(4000, 3)) > 0).astype(int)
    labels = np.where(rng.random(clean.shape) < np.where(clean, 0.4, 0.0), 1 - clean, clean)
    auditor = LabelAuditor(assume="missing", method="curve").fit(x[:3000], labels[:3000])
    right = (auditor.predict(x[3000:]) == clean[3000:]).mean()
    assert right > (labels[3000:] == clean[3000:]).mean()
    assert right > 0.8
    assert auditor.predict_proba(x[3000:]).shape == (1000, 3)
    with pytest.raises(ValueError, match="fitted without features"):
        LabelAuditor().fit(None, labels[:3000], probs=auditor.predict_proba(x[:3000])).predict(x)


def test_fit_gives_what_the_function_gives(data):
    labels, losses = data
    model = NoiseTransition(aggregate="medoid")
    assert model.fit(labels, losses=losses) is model
    expected = estimate(labels, losses=losses, aggregate="medoid")
    np.testing.assert_array_equal(model.transition_, expected.T)
    np.testing.assert_array_equal(model.stderr_, expected.stderr)
    assert model.transition_.shape == (5, 2, 2)
    assert (model.status_ == Status.CORRELATION).all()
    assert list(model.feature_names_in_) == list("abcde")
    assert model.n_features_in_ == 5


def test_a_clone_forgets_the_fit_and_keeps_the_parameters(data):
    labels, losses = data
    model = NoiseTransition(tau=0.6).fit(labels, losses=losses)
    again = clone(model)
    assert again.tau == 0.6
    assert not hasattr(again, "transition_")


def test_neither_losses_nor_probs_is_an_error(data):
    with pytest.raises(ValueError, match="losses: neither losses nor probs nor features were given"):
        NoiseTransition().fit(data[0])


def test_groups_and_seed_reach_the_folds():
    rng = np.random.default_rng(0)
    features, who = rng.normal(size=(1000, 8)), np.arange(1000) // 4
    labels = (features @ rng.normal(size=(8, 3)) + rng.normal(size=(1000, 3)) > 0.5).astype(int)
    options = {"features": features, "groups": who}
    found = NoiseTransition(seed=3).fit(labels, **options)
    np.testing.assert_array_equal(found.transition_, estimate(labels, seed=3, **options).T)
    audited = LabelAuditor(seed=3).fit(features, labels, groups=who)
    np.testing.assert_array_equal(audited.wrong_, audit_labels(labels, seed=3, **options).wrong)
    assert not np.allclose(audited.wrong_, LabelAuditor(seed=3).fit(features, labels).wrong_)


def test_the_auditor_gives_what_the_functions_give(exact):
    _, labels, pi = exact
    found = LabelAuditor(threshold=0.8).fit(None, labels, probs=pi)
    audit = audit_labels(labels, probs=pi)
    np.testing.assert_array_equal(found.wrong_, audit.wrong)
    np.testing.assert_array_equal(found.clean_labels_, clean_labels(audit, threshold=0.8))
    assert found.issues_.wrong.min() > 0.8
