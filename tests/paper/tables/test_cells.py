import numpy as np
import pytest

from mlt_jax.paper.tables import cells, plan
from mlt_jax.paper.tables.options import Options


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


def test_a_cell_without_its_data_says_what_to_pass(tmp_path):
    job = cells.Job("voc2007", "(0,0.2)", 0, "pooled", ("Standard", "GCE"))
    outcomes = cells.run_job(Options(workdir=tmp_path), job)
    assert [outcome.cell for outcome in outcomes] == job.cells
    assert {outcome.missing for outcome in outcomes} == {"not run, no images; pass --devkit and --pretrained"}
    assert not list(tmp_path.rglob("*.json"))
    with pytest.raises(cells.Missing, match="no labels; pass --features-dir"):
        cells.load(Options(workdir=tmp_path), "voc2012", "labels")
