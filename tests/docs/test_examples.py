import importlib.util
import re

import pytest
from paths import ROOT


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_arrays_alone_find_wrong_labels_and_train_better():
    scores = example("pytorch_style").main()
    assert scores["precision"] > 0.85
    assert min(scores["relabelled"], scores["weighted"]) > scores["as given"] + 0.1


@pytest.mark.slow
def test_the_tutorial_leaves_a_page_and_fewer_wrong_labels(tmp_path, capsys):
    example("digits_audit").main(tmp_path)
    printed = capsys.readouterr().out
    before, after = map(int, re.search(r"wrong: (\d+) before, (\d+) after", printed).groups())
    assert after < 0.8 * before
    assert int(re.search(r"first 100 suspects (\d+) %", printed)[1]) >= 75
    assert (tmp_path / "report.html").read_text().count("data:image/png") > 100
