import numpy as np
import pytest
from PIL import Image

from mlt_jax.data.transforms import OFFSETS, SCALES, augment, sample_crop, warp


def crops(height, width, size, count=4000):
    rng = np.random.default_rng(0)
    return [sample_crop(height, width, size, rng) for _ in range(count)]


def test_crops_have_the_scales_of_the_short_side_at_most_two_apart():
    seen = {(crop.width, crop.height) for crop in crops(300, 400, 100)}
    sides = [300, 262, 225, 198, 150]
    assert seen == {(sides[i], sides[j]) for i in range(5) for j in range(5) if abs(i - j) <= 2}


def test_crops_lie_at_thirteen_places_and_inside():
    assert len(OFFSETS) == 13
    found = crops(300, 400, 100)
    assert all(crop.left + crop.width <= 400 and crop.top + crop.height <= 300 for crop in found)
    places = {(crop.left, crop.top) for crop in found if (crop.width, crop.height) == (150, 150)}
    # (400 - 150) // 4 = 62 and (300 - 150) // 4 = 37 pixels a step.
    corners = {(0, 0), (248, 0), (0, 148), (248, 148)}
    middles = {(124, 0), (0, 74), (248, 74), (124, 148)}
    assert places == corners | middles | {(124, 74), (62, 37), (186, 37), (62, 111), (186, 111)}


def test_half_the_crops_are_mirrored_and_all_choices_are_equally_likely():
    found = crops(300, 400, 100)
    assert abs(np.mean([crop.flip for crop in found]) - 0.5) < 0.03
    _, counts = np.unique([crop.width * 1000 + crop.height for crop in found], return_counts=True)
    assert len(counts) == 19
    assert np.all(np.abs(counts - 4000 / 19) < 5 * np.sqrt(4000 / 19))


def test_a_side_close_to_the_target_is_not_resampled():
    assert {crop.width for crop in crops(256, 300, 222)} == {256, 222, 192, 168, 128}
    assert int(256 * SCALES[1]) == 224
    assert max(crop.width for crop in crops(222, 300, 224)) == 222


@pytest.mark.parametrize("shape", [(1, 1), (3, 50), (50, 2)])
def test_tiny_images_survive(shape):
    image = np.full((*shape, 3), 9, np.uint8)
    for index in range(30):
        assert (augment(image, 8, seed=0, epoch=0, index=index) == 9).all()
    assert (warp(image, 8) == 9).all()


def test_the_transform_is_fixed_by_seed_epoch_and_index():
    image = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    base = augment(image, 32, seed=1, epoch=2, index=3)
    np.testing.assert_array_equal(base, augment(image, 32, seed=1, epoch=2, index=3))
    # One other choice may coincide (494 crops and flips); eight in a row do not.
    for name in ("seed", "epoch", "index"):
        where = {"seed": 1, "epoch": 2, "index": 3}
        others = [augment(image, 32, **{**where, name: value}) for value in range(10, 18)]
        assert any((other != base).any() for other in others)


def test_augment_cuts_and_mirrors_what_sample_crop_says():
    column, row = np.meshgrid(np.arange(64), np.arange(64))
    image = np.stack([column, row, np.zeros_like(row)], axis=2).astype(np.uint8)
    flips = set()
    for index in range(20):
        crop = sample_crop(64, 64, 64, np.random.default_rng((0, 0, index + 1)))
        pixels = augment(image, 64, seed=0, epoch=0, index=index).astype(int)
        flips.add(crop.flip)
        left, right = (-1, 0) if crop.flip else (0, -1)
        assert abs(pixels[0, left, 0] - crop.left) <= 1
        assert abs(pixels[0, right, 0] - (crop.left + crop.width - 1)) <= 1
        assert abs(pixels[0, 0, 1] - crop.top) <= 1
        assert abs(pixels[-1, 0, 1] - (crop.top + crop.height - 1)) <= 1
    assert flips == {True, False}


def test_warp_is_pillows_bilinear_resize():
    image = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(image).resize((20, 20), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(warp(image, 20), expected)
    np.testing.assert_array_equal(warp(image[:, :30], 30), image[:, :30])
