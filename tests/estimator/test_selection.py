import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from mlt_jax import losses_from_probs, select_clean
from mlt_jax.estimator.selection import _select, fit_mixture, low_posterior, scale_losses


@pytest.fixture
def two_humps():
    """Losses of 400 labels, three quarters of them small, and which are."""
    rng = np.random.default_rng(1)
    small = rng.random(400) < 0.75
    return np.where(small, rng.normal(0.2, 0.08, 400), rng.normal(0.7, 0.1, 400)).astype(np.float32), small


def reference(x):
    return GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(x[:, None])


def test_mixture_is_scikit_learns(two_humps):
    x, _ = two_humps
    model = reference(x)
    order = model.means_[:, 0].argsort()
    x = jnp.asarray(x)
    ours = fit_mixture(x, jnp.ones(400, bool))
    np.testing.assert_allclose(ours.mean, model.means_[order, 0], atol=1e-4)
    np.testing.assert_allclose(ours.variance, model.covariances_[order, 0, 0], atol=1e-5)
    np.testing.assert_allclose(ours.weight, model.weights_[order], atol=1e-4)
    np.testing.assert_allclose(
        low_posterior(ours, x), model.predict_proba(np.asarray(x)[:, None])[:, order[0]], atol=1e-3
    )


def test_masked_examples_do_not_touch_the_fit(two_humps):
    x = jnp.asarray(two_humps[0])
    alone = fit_mixture(x, jnp.ones(400, bool))
    padded = fit_mixture(jnp.concatenate([x, jnp.full(50, 9.0)]), jnp.arange(450) < 400)
    for a, b in zip(alone, padded, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_released_codes_masks_are_reproduced(golden, k):
    gold = golden(k)
    labels, mask = gold["labels"][:, gold["columns"]], gold["selected"][:, gold["columns"]]
    losses = losses_from_probs(gold["probs"].astype(np.float32), labels)
    ours = select_clean(losses, labels, assume=str(gold["assume"]))
    assert (ours == mask).mean() >= 0.999


@pytest.mark.parametrize("k", [1, 2, 3])
def test_released_codes_masks_of_all_classes_are_reproduced(golden, real_data, k):
    gold, mask = real_data(f"golden/golden_{k}.npz"), golden(k)["selected"]
    labels = gold["labels"]
    losses = losses_from_probs(gold["probs"].astype(np.float32), labels)
    ours = select_clean(losses, labels, assume=str(gold["assume"]))
    assert (ours == mask).mean() >= 0.999


def test_masks_agree_with_scikit_learn_as_well_as_two_of_its_seeds_do():
    rng = np.random.default_rng(0)
    n, q = 10_000, 6
    wrong = rng.random((n, q)) < 0.005
    # Long tails: a few losses far out invite a cluster of their own.
    losses = np.where(wrong, rng.gamma(5, 0.4, (n, q)), rng.gamma(2, 0.12, (n, q))).astype(np.float32)
    labels = np.zeros((n, q), np.uint8)
    seeds = [_scikit_learns_masks(losses, seed) for seed in range(3)]
    ours = select_clean(losses, labels)
    between = min((seeds[a] == seeds[b]).mean() for a, b in ((0, 1), (0, 2), (1, 2)))
    assert between < 1
    assert min((ours == mask).mean() for mask in seeds) >= between


def _scikit_learns_masks(losses, seed):
    taken = np.empty(losses.shape, bool)
    for j, x in enumerate(losses.T):
        x = ((x - x.min()) / np.ptp(x))[:, None]
        model = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=seed).fit(x)
        taken[:, j] = model.predict_proba(x)[:, model.means_[:, 0].argmin()] > 0.5
    return taken


def test_small_losses_are_selected_per_class_and_value(two_humps):
    x, small = two_humps
    labels = np.stack([np.arange(400) % 2, (np.arange(400) + 1) % 2], 1)
    losses = np.stack([x, 10 + 5 * x], 1)  # scale and shift of a class do not matter
    selected = select_clean(losses, labels)
    assert (selected == small[:, None]).mean() > 0.97
    np.testing.assert_array_equal(selected, select_clean(np.stack([losses, losses]), labels))


def test_each_epoch_is_scaled_over_its_members_and_then_averaged(two_humps):
    x = two_humps[0]
    history = np.stack([1000 * x, np.random.default_rng(2).random(400).astype(np.float32)])
    member = np.arange(400) < 300
    low, high = history[:, :300].min(1, keepdims=True), history[:, :300].max(1, keepdims=True)
    scaled = scale_losses(jnp.asarray(history), jnp.asarray(member))
    np.testing.assert_allclose(scaled[:300], ((history - low) / (high - low)).mean(0)[:300], rtol=1e-4)


def test_assuming_a_clean_side_selects_it_whole(two_humps):
    losses, labels = two_humps[0][:, None], (np.arange(400) % 2)[:, None]
    free = select_clean(losses, labels)
    for assume, value in (("missing", 1), ("partial", 0)):
        selected = select_clean(losses, labels, assume=assume)
        assert selected[labels == value].all()
        np.testing.assert_array_equal(selected[labels != value], free[labels != value])


def test_a_higher_tau_selects_less(two_humps):
    losses, labels = two_humps[0][:, None], np.zeros((400, 1), int)
    sizes = [select_clean(losses, labels, tau=tau).sum() for tau in (0.1, 0.5, 0.9, 0.99)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_degenerate_columns_are_taken_whole():
    labels = np.zeros((40, 4), int)
    labels[:9, 0] = 1  # fewer than ten positives
    labels[:20, 1] = 1  # twenty positives with equal losses
    losses = np.random.default_rng(0).random((40, 4)).astype(np.float32)
    losses[:, 3] = 0  # all negatives, all equal
    losses[:20, 1] = 0.3
    selected = select_clean(losses, labels)
    assert selected[:9, 0].all()
    assert selected[:20, 1].all()
    assert selected[:, 3].all()
    assert 0 < selected[:, 2].sum() < 40  # no positives; the negatives are split as always


def test_unobserved_cells_are_never_selected_and_never_read(two_humps):
    losses, labels = np.stack([two_humps[0]] * 2, 1), np.zeros((400, 2), int)
    observed = np.ones((400, 2), bool)
    observed[100:, 1] = False
    hidden = np.where(observed, losses, np.nan)
    selected = select_clean(hidden, labels, observed=observed)
    assert not selected[100:, 1].any()
    np.testing.assert_array_equal(selected[:100, 1], select_clean(losses[:100], labels[:100])[:, 1])


def test_losses_from_probs_is_cross_entropy():
    probs, labels = np.array([[0.9, 0.2], [1.0, 0.0]]), np.array([[1, 1], [0, 0]])
    losses = losses_from_probs(probs, labels)
    np.testing.assert_allclose(losses, [[-np.log(0.9), -np.log(0.2)], [-np.log(1e-7), 0]], rtol=1e-5)
    assert losses_from_probs(np.stack([probs, probs]), labels).shape == (2, 2, 2)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"tau": 1.0}, "tau: 1.0; pass a probability strictly between 0 and 1"),
        ({"assume": "none"}, "assume: 'none'; pass"),
        ({"losses": np.full((20, 2), np.nan)}, "losses: epoch 0, row 0, column 0 is nan"),
        ({"losses": np.zeros((20, 3))}, r"losses: shape \(20, 3\), labels have \(20, 2\)"),
    ],
)
def test_bad_input_is_named(kwargs, message):
    losses = kwargs.pop("losses", np.zeros((20, 2)))
    with pytest.raises(ValueError, match=message):
        select_clean(losses, np.zeros((20, 2), int), **kwargs)


def test_probabilities_outside_zero_one_are_named():
    with pytest.raises(ValueError, match=r"probs: row 1, column 0 is 1.7; pass values in \[0, 1\]"):
        losses_from_probs(np.array([[0.5], [1.7]]), np.zeros((2, 1), int))


def test_selection_takes_one_compilation_for_one_shape(two_humps):
    losses, labels = two_humps[0][:, None], (np.arange(400) % 2)[:, None]
    select_clean(losses, labels)
    before = _select._cache_size()
    select_clean(losses * 2 + 1, 1 - labels, tau=0.4)
    assert _select._cache_size() == before


def test_arguments_of_another_type_are_named(unchecked_shapes):
    losses, labels = np.zeros((3, 2)), np.eye(3, 2)
    for options, message in (
        ({"tau": "0.5"}, "tau: '0.5'; pass a probability"),
        ({"max_memory": None}, "max_memory: None; pass a whole number"),
    ):
        with pytest.raises(TypeError, match=message):
            select_clean(losses, labels, **options)
    with pytest.raises(ValueError, match="probs: row 1 has length 1, row 0 2"):
        losses_from_probs([[0.1, 0.2], [0.1]], labels)
