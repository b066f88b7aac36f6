"""Archives over HTTP from a server on this machine, under checksums that TFDS would know."""

import hashlib
import io
import resource
import sys
import tarfile
import threading
import zipfile

import numpy as np
import pytest
from cocofolder import IMAGES, write_coco
from loopback import Server
from tensorflow_datasets.core.download.checksums import UrlInfo
from vocarchive import voc_archive

from mlt_jax.data import archives, load, load_coco, load_voc

TRAINVAL, TEST = archives.ARCHIVES["voc2007"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    root, found = tmp_path_factory.mktemp("coco"), {}
    for part in ("train2014", "val2014"):
        write_coco(root, part, IMAGES)
        found[f"{part}.zip"] = [*(root / part).iterdir()]
    found["annotations_trainval2014.zip"] = [*(root / "annotations").iterdir()]
    for name, members in found.items():
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as box:
            for member in members:
                box.write(member, member.relative_to(root))
        found[name] = out.getvalue()
    return found | {TRAINVAL: voc_archive(2007, "trainval", 5), TEST: voc_archive(2007, "test", 4)}


@pytest.fixture
def server(packed, tmp_path, monkeypatch):
    """Serves the archives, whose checksums are the known ones; nothing is on the disk yet."""
    monkeypatch.setenv("MLT_JAX_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    with Server() as server:
        server.files = {f"/{name}": content for name, content in packed.items()}
        facts = {n: UrlInfo(len(c), hashlib.sha256(c).hexdigest(), n) for n, c in packed.items()}
        table = {name: (f"{server.url}/{name}", info) for name, info in facts.items()}
        monkeypatch.setattr(
            archives, "known", lambda dataset: {name: table[name] for name in archives.ARCHIVES[dataset]}
        )
        yield server


def gets(server):
    return [path for command, path in server.asked if command == "GET"]


def test_tfds_knows_every_archive_by_url_size_and_checksum():
    sizes = {name: info.size for dataset in archives.ARCHIVES for name, (_, info) in archives.known(dataset).items()}
    assert sizes == {
        TRAINVAL: 460032000, TEST: 451020800, "VOCtrainval_11-May-2012.tar": 1999639040,
        "annotations_trainval2014.zip": 252872794, "train2014.zip": 13510573713, "val2014.zip": 6645013297,
    }  # fmt: skip
    assert all(len(info.checksum) == 64 for _, info in archives.known("coco").values())


def test_voc_is_fetched_once_and_read_as_a_devkit(server, tmp_path):
    train, test = (load("voc2007", split=split) for split in ("trainval", "test"))
    assert (len(train.ids), len(test.ids)) == (5, 4)
    assert train.image(0).shape == (30, 40, 3)
    np.testing.assert_array_equal(test.labels, load_voc(tmp_path / "data" / "voc2007", 2007, "test").labels)
    assert gets(server) == [f"/{TRAINVAL}", f"/{TEST}"]
    assert {path.name for path in (tmp_path / "data").iterdir()} <= {"voc2007", "voc2007.lock", "downloads"}
    assert not [path for path in (tmp_path / "data" / "downloads").rglob("*") if path.is_file()]
    assert "tensorflow" not in sys.modules


def test_coco_is_fetched_and_read_as_its_folder(server, tmp_path):
    data = load("coco")
    assert data.ids == load_coco(tmp_path / "data" / "coco", "train").ids
    assert data.labels.sum() == 5
    assert len(load("coco", split="val").ids) == 3
    assert len(gets(server)) == 3


def test_a_cut_connection_is_made_again_and_goes_on(server):
    server.cuts[f"/{TEST}"] = [5000, 9000]
    assert len(load("voc2007").ids) == 5
    assert gets(server) == [f"/{TRAINVAL}", *[f"/{TEST}"] * 3]
    assert server.begun == [None, None, "bytes=5000-", "bytes=9000-"]


def test_a_later_call_goes_on_with_half_an_archive_and_keeps_whole_ones(server, tmp_path):
    server.cuts[f"/{TEST}"] = [5000, 5000]
    with pytest.raises(OSError, match=r"voc2007: not in .*could not be fetched \(.*after 5000 of .*put .* or pass"):
        load("voc2007")
    assert not (tmp_path / "data" / "voc2007").exists()
    kept = {path.name: path.stat().st_size for path in (tmp_path / "data" / "downloads").rglob("*.*")}
    assert kept == {TRAINVAL: len(server.files[f"/{TRAINVAL}"]), f"{TEST}.part": 5000}
    server.begun.clear()
    assert len(load("voc2007").ids) == 5
    assert server.begun == ["bytes=5000-"]


def test_a_wrong_checksum_is_refused_and_fetched_anew(server, tmp_path):
    right = server.files[f"/{TEST}"]
    server.files[f"/{TEST}"] = right[:-1] + b"x"
    with pytest.raises(OSError, match="does not have the checksum"):
        load("voc2007")
    assert not (tmp_path / "data" / "voc2007").exists()
    server.files[f"/{TEST}"] = right
    assert len(load("voc2007").ids) == 5


def test_a_wrong_archive_put_there_by_hand_is_named_and_kept(server, tmp_path):
    manual = tmp_path / "data" / "downloads" / "manual"
    manual.mkdir(parents=True)
    (manual / TEST).write_bytes(b"another file")
    with pytest.raises(OSError, match=rf"{TEST} does not have the checksum that TFDS knows: replace it"):
        load("voc2007")
    assert (manual / TEST).read_bytes() == b"another file"


def test_without_a_network_the_line_says_where_it_looked_and_what_to_put_where(server, packed, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(
        OSError, match=r"voc2007: not in .*data or .*tfds.*refused.*put VOCtrainval.* into .*manual"
    ) as e:
        load("voc2007")
    assert "\n" not in str(e.value)
    # What the line says helps.
    manual = tmp_path / "data" / "downloads" / "manual"
    manual.mkdir(parents=True, exist_ok=True)
    for name in (TRAINVAL, TEST):
        (manual / name).write_bytes(packed[name])
    assert len(load("voc2007").ids) == 5
    assert (manual / TEST).exists()


def test_no_space_is_said_before_and_while_writing(server, monkeypatch, tmp_path):
    table = archives.known("voc2007")
    url, info = table[TEST]
    table[TEST] = (url, UrlInfo(10**18, info.checksum, TEST))
    with monkeypatch.context() as patch:
        patch.setattr(archives, "known", lambda dataset: table)
        with pytest.raises(OSError, match=r"2000000000 GB needed in .* free"):
            load("voc2007")
    assert gets(server) == []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(OSError, match=r"could not be fetched .*File too large"):
            load("voc2007")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    left = {path.name: path.stat().st_size for path in (tmp_path / "data").rglob("*") if path.is_file()}
    assert {name: size for name, size in left.items() if size} == {f"{TRAINVAL}.part": 8192}
    assert len(load("voc2007").ids) == 5


def test_two_that_ask_at_once_fetch_once(server):
    found = []
    threads = [threading.Thread(target=lambda: found.append(load("voc2007").ids)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert len(gets(server)) == 2


def test_what_tfds_has_unpacked_is_read_where_it_is(server, packed, tmp_path):
    folder = tmp_path / "tfds" / "downloads" / "extracted" / "TAR.VOCtest"
    with tarfile.open(fileobj=io.BytesIO(packed[TEST])) as tar:
        tar.extractall(folder, filter="data")
    assert archives.find("voc2007", "test") == folder
    assert archives.find("voc2007", "trainval") is None
    assert len(load("voc2007", split="test").ids) == 4
    assert server.asked == []


def test_a_split_without_labels_fetches_nothing(server):
    with pytest.raises(ValueError, match="split: 'test' is unknown"):
        load("voc2012", split="test")
    assert server.asked == []
