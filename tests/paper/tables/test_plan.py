import pytest

from mlt_jax.paper.methods import METHODS
from mlt_jax.paper.tables import cells, plan
from mlt_jax.paper.tables.plan import Cell, Row


def test_every_table_has_a_plan_and_every_row_a_method():
    assert len(plan.ids()) == 23
    for name in plan.ids():
        made = plan.plan(name)
        assert made.entries.keys() == {(row, column) for row in made.rows for column in made.columns}
        for cell in made.cells(seeds=(0, 1, 2), map_seeds=1):
            known = cell.inputs == "labels" or cell.method in METHODS or cell.method in cells.ESTIMATORS
            assert known, cell
    with pytest.raises(ValueError, match="table: 'cls' is unknown; pass one of est_VOC2007"):
        plan.plan("cls")


def test_cells_have_files_of_their_own():
    every = {cell for name in plan.ids() for cell in plan.plan(name).cells(seeds=(0, 1), map_seeds=2)}
    paths = [cell.path for cell in every]
    assert len(set(paths)) == len(paths)
    assert Cell("voc2012", "(0,0.2)", 1, "Reweight-T 97%").path == "voc2012/_0_0.2_/seed1/Reweight-T_97pc.json"


def test_the_rows_of_dual_t_97_are_followed_by_those_with_the_bug_they_were_printed_from():
    for name, row in (("est_MSCOCO", "Dual T-estimator 97%"), ("cls_VOC2012", "Reweight-DualT 97%")):
        methods = [each.method for each in plan.plan(name).rows]
        assert methods[methods.index(row) + 1] == f"{row}, as released"
    made = plan.plan("win_loss")
    assert made.columns[-2:] == ("Reweight-DualT 97%", "Reweight-DualT 97%, as released")
    assert made.entries[made.rows[0], made.columns[-1]][-1] == Cell(
        "coco", "PMD-Type-III", 0, "Reweight-DualT 97%, as released"
    )


def test_rows_of_trained_networks_stand_in_est_voc2007_where_there_are_runs_of_them():
    made = plan.plan("est_VOC2007", beside={"voc2007-tail"})
    more = made.rows[len(plan.plan("est_VOC2007").rows) :]
    assert [row.method for row in more] == [f"{name}, tail" for name in plan.COMPARED]
    [cell] = made.entries[more[1], "(0,0.6)"]
    assert (cell.study, cell.method, cell.inputs) == ("voc2007-tail", "Our estimator", "images")


def test_an_average_column_has_the_runs_of_its_settings():
    made = plan.plan("cls_VOC2007")
    row = Row("OF1", "GCE")
    assert [cell.setting for cell in made.entries[row, "ALF"]] == ["(0.017,0.2)", "(0.034,0.4)"]
    assert len(made.entries[row, "Avg."]) == 8
    assert len(plan.plan("ins").entries[row, "Pascal-VOC2012"]) == 6
    assert {cell.study for cell in plan.plan("ablation1").cells(seeds=[0], map_seeds=1)} == {"voc2007"}
    assert plan.plan("discuss2_VOC2007").entries[Row("mAP", "Standard+Reweight-Ours"), "(0,0.2)"] == (
        Cell("voc2007", "(0,0.2)", 0, "Reweight-Ours"),
    )
