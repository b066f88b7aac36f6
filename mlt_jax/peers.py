"""The other processes of a run: a roll call before it, who is gone during it, and JAX's last words as one line.

JAX ends a process by SIGABRT and a C++ stack where another one is gone. Here every process keeps a socket to process 0,
which the system closes when a process dies, however it dies; a machine that vanishes is left to JAX's heartbeats.
Standard library only: the module also runs as a script, which sifts what C++ writes to the standard error.
"""

import ctypes
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

GRACE = 5.0  # seconds in which a process may say itself why it ends, before another one's end ends it
_REMEDY = "see its output, then start all again"


class Peers:
    """What this process knows of the others, from the roll call until it ends."""

    def __init__(self, links: dict[int, socket.socket]) -> None:
        self.links = links  # process 0: to all; the others: to process 0
        self.ending: int | None = None  # the exit code, once `leave` began
        self._speaks = threading.Lock()  # one line, whoever is first to know why; never released

    def watch(self, say: Callable[[str], None]) -> None:
        """From now on, ends this process (exit code 2) where another is gone; `say` prints the line that says which."""
        threading.Thread(target=self._watch, args=(say,), daemon=True).start()

    def end(self, text: str, say: Callable[[str], None]) -> None:
        """Ends this process: says why, here and to the others; or nothing, where it is ending by itself."""
        self._speaks.acquire()
        if self.ending is None:
            self.tell(f"{text}\n".encode())
            say(text)
        os._exit(2 if self.ending is None else self.ending)

    def await_end(self) -> None:
        """Ends this process with the exit code of whoever is about to; returns where nobody is within seconds.

        For a thread that knows less of why the process ends: JAX sees another one's end later than its socket does.
        """
        until = time.monotonic() + GRACE
        while self.ending is None and (self._speaks.locked() or time.monotonic() < until):
            time.sleep(0.05)
        if self.ending is not None:
            os._exit(self.ending)

    def leave(self, code: int) -> None:
        """Tells the others that this process ends by itself; from now on none of them can end it."""
        self.ending = code
        self.tell(b"0" if code == 0 else b"!")

    def tell(self, word: bytes) -> None:
        """Sends to every other process that is linked, if it still listens."""
        for link in self.links.values():
            with suppress(OSError):
                link.sendall(word)

    def _watch(self, say: Callable[[str], None]) -> None:
        ears = selectors.DefaultSelector()
        for k, link in self.links.items():
            link.settimeout(None)
            ears.register(link, selectors.EVENT_READ, k)
        while ears.get_map():
            for key, _ in ears.select():
                k, word = key.data, _line(self.links[key.data])
                if self.ending is not None:
                    return
                if not word:
                    self.end(f"process {k} is gone: it was killed, or crashed; {_REMEDY}", say)
                ears.unregister(key.fileobj)
                if word == "!":
                    error = f"process {k} ended with an error; {_REMEDY}"
                    threading.Timer(GRACE, self.end, (error, say)).start()
                elif word != "0":  # process 0 knows of another one
                    self.end(word, say)


def roll_call(coordinator: str, count: int, own: int, timeout: float) -> Peers:
    """Links to the other processes (of processes but 0: to process 0), once each of them is there, once.

    Args:
      coordinator: host:port of process 0. The port is free again after the call, for JAX.
      count: the number of processes.
      own: this one's index.
      timeout: seconds to wait for the others, of each process after its own start.

    Raises:
      TimeoutError: a process did not come; in all processes that did.
      ValueError: two processes have the same index or they disagree about their number; in all processes.
      OSError: the port is taken.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"coordinator: {coordinator!r}; pass host:port of process 0, as 10.0.0.1:9876")
    if not 0 <= own < count:
        raise ValueError(f"process_id: {own} of {count} processes; pass 0 to {count - 1}")
    if own == 0:
        return Peers(_call(int(port), count, timeout))
    return Peers({0: _answer(host.strip("[]"), int(port), count, own, timeout)})


def _call(port: int, count: int, timeout: float) -> dict[int, socket.socket]:
    """Process 0: waits until all others have said who they are, and answers them."""
    end, came, strangers = time.monotonic() + timeout, dict[int, socket.socket](), list[socket.socket]()
    problem: Exception | None = None
    with _listen(port) as server:
        while problem is None and len(came) < count - 1:
            server.settimeout(max(0.01, end - time.monotonic()))
            try:
                link, _ = server.accept()
                said = _introduced(link)
            except TimeoutError:
                missing = ", ".join(str(k) for k in range(1, count) if k not in came)
                problem = TimeoutError(
                    f"process {missing} (of {count}) did not come within {timeout:g} s; start each of 0 to {count - 1} "
                    "once, or pass a longer --timeout"
                )
                break
            if said is None:
                link.close()
                continue
            k, theirs = said
            if theirs != count:
                problem = ValueError(
                    f"num_processes: process {k} has {theirs}, process 0 has {count}; give all the same"
                )
            elif k in came or k == 0:
                problem = ValueError(
                    f"process_id: two processes say that they are {k}; start each of 0 to {count - 1} once"
                )
            if problem is None:
                came[k] = link
            else:
                strangers.append(link)
    for link in (*came.values(), *strangers):
        with suppress(OSError):
            link.sendall(f"{'all are here' if problem is None else problem}\n".encode())
        if problem is not None:
            link.close()
    if problem is not None:
        raise problem
    return came


def _listen(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=1024)
    except OSError as error:
        raise OSError(
            f"coordinator: port {port} of this machine cannot be used ({os.strerror(error.errno or 0)}); is there "
            "another process 0? Start one only, or pass another port"
        ) from error


def _introduced(link: socket.socket) -> tuple[int, int] | None:
    """The index of who connected and how many it thinks there are; None for a stranger."""
    link.settimeout(GRACE)
    try:
        said = json.loads(_line(link))
        return int(said["process_id"]), int(said["num_processes"])
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None


def _answer(host: str, port: int, count: int, own: int, timeout: float) -> socket.socket:
    """Another process: says who it is, and waits for process 0's word."""
    end = time.monotonic() + timeout
    while True:
        try:
            link = socket.create_connection((host, port), timeout=max(0.1, end - time.monotonic()))
            if link.getsockname() != link.getpeername():
                break
            link.close()  # the system gave it the very port it looked for: it met itself
        except OSError as error:
            if time.monotonic() > end - 0.1:
                raise TimeoutError(
                    f"coordinator: process 0 cannot be reached at {host}:{port} within {timeout:g} s "
                    f"({error.strerror or error}); start it, correct the address, or pass a longer --timeout"
                ) from error
            time.sleep(0.1)
    link.settimeout(timeout + GRACE)  # process 0 may have begun to wait only now
    try:
        link.sendall(json.dumps({"process_id": own, "num_processes": count}).encode() + b"\n")
        word = _line(link)
    except OSError as error:
        word = str(error)
    if word == "all are here":
        return link
    link.close()
    if word.startswith("process "):
        raise TimeoutError(word)
    if word.startswith(("process_id:", "num_processes:")):
        raise ValueError(word)
    raise ConnectionError(
        f"coordinator: what answers at {host}:{port} is no process 0 that waits for process {own}: a run that has all "
        "its processes, or another program; correct --process-id or the address, and start all again"
    )


def _line(link: socket.socket) -> str:
    """What the other side says, without the line's end; one sign alone is whole. Empty where it is gone."""
    said = b""
    while len(said) < 1000 and not said.endswith(b"\n"):
        try:
            part = link.recv(1000)
        except ConnectionError:
            break
        if not part:
            break
        said += part
        if said in (b"0", b"!"):
            break
    return said.decode(errors="replace").strip()


# What C++ writes comes through a process of its own, so that nothing is lost however this one ends. It holds back what
# JAX logs of lost processes; of that, and only that, one line is left.
_LOG = re.compile(rb"([IWEF])\d{4} [\d:.]+ +\d+ ([\w.]+):\d+\] ")
_HELD = (b"coordination_service.cc", b"coordination_service_agent.cc", b"preemption_sync_manager.cc", b"client.h")
_ABORTED, _QUIET = b"\0mlt_jax aborted\n", b"\0mlt_jax quiet\n"


class Sifter:
    """The process between C++ and the standard error; Python's own `sys.stderr` goes past it."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self.stderr = os.dup(2)
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
        # In a session of its own Ctrl-C does not reach it: it ends when this process has.
        command, pipe = [sys.executable, "-I", "-S", __file__], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.stderr, start_new_session=True)
        assert self.process.stdin is not None
        os.dup2(self.process.stdin.fileno(), 2)

    def quiet(self) -> None:
        """From now on nothing is said of lost processes."""
        with suppress(OSError):
            os.write(2, _QUIET)

    def last_words(self) -> str:
        """Why JAX aborted this process; empty where it was something else, which is then printed as it is."""
        with suppress(OSError):
            os.write(2, _ABORTED)
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()


def on_abort(act: Callable[[], None]) -> None:
    """Calls `act` on SIGABRT, also on that of C++ threads, which Python's own handlers never see."""
    global _handler
    _handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: act())
    ctypes.CDLL(None).signal(signal.SIGABRT, _handler)


_handler: Callable[..., None] | None = None  # kept: C has only its address


def sift(chunks: Iterable[bytes], show: Callable[[bytes], object], answer: Callable[[bytes], object]) -> None:
    """Shows what comes but for JAX's log of lost processes, which it answers with one line when the process aborts."""
    held, rest, holding, quiet = b"", b"", False, False
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in (line + b"\n" for line in lines):
            if line == _QUIET:
                held, quiet = b"", True
            elif line == _ABORTED:
                text = reason(held.decode(errors="replace"))
                if not text:
                    show(held)
                answer(f"{text}\n".encode())
                held = b""
            else:
                if log := _LOG.match(line):  # else it belongs to the line before
                    holding = log[2] in _HELD or (log[1] == b"F" and not quiet)
                if not holding:
                    show(line)
                elif not quiet:
                    held += line
    show(held + rest)


def reason(log: str) -> str:
    """What JAX's last words say about the other processes, in one line; empty where they are about something else."""
    if "JAX distributed service detected fatal errors" not in log:
        return ""
    if unhealthy := re.search(r"stopped sending heartbeats\):\s*([\d\s,]+)", log):
        names = ", ".join(unhealthy[1].replace(",", " ").split())
    elif late := re.findall(r"Task (\d+) heartbeat timeout", log):
        names = ", ".join(sorted(set(late)))
    elif "Failed to send RPC to coordination service" in log or re.search(r"CoordinationService/Heartbeat\b", log):
        names = "0"
    else:
        [status] = re.findall(r"absl::Status: (.*)", log)[:1] or ["no reason given"]
        return f"not all processes came or stayed ({status}); see the output of the others, then start all again"
    return f"process {names} is gone: it was killed, crashed, or lost its network; {_REMEDY}"


if __name__ == "__main__":
    sift(
        iter(lambda: os.read(0, 1 << 16), b""),
        lambda text: os.write(2, text),
        lambda text: os.write(1, text),
    )
