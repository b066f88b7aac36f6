"""Every reader, any file: a table, or one line that names the file."""

import io
import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from fuzzing import budget, on_purpose, sound
from hypothesis import given
from hypothesis import strategies as st

import mlt_jax
from mlt_jax.audit.files import read_decisions
from mlt_jax.files import Table, read_groups, read_share, read_table, write_labels

LABELS = mlt_jax.as_labels(np.eye(3, dtype=np.uint8))
NAMES = tuple("abc")
CELLS = st.sampled_from(
    ["0", "1", "", "NA", "True", "false", "0.5", "1e400", "nan", "a", "a;b", "a|b", "['a', 'b']", "[", "'=1+1", "x,y",
     '"', "\u00e9", "\x00", "-1", "inf", "id", "a b", "flip", "keep"]
)  # fmt: skip
HEADERS = st.sampled_from(
    ["id", "a", "b", "c", "labels", "image", "0", "1", "", "example", "class", "given", "decision", "probability",
     "group", "p_wrong"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["a", "b", "", "labels"]) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["id", "images", "annotations", "categories", "samples", "labels", "classes", "file_name",
                         "image_id", "category_id", "name", "data", "result", "value", "choices", "label"]), inner,
        max_size=4),
    max_leaves=8,
)  # fmt: skip


@st.composite
def text(draw):
    separator = draw(st.sampled_from([",", ";", "\t", "|"]))
    width = draw(st.integers(1, 5))
    rows = [draw(st.lists(HEADERS, min_size=width, max_size=width))]
    for _ in range(draw(st.integers(0, 4))):
        ragged = draw(st.sampled_from([0, 0, 0, 0, 1]))
        rows.append(draw(st.lists(CELLS, min_size=width, max_size=width + ragged)))
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    return "\n".join(separator.join(row) for row in rows).encode(encoding)


@st.composite
def arrays(draw):
    shape = draw(st.sampled_from([(3, 3), (3,), (), (0, 3), (3, 0), (2, 3), (1, 1, 1)]))
    return np.zeros(shape, draw(st.sampled_from([np.float32, np.float64, bool, np.int8, complex, "U2", "M8[s]"])))


@st.composite
def binary(draw, kind):
    file = io.BytesIO()
    if kind == ".npy":
        np.save(file, draw(arrays()))
    elif kind == ".npz" and draw(st.booleans()):
        names = st.sampled_from(["labels", "probs", "ids", "classes", "x", "found_T", "T", "wrong"])
        np.savez(file, **draw(st.dictionaries(names, arrays(), max_size=3)))
    elif kind == ".npz":
        sp.save_npz(file, sp.csr_array(np.eye(3)))
    else:
        columns = draw(st.lists(HEADERS, min_size=1, max_size=4, unique=True))
        values = draw(
            st.sampled_from([[0, 1, 1], [0.5, None, 1.0], ["a", "b", None], [["a"], [], None], [True, False, None]])
        )
        pd.DataFrame({name: values for name in columns}).to_parquet(file)
    return file.getvalue()


@st.composite
def files(draw):
    """The extension and the bytes of a file, whole, cut, with a wrong byte, or of anything."""
    kind = draw(
        st.sampled_from([".csv", ".csv", ".tsv", ".txt", ".npy", ".npz", ".parquet", ".json", ".jsonl", ".xyz", ""])
    )
    if kind in (".npy", ".npz", ".parquet"):
        content = draw(binary(kind))
    elif kind == ".json":
        content = json.dumps(draw(JSON)).encode()
    elif kind == ".jsonl":
        content = "\n".join(map(json.dumps, draw(st.lists(JSON, max_size=3)))).encode()
    else:
        content = draw(text())
    harm = draw(st.sampled_from(["none", "none", "cut", "byte", "noise"]))
    if harm == "cut":
        content = content[: draw(st.integers(0, len(content)))]
    if harm == "byte" and content:
        place = draw(st.integers(0, len(content) - 1))
        content = content[:place] + bytes([draw(st.integers(0, 255))]) + content[place + 1 :]
    return kind, draw(st.binary(max_size=30)) if harm == "noise" else content


def read_and_write(path):
    table = read_table(path)
    for kind in (".csv", ".npz", ".parquet"):
        write_labels(path.with_name(f"out{kind}"), table, table.values)
    return table


def as_labels_table(path):
    return Table(path, np.eye(3, dtype=np.float32), NAMES, NAMES)


READERS = {
    "read_table": read_and_write,
    "read_table with options": lambda path: read_table(
        path, classes=NAMES, groups="group", id_column="id", ignore=("c",)
    ),
    "read_share": lambda path: read_share(path, 0, 2),
    "read_groups": lambda path: read_groups(str(path), as_labels_table(path)),
    "read_decisions": lambda path: read_decisions(path, LABELS, NAMES, NAMES),
    "TransitionEstimate.load": mlt_jax.TransitionEstimate.load,
    "Audit.load": mlt_jax.Audit.load,
}


@pytest.mark.parametrize("name", READERS)
def test_any_file_is_read_or_refused_by_name(name, tmp_path):
    @budget(len(READERS), share=0.1)
    @given(files())
    def fuzz(file):
        kind, content = file
        path = tmp_path / f"file{kind}"
        path.write_bytes(content)
        try:
            found = READERS[name](path)
        except (ValueError, TypeError) as error:
            if not on_purpose(error, ["path", "groups", str(path)]):
                raise
        else:
            sound(found)

    fuzz()
