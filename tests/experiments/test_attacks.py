import ast
import importlib.util
import os
import subprocess
import sys

import pytest
from paths import ROOT

spec = importlib.util.spec_from_file_location("attacks", ROOT / "experiments" / "attacks.py")
attacks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(attacks)


@pytest.mark.parametrize("attack", attacks.ATTACKS, ids=lambda attack: f"{attack.kind}-{attack.what}")
def test_every_attack_is_one_test_that_there_is(attack):
    name, _, start = attack.test.partition("::")
    tree = ast.parse((ROOT / "tests" / name).read_text())
    found = [entry.name for entry in tree.body if isinstance(entry, ast.FunctionDef) and entry.name.startswith(start)]
    assert len(found) == 1, found


def test_the_script_prints_attack_expected_got_and_verdict():
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, str(ROOT / "experiments/attacks.py"), "--only", "pictures", "memory"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = done.stdout.split("\n\n")[-1].splitlines()
    assert rows[0].split() == ["attack", "expected", "got", "verdict"]
    assert [row.split()[0] for row in rows[1:]] == ["pictures:"] * 3 + ["memory:"]
    assert all(row.split()[-3:] == ["as", "expected", "ok"] for row in rows[1:])


def test_an_attack_that_ends_otherwise_fails():
    class Report:
        nodeid, longrepr = "tests/data/test_base.py::test_16_bits_are_x", "E  no"
        when, failed, skipped = "call", True, False

    verdicts = attacks.Verdicts(attacks.ATTACKS[:2])
    verdicts.pytest_runtest_logreport(Report)
    rows = verdicts.table().splitlines()
    assert rows[1].endswith("FAILED")
    assert "no  " in rows[1]
    assert "no such test" in rows[2]
