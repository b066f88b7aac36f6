import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mlt_jax import metrics
from mlt_jax.methods import METHODS, Method
from mlt_jax.tables import cells, launch, paper, plan, results, write
from mlt_jax.tables import run as command
from mlt_jax.tables.cells import Job, Outcome
from mlt_jax.tables.options import Options, check
from mlt_jax.tables.plan import Cell, Row

ROOT = Path(__file__).parents[1]
COMPLETE = ("cls_VOC2007", "cls_VOC2012", "cls_MSCOCO")


def printed(table, metric, method):
    return [
        x.mean for row in paper.tables()[table].rows if (row.metric, row.method) == (metric, method) for x in row.values
    ]


# The paper's numbers


def test_every_printed_number_ships_with_the_package():
    tables = paper.tables()
    assert len(tables) == 22
    assert sum(len(row.values) for table in tables.values() for row in table.rows) == 2893
    assert all(len(row.values) == len(table.columns) for table in tables.values() for row in table.rows)
    assert tables["est_VOC2012"].value("T_error", "Our estimator", "(0.6,0)") == paper.Printed(0.91, 0.12)
    assert tables["cls_VOC2007_c"].value("CF1", "WSIC", "(0.034,0.4)") == paper.Printed(43.43, 11.31)
    assert tables["est_VOC2012"].value("T_error", "Our estimator, blind", "(0.6,0)") is None


@pytest.mark.parametrize(("short", "complete"), [("cls_VOC2007", "cls_VOC2007_c"), ("cls_VOC2012", "cls_VOC2012_c"),
                                                 ("cls_coco", "cls_MSCOCO_c")])  # fmt: skip
def test_recomputed_averages_are_those_of_the_complete_tables(short, complete):
    table = paper.tables()[short]
    for row in table.rows:
        recomputed = table.value(row.metric, row.method, "Avg.").mean
        assert recomputed == pytest.approx(np.mean(printed(complete, row.metric, row.method)), abs=0.03)
    standard = printed(short, "OF1", "Standard")[-1]
    assert (abs(table.value("OF1", "Standard", "Avg.").mean - standard) < 0.05) == (short == "cls_VOC2007")


def test_wilcoxon_gives_the_printed_p_values_from_the_printed_scores():
    for row in paper.tables()["win_loss"].rows:
        for baseline, expected in zip(paper.tables()["win_loss"].columns, row.values, strict=True):
            ours, theirs = (
                [
                    x
                    for name in COMPLETE
                    for kind in ("c", "ins_c")
                    for x in printed(f"{name}_{kind}", row.metric, method)
                ]
                for method in ("Reweight-Ours", baseline)
            )
            assert len(ours) == 42
            assert metrics.wilcoxon_greater(ours, theirs) == pytest.approx(expected.mean, abs=6e-4)
    assert np.isnan(metrics.wilcoxon_greater([1.0, 2.0], [1.0, 2.0]))


def test_validation_coco_is_the_printed_table(real_data):
    packed = real_data("coco2014_train_labels.npz")["train"]
    found = cells.label_only.frequencies(np.unpackbits(packed, axis=1)[:, :80])
    table = paper.tables()["validation_coco"]
    for row in table.rows:
        for column, value in zip(table.columns, row.values, strict=True):
            assert found[f"{row.method} {column}"] == pytest.approx(value.mean, abs=5.1e-4)


def test_the_gold_row_on_real_labels_is_close_to_the_printed_one(real_data):
    clean = (real_data("voc2012_labels.npz")["trainval"] >= 0).astype(np.uint8)
    noisy = cells.corrupt(Options(), "voc2012", clean, "(0.6,0)", 0)
    error = cells.label_only.gold_error(clean, noisy.labels, noisy.T, assume=noisy.assume)
    theirs = paper.tables()["est_VOC2012"].value("T_error", "Our estimator gold", "(0.6,0)").mean
    assert error == pytest.approx(theirs, abs=0.2)  # 0.45 printed; the medoid of the paper's text gives 0.98


# What is run


def test_every_table_has_a_plan_and_every_row_a_method():
    assert len(plan.ids()) == 23
    for name in plan.ids():
        made = plan.plan(name)
        assert made.entries.keys() == {(row, column) for row in made.rows for column in made.columns}
        for cell in made.cells(seeds=(0, 1, 2), map_seeds=1):
            known = cell.inputs == "labels" or cell.method in METHODS or cell.method in cells.ESTIMATORS
            assert known, cell
    with pytest.raises(ValueError, match="table: 'cls' is unknown; pass one of est_VOC2007"):
        plan.plan("cls")


def test_cells_have_files_of_their_own():
    every = {cell for name in plan.ids() for cell in plan.plan(name).cells(seeds=(0, 1), map_seeds=2)}
    paths = [cell.path for cell in every]
    assert len(set(paths)) == len(paths)
    assert Cell("voc2012", "(0,0.2)", 1, "Reweight-T 97%").path == "voc2012/_0_0.2_/seed1/Reweight-T_97pc.json"


def test_an_average_column_has_the_runs_of_its_settings():
    made = plan.plan("cls_VOC2007")
    row = Row("OF1", "GCE")
    assert [cell.setting for cell in made.entries[row, "ALF"]] == ["(0.017,0.2)", "(0.034,0.4)"]
    assert len(made.entries[row, "Avg."]) == 8
    assert len(plan.plan("ins").entries[row, "Pascal-VOC2012"]) == 6
    assert {cell.study for cell in plan.plan("ablation1").cells(seeds=[0], map_seeds=1)} == {"voc2007-all"}
    assert plan.plan("discuss2_VOC2007").entries[Row("mAP", "Standard+Reweight-Ours"), "(0,0.2)"] == (
        Cell("voc2007", "(0,0.2)", 0, "Reweight-Ours"),
    )


def test_slow_rows_get_fewer_seeds_and_jobs_share_a_warm_up():
    every = plan.plan("cls_VOC2007_c").cells(seeds=(0, 1, 2), map_seeds=1)
    assert {cell.seed for cell in every if cell.method == "CSRA"} == {0}
    assert {cell.seed for cell in every if cell.method == "CDR"} == {0, 1, 2}
    jobs = cells.jobs_of(every)
    assert len(jobs) == 8 * 3 + 8
    assert sum(len(job.methods) for job in jobs) == len(every)
    assert [job.inputs for job in jobs] == ["pooled"] * 24 + ["maps"] * 8


def test_settings_are_named_as_columns(tmp_path):
    clean = (np.random.default_rng(0).random((4000, 3)) < 0.5).astype(np.uint8)
    noisy = cells.corrupt(Options(), "voc2007", clean, "(0.6,0)", 0)
    assert noisy.assume == "partial"
    assert np.allclose(noisy.T[0], [[0.4, 0.6], [0, 1]])
    assert noisy.labels[clean == 0].mean() == pytest.approx(0.6, abs=0.03)
    assert cells.corrupt(Options(), "voc2007", clean, "(0.1,0.1)", 0).assume == "general"
    pairwise = cells.corrupt(Options(), "voc2007", clean, "Pair-wise 20%", 0)
    assert pairwise.T is None
    alone = (clean[:, 0] == 1) & (clean[:, 1] == 0)
    assert pairwise.labels[alone, 0].mean() == pytest.approx(0.8, abs=0.05)
    with pytest.raises(ValueError, match="setting: 'MLML' is unknown"):
        cells.corrupt(Options(), "voc2007", clean, "MLML", 0)


# Tables written


def fake_records(table_id, *, seeds=(0, 1), value=0.5):
    made = plan.plan(table_id)
    found = {}
    for cell in made.cells(seeds=seeds, map_seeds=1):
        scores = {name: value + 0.01 * cell.seed for name in ("mAP", "OF1", "CF1", "T_error", "validation_mAP")}
        found[cell] = {**cell._asdict(), "scores": scores, "seconds": 1.0}
    return made, found


def test_entries_are_means_over_seeds_beside_the_printed_number(tmp_path):
    made, records = fake_records("cls_VOC2012_c")
    better = Cell("voc2012", "(0,0.6)", 0, "Reweight-Ours")
    records[better]["scores"] = {"mAP": 0.7, "OF1": 0.7, "CF1": 0.7}
    records = {cell: record for cell, record in records.items() if cell.inputs == "pooled"}
    missing = {
        cell._replace(seed=0): "not run, no images"
        for cell in made.cells(seeds=[0], map_seeds=1)
        if cell.inputs == "maps"
    }
    table = results.tabulate(made, records, seeds=(0, 1), missing=missing)
    entry = table.entries[Row("OF1", "Reweight-Ours"), "(0,0.6)"]
    assert (entry.mean, entry.std, entry.runs) == (pytest.approx(60.5), pytest.approx(9.5), 2)
    theirs = paper.tables()["cls_VOC2012_c"].value("OF1", "Reweight-Ours", "(0,0.6)").mean
    assert entry.difference == pytest.approx(60.5 - theirs)
    assert entry.best
    paths = write.write(table, tmp_path, about=["made up"], formats=("md", "csv", "tex", "html"))
    texts = {path.suffix: path.read_text() for path in paths}
    shown = f"60.50 ±9.50 ({theirs:.2f}, {60.5 - theirs:+.2f})"
    assert f"**{shown}**" in texts[".md"]
    assert f"<b>{shown}</b>" in texts[".html"]
    assert rf"\textbf{{60.50 $\pm$9.50 ({theirs:.2f}, {60.5 - theirs:+.2f})}}" in texts[".tex"]
    assert all("AGCN, CSRA: not run, no images." in text for text in texts.values())
    assert all("made up" in text for text in texts.values())
    lines = csv.DictReader(line for line in texts[".csv"].splitlines() if not line.startswith("#"))
    [line] = [x for x in lines if (x["metric"], x["method"], x["column"]) == ("OF1", "Reweight-Ours", "(0,0.6)")]
    assert float(line["ours"]) == 60.5
    assert float(line["paper"]) == theirs
    assert not list(tmp_path.glob("*.part"))


def test_an_average_waits_for_all_its_settings():
    made, records = fake_records("cls_VOC2007")
    hole = Cell("voc2007", "(0.6,0)", 1, "GCE")
    table = results.tabulate(made, {c: r for c, r in records.items() if c != hole}, seeds=(0, 1), missing={})
    whole, partly = (table.entries[Row("mAP", "GCE"), column] for column in ("MLML", "PML"))
    assert (whole.runs, partly.runs) == (2, 1)
    assert "GCE, AGCN, CSRA: 1 of 2 seeds." in table.notes
    assert "Avg. is over all four noise types" in " ".join(table.foot)
    assert table.entries[Row("mAP", "GCE"), "Avg."].printed.mean == pytest.approx(79.48, abs=0.01)


def test_the_foot_tests_over_the_pairs_that_were_run():
    made, records = fake_records("cls_VOC2007_c")
    columns = made.columns
    for cell, record in records.items():
        record["scores"] = dict.fromkeys(("mAP", "OF1", "CF1"), 0.5 + 0.01 * columns.index(cell.setting))
        if cell.method == "Reweight-Ours":
            record["scores"]["OF1"] += 0.001 * (1 + columns.index(cell.setting))
    records = {cell: r for cell, r in records.items() if cell.method != "GCE" or cell.setting in columns[:5]}
    table = results.tabulate(made, records, seeds=(0, 1), missing={})
    [line] = [line for line in table.foot if "greater in OF1" in line]
    assert "Standard 0.004 (8 pairs)" in line  # 2^-8: ours is greater in all eight
    assert "GCE 0.031 (5 pairs)" in line
    assert "TrueT" not in line
    [places] = [line for line in table.foot if "among the methods run" in line]
    assert "OF1: first in 8, second in 0 of 8 columns" in places


def test_win_loss_counts_its_pairs():
    made, records = fake_records("win_loss")
    rng = np.random.default_rng(0)
    kept = {}
    for cell, record in records.items():
        if cell.study != "coco":
            gain = 0.05 if cell.method == "Reweight-Ours" else 0.0
            record["scores"] = {m: 0.5 + gain + 0.001 * rng.random() for m in ("mAP", "OF1", "CF1")}
            kept[cell] = record
    entry = results.tabulate(made, kept, seeds=(0, 1), missing={}).entries[Row("mAP", "Reweight-Ours"), "CSRA"]
    assert (entry.runs, entry.note) == (28, "win, 28 pairs")
    assert entry.mean < 0.001
    assert entry.printed.mean == 0.772


def test_tau_comes_with_its_figure(tmp_path):
    made, records = fake_records("tau")
    paths = write.write(results.tabulate(made, records, seeds=(0, 1), missing={}), tmp_path, about=[], formats=("md",))
    [figure] = [path for path in paths if path.suffix == ".svg"]
    assert figure.read_text().count("<circle") == 2 * 3 * (8 + 1)


# Whole commands on tiny data


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Features, labels and lists of a VOC2007 with 240 images, 6 features and 4 classes."""
    folder, rng, n = tmp_path_factory.mktemp("tiny"), np.random.default_rng(0), 240
    scene = rng.random((n, 1)) < 0.5
    labels = (rng.random((n, 4)) < np.where(scene, 0.6, 0.2)).astype(np.int8)
    features = labels @ rng.normal(size=(4, 6)) + 0.3 * rng.normal(size=(n, 6))
    names = np.array([f"{i:06}" for i in range(n)])
    np.savez(folder / "voc2007_features.npz", features=features.astype(np.float16), names=names)
    np.savez(
        folder / "voc2007_labels.npz", trainval=2 * labels - 1, trainval_names=names, classes=np.array(list("abcd"))
    )
    lists = folder / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("\n".join(names[:160]) + "\n")
    (lists / "val.txt").write_text("\n".join(names[160:]) + "\n")
    return folder


def options(tiny, workdir, **more):
    given = {
        "features_dir": tiny, "devkit": tiny, "workdir": workdir, "out": workdir / "written", "epochs": 2,
        "sample_epoch": 1, "batch_size": 32, "learning_rate": 5e-3, "seeds": (0, 1),
    }  # fmt: skip
    return Options(**given | more)


def words(given, **more):
    """The options as a command line."""
    flags = {name: value for name, value in (vars(given) | more).items() if value != getattr(Options(), name)}
    found = [sys.executable, str(ROOT / "experiments" / "tables.py")]
    for name, value in flags.items():
        found += [f"--{name.replace('_', '-')}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return found


def files(folder):
    return {str(path.relative_to(folder)): path for path in folder.glob("voc*/*/seed*/*.json")}


TWO = (r"\(0,0.6\)", r"\(0.2,0.2\)")


def test_a_table_from_features_and_only_what_is_missing_is_run(tiny, tmp_path, capsys):
    only = tuple(f"{setting} seed[01] (Standard|GCE|Reweight-T 97%|CSRA)" for setting in TWO)
    given = options(tiny, tmp_path, table=("cls_VOC2007_c",), only=only)
    [table] = command.run(given)
    assert table.entries[Row("mAP", "GCE"), "(0,0.6)"].runs == 2
    assert table.entries[Row("mAP", "Standard"), "(0,0.2)"].mean is None
    notes = " ".join(table.notes)
    assert "CSRA" in notes
    assert "not run, no images; pass --devkit and --pretrained" in notes
    text = (tmp_path / "written" / "cls_VOC2007_c.md").read_text()
    assert "the ResNet-50 backbone is frozen" in text
    assert "VOC2007 trains on `train` and tests on `val`" in text
    before = {
        name: (path.stat().st_mtime_ns, json.loads(path.read_text())["scores"])
        for name, path in files(tmp_path).items()
    }
    assert len(before) == 12
    gone = "voc2007/_0_0.6_/seed1/GCE.json"
    (tmp_path / gone).unlink()
    command.run(given)
    after = {
        name: (path.stat().st_mtime_ns, json.loads(path.read_text())["scores"])
        for name, path in files(tmp_path).items()
    }
    assert [name for name in before if before[name][0] != after[name][0]] == [gone]
    assert after[gone][1] == before[gone][1]
    with pytest.raises(ValueError, match="holds runs with other epochs; pass another --workdir"):
        command.run(options(tiny, tmp_path, table=("cls_VOC2007_c",), only=only, epochs=3))


def test_estimators_and_labels_alone_share_a_table(tiny, tmp_path):
    only = (r"\(0.2,0.2\) seed0 (Our estimator|Our estimator gold|T-estimator max)$",)
    est, ablation = command.run(options(tiny, tmp_path, table=("est_VOC2007", "ablation1"), seeds=(0,), only=only))
    column = "(0.2,0.2)"
    found = {row.method: entry.mean for (row, at), entry in est.entries.items() if at == column}
    assert found["Our estimator"] == ablation.entries[Row("T_error", "Our estimator"), column].mean > 0
    assert found["Our estimator gold"] > 0
    assert found["Dual T-estimator max"] is None
    assert len(files(tmp_path)) == 3


def test_a_failing_cell_leaves_a_log_and_the_rest_go_on(tiny, tmp_path, monkeypatch, capsys):
    def broken(logits, labels, T):
        raise ArithmeticError("deliberately")

    monkeypatch.setitem(METHODS, "GCE", Method(loss=broken))
    given = options(tiny, tmp_path, table=("cls_VOC2007_c",), seeds=(0,), only=(r"\(0,0.6\) seed0 (GCE|Standard|CDR)",))
    [table] = command.run(given)
    assert set(files(tmp_path)) == {f"voc2007/_0_0.6_/seed0/{name}.json" for name in ("Standard", "CDR")}
    log = tmp_path / "failed" / "voc2007" / "_0_0.6_" / "seed0" / "GCE.log"
    assert "ArithmeticError: deliberately" in log.read_text()
    err = capsys.readouterr().err
    assert str(log) in err
    assert "1 of 3 runs failed" in err
    assert "GCE: failed, see its log" in " ".join(table.notes)
    monkeypatch.undo()
    command.run(given)
    assert len(files(tmp_path)) == 3
    assert not log.exists()


@pytest.mark.slow
def test_a_killed_command_goes_on_to_the_same_numbers(tiny, tmp_path):
    only = tuple(rf"{setting} seed[01] (Standard|GCE|CDR|WSIC|Reweight)(?!.*(blind|Ours))" for setting in TWO)
    env = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    straight, broken = (options(tiny, tmp_path / name, table=("cls_VOC2007_c",), only=only) for name in "ab")
    subprocess.run(words(straight), env=env, check=True, capture_output=True)
    started = subprocess.Popen(words(broken), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(files(tmp_path / "b")) < 3:
        assert started.poll() is None
        time.sleep(0.01)
    started.send_signal(signal.SIGKILL)
    started.wait()
    done = len(files(tmp_path / "b"))
    assert 3 <= done < len(files(tmp_path / "a"))
    subprocess.run(words(broken), env=env, check=True, capture_output=True)
    scores = [
        {name: json.loads(path.read_text())["scores"] for name, path in files(tmp_path / side).items()} for side in "ab"
    ]
    assert scores[0] == scores[1]


# Launchers

RAY_SCRIPT = """
import json, os, signal, sys
from functools import partial
from pathlib import Path
import ray
from mlt_jax.tables import launch, run
from mlt_jax.tables.options import Options

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
folder = Path(sys.argv[1])

def work(folder, job):
    mark = folder / f"{job}.tried"
    tries = int(mark.read_text()) + 1 if mark.exists() else 1
    mark.write_text(str(tries))
    if (job == "dies once" and tries == 1) or job == "always dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "raises":
        raise ArithmeticError("deliberately")
    return f"{job} after {tries}"

done, lost = {}, {}
launch.ray(["works", "dies once", "always dies", "raises"], partial(work, folder), done=done.__setitem__,
           lost=lambda job, error: lost.__setitem__(job, type(error).__name__ + ": " + str(error)[:2000]))
given = json.loads(sys.argv[2])
given |= {name: Path(given[name]) for name in ("features_dir", "devkit", "workdir", "out")}
given |= {name: tuple(given[name]) for name in ("table", "seeds", "only")}
options = Options(**given, launcher="ray")
[table] = run.run(options)
entries = {f"{row.metric} {row.method}": e.mean for (row, c), e in table.entries.items() if e.mean is not None}
print("RESULT " + json.dumps({"done": done, "lost": lost, "entries": entries}))
"""


@pytest.mark.slow
def test_ray_tries_a_dead_worker_s_job_again_and_gives_the_local_numbers(tiny, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed (extra [cluster])")
    given = {
        "table": ["cls_VOC2007_c"], "features_dir": str(tiny), "devkit": str(tiny), "workdir": str(tmp_path / "ray"),
        "out": str(tmp_path / "ray" / "written"), "epochs": 2, "sample_epoch": 1, "batch_size": 32,
        "learning_rate": 5e-3, "seeds": [0, 1], "only": [r"\(0,0.6\) seed[01] (Standard|GCE)"],
    }  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    ran = subprocess.run([sys.executable, "-c", RAY_SCRIPT, str(tmp_path), json.dumps(given)], env=env, text=True,
                         capture_output=True)  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.split("RESULT ")[1].splitlines()[0])  # Ray may print after it
    assert found["done"] == {"works": "works after 1", "dies once": "dies once after 2"}
    assert set(found["lost"]) == {"always dies", "raises"}
    assert "deliberately" in found["lost"]["raises"]
    assert (tmp_path / "always dies.tried").read_text() == str(1 + launch.RETRIES)
    local = options(tiny, tmp_path / "local", table=("cls_VOC2007_c",), only=tuple(given["only"]))
    [table] = command.run(local)
    expected = {f"{row.metric} {row.method}": e.mean for (row, _), e in table.entries.items() if e.mean is not None}
    assert found["entries"] == pytest.approx(expected, rel=1e-6)


def test_a_lost_job_s_finished_cells_count(tiny, tmp_path, monkeypatch):
    given = options(tiny, tmp_path, table=("cls_VOC2007_c",), seeds=(0,), launcher="ray",
                    only=(r"\(0,0.6\) seed0 (GCE|Standard)",))  # fmt: skip

    def dies_after_one(jobs, run, *, done, lost, **_):
        [job] = jobs
        first = tmp_path / job.cells[0].path
        first.parent.mkdir(parents=True)
        first.write_text(json.dumps({"scores": {"mAP": 0.5, "OF1": 0.5, "CF1": 0.5}, "seconds": 1.0}))
        lost(job, RuntimeError("the worker died"))

    monkeypatch.setattr(launch, "ray", dies_after_one)
    [table] = command.run(given)
    assert table.entries[Row("mAP", "Standard"), "(0,0.6)"].mean == 50
    assert "GCE: failed, see its log" in " ".join(table.notes)
    [log] = (tmp_path / "failed").rglob("*.worker.log")
    assert "the worker died" in log.read_text()


def test_a_table_says_the_command_that_makes_it_without_this_machine_s_folders(tmp_path):
    given = Options(
        table=("all",), features_dir=tmp_path, pretrained=str(tmp_path / "w.npz"), seeds=(0, 1), write_only=True
    )
    words = "python experiments/tables.py --table ins --features-dir DIR --pretrained FILE --seeds 0 1"
    assert command.command(given, "ins") == words


def test_local_runs_jobs_in_order():
    seen = []
    launch.local([1, 2, 3], lambda job: job * 10, done=lambda job, result: seen.append((job, result)))
    assert seen == [(1, 10), (2, 20), (3, 30)]
    job = Job("voc2007", "(0,0.2)", 0, "pooled", ("GCE", "CDR"))
    assert job.cells[1] == Cell("voc2007", "(0,0.2)", 0, "CDR")
    assert Outcome(job.cells[0]).log is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"launcher": "slurm"}, "launcher: 'slurm' is unknown; pass local or ray"),
        ({"backbone": "big"}, "backbone: 'big' is unknown"),
        ({"formats": ("pdf",)}, r"formats: \['pdf'\] unknown"),
        ({"sample_epoch": 30}, "sample_epoch: 30; pass 1 to epochs = 20"),
        ({"seeds": ()}, "seeds: none"),
    ],
)
def test_options_are_checked(wrong, message):
    with pytest.raises(ValueError, match=message):
        check(Options(**wrong))
