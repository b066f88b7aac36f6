import csv

import numpy as np
import pytest

from mlt_jax.paper import printed as paper
from mlt_jax.paper.methods import METHODS
from mlt_jax.paper.tables import cells, plan, results, write
from mlt_jax.paper.tables.options import Options
from mlt_jax.paper.tables.plan import Cell, Row
from mlt_jax.training import metrics

COMPLETE = ("cls_VOC2007", "cls_VOC2012", "cls_MSCOCO")


def printed(table, metric, method):
    return [
        x.mean for row in paper.tables()[table].rows if (row.metric, row.method) == (metric, method) for x in row.values
    ]


# The paper's numbers


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


def test_validation_coco_is_the_printed_table(real_data):
    packed = real_data("coco2014_train_labels.npz")["train"]
    found = cells.label_only.frequencies(np.unpackbits(packed, axis=1)[:, :80])
    table = paper.tables()["validation_coco"]
    for row in table.rows:
        for column, value in zip(table.columns, row.values, strict=True):
            assert found[f"{row.method} {column}"] == pytest.approx(value.mean, abs=5.1e-4)


def test_the_gold_row_on_real_labels_is_close_to_the_printed_one(real_data):
    clean = (real_data("voc2012_labels.npz")["trainval"] >= 0).astype(np.uint8)
    noisy = cells.corrupt(Options(), "voc2012", clean, "(0.6,0)", 0)
    error = cells.label_only.gold_error(clean, noisy.labels, noisy.T, assume=noisy.assume)
    theirs = paper.tables()["est_VOC2012"].value("T_error", "Our estimator gold", "(0.6,0)").mean
    assert error == pytest.approx(theirs, abs=0.2)  # 0.45 printed; the medoid of the paper's text gives 0.98


# What is run


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


def test_an_average_column_has_the_runs_of_its_settings():
    made = plan.plan("cls_VOC2007")
    row = Row("OF1", "GCE")
    assert [cell.setting for cell in made.entries[row, "ALF"]] == ["(0.017,0.2)", "(0.034,0.4)"]
    assert len(made.entries[row, "Avg."]) == 8
    assert len(plan.plan("ins").entries[row, "Pascal-VOC2012"]) == 6
    assert {cell.study for cell in plan.plan("ablation1").cells(seeds=[0], map_seeds=1)} == {"voc2007-all"}
    assert plan.plan("discuss2_VOC2007").entries[Row("mAP", "Standard+Reweight-Ours"), "(0,0.2)"] == (
        Cell("voc2007", "(0,0.2)", 0, "Reweight-Ours"),
    )


def test_slow_rows_get_fewer_seeds_and_jobs_share_a_warm_up():
    every = plan.plan("cls_VOC2007_c").cells(seeds=(0, 1, 2), map_seeds=1)
    assert {cell.seed for cell in every if cell.method == "CSRA"} == {0}
    assert {cell.seed for cell in every if cell.method == "CDR"} == {0, 1, 2}
    jobs = cells.jobs_of(every)
    assert len(jobs) == 8 * 3 + 8
    assert sum(len(job.methods) for job in jobs) == len(every)
    assert [job.inputs for job in jobs] == ["pooled"] * 24 + ["maps"] * 8


def test_settings_are_named_as_columns(tmp_path):
    clean = (np.random.default_rng(0).random((4000, 3)) < 0.5).astype(np.uint8)
    noisy = cells.corrupt(Options(), "voc2007", clean, "(0.6,0)", 0)
    assert noisy.assume == "partial"
    assert np.allclose(noisy.T[0], [[0.4, 0.6], [0, 1]])
    assert noisy.labels[clean == 0].mean() == pytest.approx(0.6, abs=0.03)
    assert cells.corrupt(Options(), "voc2007", clean, "(0.1,0.1)", 0).assume == "general"
    pairwise = cells.corrupt(Options(), "voc2007", clean, "Pair-wise 20%", 0)
    assert pairwise.T is None
    alone = (clean[:, 0] == 1) & (clean[:, 1] == 0)
    assert pairwise.labels[alone, 0].mean() == pytest.approx(0.8, abs=0.05)
    with pytest.raises(ValueError, match="setting: 'MLML' is unknown"):
        cells.corrupt(Options(), "voc2007", clean, "MLML", 0)


# Tables written


def fake_records(table_id, *, seeds=(0, 1), value=0.5):
    made = plan.plan(table_id)
    found = {}
    for cell in made.cells(seeds=seeds, map_seeds=1):
        scores = {name: value + 0.01 * cell.seed for name in ("mAP", "OF1", "CF1", "T_error", "validation_mAP")}
        found[cell] = {**cell._asdict(), "scores": scores, "seconds": 1.0, "commit": "1234567"}
    return made, found


def test_entries_are_means_over_seeds_beside_the_printed_number(tmp_path):
    made, records = fake_records("cls_VOC2012_c")
    better = Cell("voc2012", "(0,0.6)", 0, "Reweight-Ours")
    records[better] |= {"scores": {"mAP": 0.7, "OF1": 0.7, "CF1": 0.7}, "commit": "89abcde"}
    records = {cell: record for cell, record in records.items() if cell.inputs == "pooled"}
    missing = {
        cell._replace(seed=0): "not run, no images"
        for cell in made.cells(seeds=[0], map_seeds=1)
        if cell.inputs == "maps"
    }
    table = results.tabulate(made, records, seeds=(0, 1), missing=missing)
    assert table.commits == ("1234567", "89abcde")
    assert table.seconds == {"labels": 0, "pooled": len(records), "maps": 0}
    entry = table.entries[Row("OF1", "Reweight-Ours"), "(0,0.6)"]
    assert (entry.mean, entry.std, entry.runs) == (pytest.approx(60.5), pytest.approx(9.5), 2)
    theirs = paper.tables()["cls_VOC2012_c"].value("OF1", "Reweight-Ours", "(0,0.6)").mean
    assert entry.difference == pytest.approx(60.5 - theirs)
    assert entry.best
    paths = write.write(table, tmp_path, about=["made `up`"], formats=("md", "csv", "tex", "html"))
    texts = {path.suffix: path.read_text(encoding="utf-8") for path in paths}
    shown = f"60.50 ±9.50 ({theirs:.2f}, {60.5 - theirs:+.2f})"
    assert f"**{shown}**" in texts[".md"]
    assert f"<b>60.50 ±9.50</b><small>{theirs:.2f}, {60.5 - theirs:+.2f}</small>" in texts[".html"]
    assert texts[".html"].count("<section>") == 1 + 3 + 1  # about, three metrics, foot
    assert rf"\textbf{{60.50 $\pm$9.50 ({theirs:.2f}, {60.5 - theirs:+.2f})}}" in texts[".tex"]
    assert texts[".tex"].count(r"\resizebox{\textwidth}{!}{%") == 1
    assert all("AGCN, CSRA: not run, no images." in text for text in texts.values())
    assert "made <code>up</code>" in texts[".html"]
    assert all("made `up`" in text for kind, text in texts.items() if kind != ".html")
    lines = csv.DictReader(line for line in texts[".csv"].splitlines() if not line.startswith("#"))
    [line] = [x for x in lines if (x["metric"], x["method"], x["column"]) == ("OF1", "Reweight-Ours", "(0,0.6)")]
    assert float(line["ours"]) == 60.5
    assert float(line["paper"]) == theirs
    assert not list(tmp_path.glob("*.part"))


def test_an_average_waits_for_all_its_settings():
    made, records = fake_records("cls_VOC2007")
    hole = Cell("voc2007", "(0.6,0)", 1, "GCE")
    table = results.tabulate(made, {c: r for c, r in records.items() if c != hole}, seeds=(0, 1), missing={})
    whole, partly = (table.entries[Row("mAP", "GCE"), column] for column in ("MLML", "PML"))
    assert (whole.runs, partly.runs) == (2, 1)
    assert "GCE, AGCN, CSRA: 1 of 2 seeds." in table.notes
    assert "Avg. is over all four noise types" in " ".join(table.foot)
    assert table.entries[Row("mAP", "GCE"), "Avg."].printed.mean == pytest.approx(79.48, abs=0.01)


def test_the_foot_tests_over_the_pairs_that_were_run():
    made, records = fake_records("cls_VOC2007_c")
    columns = made.columns
    for cell, record in records.items():
        record["scores"] = dict.fromkeys(("mAP", "OF1", "CF1"), 0.5 + 0.01 * columns.index(cell.setting))
        if cell.method == "Reweight-Ours":
            record["scores"]["OF1"] += 0.001 * (1 + columns.index(cell.setting))
    records = {cell: r for cell, r in records.items() if cell.method != "GCE" or cell.setting in columns[:5]}
    table = results.tabulate(made, records, seeds=(0, 1), missing={})
    [line] = [line for line in table.foot if "greater in OF1" in line]
    assert "Standard 0.004 (8 pairs)" in line  # 2^-8: ours is greater in all eight
    assert "GCE 0.031 (5 pairs)" in line
    assert "TrueT" not in line
    [places] = [line for line in table.foot if "among the methods run" in line]
    assert "OF1: first in 8, second in 0 of 8 columns" in places


def test_win_loss_counts_its_pairs():
    made, records = fake_records("win_loss")
    rng = np.random.default_rng(0)
    kept = {}
    for cell, record in records.items():
        if cell.study != "coco":
            gain = 0.05 if cell.method == "Reweight-Ours" else 0.0
            record["scores"] = {m: 0.5 + gain + 0.001 * rng.random() for m in ("mAP", "OF1", "CF1")}
            kept[cell] = record
    entry = results.tabulate(made, kept, seeds=(0, 1), missing={}).entries[Row("mAP", "Reweight-Ours"), "CSRA"]
    assert (entry.runs, entry.note) == (28, "win, 28 pairs")
    assert entry.mean < 0.001
    assert entry.printed.mean == 0.772


def test_tau_comes_with_its_figure(tmp_path):
    made, records = fake_records("tau")
    paths = write.write(results.tabulate(made, records, seeds=(0, 1), missing={}), tmp_path, about=[], formats=("md",))
    [figure] = [path for path in paths if path.suffix == ".svg"]
    assert figure.read_text().count("<circle") == 2 * 3 * (8 + 1)
