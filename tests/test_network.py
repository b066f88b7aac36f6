import pytest
from loopback import Server

from mlt_jax.network import download, reach


def test_a_server_that_answers_is_reached_whatever_it_says_and_a_closed_one_is_not():
    with Server() as server:
        reach(f"{server.url}/none")
        assert server.asked == [("HEAD", "/none")]
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:\d+/none: .*refused"):
        reach(f"{server.url}/none")


def test_a_download_goes_on_where_it_was_cut_and_bears_its_name_when_it_is_whole(tmp_path):
    content = bytes(range(256)) * 100
    with Server() as server:
        server.files["/file"], server.cuts["/file"] = content, [1000, 1000]
        with pytest.raises(ConnectionError, match=r"file: it sent nothing more \(broke off after 1000 of 25600 "):
            download(f"{server.url}/file", tmp_path / "file", size=len(content))
        assert [path.name for path in tmp_path.iterdir()] == ["file.part"]
        download(f"{server.url}/file", tmp_path / "file", size=len(content))
        assert server.begun == [None, "bytes=1000-", "bytes=1000-"]
    assert (tmp_path / "file").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("came", [1000, 30_000])
def test_a_download_starts_over_where_the_server_knows_no_ranges_or_the_half_is_too_long(tmp_path, came):
    content = bytes(range(256)) * 100
    (tmp_path / "file.part").write_bytes(b"x" * came)
    with Server() as server:
        server.files["/file"], server.ranges = content, False
        download(f"{server.url}/file", tmp_path / "file", size=len(content))
    assert (tmp_path / "file").read_bytes() == content


def test_a_closed_server_is_said_and_leaves_nothing(tmp_path):
    with Server() as server:
        pass
    with pytest.raises(ConnectionError, match=r"/file: .*refused$"):
        download(f"{server.url}/file", tmp_path / "file", size=10)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_said_with_the_servers_answer(tmp_path):
    with Server() as server, pytest.raises(ConnectionError, match="/none: the server answers 404"):
        download(f"{server.url}/none", tmp_path / "none", size=10)
