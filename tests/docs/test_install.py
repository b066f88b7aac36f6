"""The built wheel in an empty environment: README's first block, the command and a small audit."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from paths import ROOT


def needed(requirements, found):
    """Adds to `found` the installed distributions that these requirements, and theirs in turn, ask for."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        dist = distribution(requirement.name)
        assert dist.version in requirement.specifier, f"{dist.version} is not {requirement}"
        if dist.name not in found:
            found[dist.name] = dist
            needed(dist.requires or (), found)
            for extra in requirement.extras:
                asked = [text for text in dist.requires or () if f'extra == "{extra}"' in text.replace("'", '"')]
                needed([text.partition(";")[0] for text in asked], found)


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment_runs_the_readme_the_command_and_an_audit(tmp_path):
    # From a copy, so that building leaves nothing in the checkout.
    source = tmp_path / "source"
    shutil.copytree(ROOT / "mlt_jax", source / "mlt_jax", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}

    def run(*words, **options):
        done = subprocess.run(
            [*map(str, words)], env=clean, cwd=tmp_path, capture_output=True, text=True, check=False, **options
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, source)
    [wheel] = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "empty")
    python = tmp_path / "empty/bin/python"
    run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--no-index", wheel)
    # To download half a gigabyte again takes minutes: what the wheel declares, and no more, is linked from this one.
    [site] = (tmp_path / "empty/lib").glob("python*/site-packages")
    declared = run(
        python, "-c", "import importlib.metadata as m; print('\\n'.join(m.requires('mlt_jax')))"
    ).splitlines()
    found = {}
    needed(declared, found)
    assert "pandas" not in found
    for dist in found.values():
        for top in {file.parts[0] for file in dist.files if file.parts[0] != ".."}:
            place = Path(dist.locate_file(top))
            if place.exists() and not (site / top).exists() and top != "__pycache__":
                (site / top).symlink_to(place)
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    out = run(python, "-c", f"import mlt_jax\nprint(mlt_jax.__file__)\n{block}")
    assert out.startswith(str(site))
    mlt = tmp_path / "empty/bin/mlt"
    assert "which labels are wrong" in run(mlt, "--help")
    rng = np.random.default_rng(0)
    probs = rng.random((300, 2))
    np.save(tmp_path / "labels.npy", rng.random((300, 2)) < probs)
    np.save(tmp_path / "probs.npy", probs)
    assert "labels to re-check" in run(mlt, "audit", "labels.npy", "probs.npy", "--out", "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
