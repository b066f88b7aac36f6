import numpy as np
import pytest
from simulate import flip

from mlt_jax.data import Dataset
from mlt_jax.paper import printed as paper
from mlt_jax.paper.noise import transition
from mlt_jax.paper.tables import cells, label_only
from mlt_jax.paper.tables.options import Options


def test_validation_coco_is_the_printed_table(real_data):
    packed = real_data("coco2014_train_labels.npz")["train"]
    found = label_only.frequencies(np.unpackbits(packed, axis=1)[:, :80])
    table = paper.tables()["validation_coco"]
    for row in table.rows:
        for column, value in zip(table.columns, row.values, strict=True):
            assert found[f"{row.method} {column}"] == pytest.approx(value.mean, abs=5.1e-4)


def test_the_gold_row_on_real_labels_is_close_to_the_printed_one(real_data):
    clean = (real_data("voc2012_labels.npz")["trainval"] >= 0).astype(np.uint8)
    train = Dataset("voc2012", tuple(map(str, range(len(clean)))), tuple("abcdefghijklmnopqrst"), clean)
    noisy = cells.corrupt(Options(), "voc2012", train, "(0.6,0)", 0)
    error = label_only.gold_error(clean, noisy.labels, noisy.T, assume=noisy.assume)
    theirs = paper.tables()["est_VOC2012"].value("T_error", "Our estimator gold", "(0.6,0)").mean
    assert error == pytest.approx(theirs, abs=0.2)  # 0.45 printed; the medoid of the paper's text gives 0.98


def test_person_s_partners_are_the_papers_bold_rows_and_the_rest():
    groups = label_only.partner_groups()
    assert [len(group) for group in groups.values()] == [46, 33]
    assert sorted(np.concatenate(list(groups.values()))) == [i for i in range(80) if i != label_only.PERSON]


@pytest.mark.parametrize(
    ("rates", "assume"), [((0.1, 0.2), "general"), ((0.0, 0.3), "missing"), ((0.3, 0.0), "partial")]
)
def test_a_correlated_partner_alone_gives_person_s_T_and_a_stranger_does_not(rates, assume):
    rng = np.random.default_rng(0)
    person = rng.random((40_000, 1)) < 0.4
    related = label_only.partner_groups()["label A"]
    share = np.full((1, 80), 0.3)
    clean = (rng.random((40_000, 80)) < np.where(np.isin(np.arange(80), related) & person, 0.7, share)).astype(np.uint8)
    clean[:, label_only.PERSON] = person[:, 0]
    labels, T = flip(rng, clean, *rates), np.asarray(transition(*rates, 80))
    near, far = (
        label_only.partner_error(clean, labels, T, assume=assume, group=group) for group in ("label A", "label B")
    )
    assert near["partners"] == near["asked"] == 46
    assert near["T_error"] < 0.03
    assert far["partners"] < far["asked"] == 33
    assert not far["T_error"] < 5 * near["T_error"]
