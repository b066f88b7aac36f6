"""The faults an operator meets, as attacks on the real programs: what was done, what should happen, what did.

    python experiments/attacks.py                    # every attack; minutes
    python experiments/attacks.py --only processes   # those of one kind
    python experiments/attacks.py --kills 50         # and 50 SIGKILLs in every mode of training; hours

The attacks are the tests named here: real files, processes and signals. Exit code 1 where one does not end as expected.
"""

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import tyro

ROOT = Path(__file__).parents[1]


class Attack(NamedTuple):
    """What is done, what should happen, and the test that does it: file and (part of) name."""

    kind: str
    what: str
    expected: str
    test: str


_LINE = "one line, exit code 2"
_CACHE, _RUNS = "training/test_feature_cache.py::test_", "faults/test_runs.py::test_"
_PROCESSES, _CLI = "faults/test_processes.py::test_", "test_cli.py::test_"
ATTACKS = (
    Attack("pictures", "16-bit PNG, TIFF and PGM", "scaled, not clipped", "data/test_base.py::test_16_bits_are"),
    Attack("pictures", "float TIFF", "scaled, or refused by name", "data/test_base.py::test_floats_in_0_to_1"),
    Attack("pictures", "EXIF rotation", "applied", "data/test_base.py::test_the_camera_s_orientation"),
    Attack("features", "image changed after caching", "computed again", f"{_CACHE}a_changed"),
    Attack("features", "byte flipped, file cut or empty", "rebuilt", f"{_CACHE}damaged"),
    Attack("features", "numbers beyond float16", "kept as float32", f"{_CACHE}numbers_beyond"),
    Attack("features", "skipped image repaired", "back", f"{_CACHE}an_image_that_was_skipped"),
    Attack("features", "SIGKILL at an image", "goes on, the same bytes", f"{_CACHE}a_cache_that"),
    Attack("weights", "download cut in the middle", "goes on", "models/test_pretrained.py::test_a_download_cut"),
    Attack("weights", "wrong hash", "refused, fetched again", "models/test_pretrained.py::test_a_wrong_hash"),
    Attack("runs", "config.json gone, other noise", "refused", f"{_RUNS}without_config_json"),
    Attack("runs", "same name, other features", "refused", f"{_RUNS}a_features_file_of_the_same"),
    Attack("runs", "more seeds in a finished folder", "extended", f"{_RUNS}more_seeds"),
    Attack("runs", "truncated JSON", f"{_LINE}, remedy helps", f"{_RUNS}broken_json"),
    Attack("runs", "two in a folder; Ctrl-C; cut metrics", "one line; 130; one line", f"{_RUNS}two_runs"),
    Attack("runs", "read-only folder", _LINE, f"{_RUNS}a_folder_that_may_not_be_written"),
    Attack("runs", "full disk", _LINE, f"{_RUNS}a_full_disk"),
    Attack("processes", "other data or rule", f"{_LINE}, in all", "test_processes.py::test_processes_with_other_data"),
    Attack("processes", "process 0 not reachable", _LINE, f"{_PROCESSES}process_0_that"),
    Attack("processes", "id missing", f"{_LINE}, named", f"{_PROCESSES}a_missing_process"),
    Attack("processes", "id repeated", f"{_LINE}, named to all", f"{_PROCESSES}a_repeated_id"),
    Attack("processes", "SIGKILL, reading", f"{_LINE}, named", f"{_PROCESSES}a_process_killed_while_it_reads"),
    Attack("processes", "SIGKILL, training", f"{_LINE}; goes on", f"{_PROCESSES}a_process_killed_while_it_trains"),
    Attack("processes", "process 0 leaves first", "no abort", "test_processes.py::test_who_leaves"),
    Attack("estimates", "classes without positives", "finite prior", "estimator/test_auto.py::test_tiny_degenerate"),
    Attack("memory", "features of five tasks", "three are kept", "training/test_feeds.py::test_features_of_earlier"),
    Attack("files", "mlt audit onto others' files", "refused", f"{_CLI}an_audit_replaces_no_input"),
    Attack("files", "link at the draft's name", "not followed", "test_outputs.py::test_a_draft_follows_no_link"),
    Attack("files", "mlt apply: wrong decisions", "file, line, remedy", "audit/test_files.py::test_a_decision_that"),
    Attack("files", "mlt audit: wrong tables", _LINE, f"{_CLI}a_wrong_file_gets"),
    Attack("files", "mlt report: broken run", "left out, or named", "report/test_run_page.py::test_bytes_that"),
    Attack("tables", "a cell fails", "its log; the rest goes on", "paper/tables/test_run.py::test_a_failing_cell"),
    Attack("tables", "SIGKILL", "the same table", "paper/tables/test_run.py::test_a_killed_command"),
    Attack("tables", "Ray worker", "CPU settings of a local one", "paper/tables/test_launch.py::test_ray_workers"),
    Attack("install", "wheel, empty environment", "README, mlt, audit run", "docs/test_install.py::test_the_wheel"),
    Attack("kills", "SIGKILL at random moments", "the same bytes", "faults/test_kills.py::test_a_run_killed"),
)  # fmt: skip


# tyro has imported typeguard already, which is a plugin of pytest too: it warns of that.
_PYTEST = ["-q", "--no-header", "-p", "no:cacheprovider", "-m", "slow or not slow"]
_PYTEST += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]


class Verdicts:
    """What became of each attack, as pytest runs its tests."""

    def __init__(self, attacks: tuple[Attack, ...]) -> None:
        self.attacks = attacks
        self.got: dict[Attack, list[str]] = {attack: [] for attack in attacks}
        self.failed: set[Attack] = set()

    def of(self, nodeid: str) -> Attack | None:
        """The attack that a test belongs to."""
        return next((attack for attack in self.attacks if nodeid.startswith(f"tests/{attack.test}")), None)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keeps the tests that are attacks, in their order."""
        items[:] = [item for item in items if self.of(item.nodeid)]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Notes how a test ended."""
        attack = self.of(report.nodeid)
        if attack is None:
            return
        if report.failed:
            self.failed.add(attack)
            last = str(report.longrepr).strip().splitlines()
            self.got[attack].append(next((line[1:].strip() for line in last if line.startswith("E ")), last[-1]))
        elif report.skipped:
            self.failed.add(attack)
            self.got[attack].append("not tried: skipped")
        elif report.when == "call":
            self.got[attack] += [str(text) for name, text in report.user_properties if name == "got"]
            self.got[attack] += [] if self.got[attack] else ["as expected"]

    def table(self) -> str:
        """Attack, expected, got and verdict of each."""
        rows = [("attack", "expected", "got", "verdict")]
        for attack in self.attacks:
            got = "; ".join(dict.fromkeys(self.got[attack])) or "no such test"
            good = attack not in self.failed and self.got[attack]
            rows.append((f"{attack.kind}: {attack.what}", attack.expected, got[:80], "ok" if good else "FAILED"))
        widths = [max(len(row[k]) for row in rows) for k in range(4)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)


def main(only: tuple[str, ...] = (), kills: int = 0) -> int:
    """Runs the attacks, prints the table; 1 where one does not end as expected.

    Args:
      only: kinds of attacks, such as processes; by default all but kills.
      kills: SIGKILLs in each mode of training.
    """
    import pytest

    kinds = {attack.kind for attack in ATTACKS}
    if unknown := sorted(set(only) - kinds):
        raise SystemExit(f"attacks.py: --only: {unknown[0]!r} is unknown; pass {', '.join(sorted(kinds))}")
    wanted = set(only) or kinds - {"kills"}
    if kills:
        wanted.add("kills")
        os.environ["MLT_JAX_KILLS"] = str(kills)
    verdicts = Verdicts(tuple(attack for attack in ATTACKS if attack.kind in wanted))
    files = sorted({f"tests/{attack.test.partition('::')[0]}" for attack in verdicts.attacks})
    os.chdir(ROOT)
    pytest.main([*_PYTEST, *files], plugins=[verdicts])
    print("\n" + verdicts.table())
    return int(any(not verdicts.got[attack] for attack in verdicts.attacks) or bool(verdicts.failed))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
