"""Labels are written in the format of the name, and read back as they were."""

import numpy as np
import pytest

from mlt_jax.files.tables import read_table
from mlt_jax.files.write import write_labels

VALUES = np.array([[1, 0], [np.nan, 1]], np.float32)


@pytest.mark.parametrize("form", ["csv", "npz", "parquet"])
def test_what_is_written_is_read_back(tmp_path, form):
    (tmp_path / "l.csv").write_text("image,cat,dog\n=a,0,0\nb,,1\n")
    labels = read_table(tmp_path / "l.csv")
    write_labels(tmp_path / f"new.{form}", labels, VALUES)
    found = read_table(tmp_path / f"new.{form}")
    assert (found.ids, found.classes) == (("=a", "b"), ("cat", "dog"))
    np.testing.assert_array_equal(found.values, VALUES)


def test_a_format_that_is_not_known_is_named(tmp_path):
    (tmp_path / "l.csv").write_text("image,cat,dog\na,1,0\nb,0,1\n")
    with pytest.raises(ValueError, match=r"--out: cannot write \.xlsx; pass \.csv"):
        write_labels(tmp_path / "new.xlsx", read_table(tmp_path / "l.csv"), VALUES)
