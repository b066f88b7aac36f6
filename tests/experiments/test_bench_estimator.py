import importlib.util
import json
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from paths import ROOT
from simulate import unbiased

from mlt_jax import estimate_all, select_clean

SCRIPT = ROOT / "experiments" / "bench_estimator.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_estimator", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_estimator"] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bench_estimator"]


@pytest.fixture
def tiny(bench, tmp_path):
    sizes = dict(sizes=(60, 120), examples=(300, 600), coco=(1500, 6), part=2, repeats=1, limits=100_000)
    sizes |= dict(large=((500, 60), (1000, 120)), dense=((300, 6, 0.3),))
    return bench.Config(out=tmp_path, **sizes)


def test_every_row_has_its_times_and_the_growth_is_fitted(bench, tiny, capsys):
    rows = bench.main(tiny)
    report = json.loads((tiny.out / "bench.json").read_text())
    assert [row["what"] for row in rows] == ["from losses", "dense", "power law", "power law"] + ["simulated"] * 3
    large = {"labels_to_T", "scipy_lists", "tables", "peak_gb"}
    assert set(report["exponents"]) == {"counting", "joint", "medoid"} | large
    assert (tiny.out / "growth.svg").read_text().count("<polyline") == 7
    assert report["limits"]["gb_per_s"] > 0
    assert report["rows"] == json.loads(json.dumps(rows))
    for key in ("counting_to_scipy", "joint_to_reading", "medoid_pairs_per_s", "algorithm_1_extrapolated", "peak_gb"):
        assert all(row[key] > 0 for row in rows[4:])
    assert rows[1]["to_numpy"] > 0
    assert all(row["same_status"] == 1 and row["off_tables"] < 1e-5 for row in rows[2:4])
    for key in ("selection_speedup", "solve_speedup", "total_speedup", "numpy_speedup"):
        assert rows[0][key] > 0
    assert "growth with q" in capsys.readouterr().out


def test_an_interrupt_keeps_the_finished_rows(bench, tiny, monkeypatch, capsys):
    def two(config, limits):
        yield "one", lambda: {"what": "one"}
        yield "two", interrupt

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "jobs", two)
    bench.main(tiny)
    assert json.loads((tiny.out / "bench.json").read_text())["rows"] == [{"what": "one"}]
    assert "1 finished rows" in capsys.readouterr().out


def test_the_contenders_do_the_same_work(bench):
    labels, selected = unbiased(np.random.default_rng(0), n=3000, q=15)
    found = estimate_all(labels, selected, aggregate="medoid")
    ours = np.stack([found.rho_neg, found.rho_pos], 1)
    told = np.asarray(found.partners) % 2 == 1  # of an even number, the two in the middle may be equally good
    assert told.any()
    np.testing.assert_allclose(bench.algorithm_1(labels, selected, range(15))[told], ours[told], atol=1e-4)
    np.testing.assert_allclose(bench.vectorised_numpy(labels, selected)[told], ours[told], atol=1e-4)
    fewer = selected & (np.random.default_rng(2).random(selected.shape) < 0.6)  # so that no rate is at its bound
    joint = estimate_all(labels, fewer)
    rates = bench.scipy_lists(sp.csr_array(labels), sp.csr_array(~fewer))
    np.testing.assert_allclose(rates, np.stack([joint.rho_neg, joint.rho_pos], 1), atol=1e-4)
    losses = np.where(selected, 0.1, 0.8) + 0.1 * np.random.default_rng(1).random(labels.shape)
    masks = bench.sklearn_masks(losses.astype(np.float32), labels, range(15), 0)
    assert (masks == select_clean(losses, labels)).mean() > 0.999
