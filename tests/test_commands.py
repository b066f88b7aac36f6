"""The options of `mlt`, and what it says about itself."""

import dataclasses
import subprocess
import sys
from importlib.metadata import version
from typing import get_args

import pytest

from mlt_jax.cli import main
from mlt_jax.commands import HELP, Command, Files

COMMANDS = {get_args(entry)[1].name: get_args(entry)[0] for entry in get_args(Command)}


def test_the_command_exists_and_explains_itself():
    done = subprocess.run([sys.executable, "-m", "mlt_jax.cli", "--help"], capture_output=True, text=True, check=True)
    assert all(f"mlt {word} " in done.stdout for word in COMMANDS)
    wrong = subprocess.run([sys.executable, "-m", "mlt_jax.cli", "audit"], capture_output=True, text=True)
    assert wrong.returncode == 2


def test_every_command_has_a_line_and_an_example_in_the_help(capsys):
    assert set(COMMANDS) == {"estimate", "audit", "apply", "raters", "report"}
    for name in COMMANDS:
        assert f"\n  {name:9} " in HELP
        assert f"    mlt {name} " in HELP
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mlt_jax {version('mlt_jax')}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_listed_in_plain_words(name, capsys):
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    said = capsys.readouterr().out
    assert left.value.code == 0
    assert "{None}" not in said  # how types look that were given no metavar
    assert "|" not in said.replace("\u2502", "").replace("[OPTIONS]", "")
    for field in dataclasses.fields(COMMANDS[name]):
        assert field.name.replace("_", "-").upper() in said.upper()


def test_a_column_to_ignore_that_no_file_has_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("id,cat,width\na,1,640\n")
    files = Files(ignore_columns=("width",))
    files.check_ignored(files.read(tmp_path / "t.csv"), None)
    with pytest.raises(ValueError, match=r'--ignore-columns: no file has a column "wdith"'):
        Files(ignore_columns=("wdith",)).check_ignored(files.read(tmp_path / "t.csv"))
