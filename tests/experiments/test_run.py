"""`python experiments/run.py --dataset=voc2012` from nothing: no data, no weights, only servers on this machine."""

import hashlib
import json
import os
import subprocess
import sys

import jax
import pytest
from loopback import Server
from paths import ROOT
from safetensors.numpy import save
from vocarchive import voc_archive

from mlt_jax.data.archives import ARCHIVES
from mlt_jax.models import build
from mlt_jax.models.pretrained import PINNED, to_torchvision
from mlt_jax.models.resnet import SHAPES

# Read by Python before the program: what the servers of this test offer is what is known and pinned.
OFFERED = """
import json, os
from tensorflow_datasets.core.download.checksums import UrlInfo
from mlt_jax.data import archives
from mlt_jax.models import pretrained
facts = json.loads(os.environ["OFFERED"])
archives.known = lambda dataset: {n: (u, UrlInfo(s, h, n)) for n, (u, s, h) in facts["archives"][dataset].items()}
pretrained.PINNED |= {name: pretrained.Pin(*pin) for name, pin in facts["weights"].items()}
"""


def digest(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def content():
    """Archives of 144 and 24 small images, and random weights by repository."""
    found = {ARCHIVES["voc2012"][0]: voc_archive(2012, "trainval", 144)}
    for name, split in zip(ARCHIVES["voc2007"], ("trainval", "test"), strict=True):
        found[name] = voc_archive(2007, split, 24)
    return found


@pytest.fixture
def world(content, tmp_path):
    """The servers, and `start(words, cwd)`, which runs the program as a user of a fresh account would."""
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "sitecustomize.py").write_text(OFFERED)
    with Server() as server:
        server.files = {f"/{name}": data for name, data in content.items()}
        known = {
            dataset: {n: (f"{server.url}/{n}", len(content[n]), digest(content[n])) for n in names}
            for dataset, names in ARCHIVES.items()
            if dataset != "coco"
        }
        pins = {}

        def offer(model):
            """Random weights of this network at its pinned name."""
            made = build(model, num_classes=1000, key=jax.random.key(0))
            data, name = save(to_torchvision(made.params, made.stats, SHAPES[model])), f"timm/{model}.tv_in1k"
            revision = PINNED[name].revision
            path, pins[name] = f"/{name}/resolve/{revision}/model.safetensors", (revision, digest(data))
            server.files[path] = data
            server.headers[path] = {"ETag": f'"{digest(data)}"', "X-Repo-Commit": revision}

        def start(words, cwd="."):
            (tmp_path / cwd).mkdir(exist_ok=True)
            new = {"HOME": str(tmp_path), "HF_ENDPOINT": server.url, "HF_HUB_DISABLE_TELEMETRY": "1", "XLA_FLAGS": ""}
            new["OFFERED"] = json.dumps({"archives": known, "weights": pins})
            new["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "startup"), str(ROOT)])
            places = ("MLT_JAX_DATA", "TFDS_DATA_DIR", "XDG_CACHE_HOME", "HF_HOME")
            env = {name: value for name, value in os.environ.items() if name not in places} | new
            command = [sys.executable, str(ROOT / "experiments" / "run.py"), *words]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            return subprocess.Popen(command, env=env, cwd=tmp_path / cwd, **pipes)

        yield server, offer, start


def finish(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def gets(server):
    return sorted(path for command, path in server.asked if command == "GET" and "/api/" not in path)


def test_two_runs_at_once_fetch_data_and_weights_once_and_both_end_with_the_table(world, tmp_path):
    server, offer, start = world
    offer("resnet18")
    small = ["--dataset=voc2012", "--seeds", "0", "--epochs", "1", "--model=resnet18", "--image-size=64"]
    both = [start([*small, "--methods", "Standard"], cwd) for cwd in ("one", "other")]
    for process in both:
        out = finish(process)
        assert "voc2012/trainval: 144 examples, voc2007/test: 24, 20 classes" in out
        assert "Standard" in out.split("noise rates")[1]
    assert len(gets(server)) == 4  # three archives, one file of weights
    results = [
        json.loads((tmp_path / cwd / "runs/voc2012-rates-0.2-0.2/results.json").read_text()) for cwd in ("one", "other")
    ]
    assert results[0]["test"] == results[1]["test"]
    assert (tmp_path / ".cache/mlt_jax/data/voc2012/VOCdevkit/VOC2012").is_dir()


def test_without_a_network_one_line_and_exit_code_2(world):
    server, _, start = world
    server.shutdown()
    server.server_close()
    process = start(["--dataset=voc2012"])
    _, err = process.communicate()
    assert process.returncode == 2
    [line] = err.splitlines()
    assert line.startswith("run.py: voc2012: not in ")
    assert "VOCtrainval_11-May-2012.tar" in line
    assert "downloads/manual" in line


@pytest.mark.slow
def test_the_command_as_the_user_typed_it(world):
    server, offer, start = world
    offer("resnet50")
    out = finish(start(["--dataset=voc2012", "--seeds", "0", "--epochs", "1"]))
    for words in ("Standard", "Reweight ", "Reweight-TrueT", "summed error of T: auto"):
        assert words in out
    assert len(gets(server)) == 4
