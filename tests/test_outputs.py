import contextlib
import csv
import os

import pytest

from mlt_jax.outputs import atomic, check_outputs, guarded, unguarded, write_csv


def test_a_file_appears_whole_or_not_at_all_and_nothing_is_left_behind(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic(path) as file:
        file.write("first")
        assert not path.exists()
    with contextlib.suppress(KeyboardInterrupt), atomic(path) as file:
        file.write("second")
        raise KeyboardInterrupt
    assert path.read_text() == "first"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_draft_follows_no_link(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "a.txt.part").symlink_to(tmp_path / "precious")
    with atomic(tmp_path / "a.txt") as file:
        file.write("new")
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.parametrize(
    "cell", ["=1+1", "+cmd", "-cmd", "@x", "\tx", "'=x", "''=x", "'x", "x", "-1.5", "+3", "", "a=b"]
)
def test_formulas_are_guarded_and_come_back_unchanged(cell, tmp_path):
    path = write_csv(tmp_path / "a.csv", [[cell, "y"]])
    with path.open(newline="") as file:
        written = next(csv.reader(file))[0]
    assert not written.startswith(("=", "+c", "-c", "@", "\t"))
    assert unguarded(written) == cell
    assert guarded(cell) == written


def test_no_output_replaces_an_input_a_folder_or_a_strangers_file(tmp_path):
    given, other = tmp_path / "labels.csv", tmp_path / "notes.json"
    given.write_text("x")
    other.write_text("y")
    (tmp_path / "same").symlink_to(given)
    for path in (given, tmp_path / "same", tmp_path / "x" / ".." / "labels.csv"):
        with pytest.raises(ValueError, match="would replace an input"):
            check_outputs([path], [given, None], ours=lambda path: True, force=True)
    with pytest.raises(ValueError, match="is a folder"):
        check_outputs([tmp_path], [given], ours=lambda path: True)
    with pytest.raises(ValueError, match="was not written by mlt"):
        check_outputs([other], [given], ours=lambda path: False)
    check_outputs([other], [given], ours=lambda path: False, force=True)
    check_outputs([other, tmp_path / "new"], [given], ours=lambda path: path == other)
