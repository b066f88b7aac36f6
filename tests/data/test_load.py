import numpy as np
import pytest
from paths import DATA

from mlt_jax.data import DEFAULT_SPLITS, load


def test_digits_need_nothing():
    train, test = (load("digits", split=split) for split in DEFAULT_SPLITS["digits"])
    assert (train.name, test.name) == ("digits/train", "digits/test")
    assert (load("digits", split="test", seed=1).labels != test.labels).any()


def test_voc2012_trains_on_trainval_and_tests_on_voc2007_test():
    if not (DATA / "VOCdevkit").exists():
        pytest.skip(f"real data VOCdevkit not found in {DATA} (set MLT_JAX_DATA)")
    train, test = (load("voc2012", split=split, data_dir=DATA) for split in DEFAULT_SPLITS["voc2012"])
    assert (train.name, len(train.ids)) == ("voc2012/trainval", 480)
    assert (test.name, len(test.ids)) == ("voc2007/test", 160)
    assert load("voc2012", data_dir=DATA).ids == train.ids
    assert load("voc2007", split="test", data_dir=DATA / "VOCdevkit").ids == test.ids


def test_a_folder_of_feature_files_stands_in_for_images(real_data):
    real_data("voc2012_features.npz")
    train = load("voc2012", features=DATA)
    assert train.features.shape == (11540, 2048)
    assert train.image is None
    test = load("voc2012", split="voc2007/trainval", features=DATA)
    assert test.features.shape == (5008, 2048)
    assert test.ignore.any()
    same = load("voc2007", features=DATA / "voc2007_features.npz", labels=DATA / "voc2007_labels.npz")
    np.testing.assert_array_equal(same.labels, test.labels)


def test_a_folder_of_images_by_name(tmp_path):
    (tmp_path / "val.csv").write_text("image,cat\nx.png,1\n")
    assert load("folder", split="val", data_dir=tmp_path).labels.tolist() == [[1]]


def test_a_folder_of_own_features_by_name(tmp_path):
    for split, n in (("train", 3), ("test", 2)):
        np.savez(tmp_path / f"{split}.npz", features=np.ones((n, 4)), labels=np.eye(n, 2, dtype=int))
    sizes = [len(load("features", split=split, data_dir=tmp_path).ids) for split in DEFAULT_SPLITS["features"]]
    assert sizes == [3, 2]
    assert len(load("features", features=tmp_path / "test.npz").ids) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "imagenet"}, "dataset: 'imagenet' is unknown; pass 'digits', 'voc2007'"),
        ({"dataset": "folder"}, r"data_dir: is missing; .* folder \(--data-dir=...\)$"),
        (
            {"dataset": "folder", "source": "tfds"},
            "source: TFDS is for voc2007, voc2012, coco; leave it out for 'folder'",
        ),
        ({"dataset": "features"}, r"data_dir: is missing"),
        ({"dataset": "coco", "source": "web"}, "source: 'web' is unknown; pass 'files' or 'tfds'"),
    ],
)
def test_wrong_arguments_say_what_to_pass(options, message):
    with pytest.raises(ValueError, match=message):
        load(**options)
