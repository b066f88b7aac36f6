import xml.etree.ElementTree as ET

import numpy as np
import pytest
from paths import DATA

from mlt_jax.data import load_voc
from mlt_jax.data.voc import CLASSES


@pytest.fixture
def devkit():
    if not (DATA / "VOCdevkit").exists():
        pytest.skip(f"real data VOCdevkit not found in {DATA} (set MLT_JAX_DATA)")
    return DATA / "VOCdevkit"


@pytest.mark.parametrize(
    ("year", "split", "count"),
    [
        (2012, "train", 320),
        (2012, "val", 160),
        (2012, "trainval", 480),
        (2007, "trainval", 200),
        (2007, "test", 160),
    ],
)
def test_examples_and_counts_are_those_of_image_sets(devkit, year, split, count):
    data = load_voc(devkit, year, split)
    main = devkit / f"VOC{year}" / "ImageSets" / "Main"
    assert len(data.ids) == count
    assert list(data.ids) == (main / f"{split}.txt").read_text().split()
    for column, name in enumerate(CLASSES):
        values = (main / f"{name}_{split}.txt").read_text().split()[1::2]
        assert data.labels[:, column].sum() == values.count("1") + values.count("0")
        difficult = 0 if data.ignore is None else data.ignore[:, column].sum()
        assert difficult == values.count("0")


def test_labels_equal_the_annotations_with_difficult_only_ignored(devkit):
    data = load_voc(devkit.parent, "2012", "trainval")
    for row, name in enumerate(data.ids):
        objects = ET.parse(devkit / "VOC2012" / "Annotations" / f"{name}.xml").getroot().findall("object")
        difficult = {}
        for item in objects:
            difficult.setdefault(item.findtext("name"), []).append(item.findtext("difficult") == "1")
        assert [name for name, here in zip(CLASSES, data.labels[row], strict=True) if here] == sorted(difficult)
        only = [name for name in sorted(difficult) if all(difficult[name])]
        assert [name for name, skip in zip(CLASSES, data.ignore[row], strict=True) if skip] == only
    assert data.ignore.any()
    assert not np.any(data.ignore & (data.labels == 0))


@pytest.mark.parametrize(("year", "split"), [("2012", "trainval"), ("2007", "trainval"), ("2007", "test")])
def test_labels_equal_the_label_matrix_of_the_same_names(devkit, real_data, year, split):
    data, reference = load_voc(devkit, year, split), real_data(f"voc{year}_labels.npz")
    # The small devkit's VOC2007 "test" is made of trainval images.
    position = {name: row for row, name in enumerate(reference["trainval_names"])}
    values = reference["trainval"][[position[name] for name in data.ids]]
    np.testing.assert_array_equal(data.labels, values >= 0)
    np.testing.assert_array_equal(np.zeros_like(values, bool) if data.ignore is None else data.ignore, values == 0)
    assert data.classes == tuple(reference["classes"])


def test_images_are_decoded_by_name(devkit):
    data = load_voc(devkit, 2012, "val")
    first = data.image(0)
    assert first.dtype == np.uint8
    assert first.ndim == 3
    assert min(first.shape[:2]) == 224
    part = data.take([5, 0])
    assert part.ids == (data.ids[5], data.ids[0])
    np.testing.assert_array_equal(part.image(1), first)
    np.testing.assert_array_equal(part.labels[0], data.labels[5])


def write_devkit(root, values):
    """A devkit without images: `values` is (n, 20) of 1, 0, -1."""
    main = root / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main"
    main.mkdir(parents=True)
    for column, name in enumerate(CLASSES):
        lines = [f"{row:06d} {value:2d}" for row, value in enumerate(values[:, column])]
        (main / f"{name}_train.txt").write_text("\n".join(lines) + "\n")
    return main


def test_difficult_rule_on_three_cells(tmp_path):
    values = np.full((3, 20), -1)
    values[0, 4], values[1, 4] = 1, 0
    write_devkit(tmp_path, values)
    data = load_voc(tmp_path, 2007, "train")
    assert data.labels[:, 4].tolist() == [1, 1, 0]
    assert data.ignore[:, 4].tolist() == [False, True, False]
    assert (data.labels.sum(), data.ignore.sum()) == (2, 1)


def test_missing_data_says_what_to_download(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"download the archives from http.*or leave it out"):
        load_voc(tmp_path, 2012, "trainval")
    main = write_devkit(tmp_path, np.full((2, 20), -1))
    with pytest.raises(FileNotFoundError, match=r"split: .*aeroplane_test\.txt is missing; .* are of train"):
        load_voc(tmp_path, 2007, "test")
    with pytest.raises(ValueError, match="split: 'validation' is unknown"):
        load_voc(tmp_path, 2007, "validation")
    (main / "dog_train.txt").write_text("000000 1\n000007 1\n")
    with pytest.raises(ValueError, match=r"dog_train\.txt: lists other images"):
        load_voc(tmp_path, 2007, "train")
    (main / "dog_train.txt").write_text("000000 1\n000001 2\n")
    with pytest.raises(ValueError, match=r"dog_train\.txt: holds '2'"):
        load_voc(tmp_path, 2007, "train")
