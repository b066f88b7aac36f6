import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from paths import ROOT

from mlt_jax.peers import _ABORTED, _QUIET, reason, roll_call, sift


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def ends(address, *calls, timeout=60.0):
    """What the roll call gave or raised to each (count, own)."""

    def call(asked):
        try:
            return roll_call(address, *asked, timeout)
        except (OSError, ValueError) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(call, calls))


def test_all_who_come_are_linked_and_a_stranger_is_ignored(address):
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(ends, address, (3, 0)), threads.submit(ends, address, (3, 2))
        host, port = address.split(":")
        while True:
            time.sleep(0.05)
            try:
                stranger = socket.create_connection((host, int(port)))
            except ConnectionRefusedError:
                continue
            if stranger.getsockname() != stranger.getpeername():
                break
            stranger.close()
        with stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            others = ends(address, (3, 1)) + second.result()
        [zero] = first.result()
    assert set(zero.links) == {1, 2}
    assert [set(peer.links) for peer in others] == [{0}, {0}]
    others[0].leave(0)
    assert zero.links[1].recv(10) == b"0"
    for peer in (zero, *others):
        for link in peer.links.values():
            link.close()


def test_a_process_that_does_not_come_is_named_to_all_who_did(address):
    found = ends(address, (3, 0), (3, 2), timeout=2.0)
    words = "process 1 (of 3) did not come within 2 s; start each of 0 to 2 once, or pass a longer --timeout"
    assert [(type(error), str(error)) for error in found] == [(TimeoutError, words)] * 2


def test_a_repeated_index_and_another_number_are_named_to_all(address):
    words = "process_id: two processes say that they are 1; start each of 0 to 2 once"
    assert [str(error) for error in ends(address, (3, 0), (3, 1), (3, 1))] == [words] * 3
    words = "num_processes: process 1 has 3, process 0 has 2; give all the same"
    assert [str(error) for error in ends(address, (2, 0), (3, 1))] == [words] * 2


def test_without_process_0_or_with_a_stranger_in_its_place_the_line_says_so(address):
    [error] = ends(address, (2, 1), timeout=0.5)
    assert str(error).startswith(
        f"coordinator: process 0 cannot be reached at {address} within 0.5 s (Connection refused)"
    )
    with socket.create_server(("127.0.0.1", int(address.split(":")[1]))) as server, ThreadPoolExecutor(1) as threads:
        found = threads.submit(ends, address, (2, 1))
        link, _ = server.accept()
        link.sendall(b"\0\0\x12\x04not ours")
        link.close()
        assert "is no process 0 that waits for process 1" in str(found.result()[0])
        [error] = ends(address, (2, 0))
        assert "cannot be used (Address already in use); is there another process 0?" in str(error)


@pytest.mark.parametrize("address", ["host", ":1", "host:name"])
def test_a_wrong_address_or_index_is_refused(address):
    with pytest.raises(ValueError, match=r"coordinator: .*; pass host:port of process 0"):
        roll_call(address, 2, 1, 1.0)
    with pytest.raises(ValueError, match="process_id: 2 of 2 processes; pass 0 to 1"):
        roll_call("host:1", 2, 2, 1.0)


# As jax 0.10.2 writes them.
HEAD = "F1118 17:51:47.238022    7144 client.h:80] Terminating process because the JAX distributed service detected "
HEAD += "fatal errors. This most likely indicates that another task died. absl::Status: "
STACK = "*** Check failure stack trace: ***\n    @     0x7fe858440634  absl::LogMessage::SendToLog()\n"
PEER = (
    HEAD
    + "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n1\n3\nThe tasks have crashed.\n"
)
LOGGED = "E1118 17:51:47.237791    7144 coordination_service_agent.cc:289] Polled an error from coordination service.\n"
WARNED = "W1118 17:51:40.000001    7144 slow_operation_alarm.cc:73] compilation takes long\n"


def test_last_words_of_jax_are_one_line_that_names_the_process():
    gone = "is gone: it was killed, crashed, or lost its network; see its output, then start all again"
    assert reason(PEER + STACK) == f"process 1, 3 {gone}"
    assert reason(HEAD + "UNAVAILABLE: Failed to send RPC to coordination service. Either the") == f"process 0 {gone}"
    assert reason(HEAD + "INTERNAL: Shutdown: UNAVAILABLE: Task 2 heartbeat timeout. This") == f"process 2 {gone}"
    late = "DEADLINE_EXCEEDED: Deadline Exceeded\n\nRPC: /xla.coordination.CoordinationService/"
    assert reason(HEAD + late + "Heartbeat\n") == f"process 0 {gone}"
    assert reason(HEAD + late + "RegisterTask\n").startswith(
        "not all processes came or stayed (DEADLINE_EXCEEDED: Deadline Exceeded)"
    )
    assert reason("F1118 17:51:47.2 7 array.cc:1] Check failed: 1 == 2\n") == ""


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("text", "shown", "answered"),
    [
        (WARNED + LOGGED + PEER + STACK + _ABORTED.decode(), WARNED, f"{reason(PEER)}\n"),
        (WARNED + LOGGED + "more of it\n" + WARNED, WARNED + WARNED + LOGGED + "more of it\n", ""),  # later, not lost
        ("F1118 17:51:47.2 7 array.cc:1] Check failed\n" + STACK + _ABORTED.decode(),
         "F1118 17:51:47.2 7 array.cc:1] Check failed\n" + STACK, "\n"),
        (LOGGED + _QUIET.decode() + PEER + STACK + WARNED + "no end", WARNED + "no end", ""),
    ],
    ids=["lost process", "no abort", "another abort", "leaving"],
)  # fmt: skip
def test_the_sifter_holds_back_only_what_jax_logs_of_lost_processes(text, shown, answered, size):
    seen, said, raw = [], [], text.encode()
    sift((raw[k : k + size] for k in range(0, len(raw), size)), seen.append, said.append)
    assert b"".join(seen).decode() == shown
    assert b"".join(said).decode() == answered


@pytest.mark.parametrize(
    ("end", "code"), [("os.kill(os.getpid(), 9)", -signal.SIGKILL), ("os.abort()", -signal.SIGABRT), ("os._exit(3)", 3)]
)
def test_what_c_wrote_is_not_lost_however_the_process_ends(end, code):
    program = f"""
import os, sys
from mlt_jax.peers import Peers, Sifter, on_abort
sifter = Sifter()
on_abort(lambda: sifter.last_words())
print("Python", file=sys.stderr)
os.write(2, b"F1118 17:51:47.2 7 array.cc:1] C\\n")
{end}
"""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr == "Python\nF1118 17:51:47.2 7 array.cc:1] C\n"


# What JAX does where another process is gone, while the reason is being said: by who watches, or by the main thread.
ABORTED = """
import os, sys, threading, time
from mlt_jax import processes
from mlt_jax.peers import Peers
peers = Peers({})
processes._watch(peers, "program")
def abort():
    os.write(2, sys.argv[2].encode())
    os.abort()
def say(text):
    processes._sifter.quiet()
    print(text, file=sys.stderr)
    threading.Thread(target=abort).start()
    time.sleep(0.5)
if sys.argv[1] == "watching":
    peers.end("process 1 is gone", say)
threading.Thread(target=abort).start()
time.sleep(0.5)
print("process 1 is gone", file=sys.stderr)
processes.leave(2)
"""


@pytest.mark.parametrize("who", ["watching", "leaving"])
def test_who_knows_why_the_process_ends_says_it_though_jax_aborts_first(who):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ABORTED, who, PEER + STACK]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "process 1 is gone\n")


def test_a_bug_in_one_process_is_its_traceback_and_known_to_the_others_at_once():
    program = """
import socket, sys
from mlt_jax import processes
from mlt_jax.peers import Peers
processes._watch(Peers({1: socket.socket(fileno=int(sys.argv[1]))}), "program")
{}["bug"]
"""
    own, theirs = socket.socketpair()
    with own, theirs:
        command = [sys.executable, "-c", program, str(theirs.fileno())]
        env, fds = os.environ | {"PYTHONPATH": str(ROOT)}, (theirs.fileno(),)
        done = subprocess.run(command, env=env, pass_fds=fds, capture_output=True, text=True, check=False)
        theirs.close()
        assert own.recv(10) == b"!"
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("KeyError: 'bug'\n")
