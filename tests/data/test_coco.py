import numpy as np
import pytest
from cocofolder import IMAGES, write_coco
from PIL import Image

from mlt_jax.data import load_coco


def test_labels_are_alphabetical_and_images_without_annotation_are_dropped(tmp_path):
    write_coco(tmp_path, "train2014", IMAGES)
    data = load_coco(tmp_path, "train")
    assert data.name == "coco2014/train"
    assert data.classes == tuple(f"class{k:02d}" for k in range(1, 81))
    assert [int(name[-6:-4]) for name in data.ids] == [2, 4, 9]
    # Category 1 is "class80", 3 is "class79", 159 is "class01".
    assert [np.flatnonzero(row).tolist() for row in data.labels] == [[0, 78], [0], [78, 79]]
    assert data.ignore is None
    assert data.labels.dtype == np.uint8


def test_images_are_those_of_the_names(tmp_path):
    write_coco(tmp_path, "val2014", IMAGES)
    data = load_coco(tmp_path, "val")
    for row, name in enumerate(data.ids):
        with Image.open(tmp_path / "val2014" / name) as image:
            np.testing.assert_array_equal(data.image(row), np.asarray(image))
    np.testing.assert_array_equal(data.take([2, 0]).image(0), data.image(2))


def test_images_may_lie_in_a_folder_of_their_own(tmp_path):
    write_coco(tmp_path, "train2014", IMAGES)
    before = load_coco(tmp_path, "train").image(0)
    (tmp_path / "images").mkdir()
    (tmp_path / "train2014").rename(tmp_path / "images" / "train2014")
    np.testing.assert_array_equal(load_coco(tmp_path, "train").image(0), before)


def test_missing_parts_say_where_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"annotations_trainval2014\.zip from https://cocodataset\.org"):
        load_coco(tmp_path, "train")
    write_coco(tmp_path, "train2014", IMAGES)
    (tmp_path / "train2014").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"download train2014\.zip"):
        load_coco(tmp_path, "train")
    with pytest.raises(ValueError, match=r"split: 'test' is unknown; COCO has 'train', 'val'"):
        load_coco(tmp_path, "test")
