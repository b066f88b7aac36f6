"""Runs of several processes of which one is missing, repeated or killed: one line in the others, exit code 2."""

import json
import signal
import socket
import time

import numpy as np
import pytest

# The command `mlt`; the process that strikes kills itself at the first call of a function, such as `count_checked`.
STRIKE = """
import os, signal, sys
from mlt_jax import cli
if sys.argv[1]:
    setattr(cli, sys.argv[1], lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL))
del sys.argv[1]
cli.script()
"""
AGAIN = "see its output, then start all again"


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def estimate(tmp_path):
    """The words of `mlt estimate` on small files; `strikes` is the function at which it kills itself."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "labels.npy", rng.random((200, 3)) < 0.4)
    np.save(tmp_path / "selected.npy", rng.random((200, 3)) < 0.8)
    files = [tmp_path / "labels.npy", "--selected", tmp_path / "selected.npy", "--out", tmp_path / "T.npz"]
    return lambda strikes="": ["-c", STRIKE, strikes, "estimate", *files]


def placed(address, count, k, timeout=60):
    options = {"coordinator": address, "num-processes": count, "process-id": k, "timeout": timeout}
    return [f"--{name}={value}" for name, value in options.items()]


def finished(*processes):
    """(exit code, standard error) of each."""
    said = [process.communicate()[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


@pytest.fixture(params=["mlt", "run.py"])
def program(request, estimate, words, tmp_path):
    """The name and the words of a program that joins others before it does anything else."""
    return request.param, estimate() if request.param == "mlt" else words(tmp_path / "run")


def test_process_0_that_cannot_be_reached_is_one_line(program, start, address):
    name, asked = program
    [(code, err)] = finished(start([*asked, *placed(address, 2, 1, timeout=1)]))
    assert code == 2, err
    assert err == (
        f"{name}: coordinator: process 0 cannot be reached at {address} within 1 s (Connection refused); start it, "
        "correct the address, or pass a longer --timeout\n"
    )


def test_a_missing_process_is_named(program, start, address):
    name, asked = program
    [(code, err)] = finished(start([*asked, *placed(address, 2, 0, timeout=1)]))
    assert code == 2, err
    assert err.startswith(f"{name}: process 1 (of 2) did not come within 1 s; start each of 0 to 1 once")
    assert len(err.splitlines()) == 1


def test_a_repeated_id_is_named_to_all(program, start, address):
    name, asked = program
    trio = [start([*asked, *placed(address, 3, k, timeout=300)]) for k in (0, 1, 1)]
    line = f"{name}: process_id: two processes say that they are 1; start each of 0 to 2 once\n"
    assert finished(*trio) == [(2, line)] * 3


@pytest.mark.parametrize("when", ["read_share", "count_checked"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_process_killed_while_it_reads_or_counts_is_named(estimate, start, address, tmp_path, who, when):
    pair = [start([*estimate(when if k == who else ""), *placed(address, 2, k)]) for k in (0, 1)]
    ends = finished(*pair)
    assert ends[who][0] == -signal.SIGKILL
    code, err = ends[1 - who]
    assert code == 2, err
    assert err.startswith(f"mlt: process {who} is gone: it was killed, ")
    assert err.endswith(f"{AGAIN}\n")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "T.npz").exists()


@pytest.mark.slow
def test_a_process_killed_while_it_trains_is_named_and_the_run_goes_on_to_the_same_end(words, start, address, tmp_path):
    def begin(folder):
        return [start([*words(tmp_path / folder, "--epochs=30"), *placed(address, 2, k)]) for k in (0, 1)]

    assert [code for code, _ in finished(*begin("whole"))] == [0, 0]
    for who in (1, 0):
        pair = begin("run")
        checkpoints = tmp_path / "run/seed0/Standard/checkpoints"
        before = {path.name for path in checkpoints.glob("*")}
        while not any(path.name.isdigit() and path.name not in before for path in checkpoints.glob("*")):
            assert pair[0].poll() is None, finished(*pair)
            time.sleep(0.01)
        pair[who].kill()
        code, err = finished(*pair)[1 - who]
        assert code == 2, err
        assert err.startswith(f"run.py: process {who} is gone: it was killed, ")
        assert len(err.splitlines()) == 1, err
    assert [code for code, _ in finished(*begin("run"))] == [0, 0]
    results = [json.loads((tmp_path / name / "results.json").read_text())["test"] for name in ("run", "whole")]
    assert results[0] == results[1]
    logs = [(tmp_path / name / "seed0/Standard/metrics.jsonl").read_bytes() for name in ("run", "whole")]
    assert logs[0] == logs[1]
