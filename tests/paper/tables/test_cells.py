import dataclasses

import numpy as np
import pytest
from paths import DATA

from mlt_jax.data import Dataset
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


def test_settings_are_named_as_columns(monkeypatch):
    clean = (np.random.default_rng(0).random((4000, 3)) < 0.5).astype(np.uint8)
    train = Dataset("some", tuple(map(str, range(4000))), tuple("abc"), clean)
    noisy = cells.corrupt(Options(), "voc2007", train, "(0.6,0)", 0)
    assert noisy.assume == "partial"
    assert np.allclose(noisy.T[0], [[0.4, 0.6], [0, 1]])
    assert noisy.labels[clean == 0].mean() == pytest.approx(0.6, abs=0.03)
    assert cells.corrupt(Options(), "voc2007", train, "(0.1,0.1)", 0).assume == "general"
    pairwise = cells.corrupt(Options(), "voc2007", train, "Pair-wise 20%", 0)
    assert pairwise.T is None
    alone = (clean[:, 0] == 1) & (clean[:, 1] == 0)
    assert pairwise.labels[alone, 0].mean() == pytest.approx(0.8, abs=0.05)
    posteriors = np.random.default_rng(1).random(clean.shape)
    monkeypatch.setattr(cells, "_posteriors", lambda options, study, ids: posteriors)
    for kind, level in (("I", 0.7), ("II", 0.35), ("III", 0.35)):
        noisy = cells.corrupt(Options(), "voc2007", train, f"PMD-Type-{kind}", 0).labels
        able = (clean == 1) & (clean.sum(1, keepdims=True) < 3)
        assert (noisy[clean == 1] == 0).mean() == pytest.approx(level, abs=0.03)
        assert not (noisy[(clean == 1) & ~able] == 0).any()
    with pytest.raises(ValueError, match="setting: 'MLML' is unknown"):
        cells.corrupt(Options(), "voc2007", train, "MLML", 0)


def test_pmd_noise_of_some_images_reads_their_own_posteriors(tmp_path, monkeypatch):
    """AGCN and CSRA train on the images of VOC2007's `train`; the posteriors are of the features of `trainval`."""
    rng, given, read = np.random.default_rng(0), Options(workdir=tmp_path), []
    clean, logits = (rng.random((300, 3)) < 0.4).astype(np.uint8), rng.normal(size=(300, 3)).astype(np.float32)
    whole = Dataset("pooled", tuple(map(str, range(300))), tuple("abc"), clean, features=logits)
    monkeypatch.setattr(cells, "load", lambda options, study, inputs: (whole, None))
    monkeypatch.setattr(cells, "cross_val_logits", lambda features, labels: features)
    monkeypatch.setattr(cells.noise, "corrupt_pmd", lambda key, clean, *given, **how: (read.append(given), clean)[1])
    some = whole.take(np.arange(300)[::-2])
    cells.corrupt(given, "voc2007", some._replace(features=None), "PMD-Type-II", 0)
    np.testing.assert_allclose(read[0][0], 1 / (1 + np.exp(-logits[::-2])), rtol=1e-5)


def test_halves_have_the_features_of_the_images_that_rows_on_maps_see(real_data, monkeypatch, tmp_path):
    real_data("voc2007_features.npz")
    (tmp_path / "VOC2007").mkdir()
    given = Options(features_dir=DATA, devkit=tmp_path)
    whole, _ = cells.load(given, "voc2007", "pooled")
    split = {"train": whole.take([30, 10, 20]), "val": whole.take([7, 5])}
    monkeypatch.setattr(cells, "_images", lambda options, dataset, name: split[name]._replace(features=None))
    train, test = cells.load(given, "voc2007-half", "pooled")
    assert (train.ids, test.ids) == (split["train"].ids, split["val"].ids)
    np.testing.assert_array_equal(train.features, whole.features[[30, 10, 20]])
    np.testing.assert_array_equal(test.labels, whole.labels[[7, 5]])
    noises = [cells.corrupt(given, study, train, "(0.2,0.2)", 0) for study in ("voc2007", "voc2007-half")]
    np.testing.assert_array_equal(noises[0].labels, noises[1].labels)  # as rows on maps have them
    lacking = "not run, no images with features; pass --features-dir and --devkit"
    assert cells.lacking(dataclasses.replace(given, devkit=None), "voc2007-half", "pooled") == lacking
    assert cells.lacking(given, "voc2007-half", "pooled") is None


def test_difficult_labels_of_the_test_set_are_positives_unless_skipped(real_data):
    counts = [np.sum(real_data(f"voc{year}_labels.npz")["trainval"] == 0) for year in (2007, 2012)]
    given = Options(features_dir=DATA)
    train, test = cells.load(given, "voc2012", "pooled")
    _, skipped = cells.load(Options(features_dir=DATA, difficult="skip"), "voc2012", "pooled")
    assert (len(train.ids), len(test.ids)) == (11540, 5008)
    assert test.ignore is None
    assert test.labels[skipped.ignore].all()
    assert 0 < skipped.ignore.sum() <= counts[0]
    train, test = cells.load(given, "voc2007", "pooled")
    assert (train.name, test.name) == ("voc2007_features/trainval", "voc2012_features/trainval")
    assert (len(train.ids), len(test.ids)) == (5008, 11540)


def test_images_of_voc2007_are_cut_in_two_and_whole_runs_are_the_paper_s():
    studies = {inputs: cells._study(Options(), "voc2007", inputs)[1:] for inputs in ("pooled", "maps")}
    assert studies == {"pooled": ("trainval", "voc2012/trainval"), "maps": ("train", "val")}
    assert cells._study(Options(backbone="finetune"), "voc2007", "pooled")[1:] == ("train", "val")
    assert cells._study(Options(real_test=True), "voc2007", "maps")[1:] == ("trainval", "test")


def test_a_cell_without_its_data_says_what_to_pass(tmp_path):
    job = cells.Job("voc2007", "(0,0.2)", 0, "pooled", ("Standard", "GCE"))
    outcomes = cells.run_job(Options(workdir=tmp_path), job)
    assert [outcome.cell for outcome in outcomes] == job.cells
    assert {outcome.missing for outcome in outcomes} == {"not run, no images; pass --devkit and --pretrained"}
    assert not list(tmp_path.rglob("*.json"))
    with pytest.raises(cells.Missing, match="no labels; pass --features-dir"):
        cells.load(Options(workdir=tmp_path), "voc2012", "labels")
