"""The files of an audit: decisions of people become labels, or are refused by their line."""

import numpy as np
import pytest

from mlt_jax.audit.files import (
    ISSUE_COLUMNS,
    decision_rows,
    is_ours,
    merge_decisions,
    places,
    read_decisions,
    write_disagreements,
)
from mlt_jax.labels import as_labels


def decided(tmp_path, text):
    (tmp_path / "d.csv").write_text("example,class,given,decision,probability\n" + text)
    labels = as_labels(np.array([[0, 1], [1, 1]]))
    return read_decisions(tmp_path / "d.csv", labels, ("a", "b"), ("cat", "dog"))


def test_decisions_become_right_labels_with_probabilities(tmp_path):
    found = decided(tmp_path, "a,cat,0,flip,0.5\nb,dog,1,keep,\nb,cat,1,,0.25\na,dog,1,Wrong,1\n")
    assert found.example.tolist() == [0, 1, 1, 0]
    assert found.column.tolist() == [0, 1, 0, 1]
    assert found.label.tolist() == [1, 1, -1, 0]
    assert np.array_equal(found.probability, [0.5, np.nan, 0.25, 1], equal_nan=True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,cow,0,flip,1\n", 'line 2 is about "a", class "cow"'),
        ("a,cat,1,flip,1\n", "line 2, the label is 0, not 1"),
        ("a,cat,0,maybe,1\n", 'line 2 decides "maybe"'),
        ("a,cat,0,flip,often\n", 'line 2, column "probability" is "often"'),
        ("a,cat,0,,1\n", "no cell is decided"),
    ],
)
def test_a_decision_that_does_not_fit_is_named_by_its_line(tmp_path, text, complaint):
    with pytest.raises(ValueError, match=complaint):
        decided(tmp_path, text)


def test_reviewers_are_merged_by_name_or_file_and_disagreements_are_told(tmp_path):
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text(
        "example,class,given,decision,reviewer\nx,cat,0,flip,ann\ny,cat,1,keep,ann\nz,cat,1,,\nw,cat,1,flip,ann\n"
    )
    b.write_text("example,class,given,decision\nx,cat,0,flip\ny,cat,1,flip\nz,cat,1,keep\nv,cat,0,flip\nv,cat,0,keep\n")
    merged = merge_decisions([a, b])
    assert {label[0]: ballot.flip for label, ballot in merged.items()} == {
        "x": True, "y": None, "z": False, "w": True, "v": None
    }  # fmt: skip
    assert [label[0] for label, ballot in merged.items() if ballot.split] == ["y", "v"]
    assert merged["y", "cat"].votes == {"ann": False, str(b): True}
    assert merged["v", "cat"].votes == {str(b): True, f"{b} ({b}: line 6)": False}
    path = write_disagreements(tmp_path / "split.csv", [ballot for ballot in merged.values() if ballot.split])
    again = merge_decisions([path])  # what was written is read again
    assert {label: ballot.votes for label, ballot in again.items()} == {
        label: ballot.votes for label, ballot in merged.items() if ballot.split
    }


def test_files_about_different_labels_are_not_merged(tmp_path):
    for name, given in (("a", 0), ("b", 1)):
        (tmp_path / f"{name}.csv").write_text(f"example,class,given,decision\nx,cat,{given},flip\n")
    with pytest.raises(ValueError, match=r"b\.csv: line 2, the label is 1, but 0 in .*a\.csv: line 2"):
        merge_decisions([tmp_path / "a.csv", tmp_path / "b.csv"])


def test_rates_are_not_read_from_decisions_that_disagree(tmp_path):
    text = "example,class,given,decision,probability,reviewer\na,cat,0,flip,0.5,ann\na,cat,0,{},0.5,ben\n"
    labels = as_labels(np.array([[0, 1], [1, 1]]))
    (tmp_path / "d.csv").write_text(text.format("flip"))
    found = read_decisions(tmp_path / "d.csv", labels, ("a", "b"), ("cat", "dog"))
    assert found.label.tolist() == [1]  # once, though two say so
    (tmp_path / "d.csv").write_text(text.format("keep"))
    with pytest.raises(ValueError, match="line 2: reviewers disagree, on 1 labels in all; settle them on the page"):
        read_decisions(tmp_path / "d.csv", labels, ("a", "b"), ("cat", "dog"))


def test_decisions_that_a_spreadsheet_saved_are_read_with_its_encoding(tmp_path):
    path = tmp_path / "d.csv"
    path.write_bytes("example;class;given;decision\na;Kätzchen;0;flip\n".encode("cp1252"))
    labels = as_labels(np.array([[0], [1]]))
    with pytest.raises(ValueError, match="pass --encoding cp1252"):
        read_decisions(path, labels, ("a", "b"), ("Kätzchen",))
    found = read_decisions(path, labels, ("a", "b"), ("Kätzchen",), encoding="cp1252")
    assert (found.example.tolist(), found.label.tolist()) == ([0], [1])


def test_a_file_that_was_filled_in_by_hand_is_no_longer_ours(tmp_path):
    path = tmp_path / "report.issues.csv"
    header = ",".join(ISSUE_COLUMNS)
    blank = dict.fromkeys(ISSUE_COLUMNS, "") | {"example": "a", "class": "cat", "given": "1"}
    path.write_text(f"{header}\n{','.join(blank.values())}\n")
    assert is_ours(path)
    path.write_text(f"{header}\n{','.join((blank | {'decision': 'flip'}).values())}\n")
    assert not is_ours(path)


def test_decisions_of_a_spreadsheet_with_decimal_commas_are_read(tmp_path):
    path = tmp_path / "decisions.csv"
    path.write_text("example;class;given;decision;p_wrong\na;cat;1;flip;0,93\n")
    [(_, row)] = decision_rows(path)
    assert row["p_wrong"] == 0.93


def test_names_that_differ_in_outer_spaces_alone_are_refused():
    assert places(["a", " b"], ["cat"]) == ({"a": 0, "b": 1}, {"cat": 0})
    with pytest.raises(ValueError, match='labels: example "a" stands twice, but for spaces'):
        places(["a", " a"], ["cat"])
