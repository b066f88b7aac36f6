import pytest

from mlt_jax.paper.tables import plan, results
from mlt_jax.paper.tables.plan import Cell


@pytest.fixture(scope="session")
def fake_records():
    """Makes a table's plan and a record for each of its runs, as if they had been made."""

    def make(table_id, *, seeds=(0, 1), value=0.5):
        made = plan.plan(table_id)
        found = {}
        for cell in made.cells(seeds=seeds, map_seeds=1):
            scores = {name: value + 0.01 * cell.seed for name in ("mAP", "OF1", "CF1", "T_error", "validation_mAP")}
            found[cell] = {**cell._asdict(), "scores": scores, "seconds": 1.0, "commit": "1234567"}
        return made, found

    return make


@pytest.fixture(scope="session")
def partly_run(fake_records):
    """A table with two seeds of every method but those on maps, and one run that is better than the others."""
    made, records = fake_records("cls_VOC2012_c")
    better = Cell("voc2012", "(0,0.6)", 0, "Reweight-Ours")
    records[better] |= {"scores": {"mAP": 0.7, "OF1": 0.7, "CF1": 0.7}, "commit": "89abcde"}
    records = {cell: record for cell, record in records.items() if cell.inputs == "pooled"}
    missing = {
        cell._replace(seed=0): "not run, no images"
        for cell in made.cells(seeds=[0], map_seeds=1)
        if cell.inputs == "maps"
    }
    return results.tabulate(made, records, seeds=(0, 1), missing=missing)
