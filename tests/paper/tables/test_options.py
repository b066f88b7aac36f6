import pytest

from mlt_jax.paper.tables.options import Options, check, identity


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"launcher": "slurm"}, "launcher: 'slurm' is unknown; pass local or ray"),
        ({"backbone": "big"}, "backbone: 'big' is unknown"),
        ({"formats": ("pdf",)}, r"formats: \['pdf'\] unknown"),
        ({"sample_epoch": 30}, "sample_epoch: 30; pass 1 to epochs = 20"),
        ({"seeds": ()}, "seeds: none"),
    ],
)
def test_options_are_checked(wrong, message):
    with pytest.raises(ValueError, match=message):
        check(Options(**wrong))


def test_runs_under_other_options_are_other_runs():
    base = identity(Options())
    for change in ({"epochs": 21}, {"backbone": "finetune"}, {"learning_rate": 1e-3}, {"real_test": True}):
        assert identity(Options(**change)) != base
    assert identity(Options(seeds=(7,), table=("tau",), launcher="ray", only=("x",))) == base
    check(Options())
