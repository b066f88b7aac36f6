import numpy as np
import pytest
from PIL import Image

from mlt_jax.data import batches, load_folder


@pytest.fixture
def root(tmp_path):
    (tmp_path / "pictures").mkdir()
    for row in range(3):
        Image.new("RGB", (6 + row, 5), (row, 0, 0)).save(tmp_path / "pictures" / f"{row}.png")
    return tmp_path


def test_one_column_per_class(root):
    (root / "train.csv").write_text("image,cat,dog\npictures/0.png,1,0\npictures/2.png, 0, 1\n")
    data = load_folder(root, "train")
    assert data.ids == ("pictures/0.png", "pictures/2.png")
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [[1, 0], [0, 1]]
    assert data.image(1).shape == (5, 8, 3)
    (batch,) = batches(data, batch_size=2, epoch=0, seed=0, train=False, size=4)
    assert batch["inputs"][:, 0, 0].tolist() == [[0, 0, 0], [2, 0, 0]]


def test_named_labels_have_the_classes_of_all_the_files_beside(root):
    (root / "train.csv").write_text("\ufeffimage,labels\npictures/0.png,dog; cat\npictures/1.png,\n")
    (root / "test.csv").write_text("image,labels\npictures/2.png,ape\n")
    train, test = load_folder(root, "train"), load_folder(root, "test")
    assert train.classes == test.classes == ("ape", "cat", "dog")
    assert train.labels.tolist() == [[0, 1, 1], [0, 0, 0]]
    assert test.labels.tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_images_of_any_mode_become_rgb(root, mode):
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new("RGB", (6, 5), (255, 255, 255)).convert(mode).save(root / f"x.{suffix}")
    (root / "train.csv").write_text(f"image,cat\nx.{suffix},1\n")
    image = load_folder(root, "train").image(0)
    assert (image.shape, image.dtype, int(image.min())) == ((5, 6, 3), np.uint8, 255)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("picture,cat\n0.png,1\n", r"begin with `image,`"),
        ("", r"its first line is empty"),
        ("image,cat,dog\n0.png,1\n", "row 2 has 2 cells, the header 3"),
        ("image,cat,dog\n0.png,1,0\n1.png,1,yes\n", "row 3, column 'dog' is 'yes'; write 0 or 1"),
        ("image,cat\n0.png,1\n0.png,0\n", r"lists '0\.png' twice"),
        ("image,cat,cat\n0.png,1,1\n", "each once"),
        ("image\n0.png\n", "name one or more classes"),
    ],
)
def test_a_wrong_file_is_named_with_the_place(root, text, message):
    (root / "train.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"train\.csv: .*{message}"):
        load_folder(root, "train")


def test_a_missing_file_says_what_to_write(root):
    (root / "train.csv").write_text("image,cat\n")
    with pytest.raises(
        FileNotFoundError, match=r"test\.csv is missing \(.* has train\.csv\); write one with the header"
    ):
        load_folder(root, "test")
