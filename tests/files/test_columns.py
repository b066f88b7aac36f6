"""Columns: words, lists and ids are known by their content."""

from pathlib import Path

import numpy as np
import pytest

from mlt_jax.files.columns import Reading, Source, as_table, joined, split_lists
from mlt_jax.files.tables import read_table

FORMS = [["a;b", "", "a"], ["a|b", "", "a"], ["['a', 'b']", "[]", "['a']"], ["['a' 'b']", "[]", "['a']"],
         [["a", "b"], [], ["a"]]]  # fmt: skip


def table(names, *cells, **reading):
    return as_table(Path("t.csv"), Source(tuple(names), list(cells)), Reading(**reading))


def test_words_are_numbers():
    found = table(["id", "cat"], ["a", "b", "c", "d"], ["True", "false", "NA", ""])
    np.testing.assert_array_equal(found.values[:, 0], [1, 0, np.nan, np.nan])


def test_a_column_called_id_may_be_a_class():
    found = table(["picture", "id"], ["x", "y", "z"], ["1", "0", "1"])
    assert (found.ids, found.classes, found.key) == (("x", "y", "z"), ("id",), "picture")
    assert table(["id", "cat"], ["0", "1"], ["1", "1"]).ids == ("0", "1")
    assert table(["id", "scan", "cat"], ["1", "1"], ["x", "y"], ["0", "1"], id_column="scan").classes == ("id", "cat")


@pytest.mark.parametrize("cells", FORMS)
def test_lists_of_every_form_give_the_same_names(cells):
    assert split_lists(str, cells) == [["a", "b"], [], ["a"]]


def test_a_list_is_joined_as_the_others_are():
    assert joined(["a", "b"], ["x; y"], "") == "a; b"
    assert joined(["a", "b"], ["x|y", ""], "x|y") == "a|b"
    assert joined(["a"], ["['x']"], "['x']") == "['a']"
    assert joined(["a"], ['["x"]'], '["x"]') == '["a"]'


def test_nobody_labelled_is_not_an_empty_list():
    found = table(["id", "labels"], ["x", "y", "z"], ["a", "NA", ""])
    np.testing.assert_array_equal(found.values[:, 0], [1, np.nan, 0])


def test_a_counter_that_pandas_wrote_is_neither_id_nor_class_beside_real_ids(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(",id,cat,dog\n0,img_7,1,0\n1,img_3,0,1\n")
    table = read_table(path)
    assert (table.ids, table.classes) == (("img_7", "img_3"), ("cat", "dog"))
    path.write_text(",cat,dog\n5,1,0\n3,0,1\n")  # alone it is the ids
    assert read_table(path).ids == ("5", "3")
