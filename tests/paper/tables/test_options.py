import pytest

from mlt_jax.paper.tables.options import Options, check, identity, length


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"launcher": "slurm"}, "launcher: 'slurm' is unknown; pass local or ray"),
        ({"backbone": "big"}, "backbone: 'big' is unknown"),
        ({"formats": ("pdf",)}, r"formats: \['pdf'\] unknown"),
        ({"sample_epoch": 30}, "sample_epoch: 30; pass 1 to epochs = 20"),
        ({"difficult": "negative"}, "difficult: 'negative' is unknown; pass positive or skip"),
        ({"seeds": ()}, "seeds: none"),
    ],
)
def test_options_are_checked(wrong, message):
    with pytest.raises(ValueError, match=message):
        check(Options(**wrong))


def test_runs_under_other_options_are_other_runs():
    base = identity(Options())
    for change in ({"epochs": 21}, {"backbone": "finetune"}, {"difficult": "skip"}, {"real_test": True}):
        assert identity(Options(**change)) != base
    assert identity(Options(seeds=(7,), table=("tau",), launcher="ray", only=("x",))) == base
    check(Options())


def test_coco_has_the_paper_s_longer_schedule():
    assert [length(Options(), name) for name in ("voc2012", "coco")] == [(20, 10), (30, 15)]
    assert length(Options(epochs=4), "coco") == (4, 2)
