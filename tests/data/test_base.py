import numpy as np
import pytest
from PIL import Image

from mlt_jax.data.base import ArrayImages, Dataset, Files, ImageError, Views, check_split, read_image, stamp

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
    assert dataset().take([0])[4:] == (None, None, None, None)
    maps = np.arange(24.0).reshape(4, 2, 1, 1, 3)
    views = whole._replace(views=Views(maps, np.arange(4))).take([3, 1]).take([1, 0]).views
    np.testing.assert_array_equal(views.take(np.array([0, 1]), np.array([1, 0])), [maps[1, 1], maps[3, 0]])


def test_a_stamp_tells_a_file_by_size_and_time_and_any_image_by_its_content(tmp_path):
    paths = tuple(tmp_path / name for name in ("a.png", "b.png"))
    for path, pixels in zip(paths, PIXELS, strict=False):
        Image.fromarray(pixels).save(path)
    files = dataset(image=Files(paths)).take([1, 0]).image
    found = stamp(files, 0)
    assert found[:2] == (paths[1].stat().st_size, paths[1].stat().st_mtime_ns)
    assert found.digest() == stamp(files, 0).digest() != stamp(files, 1).digest()
    memory = ArrayImages(PIXELS)
    assert stamp(memory, 1)[:2] == (PIXELS[1].size, 0)
    assert stamp(memory, 1).digest() == stamp(ArrayImages(PIXELS[1:]), 0).digest() != stamp(memory, 2).digest()
    paths[0].unlink()
    with pytest.raises(ImageError, match=r"a\.png: cannot be read"):
        stamp(files, 1)


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


@pytest.mark.parametrize("end", ["png", "tif", "pgm"])
def test_16_bits_are_scaled_not_clipped(tmp_path, end):
    path, deep = tmp_path / f"xray.{end}", np.array([[0, 257, 25700], [40000, 65278, 65535]], np.uint16)
    Image.fromarray(deep).save(path)
    expected = np.rint(deep / 257).astype(np.uint8)
    np.testing.assert_array_equal(read_image(path, "a"), np.repeat(expected[:, :, None], 3, axis=2))


def test_a_tiff_with_12_bits_or_with_white_as_0_is_read_as_stored(tmp_path):
    deep = np.array([[0, 4095], [819, 1638]], np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.tif", tiffinfo={262: 0})
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif", "a")[:, :, 0], np.rint(255 - deep / 257))
    packed = bytes([0x00, 0x0F, 0xFF, 0x33, 0x36, 0x66])  # two numbers of 12 bits in three bytes
    entries = [(256, 3, 2), (257, 3, 2), (258, 3, 12), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1), (278, 3, 2),
               (279, 4, 6)]  # fmt: skip
    head = b"II*\0" + (14).to_bytes(4, "little") + packed + len(entries).to_bytes(2, "little")
    fields = b"".join(tag.to_bytes(2, "little") + kind.to_bytes(2, "little") + (1).to_bytes(4, "little")
                      + value.to_bytes(4, "little") for tag, kind, value in entries)  # fmt: skip
    np.testing.assert_array_equal(read_image(head + fields + bytes(4), "a")[:, :, 0], [[0, 255], [51, 102]])


def test_floats_in_0_to_1_are_scaled_and_others_refused_by_name(tmp_path):
    path, values = tmp_path / "map.tiff", np.array([[0, 0.2], [0.6, 1]], np.float32)
    Image.fromarray(values).save(path)
    np.testing.assert_array_equal(read_image(path, path)[:, :, 1], [[0, 51], [153, 255]])
    for wrong in (values * 300, values - 0.5, values * np.nan):
        Image.fromarray(wrong).save(path)
        with pytest.raises(ImageError, match=r"map\.tiff: cannot be read .*its values go from .*save it with 8 or 16"):
            read_image(path, path)
    Image.fromarray(np.array([[0, 70000]], np.int32)).save(path)
    with pytest.raises(ImageError, match=r"map\.tiff: .*32 bits have no known range"):
        read_image(path, path)


@pytest.mark.parametrize("end", ["jpg", "png"])
def test_the_camera_s_orientation_is_applied(tmp_path, end):
    path, exif = tmp_path / f"photo.{end}", Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by 90 degrees
    wide = np.zeros((8, 16, 3), np.uint8)
    wide[:, :8] = 255  # white on the left, which comes to lie on top
    Image.fromarray(wide).save(path, exif=exif)
    found = read_image(path, path)
    assert found.shape == (16, 8, 3)
    assert found[:8].min() > 200
    assert found[8:].max() < 50


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(ImageError, match=r"none\.png: cannot be read \(FileNotFoundError"):
        Files((tmp_path / "none.png",))(0)


def test_an_unknown_split_lists_those_there_are():
    check_split("val", ("train", "val"), "here")
    with pytest.raises(ValueError, match="split: 'test' is unknown; here has 'train', 'val'"):
        check_split("test", ("train", "val"), "here")
    with pytest.raises(ValueError, match="here has none"):
        check_split("test", (), "here")
