import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from paths import DATA, ROOT


def test_every_method_is_measured_on_a_set_in_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    n, q = 1200, 4
    latent = rng.normal(size=(n, q))
    features = np.concatenate([latent, rng.normal(size=(n, 6))], 1).astype(np.float16)
    chance = 1 / (1 + np.exp(-(4 * latent - 4)))
    votes = rng.random((6, n, q)) < chance  # one person, and most of five others
    np.savez(tmp_path / "tags_flickr.npz", noisy=votes[0].astype(np.int8), features=features,
             clean=(votes[1:].sum(0) > 2).astype(np.int8))  # fmt: skip
    command = [sys.executable, ROOT / "experiments" / "real_noise.py", "--data", tmp_path, "--out", tmp_path / "out"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result = json.loads((tmp_path / "out" / "real_noise.json").read_text())["tags_flickr"]
    assert result["classes"] == q
    assert {"ours", "no noise", "Dual-T", "T-estimator", "the paper's recipe"} <= set(result["error"])
    assert sum(result["error"]["ours"]) < sum(result["error"]["no noise"])
    assert min(result["coverage"]) >= 0.75
    assert result["ranking"]["ours"] > 0.95 * result["ranking"]["self-confidence"] > result["wrong"]
    assert "| ours | " in shown
    for name in ("real_noise", "real_reliability"):
        ElementTree.parse(tmp_path / "out" / f"{name}.svg")
    cells, expected, wrong = np.array(result["reliability"]).T
    assert cells.sum() == n * q
    assert abs((cells * (expected - wrong)).sum()) < 0.03 * n * q


@pytest.mark.slow
def test_the_counting_rule_is_measured_on_sets_that_it_was_not_fitted_to(real_data):
    real_data("real/xray_nih.npz")
    command = [sys.executable, ROOT / "experiments" / "held_out.py", "--data", DATA / "real"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told = (ROOT / "docs" / "results.md").read_text()
    for words in ("shipped", "fitted to the other sets"):
        row = re.search(rf"\| error, {words} \|.*", shown)[0]
        sums = [float(cell) for cell in re.findall(r"[\d.]+", row)]
        in_docs = [float(x) for x in re.findall(r"[\d.]+", re.search(rf"\| error, (?:as )?{words} \|.*", told)[0])]
        np.testing.assert_allclose(sums, in_docs, atol=0.004)
        assert sums[-1] < 0.8  # cleanlab 0.841
