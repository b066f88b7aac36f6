import numpy as np
import pytest

from mlt_jax.data import load, load_features


def test_one_file_has_features_and_labels(tmp_path):
    path = tmp_path / "all.npz"
    np.savez(path, features=np.ones((3, 4), np.float16), labels=np.eye(3, 2, dtype=np.int64))
    data = load_features(path)
    assert (data.features.dtype, data.features.shape) == (np.float32, (3, 4))
    assert data.labels.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert (data.labels.dtype, data.ids, data.classes) == (np.uint8, ("0", "1", "2"), ("class0", "class1"))
    np.savez(path, features=np.ones((3, 4)), labels=np.eye(3, 2), names=["x", "y", "z"], classes=["cat", "dog"])
    assert load_features(path).ids == ("x", "y", "z")
    assert load_features(path).classes == ("cat", "dog")


def test_labels_of_another_file_are_matched_by_name(tmp_path):
    np.savez(tmp_path / "f.npz", features=np.arange(4.0)[:, None], names=["d", "a", "x", "b"])
    values = np.array([[1, -1], [0, 1], [-1, -1], [-1, 1]], np.int8)
    np.savez(tmp_path / "l.npz", train=values, train_names=["a", "b", "c", "d"], classes=["cat", "dog"])
    data = load_features(tmp_path / "f.npz", labels_path=tmp_path / "l.npz", split="train", coding="voc")
    assert data.ids == ("d", "a", "b")
    assert data.features.ravel().tolist() == [0, 1, 3]
    assert data.labels.tolist() == [[0, 1], [1, 0], [1, 1]]
    assert data.ignore.tolist() == [[False, False], [False, False], [True, False]]


def test_the_real_features_meet_their_labels(real_data):
    from paths import DATA

    reference, count = real_data("voc2007_labels.npz"), len(real_data("voc2007_features.npz")["names"])
    paths = {"labels_path": DATA / "voc2007_labels.npz", "split": "trainval", "coding": "voc"}
    data = load_features(DATA / "voc2007_features.npz", **paths)
    assert data.features.shape == (count, 2048) == (5008, 2048)
    kept = np.isin(reference["trainval_names"], data.ids)
    np.testing.assert_array_equal(data.labels, reference["trainval"][kept] >= 0)
    np.testing.assert_array_equal(data.ignore, reference["trainval"][kept] == 0)
    with pytest.raises(ValueError, match="has labels for none of the features"):
        load_features(DATA / "voc2007_features.npz", **{**paths, "split": "test"})


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"features: .*none\.npz is missing; pass an npz"):
        load_features(tmp_path / "none.npz")
    np.savez(tmp_path / "f.npz", features=np.ones((2, 1)), names=["a", "b"])
    with pytest.raises(ValueError, match=r"f\.npz: has no 'labels', only features, names"):
        load_features(tmp_path / "f.npz")
    np.savez(tmp_path / "l.npz", train=[[1], [0]], names=["a", "b"])
    with pytest.raises(ValueError, match=r"l\.npz: has no 'test', only train, names"):
        load_features(tmp_path / "f.npz", labels_path=tmp_path / "l.npz", split="test")
    np.savez(tmp_path / "g.npz", features=np.ones((2, 1)), labels=[[1], [0], [0]])
    with pytest.raises(ValueError, match="labels has 3 rows, features 2"):
        load_features(tmp_path / "g.npz")
    np.savez(tmp_path / "h.npz", features=np.ones((2, 1)), labels=[[1], [-1]])
    with pytest.raises(ValueError, match=r"h\.npz: labels.*-1"):
        load_features(tmp_path / "h.npz")


def test_a_file_of_several_splits_has_scaled_numbers_and_packed_labels(tmp_path):
    labels = np.random.default_rng(0).random((3, 10)) < 0.5
    split = {"val_features": np.array([[2], [-4], [6]], np.int8), "val_labels": np.packbits(labels, axis=1)}
    classes = [f"c{i}" for i in range(10)]
    np.savez(tmp_path / "coco_features.npz", **split, val_names=["x", "y", "z"], scale=np.float32(0.5), classes=classes)
    data = load("coco", split="val", features=tmp_path)
    assert data.features.tolist() == [[1, 20], [-2, 20], [3, 20]]  # components have lost the mean
    np.testing.assert_array_equal(data.labels, labels)
    assert (data.ids, data.classes, data.ignore) == (("x", "y", "z"), tuple(classes), None)
    with pytest.raises(ValueError, match="has no 'features'"):
        load("coco", split="train", features=tmp_path)


def test_zeros_and_ones_under_the_name_of_voc_are_what_they_say(tmp_path):
    np.savez(tmp_path / "f.npz", features=np.ones((3, 1)), labels=[[1, 0], [0, 0], [0, 1]])
    assert load_features(tmp_path / "f.npz", coding="voc").labels.tolist() == [[1, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": [[1.0], [np.nan]], "labels": [[1], [0]]}, r"f\.npz: features: row 1 is not finite"),
        ({"features": [1.0, 2.0], "labels": [[1], [0]]}, r"f\.npz: features: shape \(2,\)"),
        ({"train_features": [[1], [2]], "train_labels": np.eye(2, 9, dtype=np.uint8), "classes": list("abcdefghi"),
          "train_names": ["x", "y"]}, r"train_labels: uint8 of shape \(2, 9\); write np\.packbits"),
    ],
)  # fmt: skip
def test_what_would_be_read_wrongly_is_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_features(tmp_path / "f.npz", split="train")


def test_a_name_that_stands_twice_is_refused(tmp_path):
    np.savez(tmp_path / "f.npz", features=np.ones((2, 1)), names=["a", "b"])
    np.savez(tmp_path / "l.npz", train=[[1], [0], [1]], names=["a", "b", "b"])
    with pytest.raises(ValueError, match="labels: 'b' stands 2 times among the names"):
        load_features(tmp_path / "f.npz", labels_path=tmp_path / "l.npz", split="train")


def test_a_file_that_is_no_npz_is_named(tmp_path):
    np.savez(tmp_path / "cut.npz", features=np.ones((50, 10)))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:500])
    np.save(tmp_path / "one.npy", np.ones((2, 2)))
    for name in ("cut.npz", "one.npy"):
        with pytest.raises(ValueError, match=rf"features: .*{name} cannot be read \(.*write it with np.savez"):
            load_features(tmp_path / name)
