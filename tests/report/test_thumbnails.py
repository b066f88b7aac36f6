import base64
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from mlt_jax.report import thumbnails as module
from mlt_jax.report.thumbnails import in_folder, thumbnails


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
    found = thumbnails([5, 1, 2, 3, 4, 5, 6], sources.get)
    assert list(found) == [5, 1, 4]
    assert [opened(uri).size for uri in found.values()] == [(160, 107), (120, 90), (40, 30)]
    assert [opened(uri).format for uri in found.values()] == ["JPEG", "JPEG", "PNG"]


def test_the_worst_come_first_as_far_as_number_and_bytes_go(monkeypatch):
    image = np.zeros((8, 8, 3), np.uint8)
    monkeypatch.setattr(module, "_MOST", 3)
    assert list(thumbnails(range(9, 0, -1), lambda row: image)) == [9, 8, 7]
    monkeypatch.setattr(module, "_MOST_BYTES", 2 * len(thumbnails([0], lambda row: image)[0]))
    assert list(thumbnails(range(9), lambda row: image)) == [0, 1]


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
    small = opened(thumbnails([0], lambda row: tmp_path / "xray.png")[0])
    assert small.size == (10, 20)
    assert np.unique(small).tolist() == [117]
