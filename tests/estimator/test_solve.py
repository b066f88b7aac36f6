import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import flip, t_error, unbiased

from mlt_jax import Status, count, estimate_from_tables
from mlt_jax.estimator.counts import Tables
from mlt_jax.estimator.solve import AGGREGATES, _fast_evidence
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


def test_every_device_solves_its_own_classes():
    labels, selected = unbiased(np.random.default_rng(0), n=3000, q=16)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("classes",))
    rank, classes = jnp.arange(16)[None], jnp.arange(16)
    clouds = _fast_evidence(count(labels, selected), rank, classes, aggregate="joint", assume="general", mesh=mesh)[0]
    assert len(clouds.gram.sharding.device_set) == 8
    assert {shard.data.shape for shard in clouds.gram.addressable_shards} == {(2, 4, 4)}


def test_arguments_of_another_type_are_named(unchecked_shapes):
    tables = count(np.eye(3), np.ones((3, 3)))
    for error, message, source, options in (
        (TypeError, "tables: None; pass the `Tables`", None, {}),
        (ValueError, "aggregate: list; pass one of joint", tables, {"aggregate": ["joint"]}),
        (TypeError, "min_selected: '5'; pass a whole number", tables, {"min_selected": "5"}),
        (TypeError, "num_partners: 1.5; pass 1 to 2", tables, {"num_partners": 1.5}),
        (TypeError, "key: 0; pass jax.random.key", tables, {"num_partners": 1, "key": 0}),
        (TypeError, "fallback: 'x'; pass", tables, {"fallback": "x"}),
    ):
        with pytest.raises(error, match=message):
            estimate_from_tables(source, **options)
