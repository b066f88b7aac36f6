"""One run in several processes: connecting them, broadcasting from process 0, and sums over all of them."""

import hashlib
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import jax
import numpy as np

from mlt_jax.peers import GRACE, Peers, Sifter, on_abort, roll_call

_peers: Peers | None = None  # None: this process is alone
_sifter: Sifter | None = None


def join(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    *,
    timeout: int,
    program: str = "mlt_jax",
) -> None:
    """Connects this process to the others of its run; call it before anything else of JAX.

    From then on the end of another process ends this one, with exit code 2 and one line that says which: at once where
    it is killed or crashes, after `timeout` seconds where its machine vanishes.

    Args:
      coordinator, num_processes, process_id: host:port of process 0, the number of processes and this one's index. If
        all are None, a launcher (Slurm, Kubernetes, MPI) provides them; without one the process runs alone. A
        launcher's processes are watched by heartbeats only.
      timeout: seconds to wait for a process that does not come, respond or shut down.
      program: what the line begins with.

    Raises:
      ValueError: only some of the first three are given, or the processes disagree about them.
      TimeoutError: process 0 cannot be reached, or a process did not come.
    """
    limits = ("initialization_timeout", "heartbeat_timeout_seconds", "shutdown_timeout_seconds")
    timeouts: dict[str, Any] = dict.fromkeys(limits, timeout)
    given = (coordinator, num_processes, process_id)
    if any(value is not None for value in given):
        if coordinator is None or num_processes is None or process_id is None:
            raise ValueError(
                f"coordinator, num_processes, process_id: are {given}; pass all three, as in "
                "--coordinator host:port --num-processes 2 --process-id 0, or none of them"
            )
        _watch(roll_call(coordinator, num_processes, process_id, float(timeout)), program)
        jax.distributed.initialize(*given, **timeouts)
    elif _in_cluster():
        _watch(Peers({}), program)
        jax.distributed.initialize(**timeouts)


def _watch(peers: Peers, program: str) -> None:
    """Ends this process by one line where another is gone, as its socket or JAX says, whichever is first."""
    global _peers, _sifter
    # JAX would catch SIGTERM, for programs that ask it about preemption, and `kill` would end nothing.
    jax.config.update("jax_enable_preemption_service", False)
    _peers, _sifter = peers, (sifter := Sifter())

    def say(text: str) -> None:
        sifter.quiet()
        os.write(sifter.stderr, f"{program}: {text}\n".encode())

    last = threading.Lock()

    def aborted() -> None:
        peers.await_end()
        with last:  # where several threads abort, the first asks and ends the process, the others wait
            if text := sifter.last_words():
                peers.end(text, say)  # else C goes on to abort

    show = sys.excepthook

    def crashed(*error: Any) -> None:
        show(*error)
        if threading.current_thread() is threading.main_thread():
            leave(1)  # at once: JAX would wait for the others, and they for this one

    sys.excepthook = crashed
    on_abort(aborted)
    peers.watch(say)


def _in_cluster() -> bool:
    """Whether a launcher started this process as one of several: srun, an indexed Kubernetes job, or mpirun."""
    several = any(int(os.environ.get(name, "1")) > 1 for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    return several or {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= os.environ.keys()


def exit_code(program: str, main: Callable[[], Any]) -> int:
    """Runs `main`; 0, or 2 with one line where the cause is not the program: a file, an option, the network.

    Those are errors of the operating system and what this package raises itself. Anything else is a bug and raised on.
    130, with one line, where it was interrupted (Ctrl-C).
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax logs the traceback of what it raises as well
    signal.signal(signal.SIGINT, _interrupt)
    _quiet_threads()
    try:
        main()
    except KeyboardInterrupt:
        print(f"{program}: interrupted; the same command goes on from what is saved", file=sys.stderr)
        return 130
    except (OSError, ValueError, TypeError, ImportError, FloatingPointError) as error:
        raiser = traceback.extract_tb(error.__traceback__)[-1].filename
        if not isinstance(error, OSError) and Path(__file__).parent not in Path(raiser).parents:
            raise
        words = " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())
        print(f"{program}: {words}", file=sys.stderr)
        return 2
    except jax.errors.JaxRuntimeError:
        await_end()
        raise
    return 0


def await_end() -> None:
    """After an error of JAX: where another process is gone, what watches it knows in a moment, and ends this one."""
    if _peers is not None:
        time.sleep(GRACE)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Ctrl-C; once more a moment later where Python would drop it, inside a destructor or JAX's garbage collection."""
    while frame is not None:
        if frame.f_code.co_name in ("_xla_gc_callback", "__del__"):
            threading.Timer(0.05, os.kill, (os.getpid(), signum)).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _quiet_threads() -> None:
    """No tracebacks of tensorstore's threads: they repeat what the main thread raises."""

    def of_main_thread(show: Callable[..., None], *error: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            show(*error)

    sys.excepthook = partial(of_main_thread, sys.__excepthook__)
    sys.unraisablehook = partial(of_main_thread, sys.__unraisablehook__)


def leave(code: int) -> NoReturn:
    """Ends the process; after a failure at once, without waiting for threads or half-written files.

    Only process 0 then waits some seconds for the others to fail as well: without it JAX aborts them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if _peers is not None and _sifter is not None:
        _peers.leave(code)
        _sifter.quiet()
    if code:
        with suppress(jax.errors.JaxRuntimeError):
            _leave_last()
        os._exit(code)
    sys.exit(0)


def _leave_last(seconds: int = 5) -> None:
    from jax._src import distributed

    state: Any = distributed.global_state
    if state.client is None:
        return
    if state.process_id:
        state.client.key_value_set(f"mlt_jax/left/{state.process_id}", "")
        return
    for k in range(1, state.num_processes):
        state.client.blocking_key_value_get(f"mlt_jax/left/{k}", 1000 * seconds)


def is_main() -> bool:
    """Whether this is process 0, the one that writes files and prints."""
    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints in process 0."""
    if is_main():
        print(text, flush=True)


def agree(value: Any) -> Any:
    """The value that process 0 passed, in every process; it must be JSON."""
    if jax.process_count() == 1:
        return value
    from jax.experimental.multihost_utils import broadcast_one_to_all

    text = np.frombuffer(json.dumps(value if is_main() else None).encode(), np.uint8)
    length = int(broadcast_one_to_all(np.array(len(text))))
    shared = broadcast_one_to_all(text if is_main() else np.zeros(length, np.uint8))
    return json.loads(np.asarray(shared).astype(np.uint8).tobytes().decode())


def same(facts: dict[str, Any], *, timeout: float = 60) -> None:
    """Makes sure that all processes were given the same, before any of them computes; facts must be JSON.

    Raises:
      ValueError: a process has other facts than process 0; every process says which and what.
      TimeoutError: a process did not call this within `timeout` seconds of this one.
    """
    count = jax.process_count()
    if count == 1:
        return
    from jax._src import distributed  # the store of keys and values has no public name

    client: Any = distributed.global_state.client
    key = f"mlt_jax/same/{next(_meetings)}"
    client.key_value_set(f"{key}/{jax.process_index()}", json.dumps(facts))

    def said(name: str) -> Any:
        return json.loads(client.blocking_key_value_get(f"{key}/{name}", int(1000 * timeout)))

    if is_main():
        verdict = ""
        for k in range(1, count):
            try:
                theirs = said(str(k))
            except jax.errors.JaxRuntimeError:
                await_end()
                verdict = f"process {k} did not come within {timeout:g} s; see its output, then start all again"
                break
            if other := [name for name in facts if theirs.get(name) != facts[name]]:
                verdict = f"{', '.join(other)}: process {k} has other than process 0; give all processes the same"
                break
        client.key_value_set(f"{key}/verdict", json.dumps(verdict))
    else:
        try:
            verdict = said("verdict")
        except jax.errors.JaxRuntimeError as error:
            await_end()
            raise TimeoutError(f"process 0 did not answer within {timeout:g} s; see its output") from error
    if verdict:
        raise (TimeoutError if "did not come" in verdict else ValueError)(verdict)


def file_hash(path: Path | None) -> str | None:
    """A hash of a file's content; None where there is no file."""
    if path is None or not path.expanduser().is_file():
        return None
    with path.expanduser().open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def add_up(tree: Any, *, timeout: float = 60) -> Any:
    """Sums over all processes of a tree of arrays, of the same shapes in each, such as `Tables`.

    Raises:
      TimeoutError: a process did not call this within `timeout` seconds of the first; end the run.
      ConnectionError: a process died during the sums; end the run.
    """
    count = jax.process_count()
    if count == 1:
        return tree
    _meet(timeout)
    own = [next(d for d in jax.devices() if d.process_index == k) for k in range(count)]
    mesh = jax.sharding.Mesh(np.array(own), ("process",))
    one_each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("process"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    total = jax.jit(lambda x: x.sum(axis=0, dtype=x.dtype), out_shardings=everywhere)

    def one(array: Any) -> Any:
        part = jax.device_put(np.asarray(array)[None], own[jax.process_index()])
        whole = jax.make_array_from_single_device_arrays((count, *part.shape[1:]), one_each, [part])
        return jax.device_put(np.asarray(total(whole).addressable_data(0)))

    try:
        return jax.tree.map(one, tree)
    except jax.errors.JaxRuntimeError as error:
        await_end()
        raise ConnectionError(
            f"a process went away while {count} processes added up their counts; see its output, then start all again "
            f"({str(error).splitlines()[0]})"
        ) from error


def each(arrays: list[np.ndarray], *, timeout: float = 60) -> Iterator[list[np.ndarray]]:
    """The arrays of process 0, then those of process 1 and so on, in every process.

    Args:
      arrays: flat, of 32 or 64 bits; as many of the same dtypes in each process, of any lengths.
      timeout: as in `add_up`, which raises the errors.
    """
    count, own = jax.process_count(), jax.process_index()
    if count == 1:
        yield arrays
        return
    words = [np.ascontiguousarray(array).view(np.int32) for array in arrays]
    lengths = np.zeros((count, len(arrays)), np.int64)
    lengths[own] = [len(part) for part in words]
    lengths = np.asarray(add_up(lengths.view(np.int32), timeout=timeout)).view(np.int64)
    message = np.concatenate(words)
    for k, parts in enumerate(lengths):
        received = np.zeros(parts.sum(), np.int32)
        for start in range(0, len(received), _WORDS_AT_ONCE):  # a sum to which the others add nothing
            piece = slice(start, min(start + _WORDS_AT_ONCE, len(received)))
            received[piece] = add_up((message if own == k else received)[piece], timeout=timeout)
        split = np.split(received, np.cumsum(parts)[:-1])
        yield [part.view(array.dtype) for part, array in zip(split, arrays, strict=True)]


_WORDS_AT_ONCE = 2**24
_meetings = itertools.count()


def _meet(timeout: float) -> None:
    """Waits until all processes have called this."""
    from jax._src import distributed  # the barrier with a time-out has no public name

    client: Any = distributed.global_state.client
    try:
        client.wait_at_barrier(f"mlt_jax.add_up.{next(_meetings)}", int(1000 * timeout))
    except jax.errors.JaxRuntimeError as error:
        await_end()
        raise TimeoutError(
            f"process {jax.process_index()} waited {timeout:g} s for the others (of {jax.process_count()}): at least "
            "one died or is slower; see their output, then start all again, with a longer timeout if it was slow "
            f"({str(error).splitlines()[0]})"
        ) from error
