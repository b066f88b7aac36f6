"""Which code made a number, and on what machine."""

import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

UNKNOWN = "unknown"


@cache
def commit(folder: Path = Path(__file__).parent) -> str:
    """The commit that is checked out around the folder, `-dirty` where tracked files differ from it.

    "unknown" where git does not track the folder: an installed package may lie inside somebody else's repository.
    """

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        tracked = git("ls-files", ".")
        return git("describe", "--always", "--dirty", "--exclude=*") if tracked else UNKNOWN
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def machine() -> str:
    """Cores and processor."""
    name = platform.processor() or platform.machine()
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        name = found.group(1) if found else name
    except OSError:
        pass
    return f"{os.cpu_count()} cores, {name}"
