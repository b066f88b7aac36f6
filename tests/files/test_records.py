"""Typed cells: JSON and JSON lines in every form, and folders."""

import numpy as np
import pandas as pd
import pytest

from mlt_jax.files.columns import Reading
from mlt_jax.files.records import load_json, parquet_parts, read_json, read_parquet


@pytest.mark.parametrize(("name", "content"), [
    ("t.jsonl", '{"id": "x", "labels": ["a", "b"]}\n\n{"id": "y", "labels": []}\n'),
    ("t.json", '[{"id": "x", "a": 1, "b": true}, {"id": "y", "a": 0, "b": false}]'),
    ("t.json", '{"x": ["a", "b"], "y": []}'),
    ("t.jsonl", '{"id": "x", "labels": {"a": 1, "b": 1}}\n{"id": "y", "labels": {"a": 0, "b": 0}}'),
])  # fmt: skip
def test_records_of_every_form_give_the_same_table(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    found = read_json(tmp_path / name, Reading())
    assert (found.ids, found.classes) == (("x", "y"), ("a", "b"))
    np.testing.assert_array_equal(found.values, [[1, 1], [0, 0]])


def test_a_broken_file_is_named_with_its_line(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"id": 1}\n[\n')
    with pytest.raises(ValueError, match=r"t\.jsonl: line 2 is no JSON"):
        read_json(tmp_path / "t.jsonl", Reading())
    with pytest.raises(ValueError, match=r"t\.jsonl: is no JSON in UTF-8"):
        load_json(tmp_path / "t.jsonl")


def test_a_folder_without_parquet_is_called_a_folder(tmp_path):
    with pytest.raises(ValueError, match="is a folder; pass a file, or a folder of parquet files"):
        parquet_parts(tmp_path)


def test_levels_of_an_index_are_columns_like_others(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pd.DataFrame({"cat": [1, 0], "fold": [0, 1], "id": ["x", "y"]})
    frame.set_index(["fold", "id"]).to_parquet(tmp_path / "t.parquet")
    found = read_parquet([tmp_path / "t.parquet"], Reading(ignore=("fold",)), tmp_path / "t.parquet")
    assert (found.ids, found.classes, found.key) == (("x", "y"), ("cat",), "id")
    frame.set_index("id", drop=False).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r't\.parquet: "id" is an index and a column; rename one'):
        read_parquet([tmp_path / "t.parquet"], Reading(), tmp_path / "t.parquet")
