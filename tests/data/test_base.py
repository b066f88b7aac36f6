import numpy as np
import pytest
from PIL import Image

from mlt_jax.data.base import ArrayImages, Dataset, Files, ImageError, check_split, read_image

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3, 2, 3), dtype=np.uint8)


def dataset(**more):
    labels = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], np.uint8)
    return Dataset("tiny", tuple("abcd"), ("cat", "dog"), labels, **more)


def test_taken_rows_are_in_their_order_in_every_field():
    whole = dataset(ignore=np.eye(4, 2, dtype=bool), image=ArrayImages(PIXELS), features=np.arange(12.0).reshape(4, 3))
    part = whole.take([3, 1])
    assert (part.name, part.ids, part.classes) == ("tiny", ("d", "b"), ("cat", "dog"))
    assert part.labels.tolist() == [[0, 0], [0, 1]]
    assert part.ignore.tolist() == [[False, False], [False, True]]
    assert part.features.tolist() == [[9, 10, 11], [3, 4, 5]]
    assert isinstance(part.image, ArrayImages)
    np.testing.assert_array_equal(part.image(0), PIXELS[3])
    assert dataset().take([0])[4:] == (None, None, None)


def test_images_in_files_are_taken_without_being_read(tmp_path):
    paths = tuple(tmp_path / f"{row}.png" for row in range(4))
    part = dataset(image=Files(paths)).take(np.array([2, 0])).take([1])
    Image.fromarray(PIXELS[0]).save(paths[0])
    np.testing.assert_array_equal(part.image(0), PIXELS[0])


def test_an_image_is_read_from_a_file_or_its_bytes_as_rgb(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(PIXELS[0]).save(path)
    for source in (path, path.read_bytes()):
        np.testing.assert_array_equal(read_image(source, "a"), PIXELS[0])
    Image.fromarray(PIXELS[0]).convert("L").save(path)
    assert read_image(path, "a").shape == (3, 2, 3)


@pytest.mark.parametrize("harm", [lambda content: b"", lambda content: content[:40], lambda content: b"no image"])
def test_a_broken_image_is_named(tmp_path, harm):
    path = tmp_path / "a.png"
    Image.fromarray(PIXELS[0]).save(path)
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(ImageError, match=r"image .*a\.png: cannot be read \(\w+: "):
        Files((path,))(0)
    with pytest.raises(ImageError, match="image row 7: cannot be read"):
        read_image(path.read_bytes(), "row 7")


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(ImageError, match=r"none\.png: cannot be read \(FileNotFoundError"):
        Files((tmp_path / "none.png",))(0)


def test_an_unknown_split_lists_those_there_are():
    check_split("val", ("train", "val"), "here")
    with pytest.raises(ValueError, match="split: 'test' is unknown; here has 'train', 'val'"):
        check_split("test", ("train", "val"), "here")
    with pytest.raises(ValueError, match="here has none"):
        check_split("test", (), "here")
