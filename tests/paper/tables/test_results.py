import numpy as np
import pytest

from mlt_jax.paper import printed as paper
from mlt_jax.paper.tables import plan, results, write
from mlt_jax.paper.tables.plan import Cell, Row


def test_entries_are_means_over_seeds_beside_the_printed_number(partly_run):
    assert partly_run.commits == ("1234567", "89abcde")
    methods = {row.method for row in partly_run.plan.rows} - {"AGCN", "CSRA"}
    assert partly_run.seconds == {"pooled": 2 * 8 * len(methods)}  # a second per run
    entry = partly_run.entries[Row("OF1", "Reweight-Ours"), "(0,0.6)"]
    assert (entry.mean, entry.std, entry.runs) == (pytest.approx(60.5), pytest.approx(9.5), 2)
    theirs = paper.tables()["cls_VOC2012_c"].value("OF1", "Reweight-Ours", "(0,0.6)").mean
    assert entry.difference == pytest.approx(60.5 - theirs)
    assert entry.best
    assert not partly_run.entries[Row("OF1", "GCE"), "(0,0.6)"].best


def test_how_many_classes_fell_back_is_part_of_an_entry(fake_records):
    made, records = fake_records("est_VOC2007")
    for cell, record in records.items():
        if cell.method == "Our estimator":
            record["scores"]["fallbacks"] = 3.0 + cell.seed
    table = results.tabulate(made, records, seeds=(0, 1), missing={})
    assert table.entries[Row("T_error", "Our estimator"), "(0,0.2)"].fallbacks == 3.5
    assert table.entries[Row("T_error", "T-estimator max"), "(0,0.2)"].fallbacks is None
    text = write.markdown(table, [])
    theirs = paper.tables()["est_VOC2007"].value("T_error", "Our estimator", "(0,0.2)").mean
    assert f"0.51 ±0.01 [3.5] ({theirs:.2f}, " in text.replace("0.50 ", "0.51 ")
    assert "[classes whose T is Dual-T's, for want of an estimate]" in text
    released, right = (
        table.entries[Row("T_error", f"Dual T-estimator 97%{word}"), "(0,0.2)"].printed
        for word in (", as released", "")
    )
    assert (released.mean, right) == (12.59, None)


def test_the_foot_counts_what_is_far_from_the_printed_numbers(fake_records):
    made, records = fake_records("ablation1", seeds=(0,))
    printed = paper.tables()["ablation1"]
    for cell, record in records.items():
        theirs = printed.value("T_error", cell.method, cell.setting).mean
        far = cell.setting in ("(0,0.2)", "(0,0.6)") and cell.method == "Our estimator"
        record["scores"]["T_error"] = theirs * (1.3 if far else 1.1)
    foot = " ".join(results.tabulate(made, records, seeds=(0,), missing={}).foot)
    assert "20 % of an error, from the paper's: Our estimator 2 of 8. Why: docs" in foot


def test_records_are_read_where_there_are_any(tmp_path):
    done, other = Cell("voc2007", "(0,0.2)", 0, "GCE"), Cell("voc2007", "(0,0.2)", 1, "GCE")
    (tmp_path / done.path).parent.mkdir(parents=True)
    (tmp_path / done.path).write_text('{"scores": {"mAP": 0.5}}')
    assert results.read(tmp_path, [done, other]) == {done: {"scores": {"mAP": 0.5}}}


def test_an_average_waits_for_all_its_settings(fake_records):
    made, records = fake_records("cls_VOC2007")
    hole = Cell("voc2007", "(0.6,0)", 1, "GCE")
    table = results.tabulate(made, {c: r for c, r in records.items() if c != hole}, seeds=(0, 1), missing={})
    whole, partly = (table.entries[Row("mAP", "GCE"), column] for column in ("MLML", "PML"))
    assert (whole.runs, partly.runs) == (2, 1)
    assert "GCE; AGCN; CSRA: 1 of 2 seeds." in table.notes
    assert "Avg. is over all four noise types" in " ".join(table.foot)
    assert table.entries[Row("mAP", "GCE"), "Avg."].printed.mean == pytest.approx(79.48, abs=0.01)


def test_the_foot_tests_over_the_pairs_that_were_run(fake_records):
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


def test_win_loss_counts_its_pairs(fake_records):
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
    table = results.tabulate(made, kept, seeds=(0, 1), missing={})
    right, released = (table.entries[Row("mAP", "Reweight-Ours"), name] for name in table.plan.columns[-2:])
    assert right.printed is None
    assert released.printed == paper.tables()["win_loss"].value("mAP", "Reweight-Ours", "Reweight-DualT 97%")
    assert entry.mean < 0.001
    assert entry.printed.mean == 0.772


def test_rows_on_maps_are_compared_on_their_own_images():
    made = plan.plan("cls_VOC2007_c").beside_maps(("Standard", "Reweight-Ours"))
    columns = made.columns
    assert {cell.study for cell in made.half} == {"voc2007-half"}
    records = {}
    for cell in made.cells(seeds=(0, 1), map_seeds=1):
        value = 0.5 + 0.01 * columns.index(cell.setting)
        if cell in made.half or cell.inputs == "maps":
            assert cell.seed == 0
            value += {"AGCN": 0.1, "CSRA": 0.3, "Standard": 0.15, "Reweight-Ours": 0.2}[cell.method]
        elif cell.method == "Reweight-Ours":
            value += 0.05
        records[cell] = {**cell._asdict(), "scores": dict.fromkeys(("mAP", "OF1", "CF1"), value), "seconds": 1.0}
    table = results.tabulate(made, records, seeds=(0, 1), missing={})
    [line] = [line for line in table.foot if "greater in mAP" in line]
    assert "Standard 0.004 (8 pairs); GCE 0.004 (8 pairs)" in line
    assert "AGCN 0.004 (8 pairs); CSRA 1.000 (8 pairs)" in line  # though CSRA is above Reweight-Ours everywhere else
    [beside] = [line for line in table.foot if line.startswith("On the images of AGCN and CSRA")]
    assert "mean over 8 settings: Standard 68.5 / 68.5 / 68.5; Reweight-Ours 73.5 /" in beside
    assert beside.endswith("AGCN 63.5 / 63.5 / 63.5; CSRA 83.5 / 83.5 / 83.5.")
    best = {row.method for (row, _), entry in table.entries.items() if entry.best}
    assert best == {"Reweight-Ours"}
    assert plan.plan("cls_VOC2012_c").beside_maps(("Standard",)).half == ()
