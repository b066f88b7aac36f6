import re
import subprocess
import sys

import numpy as np
import scipy.sparse as sp
from paths import ROOT


def rows(text):
    """The numbers of each line of the tables, by the line's name."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return {name: [float(x) for x in re.findall(r"[\d.]+(?:e[+-]\d+)?", " ".join(cells))] for name, *cells in lines}


def test_the_tables_of_the_docs_from_label_files(tmp_path):
    rng = np.random.default_rng(0)

    def labels(n, q, often):
        topic = rng.integers(0, q // 5, (n, 1)) == np.arange(q) // 5
        return (rng.random((n, q)) < np.where(topic, often, 0.02)).astype(np.int8)

    np.savez(tmp_path / "voc2007_labels.npz", trainval=2 * labels(4000, 20, 0.5) - 1)
    many = sp.csr_array(labels(6000, 60, 0.5))
    parts = {"data": many.data, "indices": many.indices, "indptr": many.indptr, "shape": np.array(many.shape)}
    np.savez(tmp_path / "delicious_labels.npz", **parts)
    command = [sys.executable, ROOT / "experiments" / "correlations.py", "--data", tmp_path, "--seeds", "1"]
    shown = subprocess.run(
        [*command, "--examples", "4000", "--classes", "40"], capture_output=True, text=True, check=True
    ).stdout
    found = rows(shown)
    unbiased, half = np.array([found[f"`{rule}`"] for rule in ("joint", "medoid", "residual", "mean", "first")]).T
    assert (unbiased < half).all()
    assert unbiased.argmin() == half.argmin() == 0
    assert unbiased[4] > unbiased[1]
    classes = int(re.search(r"Delicious, (\d+) classes", shown)[1])
    assert classes == 60
    everyone = found["Delicious, 60 classes"]
    assert len(everyone) == 10
    assert everyone[1] / classes < 0.03  # joint, rho_pos, mean over the classes
    assert found["1"][1] < found["0.025"][1]  # a sample loses rho_pos
    assert found["0.025"][-1] < 0.05  # which looks like none if the others count as clean
