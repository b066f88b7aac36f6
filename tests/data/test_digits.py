import numpy as np
import pytest

from mlt_jax.data import ArrayImages, load_digits_scenes
from mlt_jax.data.digits import digit_pool
from mlt_jax.paper import theory


def test_same_arguments_give_the_same_bytes_and_another_seed_does_not():
    one, two, other = (load_digits_scenes("train", n=200, seed=seed) for seed in (3, 3, 4))
    assert one.ids == two.ids
    np.testing.assert_array_equal(one.labels, two.labels)
    np.testing.assert_array_equal(one.image.pixels, two.image.pixels)
    assert (one.labels != other.labels).any()
    assert len({one.image(row).tobytes() for row in range(200)}) == 200


def test_default_sizes_and_types():
    train, test = load_digits_scenes("train"), load_digits_scenes("test")
    assert (len(train.ids), len(test.ids)) == (6000, 2000)
    assert train.classes == tuple("0123456789")
    assert isinstance(train.image, ArrayImages)
    assert train.image(7).shape == (24, 24, 3)
    assert train.image(7).dtype == np.uint8
    assert np.ptp(train.image(7).astype(int), axis=2).max() == 0
    assert train.labels.sum(axis=1).min() >= 1
    assert np.all((train.labels.mean(axis=0) > 0.15) & (train.labels.mean(axis=0) < 0.45))


def test_most_pairs_of_digits_are_correlated_beyond_chance():
    table = theory.correlation_table(load_digits_scenes("train").labels)
    threshold = theory.hoeffding_threshold(table.n0, table.n1, confidence=1 - 0.05 / 90)
    beyond = np.abs(np.asarray(table.difference)) > np.asarray(threshold)[:, None]
    np.fill_diagonal(beyond, False)
    assert beyond.sum() > 60
    assert beyond.sum(axis=1).min() >= 4
    difference = np.asarray(table.difference)
    # 0 and 1 share a type, 1 and 3 do not: what that implies, by hand, give or take four standard errors.
    assert abs(difference[0, 1] - 0.205) < 0.05
    assert abs(difference[1, 3] + 0.100) < 0.05


def test_train_and_test_are_made_of_different_handwriting():
    train, test = ([image.tobytes() for images in digit_pool(split) for image in images] for split in ("train", "test"))
    assert len(train) + len(test) == 1797
    assert len(test) > 400
    assert not set(train) & set(test)


def test_a_digit_is_drawn_for_every_label():
    # With few grey levels of background, what is bright is a digit: its area grows with the number of labels.
    data = load_digits_scenes("train", n=600, size=48)
    bright = (data.image.pixels[..., 0] > 64).sum(axis=(1, 2))
    count = data.labels.sum(axis=1)
    assert np.corrcoef(bright, count)[0, 1] > 0.8
    assert bright.min() > 10


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="split: 'val' is unknown; digits has 'train', 'test'"):
        load_digits_scenes("val")
    with pytest.raises(ValueError, match="size: is 8"):
        load_digits_scenes("train", size=8)
