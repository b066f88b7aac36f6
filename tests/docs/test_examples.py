import importlib.util
import re

import nbclient
import nbformat
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


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install '.[torch]'")
def test_a_pytorch_network_in_folds_finds_the_planted_mistakes():
    found = example("pytorch_kfold").main()
    assert found["found"] > 0.8 * found["planted"]
    assert found["found"] > 0.9 * found["suspects"]
    assert found["left"] < 0.5 * found["planted"]


def test_the_notebook_goes_from_a_csv_file_to_relabelled_data(tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "audit.ipynb", 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []  # as committed: stripped
    nbclient.NotebookClient(notebook, timeout=None, resources={"metadata": {"path": tmp_path}}).execute()
    shown = code[-1].outputs[-1].text
    before, after = map(int, re.search(r"wrong: (\d+) before, (\d+) after", shown).groups())
    assert after < 0.6 * before
    assert "<table>" in code[2].outputs[-1].data["text/html"]
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_the_tutorial_leaves_a_page_and_fewer_wrong_labels(tmp_path, capsys):
    example("digits_audit").main(tmp_path)
    printed = capsys.readouterr().out
    before, after = map(int, re.search(r"wrong: (\d+) before, (\d+) after", printed).groups())
    assert after < 0.8 * before
    assert int(re.search(r"first 100 suspects (\d+) %", printed)[1]) >= 75
    assert (tmp_path / "report.html").read_text().count("data:image/png") > 100
