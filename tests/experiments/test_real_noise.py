import json
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
from paths import ROOT


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
