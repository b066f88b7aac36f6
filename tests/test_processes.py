import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from paths import ROOT
from simulate import unbiased

from mlt_jax import Status, TransitionEstimate, estimate_all, processes


@pytest.fixture
def files(tmp_path):
    """Label files, the labels and the selection."""
    labels, selected = unbiased(np.random.default_rng(0), n=3001, q=10, keep=0.9)
    sp.save_npz(tmp_path / "labels.npz", sp.csr_array(labels))
    sp.save_npz(tmp_path / "unselected.npz", sp.csr_array(~selected))
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "selected.npy", selected)
    return tmp_path, labels, selected


@pytest.fixture
def start():
    """Starts process k of 2; ends it if the test does not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    begun = []

    def begin(k, words):
        join = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", "2", "--process-id", str(k)]
        more = {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun.append(subprocess.Popen([sys.executable, *words, *join], env=os.environ | more, **pipes))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("names", [("labels.npz", "--unselected", "unselected.npz"),
                                   ("labels.npy", "--selected", "selected.npy")], ids=["sparse", "dense"])  # fmt: skip
def test_two_processes_that_count_half_each_give_the_result_of_one(files, start, names):
    folder, labels, selected = files
    words = ["-m", "mlt_jax.cli", "estimate", str(folder / names[0]), names[1], str(folder / names[2]),
             "--out", str(folder / "T.npz")]  # fmt: skip
    pair = [start(k, words) for k in (0, 1)]
    for process in pair:
        _, err = process.communicate()
        assert process.returncode == 0, err
    found, expected = TransitionEstimate.load(folder / "T.npz"), estimate_all(labels, selected)
    for name in ("T", "prior", "status", "partners", "residual"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-6, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("aggregate", ["joint", "medoid"])
def test_two_processes_give_the_result_of_one_where_tables_would_not_fit(tmp_path, start, aggregate):
    rng, n, q = np.random.default_rng(0), 4001, 60_000
    topic = rng.integers(0, 20, n)
    several = [2 * topic, 2 * topic + 1, rng.integers(40, q, n)]  # two labels of a topic, one of which is often missed
    ones, places = np.ones(3 * n, bool), (np.tile(np.arange(n), 3), np.concatenate(several))
    labels = sp.csr_array((ones & (rng.random(3 * n) < 0.7), places), shape=(n, q))
    cells = sp.csr_array((rng.random(3 * n) < 0.2, places), shape=(n, q))
    sp.save_npz(tmp_path / "labels.npz", labels)
    sp.save_npz(tmp_path / "cells.npz", cells)
    words = ["-m", "mlt_jax.cli", "estimate", str(tmp_path / "labels.npz"), "--unselected", str(tmp_path / "cells.npz"),
             "--aggregate", aggregate, "--out", str(tmp_path / "T.npz")]  # fmt: skip
    pair = [start(k, words) for k in (0, 1)]
    for process in pair:
        _, err = process.communicate()
        assert process.returncode == 0, err
    expected = estimate_all(labels, unselected=cells, aggregate=aggregate)
    assert (np.asarray(expected.status)[:40] == Status.CORRELATION).all()
    found = TransitionEstimate.load(tmp_path / "T.npz")
    for name in ("T", "prior", "status", "partners", "residual"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-6, rtol=1e-5, err_msg=name)


def test_a_wrong_cell_in_one_share_ends_both_processes_with_one_line(files, start):
    folder, labels, _ = files
    labels[-1, 2] = 2
    np.save(folder / "labels.npy", labels)
    words = ["-m", "mlt_jax.cli", "estimate", str(folder / "labels.npy"), "--selected", str(folder / "selected.npy"),
             "--out", str(folder / "T.npz")]  # fmt: skip
    pair = [start(k, words) for k in (0, 1)]
    said = [process.communicate()[1] for process in pair]
    lines = ["mlt: another process could not count its rows; see its output\n",
             "mlt: labels: row 1500, column 2 is 2; pass 0 or 1\n"]  # fmt: skip
    assert [(process.returncode, text) for process, text in zip(pair, said, strict=True)] == [
        (2, text) for text in lines
    ]


@pytest.mark.parametrize("what", ["labels", "aggregate"])
def test_processes_with_other_data_or_another_rule_are_refused_before_they_count(files, start, what):
    folder, labels, _ = files
    np.save(folder / "other.npy", labels[:, ::-1])

    def words(k):
        name = "other.npy" if k and what == "labels" else "labels.npy"
        rule = "mean" if k and what == "aggregate" else "joint"
        return ["-m", "mlt_jax.cli", "estimate", str(folder / name), "--selected", str(folder / "selected.npy"),
                "--aggregate", rule, "--out", str(folder / "T.npz")]  # fmt: skip

    pair = [start(k, words(k)) for k in (0, 1)]
    said = [process.communicate()[1] for process in pair]
    line = f"mlt: {what}: process 1 has other than process 0; give all processes the same\n"
    assert [(process.returncode, text) for process, text in zip(pair, said, strict=True)] == [(2, line)] * 2
    assert not (folder / "T.npz").exists()


# Both leave with an error; process 1 is slow, so that process 0, and JAX's service with it, is gone before it is.
SLOW = """
import sys, time
import tyro
from mlt_jax import processes
def main(coordinator: str, num_processes: int, process_id: int):
    processes.join(coordinator, num_processes, process_id, timeout=60)
    said = processes._leave_last
    if process_id == 1:
        processes._leave_last = lambda: (said(), time.sleep(10))
    print("the reason", file=sys.stderr)
    processes.leave(2)
tyro.cli(main)
"""


def test_who_leaves_is_not_aborted_when_process_0_is_gone_first(start):
    pair = [start(k, ["-c", SLOW]) for k in (0, 1)]
    said = [process.communicate()[1] for process in pair]
    assert said == ["the reason\n"] * 2
    assert [process.returncode for process in pair] == [2, 2]


# Joins, then process `who` kills itself where it is told to; the others must not wait for ever.
VICTIM = """
import os, signal, sys
import tyro
from mlt_jax import processes
import numpy as np
def main(who: int, when: str, coordinator: str, num_processes: int, process_id: int):
    processes.join(coordinator, num_processes, process_id, timeout=60, program="victim")
    processes.add_up(np.ones(3, np.int32))  # all is well
    print("joined", flush=True)
    if process_id == who:
        if when != "before":
            processes._meet(30)  # comes to the meeting and dies instead of adding or sending
        os.kill(os.getpid(), signal.SIGTERM if when == "before" else signal.SIGKILL)
    if when == "while sending":
        list(processes.each([np.ones(3_000_000), np.ones(5, np.int32)], timeout=60))
    processes.add_up(np.ones((2000, 2000), np.int32), timeout=60)
tyro.cli(main)
"""


@pytest.mark.parametrize("when", ["before", "while adding", "while sending"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_process_that_dies_ends_the_other_by_one_line_that_names_it(start, who, when):
    pair = [start(k, ["-c", VICTIM, "--who", str(who), "--when", when]) for k in (0, 1)]
    assert pair[who].wait() == -(signal.SIGTERM if when == "before" else signal.SIGKILL)
    _, err = pair[1 - who].communicate()
    assert err.startswith(f"victim: process {who} is gone: it was killed"), err
    assert err.endswith("see its output, then start all again\n")
    assert len(err.splitlines()) == 1
    assert pair[1 - who].returncode == 2


# Sends arrays of its own lengths, in pieces, and prints what came of all.
SENDER = """
import tyro
from mlt_jax import processes
import numpy as np
def main(coordinator: str, num_processes: int, process_id: int):
    processes.join(coordinator, num_processes, process_id, timeout=30)
    processes._WORDS_AT_ONCE = 4
    own = [2**40 + np.arange(3 * process_id), np.full(2 - process_id, process_id, np.int32)]
    print([[array.tolist() for array in arrays] for arrays in processes.each(own)])
tyro.cli(main)
"""


def test_arrays_of_different_lengths_come_to_all_in_the_order_of_the_processes(start):
    pair = [start(k, ["-c", SENDER]) for k in (0, 1)]
    for process in pair:
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert out.splitlines()[-1] == f"{[[[], [0, 0]], [[2**40, 2**40 + 1, 2**40 + 2], [1]]]}"


def test_alone_nothing_is_added_or_sent():
    table = np.arange(3)
    assert processes.add_up(table) is table
    assert next(processes.each([table]))[0] is table


def test_what_the_user_can_mend_is_one_line_and_a_bug_is_raised(capsys):
    def miss():
        raise FileNotFoundError("no such\nfile")

    assert processes.exit_code("run.py", lambda: None) == 0
    assert processes.exit_code("run.py", miss) == 2
    assert processes.exit_code("run.py", lambda: processes.join("host:1", None, None, timeout=1)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "run.py: no such file"
    assert lines[1].startswith("run.py: coordinator, num_processes, process_id: are ('host:1', None, None); pass all")
    with pytest.raises(ValueError, match="broadcast"):
        processes.exit_code("run.py", lambda: np.zeros(2) + np.zeros(3))
