"""Whole commands of experiments/tables.py on tiny data."""

import csv
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from paths import DATA, ROOT

from mlt_jax import data as datasets
from mlt_jax.models import build
from mlt_jax.paper import printed as paper
from mlt_jax.paper.methods import ESTIMATORS, METHODS, Method
from mlt_jax.paper.tables import cells, launch
from mlt_jax.paper.tables import run as command
from mlt_jax.paper.tables.options import Options
from mlt_jax.paper.tables.plan import BESIDE_ROWS, PRINTED_FOR, RELEASED, Row
from mlt_jax.paper.tables.provenance import commit, machine
from mlt_jax.paper.tables.write import cell_text
from mlt_jax.training import loop


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Features and labels of a VOC2007 with 160 images and a VOC2012 with 80, 6 features and 4 classes."""
    folder, rng, n = tmp_path_factory.mktemp("tiny"), np.random.default_rng(0), 240
    scene = rng.random((n, 1)) < 0.5
    labels = (rng.random((n, 4)) < np.where(scene, 0.6, 0.2)).astype(np.int8)
    features = labels @ rng.normal(size=(4, 6)) + 0.3 * rng.normal(size=(n, 6))
    names = np.array([f"{i:06}" for i in range(n)])
    for year, rows in ((2007, slice(160)), (2012, slice(160, n))):
        found = {"features": features[rows].astype(np.float16), "names": names[rows]}
        np.savez(folder / f"voc{year}_features.npz", **found)
        given = {"trainval": 2 * labels[rows] - 1, "trainval_names": names[rows]}
        np.savez(folder / f"voc{year}_labels.npz", **given, classes=np.array(list("abcd")))
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
    only = tuple(f"{setting} seed[01] (Standard|GCE|Reweight-T 97%|CSRA)$" for setting in TWO)
    given = options(tiny, tmp_path, table=("cls_VOC2007_c",), only=only, cells=tmp_path / "cells.jsonl.gz")
    [table] = command.run(given)
    assert table.entries[Row("mAP", "GCE"), "(0,0.6)"].runs == 2
    assert table.entries[Row("mAP", "Standard"), "(0,0.2)"].mean is None
    notes = " ".join(table.notes)
    assert "CSRA" in notes
    assert "not run, no images; pass --devkit and --pretrained" in notes
    text = (tmp_path / "written" / "cls_VOC2007_c.md").read_text()
    assert (
        "the ResNet-50 backbone is frozen and heads are trained on its features (Adam 0.005, 2 epochs, COCO 2)" in text
    )
    assert "VOC2007 `trainval` is tested on VOC2012 `trainval`" in text
    assert f"runs of commit {commit()}, on {machine()}; they took" in text
    before = {
        name: (path.stat().st_mtime_ns, json.loads(path.read_text())["scores"])
        for name, path in files(tmp_path).items()
    }
    assert len(before) == 12
    gone = "voc2007/_0_0.6_/seed1/GCE.json"
    (tmp_path / gone).unlink()
    [again] = command.run(dataclasses.replace(given, write_only=True))
    same = {key: cell_text(entry) for key, entry in again.entries.items()}
    assert same == {key: cell_text(entry) for key, entry in table.entries.items()}, "from the one file"
    command.run(given)
    assert not (tmp_path / gone).exists(), "it has a record in the one file"
    command.run(dataclasses.replace(given, cells=None))
    after = {
        name: (path.stat().st_mtime_ns, json.loads(path.read_text())["scores"])
        for name, path in files(tmp_path).items()
    }
    assert [name for name in before if before[name][0] != after[name][0]] == [gone]
    assert after[gone][1] == before[gone][1]
    with pytest.raises(ValueError, match="holds a run with other epochs; pass another --workdir"):
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


def test_the_committed_tables_are_those_of_the_committed_runs(tmp_path):
    committed = ROOT / "experiments" / "results"
    given = Options(write_only=True, cells=committed / "cells.jsonl.gz", workdir=tmp_path, out=tmp_path)
    command.run(dataclasses.replace(given, formats=("md", "csv")))
    written = sorted(tmp_path.iterdir())
    assert [path.suffix for path in written].count(".md") == 23
    assert len(written) == 2 * 23 + 1
    for path in written:
        assert path.read_bytes() == (committed / path.name).read_bytes(), path.name


def test_every_printed_number_stands_in_the_committed_tables_beside_ours_or_with_why_there_is_none():
    committed, explained = ROOT / "experiments" / "results", (ROOT / "docs" / "departures.md").read_text()
    count = 0
    for name, printed in paper.tables().items():
        text = (committed / f"{name}.csv").read_text()
        lines = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
        found = {(line["metric"], line["method"], line["column"]): line for line in lines}
        comments = [line for line in text.splitlines() if line.startswith("#")]
        for row, column in itertools.product(printed.rows, printed.columns):
            row_name, column_name = RELEASED.get(row.method, row.method), RELEASED.get(column, column)
            line = found[row.metric or "", row_name, column_name]
            theirs = printed.value(row.metric, row.method, column).mean
            assert float(line["paper"]) == pytest.approx(theirs, rel=1e-5)
            if line["ours"]:
                assert float(line["difference"]) == pytest.approx(float(line["ours"]) - theirs, abs=1e-3)
            else:
                assert any(f"{row.method}" in comment and "not run" in comment for comment in comments)
            far = line["ours"] and abs(float(line["difference"])) > (0.2 * theirs if row.metric == "T_error" else 3)
            assert not far or name == "win_loss" or row.method in explained, (name, row.method)
            count += 1
    assert count == 2893


def test_the_counts_in_the_departures_are_those_of_the_committed_tables():
    text = (ROOT / "docs" / "departures.md").read_text().split("## Where our tables differ")[1].split("###")[0]
    told = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ][2:]
    found = {}
    for path in (ROOT / "experiments" / "results").glob("*.csv"):
        lines = csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#"))
        for line in lines if path.stem not in ("win_loss", "tau") else ():
            if line["difference"] and line["metric"] and line["method"] not in BESIDE_ROWS:
                allowed = 0.2 * float(line["paper"]) if line["metric"] == "T_error" else 3
                coco = "COCO" in line["column"] or "coco" in path.stem.lower() or path.stem == "ablation_n1"
                name = PRINTED_FOR.get(line["method"], line["method"])
                found.setdefault((name, coco), []).append((abs(float(line["difference"])) > allowed, line))
    names = [name for row in told for name in row[0].split(", ")]
    assert len(names) == len(set(names))
    assert set(names) >= {name for (name, _), entries in found.items() if any(far for far, _ in entries)}
    for row, voc, coco, span, _ in told:
        entries = [
            [each for name in row.split(", ") for each in found.get((name, where), [])] for where in (False, True)
        ]
        assert [f"{sum(far for far, _ in some)} of {len(some)}" if some else "" for some in entries] == [voc, coco], row
        differences = [float(line["difference"]) for _, line in entries[0]]
        assert span == (f"{min(differences):.1f} to {max(differences):.1f}" if differences else ""), row


@pytest.mark.slow
def test_rows_that_look_at_maps_train_on_images_of_a_devkit(tmp_path):
    if not (DATA / "VOCdevkit").exists():
        pytest.skip(f"real data VOCdevkit not found in {DATA} (set MLT_JAX_DATA)")
    # The small devkit has 200 images in trainval and 160 in test, the paper's splits.
    given = Options(
        table=("ablation4", "cls_VOC2007_c"), devkit=DATA, pretrained=str(DATA / "resnet50_imagenet.npz"), seeds=(0, 1),
        real_test=True, only=(r"\(0,0.2\) seed\d (AGCN|CSRA)",), epochs=10, sample_epoch=5, batch_size=32,
        workdir=tmp_path / "runs", out=tmp_path / "written", cache=tmp_path / "maps",
    )  # fmt: skip
    _, table = command.run(given)
    chance = 100 * datasets.load("voc2007", split="test", data_dir=DATA).labels.mean()
    names = {"AGCN", "AGCN+Reweight-Ours", "CSRA", "CSRA+Reweight-Ours"}
    assert {json.loads(path.read_text())["method"] for path in files(given.workdir).values()} == names
    for name in ("AGCN", "CSRA"):
        entry = table.entries[Row("mAP", name), "(0,0.2)"]
        assert entry.runs == 1
        assert entry.mean > 4 * chance
    text = (given.out / "cls_VOC2007_c.md").read_text()
    assert "AGCN; CSRA: 1 of 2 seeds." in text
    assert "s of it AGCN and CSRA" in text
    assert "AGCN and CSRA look at maps of small images" in text
    assert "AGCN's learning rate, 0.00015, is" in text
    assert "Not the paper's test set" not in text
    kept = [np.load(path, mmap_mode="r").shape for path in given.cache.glob("*.npy")]
    assert {shape[2:] for shape in kept if len(shape) > 2} == {(7, 7, 2048)}, kept


def test_a_failing_cell_leaves_a_log_and_the_rest_go_on(tiny, tmp_path, monkeypatch, capsys):
    def broken(logits, labels, T):
        raise ArithmeticError("deliberately")

    monkeypatch.setitem(METHODS, "GCE", Method(loss=broken))
    given = options(
        tiny, tmp_path, table=("cls_VOC2007_c",), seeds=(0,), only=(r"\(0,0.6\) seed0 (GCE|Standard|CDR)$",)
    )
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


PLUGIN = """
from mlt_jax.models import build
from mlt_jax.paper.methods import ESTIMATORS, METHODS, Estimator, Method
METHODS["Squared"] = Method(loss=lambda logits, labels, T: (logits - 2 * labels + 1) ** 2)
ESTIMATORS["Identity"] = Estimator(lambda evidence: [[[1, 0], [0, 1]]] * evidence.labels.shape[1])
"""


def test_a_plugin_s_method_and_estimator_get_rows(tiny, tmp_path, monkeypatch):
    """CONTRIBUTING.md, step by step."""
    for registry, name in ((METHODS, "Squared"), (ESTIMATORS, "Identity")):
        monkeypatch.setitem(registry, name, None)  # taken out again after the test
    (tmp_path / "my_method.py").write_text(PLUGIN)
    given = options(
        tiny, tmp_path / "runs", table=("cls_VOC2007_c", "est_VOC2007"), seeds=(0,), extra=("Squared", "Identity"),
        plugins=(tmp_path / "my_method.py",), only=(r"\(0.2,0.2\) seed0 (Squared|Identity|Standard)$",),
    )  # fmt: skip
    classification, estimation = command.run(given)
    assert classification.entries[Row("mAP", "Squared"), "(0.2,0.2)"].mean > 50
    assert estimation.entries[Row("T_error", "Identity"), "(0.2,0.2)"].mean == pytest.approx(4 * 0.4)
    assert "| Identity |" in (tmp_path / "runs" / "written" / "est_VOC2007.md").read_text()


@pytest.mark.slow
def test_a_stopped_fine_tuning_goes_on_inside_its_training(tmp_path, monkeypatch):
    """A small whole network from real images: what a stop leaves in `training/` is taken up, and goes with the job."""
    if not (DATA / "VOCdevkit").exists():
        pytest.skip(f"real data VOCdevkit not found in {DATA} (set MLT_JAX_DATA)")
    monkeypatch.setattr(cells, "build", lambda name, pretrained, **more: build("small", **more))
    straight, stopped = (
        Options(
            table=("cls_VOC2007_c",), devkit=DATA, pretrained="small", seeds=(0,), real_test=True, backbone="finetune",
            only=(r"\(0,0.2\) seed0 (Standard|Reweight-TrueT)$",), epochs=3, sample_epoch=2, batch_size=32,
            learning_rate=1e-3, workdir=tmp_path / name, out=tmp_path / name / "written",
        )
        for name in "ab"
    )  # fmt: skip
    command.run(straight)
    run_epoch = loop._Training._run_epoch

    def stops(self, epoch, *rest):
        if (self.name, epoch) == ("Reweight-TrueT", 1):
            raise KeyboardInterrupt
        trained.append((self.name, epoch))
        run_epoch(self, epoch, *rest)

    trained = []
    monkeypatch.setattr(loop._Training, "_run_epoch", stops)
    with pytest.raises(KeyboardInterrupt):
        command.run(stopped)
    assert list((tmp_path / "b" / "training").rglob("checkpoints"))
    trained.clear()
    monkeypatch.setattr(
        loop._Training, "_run_epoch", lambda self, *rest: (trained.append(self.name), run_epoch(self, *rest))[1]
    )
    command.run(stopped)
    assert set(trained) == {"Reweight-TrueT"}, "the warm-up is not trained again"
    scores = [
        {name: json.loads(path.read_text())["scores"] for name, path in files(tmp_path / side).items()} for side in "ab"
    ]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 2
    assert not list((tmp_path / "b" / "training").rglob("checkpoints"))


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
from mlt_jax.paper.tables import launch, run
from mlt_jax.paper.tables.options import Options

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
        "learning_rate": 5e-3, "seeds": [0, 1], "only": [r"\(0,0.6\) seed[01] (Standard|GCE)$"],
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
                    only=(r"\(0,0.6\) seed0 (GCE|Standard)$",))  # fmt: skip

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


def test_a_table_says_the_command_that_makes_it_without_this_machine_s_folders(partly_run):
    given, words = Options(seeds=(0, 1), write_only=True), "python experiments/tables.py --table cls_VOC2012_c"
    assert command.command(given, partly_run) == f"{words} --features-dir DIR --seeds 0 1"
    with_maps = partly_run._replace(seconds={"pooled": 1.0, "maps": 1.0})
    images = "--devkit DIR --pretrained FILE"
    assert command.command(given, with_maps) == f"{words} --features-dir DIR {images} --seeds 0 1"
    tuned = dataclasses.replace(given, backbone="finetune")
    assert command.command(tuned, partly_run) == f"{words} {images} --backbone finetune --seeds 0 1"
