"""What a run leaves in its folder: JSON, metrics by line, TensorBoard events, T with class names; and its table."""

import csv
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from tensorboardX import SummaryWriter

from mlt_jax.outputs import atomic
from mlt_jax.processes import is_main
from mlt_jax.transition import Status, TransitionEstimate

NO_NOISE = "identity"  # the T that takes every label as right, whose error stands beside the others'
COLUMNS = ("mAP", "OF1", "CF1", "OP", "OR", "CP", "CR")


def slug(name: str) -> str:
    """The name as part of a path; different names stay different."""
    plain = re.sub(r"[^A-Za-z0-9.+=-]", "_", name.replace("%", "pc"))
    if re.fullmatch(r"[A-Za-z0-9.+=%(), -]*", name):
        return plain
    return f"{plain}.{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def read_json(path: Path) -> Any:
    """What `write_json` wrote there, or None; ValueError where the file is broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except ValueError as error:
        raise ValueError(
            f"{path}: is no whole JSON file ({error}); delete it and give the same command again, which goes on from "
            "what else is there"
        ) from None


# What the disk or its rights do to a run, not its data.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Makes the folder and keeps other runs out of it; a failure to write there says what to do.

    Raises:
      ValueError: another process is at work in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise ValueError(f"workdir: another run is at work in {folder}; wait, or pass another --workdir") from None
    except OSError as error:
        if error.errno in _DISK:
            error.add_note(
                f"(while writing to {folder}: free space or give the right to write there, then give the same command "
                "again: it goes on where it was; or pass another --workdir)"
            )
        raise


def claim(path: Path, identity: dict[str, Any], *, remedy: str) -> None:
    """Raises ValueError where the JSON file `path` says that its folder belongs to another run.

    Args:
      path: the configuration of the run in the folder, if there is one.
      identity: what makes a run this run; other entries of the file do not count.
      remedy: what the error asks the user to do.
    """
    check_identity(path.parent, read_json(path), identity, remedy=remedy)


def check_identity(folder: Path, before: dict[str, Any] | None, identity: dict[str, Any], *, remedy: str) -> None:
    """Raises ValueError where `before`, which the folder says of its run, is not this run's; None: it says nothing."""
    other = [] if before is None else [name for name in identity if identity[name] != before.get(name)]
    if other:
        what = f"a run with other {', '.join(other)}" if before else "a run that does not say what it is of"
        raise ValueError(f"workdir: {folder} holds {what}; {remedy}")


def write_json(path: Path, value: Any) -> None:
    """Writes the file whole or not at all; in process 0 only."""
    if is_main():
        with atomic(path, encoding="utf-8") as file:
            file.write(json.dumps(value, indent=2) + "\n")


def write_transition(
    folder: Path, found: TransitionEstimate, classes: Sequence[str], true_T: Any, *, name: str = "transition"
) -> None:
    """`NAME.npz` (see `TransitionEstimate.load`) and `NAME.csv`, one row per class."""
    if not is_main():
        return
    found.save(folder / f"{name}.npz")
    header = ["class", "rho_neg", "rho_pos", "stderr_neg", "stderr_pos", "prior", "status", "partners"]
    columns = [found.rho_neg, found.rho_pos, *np.asarray(found.stderr).T, found.prior]
    if true_T is not None:
        header += ["true_rho_neg", "true_rho_pos"]
    with atomic(folder / f"{name}.csv", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(header)
        for j, label in enumerate(classes):
            row = [label, *(f"{float(column[j]):.6f}" for column in columns)]
            row += [Status(int(found.status[j])).name.lower(), str(int(found.partners[j]))]
            table.writerow(row if true_T is None else [*row, f"{true_T[j, 0, 1]:.6f}", f"{true_T[j, 1, 0]:.6f}"])


class Log:
    """`metrics.jsonl` and TensorBoard events; what a killed run wrote after its last checkpoint is cut off first."""

    def __init__(self, folder: Path, *, start: int, step: int) -> None:
        self._file = self._events = None
        if is_main():
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "metrics.jsonl"
            self._file = path.open("ab")
            if (size := os.fstat(self._file.fileno()).st_size) < start:
                self._file.close()
                raise ValueError(
                    f"{path}: has {size} bytes, and had {start} when its checkpoint was written; put it back, or "
                    f"delete {folder} and give the same command again: this training starts over, the others stay"
                )
            self._file.truncate(start)
            self._events = SummaryWriter(str(folder / "events"), purge_step=step + 1 if start else None)

    def write(self, entry: dict[str, Any], *, step: int) -> None:
        """One line; its numbers are also drawn over `step`."""
        if self._file is None or self._events is None:
            return
        self._file.write((json.dumps(entry) + "\n").encode())
        self._file.flush()
        for name, value in entry.items():
            if isinstance(value, float):
                self._events.add_scalar(name, value, step)

    def flush(self) -> int:
        """How many bytes of lines are on disk."""
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Closes the files."""
        if self._file is not None and self._events is not None:
            self._file.close()
            self._events.close()


def summarize(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means (and standard deviations over seeds) of the results of all seeds, of what all of them have."""

    def over(*keys: str) -> dict[str, Any]:
        each = list(results)
        for key in keys:
            each = [result[key] for result in each]
        shared = [name for name in each[0] if all(name in result for result in each)]
        values = {name: np.array([result[name] for result in each], float) for name in shared}
        return {name: {"mean": float(x.mean()), "std": float(x.std())} for name, x in values.items()}

    test = {method: {name: over("test", method)[name] for name in COLUMNS} for method in results[0]["test"]}
    return {"test": test, "T_error": over("T_error"), "seconds": over("seconds"), "seeds": list(results)}


def table(summary: dict[str, Any], *, title: str) -> str:
    """The summary to be read: a row per method in percent, the error of every T, the time of each training."""
    several = len(summary["seeds"]) > 1

    def cell(value: dict[str, float]) -> str:
        return f"{100 * value['mean']:.1f}" + (f" ±{100 * value['std']:4.1f}" if several else "")

    width, first = 13 if several else 8, max(26, *(len(name) + 2 for name in summary["test"]))
    lines = [title, f"{'test, %':{first}}" + "".join(f"{name:>{width}}" for name in COLUMNS)]
    for method, scores in summary["test"].items():
        lines.append(f"{method:{first}}" + "".join(f"{cell(scores[column]):>{width}}" for column in COLUMNS))
    if summary["T_error"]:
        errors = {name: f"{value['mean']:.2f}" for name, value in summary["T_error"].items()}
        nothing = errors.pop(NO_NOISE)
        found = ", ".join(f"{name} {error}" for name, error in errors.items()) or "no T was estimated"
        lines.append(f"summed error of T: {found} (T = identity: {nothing})")
    spent = ", ".join(f"{name} {value['mean']:.1f}" for name, value in summary["seconds"].items())
    lines.append(f"seconds per seed: {spent}")
    return "\n".join(lines)
