"""Every kind of file that the script tries is read as expected or refused in one line."""

import importlib.util

import pytest
from paths import ROOT

spec = importlib.util.spec_from_file_location("file_cases", ROOT / "experiments" / "file_cases.py")
file_cases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(file_cases)
CASES = {case.name: case for case in file_cases.cases()}


def test_the_suspects_to_compare_with_contradict_their_predictions():
    rows = file_cases.baseline()
    assert len(rows) >= 5
    assert file_cases.contradicting(rows) == rows


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_read_as_meant_or_refused_in_one_line(name):
    outcome, verdict = file_cases.run(CASES[name])
    assert verdict == ("as expected" if CASES[name].says is None else "refused"), outcome


def test_a_silent_mismatch_would_be_found():
    case = file_cases.table("rows turned", "labels.npy", lambda path: file_cases.np.save(path, file_cases.LABELS[::-1]))
    assert file_cases.run(case)[1] == "MISMATCH"
