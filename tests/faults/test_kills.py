"""SIGKILL at random moments of a run, in every mode: the same command goes on, and ends with the same bytes.

`MLT_JAX_KILLS` is the number of kills in each mode; `experiments/attacks.py --kills 50` sets it.
"""

import os
import socket
import time

import jax
import numpy as np
import pytest
from paths import ROOT
from PIL import Image

from mlt_jax.models import build, pretrained
from mlt_jax.models.base import IMAGENET

RUN = ROOT / "experiments" / "run.py"
KILLS = int(os.environ.get("MLT_JAX_KILLS", "2"))
MODES = ["features", "features, 2 processes", "frozen", "tail", "finetune"]
if "MLT_JAX_KILLS" in os.environ:  # at length
    MODES += ["frozen, 2 processes", "tail, 2 processes", "finetune, 2 processes"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of 48 small images to train on and 16 to test on, with labels that can be learned."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, n in (("train", 48), ("test", 16)):
        lines = ["image,dark,red"]
        (folder / split).mkdir()
        for row in range(n):
            dark, red = rng.random(2) < 0.5
            image = rng.integers(0, 100 if dark else 255, (32, 32, 3)).astype(np.uint8)
            image[..., 0] = np.where(red, 250, image[..., 0])
            Image.fromarray(image).save(folder / split / f"{row}.png")
            lines.append(f"{split}/{row}.png,{int(dark)},{int(red)}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def command(words, pictures, tmp_path):
    """(mode, work folder) -> the words of the processes of a run."""
    net = build("small", num_classes=2, key=jax.random.key(0))
    weights = pretrained.save(tmp_path / "weights", "small", net.params, net.stats, IMAGENET)

    def make(mode, folder):
        mode, _, several = mode.partition(", ")
        if mode == "features":
            plain = words(folder, "--epochs=30")
        else:
            plain = [RUN, "--dataset=folder", f"--data-dir={pictures}", "--model=small", "--image-size=32"]
            plain += ["--epochs=2", "--batch-size=16", "--save-every=0", "--seeds", "0", "--methods", "Standard"]
            plain += [f"--workdir={folder}", f"--backbone={mode}", f"--cache={folder}-cache"]
            plain += [] if mode == "finetune" else [f"--pretrained={weights}"]
        if not several:
            return [plain]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        return [[*plain, f"--coordinator={address}", "--num-processes=2", f"--process-id={k}"] for k in range(2)]

    return make


def left_behind(folder):
    """Everything that must not depend on whether a run was killed."""
    [weights] = folder.glob("seed0/Standard/weights.*")
    kept = {path.name: path.read_bytes() for path in (weights, weights.with_name("metrics.jsonl"))}
    cache = folder.with_name(f"{folder.name}-cache")
    return kept | {path.name: path.read_bytes() for path in cache.glob("*.npy") if "rows" not in path.name}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(command, start, tmp_path, mode, record_property):
    def run(folder):
        return [start(words) for words in command(mode, tmp_path / folder)]

    def finish(folder):
        processes = run(folder)
        said = [process.communicate()[1] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes), said

    began = time.monotonic()
    finish("whole")
    took, rng = time.monotonic() - began, np.random.default_rng(0)
    struck = 0
    while struck < KILLS:
        processes = run("killed")
        time.sleep(rng.uniform(0, took))
        struck += any(process.poll() is None for process in processes)
        for process in processes:  # of two, the one that is left a moment longer ends by itself: `test_processes`
            process.kill()
        for process in processes:
            process.communicate()
        if (tmp_path / "killed/results.json").exists():  # it ended before: begin anew
            assert left_behind(tmp_path / "killed") == left_behind(tmp_path / "whole")
            ended = f"ended{time.monotonic_ns()}"
            for path in tmp_path.glob("killed*"):  # the cache, too: images are read again
                path.rename(path.with_name(path.name.replace("killed", ended)))
    finish("killed")
    record_property("got", f"{struck} kills, the same bytes")
    assert left_behind(tmp_path / "killed") == left_behind(tmp_path / "whole")
