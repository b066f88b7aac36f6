import jax
import jax.numpy as jnp
import numpy as np
import pytest
from simulate import unbiased

from mlt_jax import count
from mlt_jax.estimator import line as lines
from mlt_jax.estimator.solve import gather_rows


def cloud_of(theta, *, mass=(300, 5000, 200, 400), gap=0.3, q=6, noise=0.0):
    """Groups that lie exactly on a line at the given shares, up to a shift of one unselected group off it."""
    rng = np.random.default_rng(0)
    low = rng.uniform(0.1, 0.5, q)
    high = low + gap * rng.uniform(0.3, 1, q)
    mean = np.stack([high, low, *(low + t * (high - low) for t in theta)])
    mean[2] += noise * rng.normal(size=q)
    mass = np.array(mass, float)
    return lines.group_cloud(jnp.asarray(mass[:, None] * mean, float), jnp.asarray(mass[:, None], float),
                             jnp.ones(q, bool))  # fmt: skip


@pytest.mark.parametrize("theta", [(0.3, 0.6), (0.0, 1.0), (1.0, 0.0), (0.9, 0.05)])
def test_points_on_a_line_are_found_where_they_lie(theta):
    cloud = cloud_of(theta)
    np.testing.assert_allclose(lines.fit(cloud), theta, atol=1e-4)
    assert float(lines.misfit(cloud, jnp.array(theta))) < 1e-4


@pytest.mark.parametrize(("theta", "nearest"), [((-0.4, 0.5), 0), ((1.3, 0.5), 1)])
def test_a_share_beyond_its_bound_is_pulled_to_it(theta, nearest):
    cloud = cloud_of(theta)
    np.testing.assert_allclose(lines.fit(cloud, bounded=False), theta, atol=1e-4)
    found = lines.fit(cloud)
    assert float(found[0]) == nearest
    assert 0 <= float(found[1]) <= 1


def test_bounded_fit_is_the_best_in_the_box():
    cloud = cloud_of((-0.2, 0.7), noise=0.05)
    best = float(lines.misfit(cloud, lines.fit(cloud)))
    grid = jnp.stack(jnp.meshgrid(*[jnp.linspace(0, 1, 41)] * 2), -1).reshape(-1, 2)
    assert best <= float(jax.vmap(lines.misfit, (None, 0))(cloud, grid).min()) + 1e-5


def test_rates_and_shares_are_inverse():
    mass = jnp.array([300.0, 5000.0, 200.0, 400.0])
    theta = jnp.array([0.3, 0.6])
    rates, prior = lines.rates(mass, theta)
    positives = 300 + 0.3 * 200 + 0.6 * 400
    np.testing.assert_allclose(rates, [0.7 * 200 / (5900 - positives), 0.6 * 400 / positives], rtol=1e-6)
    np.testing.assert_allclose(prior, positives / 5900, rtol=1e-6)
    np.testing.assert_allclose(lines.shares(mass, rates, prior), theta, rtol=1e-4)


def test_an_empty_group_leaves_the_rest_alone():
    cloud = cloud_of((0.0, 0.6), mass=(300, 5000, 0, 400))
    found = lines.fit(cloud)
    np.testing.assert_allclose(found, [0, 0.6], atol=1e-4)
    assert float(lines.rates(cloud.mass, found)[0][0]) == 0


def test_gradient_of_the_fit_is_the_numerical_one():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        totals = jnp.array([300.0, 5000.0, 200.0, 400.0])[:, None]
        ones = totals * jnp.asarray(rng.uniform(0.2, 0.6, (4, 5)))

        def share(ones):
            return lines.fit(lines.group_cloud(ones, totals, jnp.ones(5, bool)), bounded=False)[0]

        gradient = jax.grad(share)(ones)
        for g, i in ((0, 1), (2, 3), (3, 0)):
            step = jnp.zeros((4, 5)).at[g, i].set(1e-3)
            numerical = (share(ones + step) - share(ones - step)) / 2e-3
            assert float(gradient[g, i]) == pytest.approx(float(numerical), rel=1e-3)


def test_overlap_is_the_mean_squared_correlation_of_two_partners():
    rng = np.random.default_rng(0)
    labels, selected = unbiased(rng, n=20_000, q=6)
    labels[:, 5] = labels[:, 4]  # a copy
    tables, every = count(labels, selected), jnp.arange(6)
    clouds, _ = gather_rows(tables, every[None], every, aggregate="joint", assume="general")
    squared = np.corrcoef(labels, rowvar=False) ** 2 - 1 / 20_000
    for j, found in enumerate(np.asarray(lines.overlaps(clouds))):
        others = np.delete(np.delete(squared, j, 0), j, 1)
        assert found == pytest.approx(others[~np.eye(5, dtype=bool)].mean(), abs=2e-4)
    copies = clouds._replace(dimension=jnp.full(6, 39.0), contrast=jnp.full(6, 39 * 3.8))
    verdict = jax.vmap(lines.correlated, in_axes=(0, None))
    assert not verdict(copies, jnp.array(1.0))[0].any()  # 39 copies of a chi-square of 3.8, just below the 95 % point
    assert verdict(copies, jnp.array(0.5))[0].all()
