import base64
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from mlt_jax.report.thumbnails import in_folder, pictures


def opened(uri):
    head, _, body = uri.partition(",")
    image = Image.open(BytesIO(base64.b64decode(body)))
    assert head == f"data:image/{image.format.lower()};base64"
    return image


def test_pictures_are_small_and_those_that_cannot_be_read_are_left_out(tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    Image.new("RGB", (300, 200), (255, 0, 0)).save(tmp_path / "large.png")
    sources = {
        1: np.full((90, 120, 3), 200, np.uint8),
        2: tmp_path / "broken.jpg",
        3: None,
        4: np.zeros((30, 40), np.uint8),
        5: tmp_path / "large.png",
        6: tmp_path / "none.png",
    }
    found = pictures([5, 1, 2, 3, 4, 5, 6], sources.get, beside=tmp_path / "pages")
    assert list(found.thumbs) == [5, 1, 4]
    assert [opened(uri).size for uri in found.thumbs.values()] == [(160, 107), (120, 90), (40, 30)]
    assert [opened(uri).format for uri in found.thumbs.values()] == ["JPEG", "JPEG", "PNG"]
    assert found.links == {5: "../large.png"}
    assert str(found).startswith(
        "Pictures: 3 of 6 are in the page (0.0 MB); 3 are not shown. A click shows the original"
    )


def test_the_worst_come_first_as_far_as_bytes_go_and_files_are_linked_beyond(tmp_path):
    image = np.zeros((8, 8, 3), np.uint8)
    Image.fromarray(image).save(tmp_path / "50% #1.png")
    Image.fromarray(image).save(tmp_path / "scan.tif")
    megabytes = 2.5 * len(pictures([0], lambda row: image, beside=tmp_path).thumbs[0]) / 1e6
    asked = []

    def array(row):
        asked.append(row)
        return image

    found = pictures(range(9, 0, -1), array, beside=tmp_path, embed=megabytes)
    assert list(found.thumbs) == [9, 8]
    assert asked == [9, 8, 7, 6]  # and none that could not be shown
    assert str(found) == "Pictures: 2 of 9 are in the page (0.0 MB); 7 are not shown."
    names = ["50% #1.png"] * 8 + ["scan.tif"]  # which browsers do not show
    found = pictures(range(9), lambda row: tmp_path / names[row], beside=tmp_path, embed=megabytes)
    assert list(found.thumbs) == [0, 1]
    assert found.links == dict.fromkeys(range(8), "50%25%20%231.png")
    assert "2 of 9 are in the page (0.0 MB); 6 are loaded from the image folder; 1 are not shown." in str(found)


def test_files_are_found_by_name_with_or_without_extension_or_folder(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.png", "deep/b.jpg", "deep/c.JPG"):
        Image.new("RGB", (3, 2)).save(tmp_path / name, "PNG")
    (tmp_path / "notes.txt").write_text("no picture")
    look = in_folder(tmp_path, ["a", "b.jpg", "deep/c", "elsewhere/b", "notes"])
    found = [look(row) for row in range(5)]
    assert [path and path.name for path in found] == ["a.png", "b.jpg", "c.JPG", "b.jpg", None]


def test_a_folder_without_the_examples_pictures_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such folder of images"):
        in_folder(tmp_path / "none", ["a"])
    with pytest.raises(ValueError, match='no image is named like an id such as "a"; it holds 0, none at all'):
        in_folder(tmp_path, ["a"])
    Image.new("RGB", (3, 2)).save(tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"it holds 1, such as x\.png"):
        in_folder(tmp_path, ["a"])


def test_deep_pictures_are_scaled_and_turned_ones_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 8
    Image.fromarray(np.full((10, 20), 30000, np.uint16)).save(tmp_path / "xray.png", exif=exif)
    small = opened(pictures([0], lambda row: tmp_path / "xray.png", beside=tmp_path).thumbs[0])
    assert small.size == (10, 20)
    assert np.unique(small).tolist() == [117]


def test_no_picture_of_another_folder_or_of_several_is_shown(tmp_path):
    for name in ("train/0.png", "a/1.png", "b/1.png", "c/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    found = in_folder(tmp_path, ("train/0", "val/0", "1", "2"))
    assert [found(row) and str(found(row).relative_to(tmp_path)) for row in range(4)] == [
        "train/0.png", None, None, "c/2.png",
    ]  # fmt: skip
