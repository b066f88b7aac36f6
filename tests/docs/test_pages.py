"""The pages build without a warning, and the API page has what the package exports."""

import re
import runpy
import subprocess
import sys
from html import unescape
from typing import NamedTuple

import pytest
from paths import ROOT

import mlt_jax


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("docs")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        out / "trees",
        ROOT / "docs",
        out / "html",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return out / "html"


def text(html):
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


@pytest.mark.slow
def test_every_exported_name_has_an_entry_with_its_docstring(built):
    page = (built / "api.html").read_text()
    for name in mlt_jax.__all__:
        _, found, entry = page.partition(f'id="mlt_jax.{name}"')
        assert found, name
        words = re.findall(r"\w+", getattr(mlt_jax, name).__doc__.strip().splitlines()[0])
        shown = re.findall(r"\w+", text(entry[:20_000]))
        assert " ".join(words) in " ".join(shown), name
    assert "Alias for field number" not in page


@pytest.mark.slow
def test_the_home_page_leads_to_every_page(built):
    home = (built / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert (built / f"{page.stem}.html").is_file()
        assert page.stem == "index" or f'href="{page.stem}.html"' in home


@pytest.fixture
def conf():
    return runpy.run_path(str(ROOT / "docs" / "conf.py"))


class Record(NamedTuple):
    """What came out."""

    rate: float  # in percent,
    # per class
    names: tuple[str, ...]

    def method(self):
        pass


def test_fields_of_records_are_explained_by_their_comments(conf):
    lines = ["What came out."]
    conf["prepare"](None, "class", "Record", Record, None, lines)
    assert lines[1:] == [
        "",
        "Attributes:",
        "  rate (``float``): in percent, per class",
        "  names (``tuple[str, ...]``): ",
        "",
    ]


def test_docstrings_may_hold_formulas(conf):
    lines = ["Fits |x| of `a|b` to x_.", "", "    y = |x|", "", "Args:", "  x: with", "", "    a block"]
    conf["prepare"](None, "function", "fit", len, None, lines)
    assert lines[:5] == [r"Fits \|x\| of `a|b` to x\_.", "", "::", "", "    y = |x|"]
    assert lines[5:] == ["", "Args:", "  x: with", "", "    a block"]
