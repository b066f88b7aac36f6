import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from simulate import correlated_labels, flip, t_error, unbiased

from mlt_jax import Status, TransitionEstimate, dual_t, estimate_all
from mlt_jax.estimator.counts import count_arrays
from mlt_jax.estimator.solve import AGGREGATES, _fast_evidence, conclude_all


@pytest.mark.parametrize("k", [1, 2, 3])
def test_released_codes_T_is_reproduced_from_its_mask(golden, k):
    gold = golden(k)
    found = estimate_all(gold["labels"], gold["selected"], aggregate="residual", assume=str(gold["assume"]))
    np.testing.assert_allclose(found.T, gold["T"], atol=1e-4)


def test_half_of_the_right_labels_still_identify_T():
    rng = np.random.default_rng(0)
    labels, selected = unbiased(rng, n=200_000, keep=0.5)
    for aggregate in ("joint", "medoid", "mean"):
        assert t_error(estimate_all(labels, selected, aggregate=aggregate), 0.1, 0.2) < 8 * 0.04


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_order_of_classes_and_examples_does_not_matter(aggregate):
    rng = np.random.default_rng(0)
    labels, selected = unbiased(rng, n=4000, q=7)
    classes, examples = rng.permutation(7), rng.permutation(4000)
    key = jax.random.key(0)
    options = {"aggregate": aggregate, "stderr": aggregate != "first"}
    if aggregate == "first":  # it asks partners in the order they come, so one partner alone must decide
        labels, selected, classes = labels[:, :2], selected[:, :2], np.array([1, 0])
    here = estimate_all(labels, selected, **options, key=key)
    there = estimate_all(labels[examples][:, classes], selected[examples][:, classes], **options)
    for name in TransitionEstimate._fields:
        np.testing.assert_allclose(
            getattr(here, name)[classes], getattr(there, name), rtol=1e-5, atol=2e-5, err_msg=name
        )


def all_finite(estimate):
    values = estimate.T, estimate.prior, estimate.residual
    assert all(np.isfinite(x).all() for x in values)
    np.testing.assert_allclose(estimate.T.sum(2), 1, atol=1e-6)
    assert float(estimate.T.min()) >= 0
    return np.asarray(estimate.status)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_degenerate_classes_have_a_status_and_a_valid_T(aggregate):
    rng = np.random.default_rng(0)
    labels, selected = unbiased(rng, n=3000, q=5)
    constant = np.stack([np.zeros(3000, np.uint8), np.ones(3000, np.uint8)], 1)
    labels = np.concatenate([labels, constant, labels[:, :1]], 1)  # never there, always there, a duplicate
    selected = np.concatenate([selected, np.ones((3000, 2), bool), selected[:, :1]], 1)
    status = all_finite(estimate_all(labels, selected, aggregate=aggregate))
    assert status.tolist()[5:7] == [Status.TOO_FEW] * 2
    assert (status[[0, 1, 2, 3, 4, 7]] == Status.CORRELATION).all()


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("shape", [(3000, 1), (3000, 2), (40, 4), (1, 1), (1, 3)])
def test_small_problems_have_a_status_and_a_valid_T(aggregate, shape):
    n, q = shape
    labels, selected = unbiased(np.random.default_rng(0), n=n, q=q)
    status = all_finite(estimate_all(labels, selected, aggregate=aggregate, stderr=True))
    expected = Status.TOO_FEW if n < 50 else Status.UNIDENTIFIABLE if q == 1 else Status.CORRELATION
    assert (status == expected).all()


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_labels_without_any_partner_are_unidentifiable(aggregate):
    rng = np.random.default_rng(0)
    clean = (rng.random((5000, 40)) < 0.3).astype(np.uint8)
    labels = flip(rng, clean, 0.1, 0.2)
    status = all_finite(estimate_all(labels, labels == clean, aggregate=aggregate))
    assert (status == Status.UNIDENTIFIABLE).mean() > 0.8  # 95 % are expected, for chance passes 5 %


def test_a_correlated_class_among_strangers_is_identified():
    rng = np.random.default_rng(1)
    clean = correlated_labels(rng, n=20_000, q=4, strength=3)
    strangers = (rng.random((20_000, 4)) < 0.3).astype(np.uint8)
    clean = np.concatenate([clean, strangers], 1)
    labels = flip(rng, clean, 0.1, 0.2)
    found = estimate_all(labels, labels == clean)
    assert (np.asarray(found.status)[:4] == Status.CORRELATION).all()
    assert t_error(TransitionEstimate(*(x[:4] for x in found)), 0.1, 0.2) < 4 * 0.04


def test_assuming_a_clean_side_makes_its_rate_zero():
    rng = np.random.default_rng(0)
    clean = correlated_labels(rng, n=100_000, q=6)
    for assume, rates in (("missing", (0, 0.3)), ("partial", (0.3, 0))):
        labels = flip(rng, clean, *rates)
        selected = (labels == clean) & (rng.random(clean.shape) < 0.7)
        side = int(assume == "partial")
        for aggregate in AGGREGATES:
            found = estimate_all(labels, selected, assume=assume, aggregate=aggregate)
            np.testing.assert_allclose(found.T[:, side, 1 - side], 0, atol=2e-5)
            assert t_error(found, *rates) < 6 * (0.05 if aggregate != "first" else 0.1)
        guessed = estimate_all(labels, selected, assume=assume, min_selected=10**6)
        alone = estimate_all(labels[:, :1], selected[:, :1], assume=assume)
        for guess, status in ((guessed, Status.TOO_FEW), (alone, Status.UNIDENTIFIABLE)):
            assert (np.asarray(guess.status) == status).all()
            np.testing.assert_allclose(guess.T[:, side, 1 - side], 0, atol=2e-5)
            assert (np.asarray(guess.T[:, 1 - side, side]) > 0.1).all()


def test_fallback_is_used_where_there_is_no_estimate():
    rng = np.random.default_rng(0)
    labels, selected = unbiased(rng, n=3000, q=4)
    selected[:, 2] &= np.cumsum(labels[:, 2] & selected[:, 2]) <= 10
    other = np.tile([[0.9, 0.1], [0.3, 0.7]], (4, 1, 1))
    found = estimate_all(labels, selected, fallback=other)
    assert found.status.tolist() == [0, 0, Status.FALLBACK, 0]
    np.testing.assert_allclose(found.T[2], other[2], atol=1e-6)
    expected = np.clip((labels[:, 2].mean() - 0.1) / 0.6, 0, 1)
    assert float(found.prior[2]) == pytest.approx(expected, abs=1e-5)
    alone = estimate_all(labels, selected)
    assert alone.status.tolist() == [0, 0, Status.TOO_FEW, 0]
    np.testing.assert_array_equal(found.T[jnp.array([0, 1, 3])], alone.T[jnp.array([0, 1, 3])])


def test_without_a_valid_system_unselected_labels_count_as_wrong():
    labels = np.zeros((400, 1), np.uint8)
    labels[:100] = 1
    selected = np.ones((400, 1), bool)
    selected[:40] = selected[100:160] = False  # 60 of 100 positives, 240 of 300 negatives selected
    found = estimate_all(labels, selected)
    assert found.status.tolist() == [Status.UNIDENTIFIABLE]
    np.testing.assert_allclose(found.T[0], [[240 / 280, 40 / 280], [60 / 120, 60 / 120]], atol=1e-6)


def test_unobserved_cells_leave_T_where_it_was():
    rng = np.random.default_rng(0)
    labels, selected = unbiased(rng, n=100_000, q=6)
    observed = rng.random(labels.shape) < 0.7
    hidden = np.where(observed, labels.astype(float), np.nan)
    for aggregate in ("joint", "medoid", "mean"):
        found = estimate_all(hidden, selected, observed=observed, aggregate=aggregate, stderr=True)
        assert t_error(found, 0.1, 0.2) < 6 * 0.03
        assert np.isfinite(found.stderr).all()


@pytest.fixture(scope="module")
def masked():
    """Labels of 20,000 examples, half of the right ones selected, and masks of the partners of class 0."""
    rng = np.random.default_rng(0)
    clean = correlated_labels(rng, n=20_000, q=8, strength=2)
    labels = flip(rng, clean, 0.05, 0.3)
    selected = (labels == clean) & (rng.random(clean.shape) < 0.6)
    chance = rng.random(labels.shape)
    masks = {
        "its given label": chance < np.where(labels[:, :1] == 1, 1.0, 0.15),
        "its clean label": chance < np.where(clean[:, :1] == 1, 1.0, 0.15),
        "the partner's own label": chance < np.where(labels == 1, 1.0, 0.3),
        "never beside a negative": (chance < 0.7) & (labels[:, :1] == 1),
    }
    for mask in masks.values():
        mask[:, 0] = True
    return clean, labels, selected, masks


@pytest.mark.parametrize("aggregate", ["joint", "mean"])
@pytest.mark.parametrize("by", ["its given label", "its clean label", "the partner's own label"])
def test_what_is_observed_of_partners_may_depend_on_labels(masked, by, aggregate):
    clean, labels, selected, masks = masked
    found = estimate_all(labels, selected, observed=masks[by], aggregate=aggregate, stderr=True)
    assert int(found.status[0]) == Status.CORRELATION
    assert float(found.prior[0]) == pytest.approx(clean[:, 0].mean(), abs=0.03)
    errors = np.abs([float(found.rho_neg[0]) - 0.05, float(found.rho_pos[0]) - 0.3])
    assert (errors < 0.05).all()
    assert (errors < 3 * np.asarray(found.stderr[0])).all()
    assert (np.asarray(found.stderr[0]) < 0.1).all()


@pytest.mark.parametrize("aggregate", ["joint", "mean"])
def test_partners_never_observed_with_some_of_the_examples_leave_a_class_unidentified(masked, aggregate):
    _, labels, selected, masks = masked
    found = estimate_all(labels, selected, observed=masks["never beside a negative"], aggregate=aggregate, stderr=True)
    status = all_finite(found)
    assert status[0] == Status.UNIDENTIFIABLE
    assert np.isnan(found.stderr[0]).all()
    assert int(found.partners[0]) == 0


def false_alarms(trials, make):
    """Share of trials in which label 0 of `make(rng)`, which is independent of all others, is CORRELATION."""
    status = []
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        labels = make(rng).astype(np.uint8)
        selected = rng.random(labels.shape) < 0.85
        status.append(int(estimate_all(labels, selected).status[0]))
    assert set(status) <= {Status.CORRELATION, Status.UNIDENTIFIABLE}
    return np.mean(np.array(status) == Status.CORRELATION)


@pytest.mark.parametrize(("copies", "strangers"), [(39, 0), (20, 19), (0, 39)])
def test_partners_that_copy_each_other_do_not_make_a_correlation(copies, strangers):
    def make(rng):
        other, rest = rng.random((1000, 1)) < 0.3, rng.random((1000, 1 + strangers)) < 0.3
        return np.concatenate([rest, np.repeat(other, copies, 1)], 1)

    assert false_alarms(300, make) <= 0.085  # 5 % are expected, 8.5 % are 2.8 standard errors more


def test_a_shuffled_column_of_real_labels_is_no_correlation(real_data):
    clean = real_data("voc2007_labels.npz")["trainval"] >= 0
    columns = np.flatnonzero(clean.sum(0) > 100)

    def make(rng):
        j = rng.choice(columns)
        return np.concatenate([rng.permutation(clean[:, j : j + 1]), np.delete(clean, j, 1)], 1)

    assert false_alarms(200, make) <= 0.09


def test_partners_are_drawn_by_key():
    labels, selected = unbiased(np.random.default_rng(0), n=4000, q=10)
    one, two, again = (
        estimate_all(labels, selected, num_partners=3, aggregate="mean", key=jax.random.key(seed)) for seed in (0, 1, 0)
    )
    assert (np.asarray(one.partners) <= 3).all()
    assert not np.allclose(one.T, two.T)
    np.testing.assert_array_equal(one.T, again.T)
    everyone = estimate_all(labels, selected, num_partners=9, key=jax.random.key(0))
    np.testing.assert_allclose(everyone.T, estimate_all(labels, selected).T, atol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"aggregate": "median"}, "aggregate: 'median'; pass one of joint, medoid"),
        ({"assume": "all"}, "assume: 'all'"),
        ({"num_partners": 8}, "num_partners: 8; pass 1 to 7"),
        ({"num_partners": 3}, "key: None"),
        ({"fallback": np.eye(2)}, r"fallback: shape \(2, 2\); pass \(8, 2, 2\)"),
        ({"fallback": np.full((8, 2, 2), 0.6)}, "fallback: class 0 is"),
        ({"selected": np.ones((100, 3))}, r"selected: shape \(100, 3\)"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    labels, selected = unbiased(np.random.default_rng(0), n=100)
    with pytest.raises(ValueError, match=message):
        estimate_all(labels, kwargs.pop("selected", selected), **kwargs)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_options_that_are_arrays_are_named(form, unchecked_shapes):
    labels, selected = unbiased(np.random.default_rng(0), n=100)
    with pytest.raises(ValueError, match=r"coding: ndarray of shape \(0,\) is unknown"):
        estimate_all(form(labels), selected, coding=np.zeros(0))
    with pytest.raises(ValueError, match=r"aggregate: ndarray of shape \(0,\); pass one of joint"):
        estimate_all(form(labels), selected, aggregate=np.zeros(0))
    with pytest.raises(TypeError, match=r"stderr: ndarray of shape \(0,\); pass True or False"):
        estimate_all(form(labels), selected, stderr=np.zeros(0))


@pytest.mark.parametrize("aggregate", ["joint", "medoid"])
def test_a_second_call_of_the_same_shape_does_not_compile_again(aggregate):
    rng = np.random.default_rng(0)
    estimate_all(*unbiased(rng), aggregate=aggregate)
    stages = (conclude_all, _fast_evidence, count_arrays)
    before = [stage._cache_size() for stage in stages]
    estimate_all(*unbiased(rng), min_selected=30, aggregate=aggregate)
    assert [stage._cache_size() for stage in stages] == before


def test_a_second_set_of_sparse_labels_compiles_nothing_at_all(caplog):
    rng = np.random.default_rng(0)
    sets = [unbiased(rng) for _ in range(3)]
    for labels, selected in sets[:2]:  # the first two: what only happens once has happened
        estimate_all(sp.csr_array(labels), unselected=sp.csr_array(~selected), max_memory=16 * 8 * 3)
    with jax.log_compiles(True), caplog.at_level("WARNING"):
        labels, selected = sets[2]
        estimate_all(sp.csr_array(labels), unselected=sp.csr_array(~selected), max_memory=16 * 8 * 3)
        assert not [record.message for record in caplog.records if "Compiling" in record.message]
        jax.jit(lambda x: x + 1)(jnp.ones(17))  # the log would have told
    assert [record for record in caplog.records if "Compiling" in record.message]


@pytest.mark.parametrize(("aggregate", "q"), [("joint", 16), ("joint", 11), ("medoid", 11)])
def test_eight_devices_give_what_one_gives(aggregate, q):
    labels, selected = unbiased(np.random.default_rng(0), n=3000, q=q)
    mesh = jax.make_mesh((8,), ("classes",), axis_types=(jax.sharding.AxisType.Explicit,))  # the default from 0.9 on
    options = {"aggregate": aggregate, "fallback": np.tile(np.eye(2), (q, 1, 1))}
    alone = estimate_all(labels, selected, **options)
    for form in (labels, sp.csr_array(labels)):
        spread = estimate_all(form, selected, mesh=mesh, **options)
        for name in TransitionEstimate._fields:
            np.testing.assert_allclose(getattr(spread, name), getattr(alone, name), atol=1e-6, rtol=1e-5, err_msg=name)


def test_residual_tells_a_good_fit_from_a_broken_assumption():
    rng = np.random.default_rng(0)
    labels, selected = unbiased(rng, n=20_000, q=10)
    good = estimate_all(labels, selected)
    assert 0.3 < float(good.residual.mean()) < 2
    biased = selected & ((labels[:, [1]] == 0) | (rng.random((20_000, 1)) < 0.5))  # selection looks at a partner
    assert float(estimate_all(labels, biased).residual[0]) > 3 * float(good.residual.max())


def test_dual_t_fits_as_fallback():
    labels, selected = unbiased(np.random.default_rng(0), n=100)
    probs = np.clip(labels * 0.6 + 0.2, 0, 1)
    found = estimate_all(labels, selected, fallback=dual_t(probs, labels), min_selected=1000)
    np.testing.assert_allclose(found.T, dual_t(probs, labels), atol=1e-6)


@pytest.mark.parametrize("wrong", [{"min_selected": "50"}, {"min_selected": None}, {"max_memory": "1GB"}])
def test_options_are_checked_for_sparse_labels_too(wrong, unchecked_shapes):
    labels = sp.csr_array(np.eye(60, 3, dtype=np.int8))
    with pytest.raises(TypeError, match=f"{next(iter(wrong))}: .*pass a whole number"):
        estimate_all(labels, unselected=labels, **wrong)
