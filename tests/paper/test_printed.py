import numpy as np
import pytest

from mlt_jax.paper import printed as paper
from mlt_jax.training import metrics

COMPLETE = ("cls_VOC2007", "cls_VOC2012", "cls_MSCOCO")


def printed(table, metric, method):
    return [
        x.mean for row in paper.tables()[table].rows if (row.metric, row.method) == (metric, method) for x in row.values
    ]


def test_every_printed_number_ships_with_the_package():
    tables = paper.tables()
    assert len(tables) == 22
    assert sum(len(row.values) for table in tables.values() for row in table.rows) == 2893
    assert all(len(row.values) == len(table.columns) for table in tables.values() for row in table.rows)
    assert tables["est_VOC2012"].value("T_error", "Our estimator", "(0.6,0)") == paper.Printed(0.91, 0.12)
    assert tables["cls_VOC2007_c"].value("CF1", "WSIC", "(0.034,0.4)") == paper.Printed(43.43, 11.31)
    assert tables["est_VOC2012"].value("T_error", "Our estimator, blind", "(0.6,0)") is None


@pytest.mark.parametrize(("short", "complete"), [("cls_VOC2007", "cls_VOC2007_c"), ("cls_VOC2012", "cls_VOC2012_c"),
                                                 ("cls_coco", "cls_MSCOCO_c")])  # fmt: skip
def test_recomputed_averages_are_those_of_the_complete_tables(short, complete):
    table = paper.tables()[short]
    for row in table.rows:
        recomputed = table.value(row.metric, row.method, "Avg.").mean
        assert recomputed == pytest.approx(np.mean(printed(complete, row.metric, row.method)), abs=0.03)
    standard = printed(short, "OF1", "Standard")[-1]
    assert (abs(table.value("OF1", "Standard", "Avg.").mean - standard) < 0.05) == (short == "cls_VOC2007")


def test_wilcoxon_gives_the_printed_p_values_from_the_printed_scores():
    for row in paper.tables()["win_loss"].rows:
        for baseline, expected in zip(paper.tables()["win_loss"].columns, row.values, strict=True):
            ours, theirs = (
                [
                    x
                    for name in COMPLETE
                    for kind in ("c", "ins_c")
                    for x in printed(f"{name}_{kind}", row.metric, method)
                ]
                for method in ("Reweight-Ours", baseline)
            )
            assert len(ours) == 42
            assert metrics.wilcoxon_greater(ours, theirs) == pytest.approx(expected.mean, abs=6e-4)
    assert np.isnan(metrics.wilcoxon_greater([1.0, 2.0], [1.0, 2.0]))
