import importlib.util
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from paths import ROOT
from simulate import unbiased

from mlt_jax import Status, estimate_all, select_clean

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


@pytest.fixture
def in_process(bench, monkeypatch):
    """Measures rows in this process, which has compiled already; says which."""
    measured = []

    def measure(config, name, speed):
        measured.append(name)
        return json.loads(json.dumps(bench.jobs(config, speed)[name]()))

    monkeypatch.setattr(bench, "in_child", measure)
    return measured


def test_every_row_has_its_times_and_the_growth_is_fitted(bench, tiny, in_process, capsys):
    rows = bench.main(tiny)
    report = json.loads((tiny.out / "bench.json").read_text())
    assert list(rows) == in_process == [
        "machine", "from losses", "dense n=300 q=6", "power law n=500 q=60", "power law n=1000 q=120",
        "n=300 q=60", "n=600 q=60", "n=600 q=120",
    ]  # fmt: skip
    times = {"labels_to_T", "scipy_lists", "tables", "numpy", "algorithm_1_extrapolated"}
    memory = {"peak_gb", "scipy_lists_gb", "tables_gb", "numpy_gb"}
    assert set(report["exponents"]) == {"counting", "joint", "medoid"} | times | memory
    assert report["rows"] == rows
    assert rows["machine"]["gb_per_s"] > 0
    simulated, large = ([row for row in rows.values() if row["what"] == what] for what in ("simulated", "power law"))
    for key in ("counting_to_scipy", "joint_to_reading", "medoid_pairs_per_s", "algorithm_1_extrapolated", "peak_gb"):
        assert all(row[key] > 0 for row in simulated)
    assert rows["dense n=300 q=6"]["to_numpy"] > 0
    assert all(row["same_status"] == 1 and row["off_tables"] < 1e-5 for row in large)
    assert all(0 < row["labels_gb"] <= row["peak_gb"] <= row["tables_gb"] for row in large)
    for key in ("selection_speedup", "solve_speedup", "total_speedup", "numpy_speedup"):
        assert rows["from losses"][key] > 0
    told = capsys.readouterr().out
    assert "growth with q" in told
    assert (tiny.out / "bench.md").read_text() in told
    picture = (tiny.out / "growth.svg").read_bytes()
    for name in (b"estimate_all", b"plain SciPy lists", b"q x q tables", b"vectorised NumPy", b"Algorithm 1"):
        assert name in picture
    bench.plot(list(rows.values()), tiny.out / "again.svg")
    assert (tiny.out / "again.svg").read_bytes() == picture
    bench.main(replace(tiny, rows=("power law*120",)))  # what is there stays, what is asked for is measured again
    assert in_process[8:] == ["power law n=1000 q=120"]
    bench.main(tiny)
    assert len(in_process) == 9


def test_a_row_is_measured_in_a_process_of_its_own(bench, tiny):
    found = bench.main(replace(tiny, rows=("machine",)))
    assert list(found) == ["machine"]
    assert found["machine"]["cores"] > 0
    assert "GB/s" in (tiny.out / "bench.md").read_text()


def test_rows_that_do_not_exist_are_named(bench, tiny):
    with pytest.raises(SystemExit, match="--rows: none is called cubic; there are machine, from losses"):
        bench.main(replace(tiny, rows=("cubic",)))


def test_features_and_sparse_labels_go_to_one_call(bench, tiny, in_process, monkeypatch):
    given = []

    def fake(labels, *, features):
        given.append((labels, features))
        return SimpleNamespace(status=np.array([Status.POSTERIOR, Status.TOO_FEW]))

    monkeypatch.setattr(bench, "estimate", fake)
    rows = bench.main(replace(tiny, rows=("features*",), features=(80,), features_of=(300, 7)))
    row = rows["features n=300 q=80"]
    assert (row["n"], row["d"], row["q"], row["identified"]) == (300, 7, 80, 0.5)
    assert row["features_to_T"] >= 0
    labels, features = given[-1]
    assert (sp.issparse(labels), labels.shape, features.shape) == (True, (300, 80), (300, 7))
    assert set(labels.data) == {1}


def test_the_table_has_what_is_wanted_beside_what_was_measured(bench):
    rows = {"dense n=73872 q=80": {"what": "dense", "n": 73872, "q": 80, "labels_to_T": 0.05, "to_numpy": 0.9}}
    for q, seconds, n in ((131_073, 4.0, 196_606), (670_091, 20.0, 490_449)):
        row = {"what": "power law", "n": n, "q": q, "labels_to_T": seconds, "to_scipy_lists": 0.3, "peak_gb": 2.5}
        rows[f"power law n={n} q={q}"] = row
    table = bench.markdown(rows)
    assert "| power law n=490449 q=670091 | 490,449 | 670,091 | 20 | 0.3 |  |  |  | 2.5 |  |" in table
    assert "| 670,091 classes, 490,449 examples: labels to T, s | 20 | 60 |  |" in table
    assert "| COCO's size, dense: of vectorised NumPy's time | 0.9 | 0.7 | missed |" in table
    assert "| growth of labels to T with q, n growing along: exponent | 0.986 | 1.2 |  |" in table


def test_an_interrupt_keeps_the_finished_rows_and_the_next_run_goes_on(bench, tiny, monkeypatch, capsys):
    def stop(config, name, speed):
        if name != "machine":
            raise KeyboardInterrupt
        return {"what": "machine", "cores": 2, "cpu": "a", "jax": "1", "gb_per_s": 9.0, "gemm_gflops": 99.0}

    monkeypatch.setattr(bench, "in_child", stop)
    bench.main(tiny)
    assert list(json.loads((tiny.out / "bench.json").read_text())["rows"]) == ["machine"]
    assert "1 finished rows" in capsys.readouterr().out
    seen = []
    monkeypatch.setattr(bench, "in_child", lambda config, name, speed: seen.append((name, speed)) or {"what": name})
    bench.main(tiny)
    assert seen[0] == ("from losses", 9.0)
    assert len(seen) == 7


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
