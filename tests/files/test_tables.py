"""Tables in files: every reader, ids and class names, rows and columns brought into one order, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from mlt_jax.files.columns import ID_COLUMNS, Table
from mlt_jax.files.tables import (
    align,
    features_like,
    read_groups,
    read_share,
    read_table,
    rows_like,
)

VALUES = np.array([[1, 0, 0.5], [0, 1, 0.25]], np.float32)
NAMES, IDS = ("cat", "dog", "naïve, cow"), ("a.jpg", "b.jpg")


def text(folder, content, name="t.csv"):
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def table(values=VALUES, classes=NAMES, ids=IDS, name="t.csv"):
    return Table(name, np.asarray(values, np.float32), classes, ids)


@pytest.fixture
def frame():
    return pd.DataFrame(VALUES, columns=NAMES, index=pd.Index(IDS, name="image"))


@pytest.mark.parametrize("form", ["csv", "tsv", "npz", "parquet"])
def test_every_form_keeps_numbers_names_and_ids(frame, tmp_path, form):
    path = tmp_path / f"t.{form}"
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        frame.reset_index().to_parquet(path)
    elif form == "npz":
        np.savez(path, probs=VALUES, classes=np.array(NAMES), names=np.array(IDS), other=np.zeros((9, 9)))
    else:
        frame.to_csv(path, sep="\t" if form == "tsv" else ",")
    found = read_table(path)
    assert found.path == path
    np.testing.assert_array_equal(found.values, VALUES)
    assert found.values.dtype == np.float32
    assert (found.classes, found.ids) == (NAMES, IDS)


def test_the_index_of_a_parquet_file_is_its_ids(tmp_path):
    frame = pd.DataFrame(VALUES, columns=list(NAMES), index=pd.Index(IDS, name="scan"))
    frame.iloc[::-1].to_parquet(tmp_path / "turned.parquet")
    found = read_table(tmp_path / "turned.parquet")
    assert (found.ids, found.classes, found.key) == (IDS[::-1], NAMES, "scan")
    frame.to_parquet(tmp_path / "t.parquet")
    np.testing.assert_array_equal(align(found, read_table(tmp_path / "t.parquet")).values, VALUES)


def test_row_numbers_in_another_order_are_not_taken_for_positions(tmp_path):
    frame = pd.DataFrame(VALUES, columns=list(NAMES))
    frame.to_parquet(tmp_path / "t.parquet")
    frame.iloc[::-1].to_parquet(tmp_path / "turned.parquet")
    plain, turned = (read_table(tmp_path / f"{name}.parquet") for name in ("t", "turned"))
    for one, other in ((plain, turned), (turned, plain)):
        for match in (align, features_like):
            with pytest.raises(ValueError, match=r"turned\.parquet: ids are the row numbers in another order"):
                match(one, other)


def test_an_index_without_a_name_in_csv_is_the_ids(tmp_path):
    frame = pd.DataFrame(VALUES, columns=list(NAMES))
    for name in ("", "Unnamed: 0"):
        frame.iloc[::-1].to_csv(tmp_path / "turned.csv", index_label=name)
        frame.to_csv(tmp_path / "t.csv", index_label=name)
        found, like = read_table(tmp_path / "turned.csv"), read_table(tmp_path / "t.csv")
        assert (found.ids, found.classes, found.key) == (("1", "0"), NAMES, name)
        np.testing.assert_array_equal(align(found, like).values, VALUES)


def test_ids_that_are_whole_numbers_with_a_point_are_ids_and_fractions_a_class(tmp_path):
    assert read_table(text(tmp_path, "id,cat\n7.0,1\n8.0,0\n")).ids == ("7.0", "8.0")
    assert read_table(text(tmp_path, "id,cat\n.7,1\n.8,0\n")).classes == ("id", "cat")


def test_arrays_without_names_have_none(tmp_path):
    np.save(tmp_path / "t.npy", VALUES > 0.3)
    np.savez(tmp_path / "t.npz", anything=VALUES)
    assert read_table(tmp_path / "t.npy")[2:5] == read_table(tmp_path / "t.npz")[2:5] == (None, None, None)
    np.testing.assert_array_equal(read_table(tmp_path / "t.npy").values, [[1, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(read_table(tmp_path / "t.npz").values, VALUES)


@pytest.mark.parametrize("name", [*ID_COLUMNS, "Image", "ID"])
def test_a_column_of_ids_is_known_by_its_name_wherever_it_stands(tmp_path, name):
    found = read_table(text(tmp_path, f"cat,{name},dog\n1,7,0\n0,8,1\n"))
    assert (found.classes, found.ids) == (("cat", "dog"), ("7", "8"))
    np.testing.assert_array_equal(found.values, [[1, 0], [0, 1]])


def test_a_first_column_of_words_holds_the_ids_and_one_of_numbers_does_not(tmp_path):
    assert read_table(text(tmp_path, "key,cat\nx,1\ny,0\n")).ids == ("x", "y")
    found = read_table(text(tmp_path, "key,cat\n1,1\n,0\n"))
    assert (found.classes, found.ids) == (("key", "cat"), None)
    assert read_table(text(tmp_path, "\ufeffcat , dog\n 1,0\n\n0, 1\n")).classes == ("cat", "dog")


def test_an_empty_cell_is_unknown(tmp_path, frame):
    found = read_table(text(tmp_path, "id,cat,dog\na,,1\nb,0, \n"))
    np.testing.assert_array_equal(found.values, [[np.nan, 1], [0, np.nan]])
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame.iloc[0, 1] = np.nan
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    assert np.isnan(read_table(tmp_path / "t.parquet").values).tolist() == [[False, True, False], [False] * 3]


def test_lists_of_classes_become_columns(tmp_path):
    path = text(tmp_path, "id,labels\na,dog; cat\nb,\nc,cat\n")
    found = read_table(path)
    assert (found.classes, found.ids) == (("cat", "dog"), ("a", "b", "c"))
    np.testing.assert_array_equal(found.values, [[1, 1], [0, 0], [1, 0]])
    np.testing.assert_array_equal(read_table(path, classes=("dog", "cow", "cat")).values[0], [1, 0, 1])
    with pytest.raises(ValueError, match='line 2 lists "dog", which is none of cat, cow'):
        read_table(path, classes=("cat", "cow"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,cat\n", "has 1 lines; pass a header with the class names and a line per example"),
        ("id,cat,dog\na,1,0\nb,1\n", "line 3 has 2 cells, the header 3"),
        ("1,0\n0,1\n1,1\n0,0\n".replace("1,0", "1,1", 1), "its first line is numbers; begin with a header"),
        ("0.5,0.7\n0.1,0.2\n", "its first line is numbers"),
        ("id,cat,dog\na,1,0\nb,0,yes\n", 'line 3, column "dog" is "yes"; write a number'),
        ("id,cat,cat\na,1,0\n", 'classes are not distinct, "cat" occurs twice'),
        ("id,cat\na,1\nb,0\na,1\n", 'ids are not distinct, "a" occurs twice'),
        ("id\na\nb\n", r"has shape \(2, 0\); pass one row per example and one column per class"),
    ],
)
def test_a_wrong_csv_is_named_with_the_place(tmp_path, content, message):
    with pytest.raises(ValueError, match=rf"t\.csv: {message}"):
        read_table(text(tmp_path, content))


def test_other_wrong_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.csv: there is no such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"t\.xlsx: cannot read \.xlsx; pass \.csv, \.tsv, \.npy, \.npz, \.parquet"):
        read_table(text(tmp_path, "", "t.xlsx"))
    with pytest.raises(ValueError, match="cannot read a file without extension"):
        read_table(text(tmp_path, "", "table"))
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00\x01" * 50)
    with pytest.raises(ValueError, match=r"t\.csv: is no CSV in UTF-8"):
        read_table(tmp_path / "t.csv")
    for form, words in (("npy", "npy file of numbers"), ("npz", "npz file of arrays"), ("parquet", "parquet file")):
        with pytest.raises(ValueError, match=rf"t\.{form}: is no {words}"):
            read_table(text(tmp_path, "junk", f"t.{form}"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": VALUES, "b": VALUES}, "holds a, b; name one array labels, probs or features"),
        ({"labels": VALUES, "probs": VALUES}, "holds labels, probs; name one array"),
        ({"labels": VALUES, "ids": np.array(["a"])}, "1 ids for 2; pass as many"),
        ({"labels": VALUES, "classes": np.array(["a"])}, "1 classes for 3; pass as many"),
        ({"labels": VALUES.astype(str)}, "has dtype <U.*; pass real numbers"),
        ({"labels": VALUES[0]}, r"has shape \(3,\)"),
    ],
)
def test_wrong_arrays_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(ValueError, match=rf"t\.npz: {message}"):
        read_table(tmp_path / "t.npz")


def test_pickled_arrays_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"evil": 1}], dtype=object))
    with pytest.raises(ValueError, match="no npy file of numbers"):
        read_table(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", labels=np.array([{"evil": 1}], dtype=object))
    with pytest.raises(ValueError, match="no npz file of arrays without pickle"):
        read_table(tmp_path / "a.npz")


def test_words_in_a_parquet_column_are_named(tmp_path, frame):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame.assign(cow="yes").reset_index().to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r't\.parquet: row 0, column "cow" is "yes"; write a number'):
        read_table(tmp_path / "t.parquet")


def test_rows_and_columns_come_into_the_order_of_the_other_table():
    shuffled = table(VALUES[::-1][:, [2, 0, 1]], ("naïve, cow", "cat", "dog"), ("b.jpg", "a.jpg"), "p.csv")
    found = align(shuffled, table())
    np.testing.assert_array_equal(found.values, VALUES)
    assert (found.path, found.classes, found.ids) == ("p.csv", NAMES, IDS)


def test_tables_without_names_go_by_position(tmp_path):
    values = np.random.default_rng(0).random((5, 3)).astype(np.float32)
    np.save(tmp_path / "a.npy", values)
    pd.DataFrame(values, columns=["0", "1", "2"]).to_csv(tmp_path / "b.csv", index=False)
    plain, named = read_table(tmp_path / "a.npy"), read_table(tmp_path / "b.csv")
    assert named.classes == ("0", "1", "2")  # digits are names, too
    for both in (align(plain, named), align(named, plain)):
        assert both.classes == named.classes
        np.testing.assert_allclose(both.values, named.values, rtol=1e-6)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (table(classes=("cat", "dog", "ape")), 'column "naïve, cow" is missing, l.csv has it'),
        (table(VALUES[:, [0, 1, 2, 2]], (*NAMES, "ape")), 'column "ape" is not in l.csv; drop it'),
        (table(ids=("a.jpg", "c.jpg")), '1 ids of l.csv are missing, the first is "b.jpg"'),
        (table(VALUES[[0, 1, 1]], ids=(*IDS, "c.jpg")), '1 ids are not in l.csv, the first is "c.jpg"'),
        (table(VALUES[:1], ids=None), "1 rows, l.csv has 2; pass the same examples"),
        (table(VALUES[:, :2], None), "2 columns, l.csv has 3"),
    ],
)
def test_tables_that_do_not_match_are_named(other, message):
    with pytest.raises(ValueError, match=rf"^t\.csv: {message}"):
        align(other, table(name="l.csv"))


def test_rows_are_found_by_id_whatever_the_columns():
    others = table(np.zeros((3, 9)), None, ("b.jpg", "c.jpg", "a.jpg"))
    assert rows_like(others, table()) == [2, 0]
    with pytest.raises(ValueError, match=r'1 ids of l\.csv are missing, the first is "c\.jpg"'):
        rows_like(table(), others._replace(path="l.csv"))


@pytest.mark.parametrize("form", ["csv", "tsv", "npz", "parquet", "lists"])
def test_a_column_of_groups_is_no_class(tmp_path, frame, form):
    path = tmp_path / f"t.{'csv' if form == 'lists' else form}"
    frame.insert(0, "patient", ["p 7", "p 7"])
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        frame.reset_index().to_parquet(path)
    elif form == "npz":
        np.savez(path, labels=VALUES, classes=np.array(NAMES), ids=np.array(IDS), patient=np.array(["p 7", "p 7"]))
    elif form == "lists":
        text(tmp_path, "patient,id,labels\np 7,a.jpg,cat\np 7,b.jpg,dog;cow\n")
    else:
        frame.to_csv(path, sep="\t" if form == "tsv" else ",", index_label="id")
    found = read_table(path, groups="patient")
    assert (found.ids, found.groups) == (IDS, ("p 7", "p 7"))
    assert found.classes == (("cat", "cow", "dog") if form == "lists" else NAMES)
    assert read_groups("patient", found) == ("p 7", "p 7")
    assert read_table(path if form == "npz" else text(tmp_path, "cat\n1\n", "u.csv"), groups="clinic").groups is None


def test_groups_in_a_file_are_matched_by_id_or_by_position(tmp_path):
    by_id = text(tmp_path, "patient,image\n4,c.jpg\n5,b.jpg\n6,a.jpg\n", "by_id.csv")
    assert read_groups(str(by_id), table()) == ("6", "5")
    assert read_groups(str(text(tmp_path, "key,patient\nb.jpg,x\na.jpg,y\n")), table()) == ("y", "x")
    assert read_groups(str(text(tmp_path, "patient\nx\ny\n")), table()) == ("x", "y")
    assert read_groups(str(by_id), table(VALUES[[0, 0, 1]], ids=None)) == ("4", "5", "6")
    np.save(tmp_path / "g.npy", np.array([3, 1]))
    assert read_groups(str(tmp_path / "g.npy"), table()) == ("3", "1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r'groups: "t\.csv" is neither a column of l\.csv nor a file; pass one of them'),
        ("id,a,b\nx,1,2\n", r"t\.csv: has 3 columns; pass an id and a group, or only a group"),
        ("id,a\na.jpg,1\nb.jpg,\n", r"t\.csv: line 3 has no group; give it one of its own"),
        ("id,a\na.jpg,1\n", r'1 ids of l\.csv are missing, the first is "b\.jpg"'),
        ("a\n1\n", r"t\.csv: 1 groups, l\.csv has 2 rows; pass as many"),
    ],
)
def test_groups_that_do_not_fit_are_named(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    if content:
        text(tmp_path, content)
    with pytest.raises(ValueError, match=message):
        read_groups("t.csv", table(name="l.csv"))


def test_a_row_without_a_group_is_named(tmp_path):
    with pytest.raises(ValueError, match="row 1 has no group; give it one of its own"):
        read_table(text(tmp_path, "cat,patient\n1,p\n0,\n"), groups="patient")


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_shares_of_a_matrix_are_disjoint_and_complete(tmp_path, parts):
    whole = (np.random.default_rng(0).random((11, 4)) < 0.4).astype(np.uint8)
    np.save(tmp_path / "a.npy", whole)
    sp.save_npz(tmp_path / "a.npz", sp.coo_array(whole))
    dense, sparse = ([read_share(tmp_path / f"a.{form}", k, parts) for k in range(parts)] for form in ("npy", "npz"))
    np.testing.assert_array_equal(np.concatenate(dense), whole)
    np.testing.assert_array_equal(np.concatenate([share.toarray() for share in sparse]), whole)
    assert max(map(len, dense)) - min(map(len, dense)) <= 1


def test_a_file_that_is_no_matrix_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", labels=VALUES)
    with pytest.raises(ValueError, match=r"a\.npz: is neither npz of scipy\.sparse\.save_npz nor npy of numpy\.save"):
        read_share(tmp_path / "a.npz", 0, 1)
    np.save(tmp_path / "a.npy", VALUES[0])
    with pytest.raises(ValueError, match=r"a\.npy: has shape \(3,\); pass one row per example"):
        read_share(tmp_path / "a.npy", 0, 1)
    with pytest.raises(ValueError, match=r"none\.npy: there is no such file"):
        read_share(tmp_path / "none.npy", 0, 1)
