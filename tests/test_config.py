import json
from pathlib import Path

import pytest

from mlt_jax.config import Config, resolve
from mlt_jax.training.loop import Schedule


def test_every_default_is_filled_in():
    digits, voc, coco = (
        resolve(Config(dataset=name, features=features))
        for name, features in (("digits", None), ("voc2012", Path("x")), ("coco", Path("x")))
    )
    assert (digits.model, digits.backbone) == ("small", "finetune")
    assert digits.schedule == Schedule(epochs=4, sample_epoch=4, batch_size=32, learning_rate=1e-3)
    assert (voc.model, voc.train_split, voc.test_split) == ("linear", "trainval", "voc2007/test")
    assert voc.schedule == Schedule(epochs=20, sample_epoch=10, batch_size=128, learning_rate=5e-4)
    assert (coco.schedule.epochs, coco.schedule.sample_epoch) == (30, 15)
    assert voc.workdir == Path("runs/voc2012-rates-0.2-0.2")


def test_resnets_start_from_imagenet_unless_told_otherwise():
    found = resolve(Config(dataset="voc2012"))
    assert found.model == "resnet50"
    assert found.pretrained == found.as_json()["pretrained"]
    assert found.pretrained.startswith("timm/resnet50.tv_in1k@")
    assert resolve(Config(dataset="voc2012", pretrained="none", backbone="finetune")).pretrained is None
    assert resolve(Config(dataset="voc2012", pretrained="x.npz")).pretrained == "x.npz"
    assert resolve(Config()).pretrained is None


def test_a_tail_has_the_paper_s_schedule():
    found = resolve(Config(dataset="voc2007", backbone="tail"))
    assert (found.backbone, found.given.views) == ("tail", 4)
    assert found.schedule == Schedule(epochs=20, sample_epoch=10, batch_size=128, learning_rate=5e-5)


def test_what_is_given_stays():
    given = Config(features=Path("x"), epochs=7, sample_epoch=3, batch_size=9, learning_rate=0.1, workdir=Path("w"))
    found = resolve(given)
    assert found.schedule == Schedule(7, 3, 9, 0.1)
    assert found.workdir == Path("w")
    assert found.given is given


def test_a_record_has_the_filled_in_values_in_json_s_types():
    found = resolve(Config(features=Path("x"), dataset="voc2007", seeds=(3, 4)))
    record = json.loads(json.dumps(found.as_json()))
    assert record == found.as_json()
    assert (record["epochs"], record["learning_rate"], record["seeds"]) == (20, 5e-4, [3, 4])
    assert record["methods"] == ["Standard", "Reweight", "Reweight-TrueT"]


def test_where_a_run_lies_and_how_it_is_split_into_processes_is_not_what_it_is():
    one = resolve(Config(workdir=Path("a"), num_processes=2, save_every=1.0)).identity()
    assert one == resolve(Config(workdir=Path("b"))).identity()
    assert one != resolve(Config(rho_pos=0.3)).identity()
    assert one == resolve(Config(methods=("GCE",), seeds=(5,))).identity()  # more of both extend a folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": "salt"}, "noise: 'salt' is unknown; pass mlml"),
        ({"model": "vgg"}, "model: 'vgg' is unknown; pass"),
        (
            {"model": "resnet50", "backbone": "frozen", "pretrained": "none"},
            "pretrained: none, and the backbone is frozen",
        ),
        (
            {"model": "resnet50", "backbone": "tail", "pretrained": "none"},
            "pretrained: none, and the backbone is fixed before the tail",
        ),
        ({"features": Path("x"), "backbone": "tail"}, "backbone: tail, and the model is linear"),
        ({"views": 0}, "views: 0; pass a whole number, 1 or more"),
        ({"sample_epoch": 30}, "sample_epoch: 30; pass 1 to epochs = 4"),
        ({"methods": ("Reweigh",)}, "method: 'Reweigh' is unknown; pass one of Standard, GCE"),
        ({"methods": ()}, "methods: none; pass at least one"),
        ({"estimator": "guess"}, "estimator: 'guess' is unknown; pass one of auto, T-estimator max"),
        ({"assume": "clean"}, "assume: 'clean'; pass"),
        ({"plugins": (Path("gone.py"),)}, r"plugins: gone\.py is no file"),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_pass(changes, message):
    with pytest.raises(ValueError, match=message):
        resolve(Config(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": ()}, "seeds: none; pass at least one"),
        ({"seeds": (0, -1)}, "seeds: -1; pass a whole number"),
        ({"accumulate": 0}, "accumulate: 0; pass a whole number, 1 or more"),
        ({"epochs": 0}, "epochs: 0; pass"),
        ({"batch_size": 0}, "batch_size: 0; pass"),
        ({"learning_rate": -1.0}, "learning_rate: -1.0; pass a positive number"),
    ],
)
def test_a_number_that_no_run_can_have_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        resolve(Config(**changes))


def test_features_have_the_schedule_of_features_whatever_the_data_set_is_called(tmp_path):
    for given in ({"features": tmp_path / "x.npz"}, {"dataset": "features", "data_dir": tmp_path}):
        settings = resolve(Config(**given))
        assert (settings.model, settings.schedule.epochs, settings.schedule.batch_size) == ("linear", 20, 128)
