"""The files of an audit: decisions of people become labels, or are refused by their line."""

import numpy as np
import pytest

from mlt_jax.audit.files import read_decisions
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
