import json

import numpy as np
import pytest
from PIL import Image

from mlt_jax.data import load_coco


def write_coco(root, part, images, *, num_classes=80):
    """A COCO folder of random images; `images`: number -> list of category ids, which run against the alphabet."""
    categories = [{"id": 2 * k + 1, "name": f"class{num_classes - k:02d}"} for k in range(num_classes)]
    files = {number: f"COCO_{part}_{number:012d}.jpg" for number in images}
    box = {"iscrowd": 0, "area": 4.0, "bbox": [1.0, 1.0, 2.0, 2.0]}
    annotations = [
        {"id": 100 * number + k, "image_id": number, "category_id": key, **box}
        for number, keys in images.items()
        for k, key in enumerate(keys)
    ]
    infos = [{"id": number, "file_name": file, "height": 24, "width": 32} for number, file in files.items()]
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / part).mkdir()
    content = {"categories": categories, "images": infos, "annotations": annotations}
    (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    for number, file in files.items():
        pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / part / file)


IMAGES = {9: [1, 3, 3], 4: [159], 7: [], 2: [3, 159]}


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
