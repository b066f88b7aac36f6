import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from paths import ROOT
from PIL import Image
from safetensors.numpy import load_file

from mlt_jax import TransitionEstimate, estimate
from mlt_jax.config import Config, resolve
from mlt_jax.data import load
from mlt_jax.models import build
from mlt_jax.models.pretrained import save
from mlt_jax.paper.tasks import Noisy, make_task, split_rows
from mlt_jax.run import estimator_features, noisy_labels, run
from mlt_jax.training.loop import Engine, Session

N, D, Q = 1500, 12, 5


@pytest.fixture(scope="session")
def features(tmp_path_factory):
    """A folder of two small feature sets whose labels are correlated: voc2012 to train on, voc2007 to test on."""
    folder = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    effects = rng.normal(size=(4, D + Q)) * np.where(np.arange(D + Q) < D, 1, 4)
    for name in ("voc2012", "voc2007"):
        signal = rng.normal(size=(N, 4)) @ effects
        inputs = (signal[:, :D] + 0.2 * rng.normal(size=(N, D))).astype(np.float32)
        labels = np.where(rng.random((N, Q)) < 1 / (1 + np.exp(2 - signal[:, D:])), 1, -1).astype(np.int8)
        ids = np.array([f"{name}_{row}" for row in range(N)])
        np.savez(folder / f"{name}_features.npz", features=inputs, names=ids)
        np.savez(folder / f"{name}_labels.npz", trainval=labels, trainval_names=ids, classes=list("abcde"))
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder of small images with CSV files of labels: one colour channel per class."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, n in (("train", 180), ("test", 40)):
        labels = rng.integers(0, 2, (n, 3))
        pixels = rng.integers(0, 100, (n, 40, 36, 3)) + 150 * labels[:, None, None, :]
        rows = ["image,red,green,blue"]
        for row in range(n):
            Image.fromarray(pixels[row].astype(np.uint8)).save(folder / f"{split}{row}.png")
            rows.append(f"{split}{row}.png," + ",".join(map(str, labels[row])))
        (folder / f"{split}.csv").write_text("\n".join(rows) + "\n")
    return folder


def config(features, workdir, **changes):
    basics = dict(dataset="voc2012", features=features, test_split="voc2007/trainval", epochs=6, learning_rate=1e-2)
    return Config(**basics | dict(seeds=(0,), batch_size=64, save_every=0.0, workdir=workdir) | changes)


def flags(config):
    """The command line that gives this configuration."""
    words = []
    for name, value in vars(config).items():
        if value != getattr(Config(), name):
            value = " ".join(map(str, value)) if isinstance(value, tuple) else value
            words += [f"--{name.replace('_', '-')}", *str(value).split()]
    return words


# Does what run.py does, and kills its own process with SIGKILL when a function is called for the n-th time.
KILLER = """
import os, signal, sys
from mlt_jax.models import cpu
if cpu.alone():
    cpu.tune()
from mlt_jax.training import checkpoint, records
name, count = sys.argv[1], int(sys.argv[2])
owner = {"save": checkpoint.Checkpoints, "write": records.Log}[name]
original = getattr(owner, name)
def patched(*args, **kwargs):
    global count
    count -= 1
    result = original(*args, **kwargs)
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(owner, name, patched)
import tyro
from mlt_jax.config import Config, resolve
from mlt_jax.paper.tasks import Noisy, make_task, split_rows
from mlt_jax.run import run
run(tyro.cli(Config, args=sys.argv[3:]))
"""


@pytest.fixture
def start(tmp_path_factory):
    """Starts a Python process on one device; ends it if the test does not."""
    processes = []
    compiled = str(tmp_path_factory.getbasetemp() / "compiled")
    more = {"PYTHONPATH": str(ROOT), "XLA_FLAGS": "", "JAX_COMPILATION_CACHE_DIR": compiled}
    more |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}

    def begin(words):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen([sys.executable, *words], env=os.environ | more, **pipes))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def finish(process, code=0):
    out, err = process.communicate()
    assert process.returncode == code, err
    return out


def left_behind(workdir, seed=0):
    """Everything that must not depend on whether a run was killed."""
    folder = workdir / f"seed{seed}"
    results = json.loads((folder / "results.json").read_text())
    lines = {path.parent.name: path.read_bytes() for path in folder.glob("*/metrics.jsonl")}
    weights = {path.parent.name: path.read_bytes() for path in folder.glob("*/weights.*")}
    assert len(lines) == len(weights) == len(results["test"])
    return results["test"], results["T_error"], lines, weights, TransitionEstimate.load(folder / "transition.npz")


def assert_identical(found, expected):
    assert found[:4] == expected[:4]
    jax.tree.map(np.testing.assert_array_equal, found[4], expected[4])


def test_a_run_from_the_command_line_writes_and_prints_everything(features, tmp_path, start):
    out = finish(start([str(ROOT / "experiments" / "run.py"), *flags(config(features, tmp_path, seeds=(0, 1)))]))
    for words in ("Standard", "Reweight ", "Reweight-TrueT", "summed error of T: auto", "seconds per seed"):
        assert words in out
    settings = json.loads((tmp_path / "config.json").read_text())
    assert (settings["dataset"], settings["epochs"], settings["sample_epoch"]) == ("voc2012", 6, 3)
    for method in ("Standard", "Reweight", "Reweight-TrueT"):
        lines = (tmp_path / "seed1" / method / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4, 5, 6]
        assert list((tmp_path / "seed0" / method / "events").glob("events.*"))
    assert not list(tmp_path.rglob("checkpoints"))
    table = (tmp_path / "seed0" / "transition.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in table] == ["class", *"abcde"]
    with np.load(tmp_path / "seed0" / "Reweight" / "weights.npz") as weights:
        assert {name: weights[name].shape[-1] for name in weights} == {"head.kernel": 5, "head.bias": 5}
    assert f"page: {tmp_path / 'report.html'}" in out
    assert "Noise per class" in (tmp_path / "report.html").read_text()
    summary = json.loads((tmp_path / "results.json").read_text())
    assert len(summary["seeds"]) == 2
    scores = [seed["test"]["Standard"]["OF1"] for seed in summary["seeds"]]
    assert summary["test"]["Standard"]["OF1"]["mean"] == pytest.approx(np.mean(scores))


def test_reweighting_beats_standard_and_T_is_found(features, tmp_path):
    found = run(config(features, tmp_path, rho_neg=0.0, rho_pos=0.6, epochs=10))
    of1 = {method: scores["OF1"]["mean"] for method, scores in found["test"].items()}
    assert of1["Reweight-TrueT"] > of1["Standard"] + 0.1
    assert of1["Reweight"] > of1["Standard"] + 0.1
    assert found["T_error"]["auto"]["mean"] < found["T_error"]["identity"]["mean"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["features", "images"])
def test_a_run_killed_at_several_points_ends_as_one_never_killed(features, images, tmp_path, kind, start):
    def settings(name):
        if kind == "features":
            return config(features, tmp_path / name)
        # Five batches an epoch and a checkpoint after each: most kills fall into the middle of an epoch.
        small = dict(model="small", image_size=32, epochs=2, seeds=(0,), batch_size=32, save_every=0.0)
        return Config(dataset="folder", data_dir=images, workdir=tmp_path / name, **small)

    finish(start([str(ROOT / "experiments" / "run.py"), *flags(settings("whole"))]))
    words = flags(settings("killed"))
    # After lines were written and their checkpoints were not, and while the third save of a start was being written;
    # the last of these falls into the retraining.
    for name, count in [("write", 2), ("save", 3), ("write", 9 if kind == "features" else 2)]:
        process = start(["-c", KILLER, name, str(count), *words])
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        assert "passed over" not in err
    # And from outside, at whatever moment its first new line is seen.

    def written():
        return sum(path.stat().st_size for path in (tmp_path / "killed" / "seed0").glob("*/metrics.jsonl"))

    size = written()
    process = start([str(ROOT / "experiments" / "run.py"), *words])
    while process.poll() is None and written() <= size:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (tmp_path / "killed" / "results.json").exists()
    out = finish(start([str(ROOT / "experiments" / "run.py"), *words]))
    assert re.search("Reweight(-TrueT)? goes on at epoch", out)
    assert_identical(left_behind(tmp_path / "killed"), left_behind(tmp_path / "whole"))


def test_bf16_trains_like_float32_with_float32_weights(images, tmp_path):
    small = dict(model="small", image_size=32, epochs=3, seeds=(0,), batch_size=32, learning_rate=3e-3)
    found = {}
    for precision in ("float32", "bf16"):
        plain = dict(precision=precision, methods=("Standard",))
        run(Config(dataset="folder", data_dir=images, workdir=tmp_path / precision, **plain, **small))
        folder = tmp_path / precision / "seed0" / "Standard"
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        found[precision] = np.array([json.loads(line)["train_loss"] for line in lines])
        weights = load_file(folder / "weights.safetensors")
        assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    assert (found["float32"] != found["bf16"]).any()  # bf16 was really used
    np.testing.assert_allclose(found["bf16"], found["float32"], rtol=0.01)


def test_a_finished_run_is_read_not_repeated_and_no_resume_repeats_it(features, tmp_path, capsys):
    first = run(config(features, tmp_path, epochs=2))
    assert run(config(features, tmp_path, epochs=2)) == first
    assert "was finished before" in capsys.readouterr().out
    again = run(config(features, tmp_path, epochs=2, resume=False))
    assert again["test"] == first["test"]
    assert "was finished before" not in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"workdir: .* holds a run with other epochs"):
        run(config(features, tmp_path, epochs=3))


def test_a_loss_that_is_not_finite_names_the_examples(features, tmp_path, monkeypatch):
    def broken(*args, **options):
        data = load(*args, **options)
        data.features[7] = np.nan
        return data

    monkeypatch.setattr("mlt_jax.data.load", broken)
    with pytest.raises(FloatingPointError, match="not finite at step"):
        run(config(features, tmp_path / "run"))
    kept = json.loads((tmp_path / "run" / "seed0" / "Standard" / "nonfinite.json").read_text())
    assert "voc2012_7" in kept["ids"]
    assert len(kept["ids"]) == 64


def test_two_processes_give_the_metrics_of_one(features, tmp_path, start):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = flags(config(features, tmp_path / "two", epochs=3))
    command = [str(ROOT / "experiments" / "run.py"), *words, "--coordinator", f"127.0.0.1:{port}", "--num-processes"]
    processes = [start([*command, "2", "--process-id", str(k)]) for k in (0, 1)]
    out = [finish(process) for process in processes]
    assert "Standard" in out[0]
    assert "Standard" not in out[1]
    one = run(config(features, tmp_path / "one", epochs=3))
    two = json.loads((tmp_path / "two" / "results.json").read_text())
    for method, scores in one["test"].items():
        for name, value in scores.items():
            assert two["test"][method][name]["mean"] == pytest.approx(value["mean"], abs=1e-4), (method, name)
    assert two["T_error"]["auto"]["mean"] == pytest.approx(one["T_error"]["auto"]["mean"], abs=1e-4)


def test_labels_as_given_have_no_true_T(features, tmp_path):
    found = run(config(features, tmp_path, noise="none", epochs=2))
    assert set(found["test"]) == {"Standard", "Reweight"}
    assert found["T_error"] == {}
    with pytest.raises(ValueError, match="'True T' reads the truth, which nobody knows here"):
        run(config(features, tmp_path / "asked", noise="none", epochs=2, methods=("Reweight-TrueT",)))


@pytest.mark.parametrize(
    ("noise", "neg", "pos"),
    [("mlml", 0.0, 0.3), ("pml", 0.1, 0.0), ("ulf", 0.3, 0.3), ("rates", 0.1, 0.3), ("alf", None, 0.3)],
)
def test_noise_has_the_rates_asked_for(noise, neg, pos):
    labels = (np.random.default_rng(0).random((20_000, 4)) < 0.4).astype(np.uint8)
    noisy, T, _ = noisy_labels(Config(noise=noise, rho_neg=0.1, rho_pos=0.3), labels, 0)
    neg = 1.6 / 2.4 * 0.3 if neg is None else neg
    np.testing.assert_allclose(T[:, 0, 1], neg, atol=0.01)
    np.testing.assert_allclose(noisy[labels == 0].mean(), neg, atol=0.01)
    np.testing.assert_allclose(1 - noisy[labels == 1].mean(), pos, atol=0.01)


def test_any_method_runs_by_its_name_and_shares_the_warm_up(features, tmp_path):
    names = ("GCE", "Reweight", "Reweight-DualT max", "Revision-Ours", "Standard")
    found = run(config(features, tmp_path, methods=names, estimator="recipe", epochs=3))
    assert tuple(found["test"]) == names
    assert set(found["T_error"]) == {"recipe", "Dual T-estimator max", "Our estimator", "identity"}
    # The chosen recipe is the paper's estimator, and the methods start from one warm-up.
    assert found["T_error"]["recipe"] == found["T_error"]["Our estimator"]
    assert set(found["seconds"]) == {*names, "Reweight-Ours", "estimation"}
    files = {path.name for path in (tmp_path / "seed0").glob("transition*.npz")}
    assert files == {"transition.npz", "transition.Dual_T-estimator_max.npz", "transition.Our_estimator.npz"}


def test_methods_on_maps_share_a_frozen_backbone_with_those_on_their_mean(images, tmp_path):
    model = build("resnet18", num_classes=3, key=jax.random.key(0))
    weights = save(tmp_path / "resnet18", "resnet18", model.params, model.stats, model.preprocess)
    frozen = dict(model="resnet18", pretrained=str(weights), backbone="frozen", cache=tmp_path / "maps", image_size=64)
    small = dict(epochs=2, seeds=(0,), batch_size=32, methods=("Standard", "CSRA+Reweight"), workdir=tmp_path / "run")
    found = run(Config(dataset="folder", data_dir=images, **frozen, **small))
    assert set(found["test"]) == {"Standard", "CSRA+Reweight"}
    assert {np.load(path, mmap_mode="r").ndim for path in (tmp_path / "maps").glob("*[!s].npy")} == {5}
    assert set(found["T_error"]) == {"auto (csra)", "identity"}
    with np.load(tmp_path / "run" / "seed0" / "CSRA+Reweight" / "weights.npz") as saved:
        assert all(name.startswith("head.") for name in saved)


def test_a_tail_is_trained_on_kept_maps_and_saved_as_a_whole_network(images, tmp_path, capsys):
    model = build("small", num_classes=3, key=jax.random.key(0))
    weights = save(tmp_path / "small", "small", model.params, model.stats, model.preprocess)
    tail = dict(model="small", pretrained=str(weights), backbone="tail", cache=tmp_path / "maps", image_size=32)
    small = dict(epochs=1, seeds=(0,), batch_size=32, methods=("Standard", "Reweight"), workdir=tmp_path / "run")
    found = run(Config(dataset="folder", data_dir=images, views=2, learning_rate=1e-3, **tail, **small))
    assert set(found["test"]) == {"Standard", "Reweight"}
    assert set(found["T_error"]) == {"auto", "identity"}
    assert "features of the pretrained network" in capsys.readouterr().out
    shapes = {np.load(path, mmap_mode="r").shape for path in (tmp_path / "maps").glob("*[!s].npy")}
    assert shapes == {(180, 2, 4, 4, 64), (40, 1, 4, 4, 64), (180, 1, 128)}
    after = load_file(tmp_path / "run" / "seed0" / "Reweight" / "weights.safetensors")
    before = load_file(weights)
    moved = {name.split(".")[0] for name in before if not np.array_equal(before[name], after[name])}
    assert after.keys() == before.keys()
    assert moved == {"layer4", "fc"}


PLUGIN = """
import jax.numpy as jnp
from mlt_jax.paper.methods import ESTIMATORS, METHODS, Estimator, Method

def half_of_dual_t(evidence):
    T = jnp.asarray(ESTIMATORS["Dual T-estimator max"].estimate(evidence))
    return (T + jnp.eye(2)[None]) / 2

METHODS["Squared"] = Method(loss=lambda logits, labels, T: (1 / (1 + jnp.exp(-logits)) - labels) ** 2)
ESTIMATORS["Half Dual-T"] = Estimator(half_of_dual_t)
METHODS["Reweight-Half"] = METHODS["Reweight"]._replace(estimator="Half Dual-T")
"""


def test_a_plugin_of_one_file_is_a_method_and_an_estimator_of_run_py(features, tmp_path, start):
    """CONTRIBUTING.md, step by step."""
    plugin = tmp_path / "my_method.py"
    plugin.write_text(PLUGIN)
    settings = config(features, tmp_path / "run", epochs=3)
    words = [*flags(settings), "--plugins", str(plugin), "--methods", "Standard", "Squared", "Reweight-Half"]
    out = finish(start([str(ROOT / "experiments" / "run.py"), *words]))
    assert re.search(r"^Squared +\d", out, re.MULTILINE)
    assert re.search(r"^Reweight-Half +\d", out, re.MULTILINE)
    assert "Half Dual-T" in json.loads((tmp_path / "run" / "results.json").read_text())["T_error"]


def test_help_lists_every_flag(start):
    out = finish(start([str(ROOT / "experiments" / "run.py"), "--help"]))
    for name in vars(Config()):
        assert f"--{name.replace('_', '-')}" in out


def test_auto_reads_the_pretrained_network_where_all_of_it_is_fine_tuned(images, tmp_path, capsys):
    """There is no warm-up; without pretrained weights it says what it uses."""
    model = build("small", num_classes=3, key=jax.random.key(0))
    weights = save(tmp_path / "small", "small", model.params, model.stats, model.preprocess)
    asked = Config(dataset="folder", data_dir=images, model="small", image_size=32, cache=tmp_path, noise="none")
    train = load("folder", data_dir=images)
    same, features = estimator_features(resolve(dataclasses.replace(asked, pretrained=str(weights))), train)
    assert same is train
    assert features.shape == (180, 128)
    assert "features of the pretrained network" in capsys.readouterr().out
    task = make_task(train, train, Noisy(train.labels, None), known=False, features=features)
    found = Session(Engine(lambda *_: pytest.fail("a warm-up")), task, folder=tmp_path / "seed0").transition("auto")
    rows, _ = split_rows(180)
    np.testing.assert_allclose(found.T, estimate(train.labels[rows], features=features[rows]).T, atol=1e-6)
    assert set(json.loads((tmp_path / "seed0" / "assumption.json").read_text())) == {"red", "green", "blue"}
    assert estimator_features(resolve(asked), train) == (train, None)
    assert "no pretrained weights" in capsys.readouterr().out
    assert estimator_features(resolve(dataclasses.replace(asked, estimator="recipe")), train) == (train, None)
    assert capsys.readouterr().out == ""


def test_the_same_examples_to_train_and_test_on_are_refused(features, tmp_path):
    with np.load(features / "voc2012_features.npz") as inputs, np.load(features / "voc2012_labels.npz") as labels:
        np.savez(tmp_path / "all.npz", features=inputs["features"], labels=labels["trainval"] == 1)
    given = Config(features=tmp_path / "all.npz", workdir=tmp_path / "run", seeds=(0,))
    with pytest.raises(ValueError, match="features: train and test are the same examples"):
        run(given)


def test_an_edited_plugin_or_weight_file_is_another_run(features, tmp_path):
    plugin = tmp_path / "mine.py"
    text = "from mlt_jax.paper.methods import METHODS\nMETHODS['Mine'] = METHODS['Standard']\n"
    plugin.write_text(text)
    given = config(features, tmp_path / "run", epochs=1, methods=("Mine",), plugins=(plugin,))
    first = run(given)
    assert run(given) == first
    plugin.write_text(text + "# another loss\n")
    with pytest.raises(ValueError, match="holds a run with other plugins"):
        run(given)


def test_no_resume_deletes_seeds_of_runs_alone(features, tmp_path):
    given = config(features, tmp_path / "run", epochs=1, methods=("Standard",))
    run(given)
    (tmp_path / "run" / "seedlings").mkdir()
    (tmp_path / "run" / "seedlings" / "photo.txt").write_text("a rose")
    (tmp_path / "run" / "seeds.txt").write_text("mine")
    run(dataclasses.replace(given, resume=False))
    assert (tmp_path / "run" / "seedlings" / "photo.txt").read_text() == "a rose"
    assert (tmp_path / "run" / "seeds.txt").exists()


def test_more_methods_on_maps_extend_a_finished_run(images, tmp_path):
    net = build("resnet18", num_classes=1000, key=jax.random.key(7))
    weights = save(tmp_path / "weights", "resnet18", net.params, net.stats, net.preprocess)
    given = Config(
        dataset="folder", data_dir=images, model="resnet18", pretrained=str(weights), backbone="frozen", epochs=1,
        image_size=32, batch_size=32, seeds=(0,), methods=("Standard",), cache=tmp_path / "cache",
        workdir=tmp_path / "run",
    )  # fmt: skip
    first = run(given)["test"]["Standard"]
    both = run(dataclasses.replace(given, methods=("Standard", "CSRA")))["test"]
    assert both["Standard"] == first
    assert both["CSRA"]["mAP"]["mean"] > 0


def test_images_that_cannot_be_read_are_left_out_of_a_network_too(images, tmp_path, capsys):
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    for row in range(5):
        (folder / f"test{row}.png").write_bytes(b"broken")
    given = Config(
        dataset="folder", data_dir=folder, model="small", epochs=1, batch_size=32, image_size=32, seeds=(0,),
        methods=("Standard",), on_error="skip", workdir=tmp_path / "run",
    )  # fmt: skip
    run(given)
    said = capsys.readouterr().out
    assert "images/test: 5 images cannot be read and are left out" in said
    assert "images/test: 35" in said
