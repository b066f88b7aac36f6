"""What a run leaves in its folder: JSON, metrics by line, TensorBoard events, T with class names; and its table."""

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter

from mlt_jax.processes import is_main
from mlt_jax.transition import Status, TransitionEstimate

METHODS = {"standard": "Standard", "estimated": "{loss}, estimated T", "true": "{loss}, true T"}
COLUMNS = ("mAP", "OF1", "CF1", "OP", "OR", "CP", "CR")


def write_json(path: Path, value: Any) -> None:
    """Writes the file whole or not at all; in process 0 only."""
    if is_main():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".part")
        draft.write_text(json.dumps(value, indent=2) + "\n")
        os.replace(draft, path)


def write_transition(folder: Path, found: TransitionEstimate, classes: Sequence[str], true_T: Any) -> None:
    """`transition.npz` (see `TransitionEstimate.load`) and `transition.csv`, one row per class."""
    if not is_main():
        return
    folder.mkdir(parents=True, exist_ok=True)
    found.save(folder / "transition.npz")
    header = ["class", "rho_neg", "rho_pos", "stderr_neg", "stderr_pos", "prior", "status", "partners"]
    columns = [found.rho_neg, found.rho_pos, *np.asarray(found.stderr).T, found.prior]
    if true_T is not None:
        header += ["true_rho_neg", "true_rho_pos"]
    with (folder / "transition.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(header)
        for j, name in enumerate(classes):
            row = [name, *(f"{float(column[j]):.6f}" for column in columns)]
            row += [Status(int(found.status[j])).name.lower(), str(int(found.partners[j]))]
            table.writerow(row if true_T is None else [*row, f"{true_T[j, 0, 1]:.6f}", f"{true_T[j, 1, 0]:.6f}"])


class Log:
    """`metrics.jsonl` and TensorBoard events; what a killed run wrote after its last checkpoint is cut off first."""

    def __init__(self, folder: Path, *, start: int, step: int) -> None:
        self._file = self._events = None
        if is_main():
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / "metrics.jsonl").open("ab")
            self._file.truncate(start)
            self._events = SummaryWriter(str(folder / "events"), purge_step=step + 1 if start else None)

    def write(self, entry: dict[str, Any], *, step: int) -> None:
        """One line; its numbers are also drawn over `step`, under the name of the phase."""
        if self._file is None or self._events is None:
            return
        self._file.write((json.dumps(entry) + "\n").encode())
        self._file.flush()
        for name, value in entry.items():
            if isinstance(value, float):
                self._events.add_scalar(f"{entry['phase']}/{name}", value, step)

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
    """Means (and standard deviations over seeds) of the results of all seeds."""

    def spread(values: list[float]) -> dict[str, float]:
        return {"mean": float(np.mean(values)), "std": float(np.std(values))}

    def over(key: str) -> dict[str, Any]:
        names = list(results[0][key])
        return {name: spread([result[key][name] for result in results]) for name in names}

    methods = list(results[0]["test"])
    test = {
        method: {name: spread([result["test"][method][name] for result in results]) for name in COLUMNS}
        for method in methods
    }
    return {"test": test, "T_error": over("T_error"), "seconds": over("seconds"), "seeds": list(results)}


def table(summary: dict[str, Any], *, title: str, loss: str) -> str:
    """The summary to be read: a row per method in percent, the error of T, the time of each phase."""
    several = len(summary["seeds"]) > 1

    def cell(value: dict[str, float]) -> str:
        return f"{100 * value['mean']:.1f}" + (f" ±{100 * value['std']:4.1f}" if several else "")

    width = 13 if several else 8
    lines = [title, f"{'test, %':26}" + "".join(f"{name:>{width}}" for name in COLUMNS)]
    for method, scores in summary["test"].items():
        name = METHODS[method].format(loss=loss.capitalize())
        lines.append(f"{name:26}" + "".join(f"{cell(scores[column]):>{width}}" for column in COLUMNS))
    if summary["T_error"]:
        found, nothing = (summary["T_error"][name]["mean"] for name in ("T", "identity"))
        lines.append(f"summed error of T: {found:.2f} (doing nothing, T = identity: {nothing:.2f})")
    spent = ", ".join(f"{name} {value['mean']:.1f}" for name, value in summary["seconds"].items())
    lines.append(f"seconds per seed: {spent}")
    return "\n".join(lines)
