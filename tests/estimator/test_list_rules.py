import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from listed import assert_same, rare_labels

from mlt_jax import count, estimate_all
from mlt_jax.estimator import lists
from mlt_jax.estimator.lists import count_lists, estimate_from_lists
from mlt_jax.estimator.pairs import estimate_pair

RULES = ("medoid", "residual", "mean", "first")


@pytest.fixture
def on_lists(monkeypatch):
    """Sparse labels are counted as lists, whatever it costs; float64, so that both ways see the same ties."""
    monkeypatch.setattr(lists, "_PAY", np.inf)
    with jax.enable_x64():
        yield


def as_sparse(seed, labels, selected):
    name, mask = ("selected", selected) if seed % 2 else ("unselected", ~selected)
    return {"labels": sp.csr_array(labels), name: sp.csr_array(mask)}


def candidates(labels, selected):
    """Rates (q, q, 2) of all pairs, which of them are valid, and the weights of the rule "residual"."""
    q = labels.shape[1]
    tables = [jnp.broadcast_to(x, (q, q)) for x in count(labels, selected).probabilities()]
    pair = estimate_pair(*tables)
    raw, prior = np.stack([pair.rho_neg, pair.rho_pos], 2), np.asarray(pair.prior)
    rates = np.where((raw < 0) & (raw > -0.3 / q), 0, raw)
    used = np.asarray(pair.defined) & ~np.eye(q, dtype=bool)
    valid = used & (prior >= 0) & (prior <= 1) & (rates >= 0).all(2) & (rates <= 1).all(2) & (rates.sum(2) < 1)
    return rates, raw, valid, np.where(used, np.abs(prior * (1 - prior) * np.asarray(tables[4] - tables[3])), 0)


@pytest.mark.parametrize("seed", range(30))
def test_all_partners_count_as_in_the_pairwise_systems(on_lists, seed):
    labels, selected = rare_labels(seed)
    assume = ("general", "missing", "partial")[seed % 3]
    taken = selected | {"general": False, "missing": labels == 1, "partial": labels == 0}[assume]
    rates, raw, valid, weight = candidates(labels, taken)
    counted = count_lists(**as_sparse(seed, labels, selected))
    found = {rule: estimate_from_lists(counted, aggregate=rule, assume=assume, min_selected=5) for rule in RULES}
    assert any(valid.any(1))
    for j in np.flatnonzero(valid.any(1)):
        own = {rule: np.array([f.rho_neg[j], f.rho_pos[j]]) for rule, f in found.items()}
        assert {int(f.partners[j]) for f in found.values()} == {valid[j].sum()}
        np.testing.assert_allclose(own["mean"], rates[j, valid[j]].mean(0), atol=1e-6)
        np.testing.assert_allclose(own["first"], rates[j, valid[j].argmax()], atol=1e-6)
        for rule, points, mass in (("medoid", rates, valid), ("residual", raw, weight)):
            distance = np.abs(np.clip(points[j], 0, 1)[:, None] - np.clip(points[j], 0, 1)).sum(2) @ mass[j]
            best = valid[j] & (distance <= distance[valid[j]].min() + 1e-9)  # ties may be broken either way
            assert np.abs(rates[j, best] - own[rule]).max(1).min() < 1e-6, rule


def test_estimate_all_gives_what_tables_give_with_standard_errors(on_lists):
    labels, selected = rare_labels(2)
    options = {"aggregate": "mean", "min_selected": 5, "stderr": True}
    expected = estimate_all(labels, selected, **options)
    found = estimate_all(sp.csr_array(labels), sp.csr_array(selected), **options, max_memory=100_000)
    assert assert_same(found, expected) > 3


def test_partners_are_drawn_from_those_that_occur_together(on_lists):
    labels, selected = rare_labels(4)
    cells = {"labels": sp.csr_array(labels), "unselected": sp.csr_array(~selected)}
    options = {"aggregate": "first", "num_partners": 1, "min_selected": 5}
    rates, _, valid, _ = candidates(labels, selected)
    together = labels.T.astype(int) @ labels > 0
    drawn = set()
    for seed in range(40):
        found = estimate_all(**cells, key=jax.random.key(seed), **options)
        for j in np.flatnonzero(found.partners):  # its one partner was valid
            own = np.array([found.rho_neg[j], found.rho_pos[j]])
            same = valid[j] & together[j] & (np.abs(rates[j] - own).max(1) < 1e-6)
            assert same.any()
            drawn |= {(int(j), int(i)) for i in np.flatnonzero(same)}
    assert {(j, i) for j, i in np.argwhere(valid & together).tolist()} <= drawn
    one = estimate_all(**cells, key=jax.random.key(0), **options)
    blocks = estimate_all(**cells, key=jax.random.key(0), **options, max_memory=20_000)
    np.testing.assert_array_equal(one.T, blocks.T)  # whatever the blocks


def test_in_random_order_every_valid_partner_comes_first_as_often(on_lists):
    labels, selected = rare_labels(2)
    labels[:, 6:], labels[:36, :6], selected[:36] = 0, 0, True
    labels[:36, 6:] = np.tile(np.eye(6, dtype=np.uint8), (6, 1))  # in no list of the first six
    rates, _, valid, _ = candidates(labels, selected)
    counted = count_lists(sp.csr_array(labels), unselected=sp.csr_array(~selected))
    first = np.zeros((12, 2))
    for seed in range(300):
        found = estimate_from_lists(counted, aggregate="first", key=jax.random.key(seed), min_selected=5)
        first += np.stack([found.rho_neg, found.rho_pos], 1) / 300
    for j in np.flatnonzero(valid[:6].any(1)):
        assert valid[j, 6:].all()
        expected, spread = rates[j, valid[j]].mean(0), rates[j, valid[j]].std(0)
        assert (np.abs(first[j] - expected) <= 4 * spread / np.sqrt(300) + 1e-6).all()


def test_lists_refuse_to_draw_partners_for_the_joint_rule(on_lists):
    labels, selected = rare_labels(1)
    counted = count_lists(labels, selected)
    with pytest.raises(ValueError, match="num_partners: 3; on lists the joint rule uses all partners, leave it out"):
        estimate_from_lists(counted, num_partners=3, key=jax.random.key(0))
    with pytest.raises(ValueError, match="key: None; num_partners=3 draws partners"):
        estimate_from_lists(counted, aggregate="mean", num_partners=3)
