import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from mlt_jax import cross_val_logits


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1500, 40)).astype(np.float32)
    clean = features @ rng.normal(size=(40, 3)) + rng.normal(size=(1500, 3)) > 4
    return features, clean, rng


def test_labels_are_predicted_from_features_alone(data):
    features, clean, _ = data
    logits = cross_val_logits(features, clean)
    assert logits.shape == (1500, 3)
    assert min(roc_auc_score(clean[:, j], logits[:, j]) for j in range(3)) > 0.95


def test_a_head_never_sees_its_own_examples(data):
    features, _, rng = data
    noise = rng.random((1500, 3)) < 0.3  # nothing to learn: in-sample 40 features would still fit some of it
    logits = cross_val_logits(features, noise, l2=1e-5)
    assert max(abs(roc_auc_score(noise[:, j], logits[:, j]) - 0.5) for j in range(3)) < 0.06


def test_heads_corrected_by_T_predict_the_clean_label(data):
    features, clean, rng = data
    chance = rng.random(clean.shape)
    noisy = np.where(clean, chance >= 0.4, chance < 0.1)
    plain = 1 / (1 + np.exp(-cross_val_logits(features, noisy)))
    T = np.tile([[0.9, 0.1], [0.4, 0.6]], (3, 1, 1))
    corrected = 1 / (1 + np.exp(-cross_val_logits(features, noisy, T=T)))
    assert np.abs(corrected[clean].mean() - 1) < 0.5 * np.abs(plain[clean].mean() - 1)
    assert corrected[~clean].mean() < plain[~clean].mean()


def test_folds_are_dealt_by_seed(data):
    features, clean, _ = data
    one, again, other = (cross_val_logits(features, clean, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folds": 1}, "folds: 1; pass 2 to 1500"),
        ({"features": np.zeros((10, 4))}, r"features: shape \(10, 4\)"),
        ({"features": np.full((1500, 4), np.nan)}, "features: row 0 is not finite"),
        ({"T": np.eye(2)}, r"T: shape \(2, 2\)"),
    ],
)
def test_bad_input_is_named(data, change, message):
    features, clean, _ = data
    with pytest.raises(ValueError, match=message):
        cross_val_logits(change.pop("features", features), clean, **change)
