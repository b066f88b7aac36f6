"""Code in the README and on the pages of docs/ runs; commands shown there parse."""

import re
import runpy
import shlex
import sys

import pytest
import tyro
from paths import ROOT

from mlt_jax import cli

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, fence):
    return re.findall(rf"^```{fence}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def commands():
    """Every command of an `sh` block, without its comment, and where it stands."""
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    yield pytest.param(words, id=f"{page.name}: {shlex.join(words)}")


COMMANDS = list(commands())
WITH_CODE = [page for page in PAGES if blocks(page, "python")]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_python_blocks_run_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for k, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page.name}, python block {k}", "exec"), namespace)


def test_readme_shows_the_audit_and_T():
    first, second = blocks(ROOT / "README.md", "python")
    assert "audit_labels(" in first
    assert "mlt_jax.estimate(" in second
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


class Parsed(Exception):
    pass


def call(words, monkeypatch):
    """Runs a command up to where its arguments are parsed."""

    def only_parse(*args, **options):
        real(*args, **options)
        raise Parsed

    real = tyro.cli
    monkeypatch.setattr(tyro, "cli", only_parse)
    if words[0] == "mlt":
        cli.main(words[1:])
    else:
        monkeypatch.setattr(sys, "argv", words[1:])
        monkeypatch.syspath_prepend(str((ROOT / words[1]).parent))  # as Python does
        runpy.run_path(str(ROOT / words[1]), run_name="__main__")


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_parse(words, monkeypatch):
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] in ("pip", ".venv/bin/pytest"):
        assert all((ROOT / word).exists() for word in words if "/" in word and not word.startswith(".venv"))
    else:
        program = words[0] if words[0] == "mlt" else words[1]
        assert program == "mlt" or (ROOT / program).is_file()
        without_options = program.startswith("examples/")
        needs_torch = program == "experiments/bench_resnet.py"
        if not without_options and not needs_torch:
            with pytest.raises(Parsed):
                call(words, monkeypatch)


def test_links_between_pages_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links {target}"
