import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from simulate import correlated_labels, flip, unbiased

from mlt_jax import Status, bootstrap, estimate_all
from mlt_jax.paper.noise import corrupt, transition


def test_one_partner_is_the_eight_cell_multinomial():
    labels, selected = unbiased(np.random.default_rng(0), n=4000, q=2, keep=0.8)
    found = estimate_all(labels, selected, aggregate="medoid", stderr=True)
    # Cells (noisy_0, selected_0, noisy_1) of class 0, their multinomial covariance, and numerical derivatives.
    cells = list(itertools.product((0, 1), repeat=3))
    seen = np.stack([labels[:, 0], selected[:, 0], labels[:, 1]], 1)
    share = np.array([(seen == cell).all(1).mean() for cell in cells])

    def rates(share):
        def mass(**fixed):
            names = ("j", "s", "i")
            return sum(
                w for w, c in zip(share, cells, strict=True) if all(c[names.index(k)] == v for k, v in fixed.items())
            )

        m_j, m_i, e = mass(j=1), mass(i=1), mass(j=1, i=1)
        a, b = mass(j=0, s=1, i=1) / mass(j=0, s=1), mass(j=1, s=1, i=1) / mass(j=1, s=1)
        p, v = (m_i - a) / (b - a), (e - a * m_j) / (b - a)
        return np.array([(m_j - v) / (1 - p), 1 - v / p])

    step = 1e-6 * np.eye(8)
    slope = np.stack([(rates(share + h) - rates(share - h)) / 2e-6 for h in step], 1)
    covariance = (np.diag(share) - np.outer(share, share)) / 4000
    expected = np.sqrt(np.diag(slope @ covariance @ slope.T))
    np.testing.assert_allclose(found.stderr[0], expected, rtol=2e-3)


@pytest.mark.parametrize("aggregate", ["joint", "mean"])
@pytest.mark.parametrize("masked", ["", "at random", "by class 0"])
def test_delta_method_agrees_with_the_bootstrap(aggregate, masked):
    # Half of the right labels selected: the estimates lie away from the bounds, where both should agree.
    rng = np.random.default_rng(0)
    labels, selected = unbiased(rng, n=20_000, q=5, keep=0.5)
    rate = np.where(labels[:, :1] == 1, 0.95, 0.4) if masked == "by class 0" else 0.8
    observed = (rng.random(labels.shape) < rate) | (np.arange(5) == 0) if masked else None
    found = estimate_all(labels, selected, aggregate=aggregate, stderr=True, observed=observed)
    samples = bootstrap(jax.random.key(1), labels, selected, aggregate=aggregate, observed=observed)
    assert samples.shape == (200, 5, 2)
    ratio = np.asarray(found.stderr) / np.asarray(samples).std(0)
    assert 0.8 < np.exp(np.log(ratio).mean()) < 1.25
    if (
        aggregate == "joint"
    ):  # the mean also moves when a partner's system turns invalid, which the delta method ignores
        assert ratio.min() > 0.6
        assert ratio.max() < 1.6


def test_an_estimate_on_its_bound_has_an_error():
    rng = np.random.default_rng(0)
    clean = correlated_labels(rng, n=5000, q=6)
    labels = flip(rng, clean, 0.0, 0.2)
    found = estimate_all(labels, (labels == clean) & (rng.random(clean.shape) < 0.8), stderr=True)
    assert float(found.rho_neg.min()) == 0
    assert (np.asarray(found.stderr) > 0).all()
    interval = np.asarray(found.interval())
    assert (interval >= 0).all()
    assert (interval[:, 0, 0] == 0).any()
    assert (interval[..., 1] > interval[..., 0]).all()


def test_errors_shrink_with_the_root_of_n():
    rng = np.random.default_rng(0)
    labels, selected = unbiased(rng, n=80_000, q=6)
    large = estimate_all(labels, selected, stderr=True).stderr
    small = estimate_all(labels[:5000], selected[:5000], stderr=True).stderr
    assert 2.8 < float(jnp.exp(jnp.log(small / large).mean())) < 5.6


def test_errors_are_absent_unless_asked_for_or_without_an_estimate():
    labels, selected = unbiased(np.random.default_rng(0), n=2000)
    assert np.isnan(estimate_all(labels, selected).stderr).all()
    assert np.isnan(estimate_all(labels, selected, stderr=True, min_selected=5000).stderr).all()


def test_errors_are_infinite_where_the_data_do_not_bound_the_rates():
    rng = np.random.default_rng(0)
    n, q = 8000, 80
    topic = rng.integers(0, q // 8, (n, 1)) == np.arange(q) // 8
    clean = (rng.random((n, q)) < np.where(topic, 0.3, 0.003)).astype(np.uint8)
    labels = np.asarray(corrupt(jax.random.key(0), clean, transition(0.002, 0.3, q)))
    looked = (labels == 1) | (rng.random((n, q)) < 0.01)  # a hundredth of the negatives
    selected = looked & (labels == clean)
    found = estimate_all(labels, selected, stderr=True)
    known = np.asarray(found.status) == Status.CORRELATION
    errors = np.asarray(found.stderr)
    assert np.isnan(errors[~known]).all()
    assert not np.isnan(errors[known]).any()
    lost = np.isinf(errors[:, 1]) & known
    assert 0 < lost.sum() < known.sum() / 2
    np.testing.assert_array_equal(found.interval()[lost, 1], np.tile([0, 1], (lost.sum(), 1)))
    listed = estimate_all(sp.csr_array(labels), sp.csr_array(selected), stderr=True)
    np.testing.assert_array_equal(np.isinf(listed.stderr), np.isinf(errors))


@pytest.mark.slow
@pytest.mark.parametrize("aggregate", ["joint", "mean"])
@pytest.mark.parametrize("keep", [1.0, 0.6])
def test_95_percent_intervals_cover_the_truth(aggregate, keep):
    inside = []
    for trial in range(400):
        rng = np.random.default_rng(trial)
        rates = rng.uniform(0.02, (0.3, 0.4))
        labels, selected = unbiased(rng, rho_neg=rates[0], rho_pos=rates[1], keep=keep)
        found = estimate_all(labels, selected, aggregate=aggregate, stderr=True)
        estimated = np.stack([found.rho_neg, found.rho_pos], 1)
        hit = np.abs(estimated - rates) <= 1.96 * np.asarray(found.stderr)
        inside.append(hit[np.isfinite(found.stderr).all(1)])
    coverage = np.concatenate(inside).mean(0)
    assert ((coverage >= 0.92) & (coverage <= 0.98)).all(), coverage


@pytest.mark.parametrize("rho_neg", [0.1, 0.0])  # with 0.0 many solutions are slightly negative and count as 0
def test_mean_of_partners_knows_that_they_share_examples(rho_neg):
    rng = np.random.default_rng(0)
    clean = correlated_labels(rng, n=20_000, q=8, strength=3)
    labels = flip(rng, clean, rho_neg, 0.2)
    selected = (labels == clean) & (rng.random(clean.shape) < 0.5)
    found = estimate_all(labels, selected, aggregate="mean", stderr=True)
    # The jackknife over 200 groups of examples, by the systems of eq6 and eq7: of every partner, and of their mean.
    y, s = (x.reshape(200, 100, 8).astype(float) for x in (labels, selected))

    def without_each_group(of):
        """How often `of` the class is on, and how often a partner is on with it."""
        both, size = np.einsum("gnj,gni->gji", of, y), of.sum(1)
        return both.sum(0) - both, (size.sum(0) - size)[:, :, None]

    (e, m_j), (b, on), (a, off) = map(without_each_group, (y, s * y, s * (1 - y)))
    e, m_j, m_i, a, b = e / 19_900, m_j / 19_900, m_j.swapaxes(1, 2) / 19_900, a / off, b / on
    p, v = ((x / (b - a)) for x in (m_i - a, e - a * m_j))
    rates = np.stack([(m_j - v) / (1 - p), 1 - v / p], axis=3)  # groups, classes, partners, rates
    rates = rates[:, ~np.eye(8, dtype=bool)].reshape(200, 8, 7, 2)

    def variance(x):
        return 199 / 200 * ((x - x.mean(0)) ** 2).sum(0)

    usable = np.asarray(found.partners) == 7  # the mean is over valid partners only
    assert usable.sum() >= 6
    ours = np.asarray(found.stderr)[usable]
    together, independent = np.sqrt(variance(rates.mean(2))), np.sqrt(variance(rates).sum(1)) / 7
    ratio = ours / together[usable]
    if rho_neg == 0:  # the jackknife is of solutions left negative; set to zero they vary half as much, or more
        assert ((ratio[:, 0] > 0.45) & (ratio[:, 0] < 1.05)).all()
        ratio = ratio[:, 1:]
    assert (np.abs(ratio - 1) < 0.2).all()
    assert 0.95 < np.exp(np.log(ratio).mean()) < 1.05
    assert np.abs(independent / together - 1)[usable].max() > 0.25  # what would come out if they shared none


def test_arguments_of_another_type_are_named(unchecked_shapes):
    key, labels, selected = jax.random.key(0), np.eye(3), np.ones((3, 3))
    for error, message, given, options in (
        (TypeError, "key: 0; pass jax.random.key", 0, {}),
        (ValueError, "num_samples: 0; pass a whole number, 1 or more", key, {"num_samples": 0}),
        (ValueError, "aggregate: list; pass", key, {"aggregate": ["joint"]}),
        (ValueError, "assume: None; pass", key, {"assume": None}),
        (TypeError, "min_selected: 1.5; pass", key, {"min_selected": 1.5}),
    ):
        with pytest.raises(error, match=message):
            bootstrap(given, labels, selected, **options)
