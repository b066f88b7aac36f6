"""What attacks need: a tiny data set, the commands as processes, and limits of the operating system."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from paths import ROOT

RUN, TABLES = ROOT / "experiments" / "run.py", ROOT / "experiments" / "tables.py"


@pytest.fixture(scope="session")
def features(tmp_path_factory):
    """A folder of two feature sets of 200 examples: voc2012 to train on, voc2007 to test on."""
    folder, rng = tmp_path_factory.mktemp("features"), np.random.default_rng(0)
    for name in ("voc2012", "voc2007"):
        signal = rng.normal(size=(200, 3)).astype(np.float32)
        ids = np.array([f"{name}_{row}" for row in range(200)])
        np.savez(folder / f"{name}_features.npz", features=signal, names=ids)
        labels = np.where(signal > 0.3, 1, -1).astype(np.int8)
        np.savez(folder / f"{name}_labels.npz", trainval=labels, trainval_names=ids, classes=list("abc"))
    return folder


@pytest.fixture
def words(features):
    """The options of run.py for a run of seconds in `workdir`; later options win over these."""

    def make(workdir, *more):
        small = ["--dataset=voc2012", f"--features={features}", "--test-split=voc2007/trainval", "--epochs=2"]
        small += ["--batch-size=64", "--save-every=0", "--seeds", "0", "--methods", "Standard", f"--workdir={workdir}"]
        return [str(RUN), *small, *map(str, more)]

    return make


@pytest.fixture
def start(tmp_path_factory):
    """Starts a Python process on one device, with compiled steps shared; ends it if the test does not."""
    begun = []
    more = {"PYTHONPATH": str(ROOT), "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "JAX_LOGGING_LEVEL": "ERROR"}
    more |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.getbasetemp() / "compiled")}
    more |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}

    def begin(words, **options):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, *map(str, words)]
        if before := options.pop("before", ""):  # not preexec_fn: JAX warns of every fork
            command = [sys.executable, "-c", f"{before}; import os, sys; os.execv(sys.argv[1], sys.argv[1:])", *command]
        begun.append(subprocess.Popen(command, env=os.environ | more | options.pop("env", {}), **pipes | options))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


@pytest.fixture
def ended(start):
    """Runs a process to its end: exit code, and the lines of its errors."""

    def run(words, **options):
        process = start(words, **options)
        _, err = process.communicate()
        return process.returncode, err.splitlines()

    return run


@pytest.fixture
def small_disk(tmp_path):
    """(a folder, options of a process for which the folder's disk is nearly full).

    A disk of its own where mounting is permitted; else no file may grow past the same size.
    """
    size, folder = 20_000, tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = shutil.which("mount") and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    limit = "" if mounted else "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"
    yield folder, {"before": limit}
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def read_only(tmp_path):
    """(a folder that may not be written, options of a process that has to heed that, root or not)."""
    folder = tmp_path / "read_only"
    folder.mkdir()
    folder.chmod(0o555)
    # PR_CAPBSET_DROP of CAP_DAC_OVERRIDE, for what is executed next
    yield folder, {"before": "import ctypes; ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)"}
    folder.chmod(0o755)
