"""Text files: the separator and the encoding are found, or asked for."""

import pytest

from mlt_jax.files.text import csv_rows, read_text

MARKS = [(",", "t.csv"), (";", "t.csv"), ("\t", "t.csv"), ("|", "t.txt"), ("\t", "t.tsv")]


@pytest.mark.parametrize(("mark", "name"), MARKS)
def test_the_separator_is_the_one_that_cuts_all_lines_alike(tmp_path, mark, name):
    (tmp_path / name).write_text(f"id{mark}cat\na{mark}1\n'=b{mark}0\n")
    found = read_text(tmp_path / name)
    assert found == (["id", "cat"], [["a", "1"], ["=b", "0"]], mark, "utf-8", True, "\n")
    assert csv_rows(tmp_path / name) == found[:2]


@pytest.mark.parametrize(("content", "message"), [
    ("id,c\na,1\n\u00fc,0\n".encode("cp1252"), r"byte 0xfc in line 3\); pass --encoding cp1252"),
    ("id,c\na,1\n".encode("utf-16-le"), "pass --encoding utf-16-le"),
    ("id,c\n\u00fc,1\n".encode("utf-16-le"), "pass --encoding utf-16-le"),
    (b"id,c,d\na,1\n", 'line 2 has 2 cells, the header 3; cells are separated by ","'),
])  # fmt: skip
def test_what_cannot_be_read_says_what_to_pass(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_text(tmp_path / "t.csv")


def test_encodings_are_taken_from_the_mark_or_the_caller(tmp_path):
    for encoding, asked in (("utf-16", None), ("utf-8-sig", None), ("cp1252", "cp1252")):
        (tmp_path / "t.csv").write_bytes("id,c\n\u00fc,1\n".encode(encoding))
        assert read_text(tmp_path / "t.csv", encoding=asked)[1:] == ([["\u00fc", "1"]], ",", encoding, False, "\n")


def test_an_encoding_is_for_the_files_that_are_not_plainly_utf8(tmp_path):
    path = tmp_path / "t.csv"
    for written, used in (("utf-8", "utf-8"), ("utf-16", "utf-16"), ("utf-8-sig", "utf-8-sig"), ("cp1252", "cp1252")):
        path.write_bytes("id,größe\na,1\n".encode(written))
        text = read_text(path, encoding="cp1252")
        assert (text.header, text.encoding) == (["id", "größe"], used)
