import importlib.util

import pytest
from paths import ROOT

from mlt_jax.paper.tables import run, store
from mlt_jax.paper.tables.options import Options, identity
from mlt_jax.paper.tables.plan import Row
from mlt_jax.paper.tables.write import cell_text

SPEC = importlib.util.spec_from_file_location("tail", ROOT / "experiments" / "tail.py")
tail = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tail)


@pytest.fixture
def result():
    errors = {"default": 0.9, "recipe, told": 3.25, "recipe, blind": 3.5, "Dual-T": 5.0, "Dual-T, told": 4.5}
    return {"T_error": errors, "seconds": {"Standard": 90.0}, "fallbacks": 2, "commit": "1234567", "machine": "this"}


def test_errors_of_t_stand_beside_the_rows_of_frozen_features_in_est_voc2007(result, tmp_path):
    given = tail.Options(data_dir=tmp_path, settings=(".2,.2",), epochs=3)
    assert tail.words(given) == "python experiments/tail.py --data-dir DIR --settings .2,.2 --epochs 3"
    records = tail.cells_of(given, {".2,.2": result}, "as it was made")
    path = tmp_path / "cells.jsonl.gz"
    store.write(path, identity(Options()), records)
    [table] = run.run(Options(table=("est_VOC2007",), write_only=True, cells=path, out=tmp_path, formats=("md",)))
    entry = table.entries[Row("T_error", "Our estimator, tail"), "(0.2,0.2)"]
    assert cell_text(entry) == "3.25 [2] (3.10, +0.15)"
    assert not entry.best
    assert table.entries[Row("T_error", "Dual T-estimator max, tail"), "(0.2,0.2)"].mean == 4.5
    assert table.entries[Row("T_error", "Our estimator, blind, tail"), "(0.2,0.2)"].printed is None
    text = (tmp_path / "est_VOC2007.md").read_text()
    assert "- Beside them, `experiments/tail.py`: as it was made." in text
    assert "runs of commit 1234567, on this; they took 90 s together" in text


def test_its_table_has_what_each_estimator_was_told(result):
    scores = {name: {"mAP": 0.5, "OF1": 0.25, "CF1": 0.125, "epoch": 3} for name in tail.METHODS}
    seconds = dict.fromkeys(tail.METHODS, 90.0)
    text = tail.table({".2,.2": result | {"test": scores, "seconds": seconds}}, "made so")
    assert "| (.2,.2) | 3.25 | 3.50 | 4.50 | 5.00 | 0.90 |" in text
    assert "| (.2,.2) | Reweight, true T | 50.0 | 25.0 | 12.5 | 3 | 2 |" in text
