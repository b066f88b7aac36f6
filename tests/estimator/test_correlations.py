import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import correlated_labels, flip, t_error, unbiased

from mlt_jax import Status, TransitionEstimate, count, dual_t, estimate_all, estimate_from_tables, estimate_pair
from mlt_jax.estimator.counts import Tables, count_arrays
from mlt_jax.estimator.pairs import medoid
from mlt_jax.estimator.solve import AGGREGATES, _estimate, _fast_evidence
from mlt_jax.paper.noise import SETTINGS

N = 2**30


def exact_tables(rng, *, priors, gap):
    """Tables without sampling error: row j is a problem of its own, with its own T, prior, partners and selection."""
    q = 12
    p, rho_neg, rho_pos = rng.uniform(*priors, q), rng.uniform(0, 0.45, q), rng.uniform(0, 0.45, q)
    a = rng.uniform(0.05, 0.95 - gap, (q, q))
    b = rng.uniform(a + gap, 0.95)
    swap = rng.random((q, q)) < 0.5
    a, b = np.where(swap, b, a), np.where(swap, a, b)
    kept, false = p * (1 - rho_pos), (1 - p) * rho_neg  # of the noisy positives, the clean and the others
    pos, neg = kept * rng.uniform(0.3, 1, q), (1 - p - false) * rng.uniform(0.3, 1, q)
    shares = Tables(
        both=kept[:, None] * b + false[:, None] * a, pos=pos[:, None] * b, neg=neg[:, None] * a,
        partner=p[:, None] * b + (1 - p[:, None]) * a, total=np.ones((1, 1)), total_both=(kept + false)[:, None],
        total_pos=pos[:, None], total_neg=neg[:, None],
    )  # fmt: skip
    tables = Tables(*(jnp.asarray(np.rint(N * share), jnp.int32) for share in shares))
    return tables, rho_neg, rho_pos, p


@pytest.mark.parametrize("aggregate", AGGREGATES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_exact_tables_recover_T(aggregate, seed):
    tables, rho_neg, rho_pos, prior = exact_tables(np.random.default_rng(seed), priors=(0.1, 0.9), gap=0.1)
    found = estimate_from_tables(tables, aggregate=aggregate)
    np.testing.assert_allclose(found.rho_neg, rho_neg, atol=1e-5)
    np.testing.assert_allclose(found.rho_pos, rho_pos, atol=1e-5)
    np.testing.assert_allclose(found.prior, prior, atol=1e-5)
    assert (np.asarray(found.status) == Status.CORRELATION).all()


@pytest.mark.parametrize("aggregate", AGGREGATES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_harder_exact_tables_recover_T_in_double_precision(aggregate, seed):
    with jax.enable_x64(True):
        tables, rho_neg, rho_pos, _ = exact_tables(np.random.default_rng(seed), priors=(0.02, 0.98), gap=0.03)
        found = estimate_from_tables(tables, aggregate=aggregate)
        # The counts themselves are rounded to 1e-9 of the examples.
        np.testing.assert_allclose(found.rho_neg, rho_neg, atol=1e-5)
        np.testing.assert_allclose(found.rho_pos, rho_pos, atol=1e-5)
        assert found.T.dtype == jnp.float64


def test_one_pair_by_hand():
    # prior 0.4, rho_neg 0.1, rho_pos 0.2, a = 0.3, b = 0.8
    m_j, m_i = 0.4 * 0.8 + 0.6 * 0.1, 0.4 * 0.8 + 0.6 * 0.3
    e = 0.4 * 0.8 * 0.8 + 0.6 * 0.1 * 0.3
    pair = jax.jit(estimate_pair)(*map(jnp.float32, (m_j, m_i, e, 0.3, 0.8)))
    np.testing.assert_allclose(pair[:3], [0.1, 0.2, 0.4], atol=1e-6)
    assert bool(pair.defined)


@pytest.mark.parametrize(
    "args",
    [(0.38, 0.5, 0.2, 0.3, 0.3), (0.38, 0.3, 0.274, 0.3, 0.8), (0.38, 0.8, 0.274, 0.3, 0.8)],
    ids=["uncorrelated", "prior 0", "prior 1"],
)
def test_a_vanishing_denominator_is_flagged_and_has_finite_gradients(args):
    pair = estimate_pair(*map(jnp.float32, args))
    assert not bool(pair.defined)
    assert np.isfinite(jnp.stack(pair[:3])).all()
    gradient = jax.grad(lambda *x: estimate_pair(*x).rho_neg, argnums=(0, 1, 2, 3, 4))(*map(jnp.float32, args))
    assert np.isfinite(gradient).all()


def test_medoid_is_the_brute_force_one():
    rng = np.random.default_rng(3)
    labels, selected = unbiased(rng, n=2000, q=15)
    tables = count(labels, selected)
    p = tables.probabilities()
    pair = estimate_pair(*(jnp.broadcast_to(x, (15, 15)) for x in p))
    rates = np.stack([pair.rho_neg, pair.rho_pos], 2)
    rates = np.where((rates < 0) & (rates > -0.3 / 15), 0, rates)
    valid = np.asarray(pair.defined & (pair.prior >= 0) & (pair.prior <= 1)) & ~np.eye(15, dtype=bool)
    valid &= ((rates >= 0) & (rates <= 1)).all(2) & (rates.sum(2) < 1)
    found = estimate_from_tables(tables, aggregate="medoid")
    np.testing.assert_array_equal(found.partners, valid.sum(1))
    for j in range(15):
        candidates = rates[j, valid[j]]
        best = candidates[np.abs(candidates[:, None] - candidates[None]).sum((1, 2)).argmin()]
        np.testing.assert_allclose([found.rho_neg[j], found.rho_pos[j]], best, atol=1e-5)  # float32


@pytest.mark.parametrize("k", [1, 2, 3])
def test_released_codes_T_is_reproduced_from_its_mask(real_data, k):
    gold = real_data(f"golden/golden_{k}.npz")
    selected = np.unpackbits(gold["selected"], axis=0)[: len(gold["labels"])].astype(bool)
    found = estimate_all(gold["labels"], selected, aggregate="residual", assume=str(gold["assume"]))
    np.testing.assert_allclose(found.T, gold["T"], atol=1e-4)


def gold_errors(clean, settings, *, seeds, aggregates, share=0.9):
    """Summed T error with unbiased selection, per aggregate and noise setting, mean over seeds."""
    errors = {aggregate: np.zeros(len(settings)) for aggregate in aggregates}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        part = clean[rng.permutation(len(clean))[: int(share * len(clean))]]
        for s, rates in enumerate(settings):
            labels = flip(rng, part, *rates)
            tables = count(labels, labels == part)
            for aggregate in aggregates:
                errors[aggregate][s] += t_error(estimate_from_tables(tables, aggregate=aggregate), *rates) / seeds
    return errors


def test_unbiased_selection_on_voc2012_beats_the_papers_gold_row(real_data):
    clean = (real_data("voc2012_labels.npz")["trainval"] >= 0).astype(np.uint8)
    errors = gold_errors(clean, SETTINGS["voc2012"], seeds=5, aggregates=("joint", "medoid"))
    assert errors["medoid"].sum() <= 5.2
    assert errors["joint"].sum() <= 3.9
    paper = np.array([0.33, 0.34, 0.25, 0.45, 0.51, 1.67, 0.42, 0.91])
    assert (errors["joint"] <= 1.2 * paper).all()


def test_unbiased_selection_on_coco_stays_below_the_aim(real_data):
    packed = real_data("coco2014_train_labels.npz")["train"]
    clean = np.unpackbits(packed, axis=1)[:, :80]
    errors = gold_errors(clean, SETTINGS["coco"], seeds=1, aggregates=("joint",))
    assert errors["joint"].sum() <= 8.0


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


def test_labels_without_any_partner_are_unidentifiable():
    rng = np.random.default_rng(0)
    clean = (rng.random((5000, 40)) < 0.3).astype(np.uint8)
    labels = flip(rng, clean, 0.1, 0.2)
    status = all_finite(estimate_all(labels, labels == clean))
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
        for aggregate in ("joint", "medoid", "residual"):
            found = estimate_all(labels, selected, assume=assume, aggregate=aggregate)
            zero = found.rho_neg if assume == "missing" else found.rho_pos
            np.testing.assert_allclose(zero, 0, atol=2e-5)
            assert t_error(found, *rates) < 6 * 0.05


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


def test_first_takes_the_first_valid_partner():
    labels, selected = unbiased(np.random.default_rng(0), n=20_000, q=4)
    found = estimate_all(labels, selected, aggregate="first")
    p = count(labels, selected).probabilities()
    pair = estimate_pair(*(jnp.broadcast_to(x, (4, 4)) for x in p))
    j = int(np.argmax(found.partners))
    assert int(found.partners[j]) >= 2
    in_order = [[float(pair.rho_neg[j, i]), float(pair.rho_pos[j, i])] for i in range(4) if i != j]
    valid = [max(0, rho_neg) for rho_neg, _ in in_order if -0.3 / 4 < rho_neg < 1]
    assert float(found.rho_neg[j]) == pytest.approx(valid[0], abs=1e-5)
    keys = map(jax.random.key, range(24))
    shuffled = {float(estimate_all(labels, selected, aggregate="first", key=key).rho_neg[j]) for key in keys}
    assert len(shuffled) == int(found.partners[j])


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


def test_save_and_load_give_the_same(tmp_path):
    labels, selected = unbiased(np.random.default_rng(0))
    found = estimate_all(labels, selected, stderr=True)
    found.save(tmp_path / "T.npz")
    for a, b in zip(found, TransitionEstimate.load(tmp_path / "T.npz"), strict=True):
        np.testing.assert_array_equal(a, b)
    np.savez(tmp_path / "other.npz", T=np.zeros(3))
    with pytest.raises(ValueError, match=r"has no .*prior"):
        TransitionEstimate.load(tmp_path / "other.npz")


@pytest.mark.parametrize("aggregate", ["joint", "medoid"])
def test_a_second_call_of_the_same_shape_does_not_compile_again(aggregate):
    rng = np.random.default_rng(0)
    estimate_all(*unbiased(rng), aggregate=aggregate)
    stages = (_estimate, _fast_evidence, count_arrays)
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
    mesh = jax.make_mesh((8,), ("classes",))
    options = {"aggregate": aggregate, "fallback": np.tile(np.eye(2), (q, 1, 1))}
    alone = estimate_all(labels, selected, **options)
    for form in (labels, sp.csr_array(labels)):
        spread = estimate_all(form, selected, mesh=mesh, **options)
        for name in TransitionEstimate._fields:
            np.testing.assert_allclose(getattr(spread, name), getattr(alone, name), atol=1e-6, rtol=1e-5, err_msg=name)


def test_every_device_solves_its_own_classes():
    labels, selected = unbiased(np.random.default_rng(0), n=3000, q=16)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("classes",))
    rank, classes = jnp.arange(16)[None], jnp.arange(16)
    clouds = _fast_evidence(count(labels, selected), rank, classes, aggregate="joint", assume="general", mesh=mesh)[0]
    assert len(clouds.gram.sharding.device_set) == 8
    assert {shard.data.shape for shard in clouds.gram.addressable_shards} == {(2, 4, 4)}


@pytest.mark.parametrize("weighted", [False, True])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_cutting_planes_find_the_medoid(weighted, seed):
    rng = np.random.default_rng(seed)
    points = rng.beta(*rng.uniform(0.2, 3, 2), (2, 50)).astype(np.float32)
    points[:, 40:] = points[:, :10]  # ties
    valid = rng.random(50) < rng.uniform(0.05, 1)
    weight = (rng.random(50) if weighted else valid).astype(np.float32)
    chosen = int(jax.jit(medoid)(*map(jnp.asarray, (points, weight, valid))))
    if not valid.any():
        return
    spread = (weight * np.abs(points[:, :, None].astype(float) - points[:, None])).sum((0, 2))
    assert valid[chosen]
    assert spread[chosen] <= spread[valid].min() * (1 + 1e-5) + 1e-6


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


def test_import_is_light():
    code = """
import sys, time
start = time.perf_counter(); import jax; bare = time.perf_counter() - start
start = time.perf_counter(); import mlt_jax.estimator; ours = time.perf_counter() - start
print((bare + ours) / bare, *(name for name in ("flax", "tensorflow", "sklearn", "pandas") if name in sys.modules))
"""
    ratio, *heavy = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not heavy
    assert float(ratio) < 2
