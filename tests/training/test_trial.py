from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax.config import Config, resolve
from mlt_jax.data import ArrayImages, Dataset
from mlt_jax.models import build
from mlt_jax.paper.methods import METHODS, Truth
from mlt_jax.training import pipeline, trial
from mlt_jax.training.trial import Bench, Schedule, Trial

SCHEDULE = Schedule(epochs=3, sample_epoch=2, batch_size=32, learning_rate=5e-3)


def dataset(n, *, seed=0, side=None):
    """Features (or maps) in which each of 4 classes shows."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((n, 4)) < 0.4).astype(np.uint8)
    shape = (n, 6) if side is None else (n, side, side, 6)
    pattern = labels @ np.random.default_rng(9).normal(size=(4, 6))
    features = 0.3 * rng.normal(size=shape) + pattern.reshape(n, *[1] * (len(shape) - 2), 6)
    names = tuple(f"{seed}-{row}" for row in range(n))
    return Dataset("tiny", names, ("a", "b", "c", "d"), labels, features=features.astype(np.float32))


def make_trial(*, seed=3, side=None, rates=None):
    config = resolve(Config(dataset="voc2007", features=Path("unread"), rho_neg=0.1, rho_pos=0.2))
    train, test = dataset(200, side=side), dataset(100, seed=1, side=side)
    parts = pipeline.prepare(config, train, test, seed)
    rows, _ = pipeline.split_rows(200)
    bench = Bench(lambda name, key: build(name, num_classes=4, key=key, size=6), schedule=SCHEDULE, rates=rates)
    return Trial(bench, parts, Truth(parts.true_T, train.labels[rows]), seed=seed)


@pytest.fixture(scope="module")
def on_maps():
    return make_trial(side=2)


def test_a_trial_gives_the_bits_of_a_whole_run(tmp_path):
    """Standard and Reweight by the resumable pipeline: the same updates, epochs chosen, scores."""
    tried = make_trial()
    config = resolve(
        Config(
            dataset="voc2007", rho_neg=0.1, rho_pos=0.2, epochs=3, sample_epoch=2, batch_size=32, learning_rate=5e-3,
            features=tmp_path, estimator="dual-t",
        )
    )  # fmt: skip
    engine = pipeline.build_engine(config, tried.parts.train)
    run = pipeline._SeedRun(engine, tried.parts, 3, tmp_path / "run")
    expected = run.run()["test"]
    assert tried.score("Standard") == pytest.approx(expected["standard"], abs=0)
    tried.transition = lambda name, model="linear": run.tree["T"]
    assert tried.score("Reweight-Ours") == pytest.approx(expected["estimated"], abs=0)


# Those left out differ from one that is there in their estimator, or model, alone.
LEFT_OUT = ("Reweight-Ours, blind", "AGCN+Reweight-Ours", "Reweight-Ours (tau=0.4)", "Reweight-Ours (tau=0.6)")


@pytest.mark.parametrize("name", [name for name in METHODS if name not in LEFT_OUT])
def test_every_method_learns(on_maps, name):
    scores = on_maps.score(name)
    assert np.isfinite(list(scores.values())).all()
    assert 1 <= scores["epoch"] <= 3
    assert scores["mAP"] > 0.6, "chance is 0.4"


def test_methods_share_the_warm_up(monkeypatch):
    tried, trained = make_trial(), []
    whole = Trial._train
    monkeypatch.setattr(
        Trial,
        "_train",
        lambda self, method, *rest, **more: (trained.append(method), whole(self, method, *rest, **more))[1],
    )
    for name in ("Standard", "Reweight-T max", "Reweight-TrueT", "Reweight-TrueT", "Reweight-Ours"):
        tried.score(name)
    assert [method.estimator for method in trained] == [None, "T-estimator max", "True T", "Our estimator"]


def test_steps_are_compiled_once_for_all_t_and_noise_rates():
    first, second = make_trial(seed=3), make_trial(seed=4)
    second.bench = first.bench
    for tried in (first, second):
        for name in ("Standard", "CDR", "Reweight-T max", "Reweight-TrueT"):
            tried.score(name)
    feed = first.bench.tools(METHODS["CDR"], num_classes=4).feed
    assert len(feed._epochs) == 3  # plain, CDR's, reweighted
    assert all(epoch._cache_size() == 1 for epoch in feed._epochs.values())


def test_t_error_needs_one_t():
    tried = make_trial()
    assert tried.error("True T") == 0
    assert tried.error("T-estimator max") > 0
    tried.truth = tried.truth._replace(T=None)
    with pytest.raises(ValueError, match="no one T"):
        tried.error("True T")
    with pytest.raises(ValueError, match="estimator: 'Mine' is unknown; pass one of T-estimator max"):
        tried.transition("Mine")


def test_a_new_method_is_one_entry(monkeypatch):
    def squared(logits, labels, T):
        return (jax.nn.sigmoid(logits) - labels) ** 2

    monkeypatch.setitem(METHODS, "Squared", METHODS["Standard"]._replace(loss=squared))
    assert make_trial().score("Squared")["mAP"] > 0.6


def test_labels_chosen_by_class_come_from_its_epoch_of_least_validation_loss():
    tried = make_trial()
    warm = tried.warm("linear")
    assert warm.losses.shape == (2, 180, 4)
    assert warm.probs.shape == (180, 4)
    given = np.where(tried.parts.train.labels == 1, warm.probs, 1 - warm.probs)
    # The validation loss still falls after 3 epochs: the last epoch's probabilities, with lower losses than before.
    assert (-np.log(given)).mean() < warm.losses[-1].mean()
    assert trial.clip_of(METHODS["Standard"]) == pipeline.CLIP


def test_a_head_can_have_a_learning_rate_of_its_own():
    tried = make_trial(side=2, rates={"csra": 0.0})
    for name, model in (("CSRA", "csra"), ("Standard", "linear")):
        fresh = tried.bench.make_model(model, jax.random.key(tried.seed)).params
        stayed = jax.tree.map(np.array_equal, fresh, tried.fit(name).params)
        assert set(jax.tree.leaves(stayed)) == {name == "CSRA"}


def test_in_a_whole_network_a_head_s_own_rate_is_not_the_backbone_s():
    bench = Bench(lambda *_: None, schedule=SCHEDULE, images=True, rates={"agcn": 10 * SCHEDULE.learning_rate})
    params = {"stem": jnp.ones(2), "head": {"scores": jnp.ones(3)}}
    grads = jax.tree.map(lambda x: 0.3 * x, params)
    for name, factor in (("AGCN", 10), ("AGCN+Reweight-Ours", 10), ("CSRA", 1)):
        rule = bench.optimizer(METHODS[name], noise_rate=0.0)
        with jax.numpy_dtype_promotion("standard"):
            updates, _ = rule.update(grads, rule.init(params), params)
        assert np.allclose(updates["stem"], -SCHEDULE.learning_rate, rtol=1e-4)
        assert np.allclose(updates["head"]["scores"], -factor * SCHEDULE.learning_rate, rtol=1e-4)


@pytest.mark.slow
def test_a_trial_trains_whole_networks_from_images():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 60, (96, 32, 32, 3)).astype(np.uint8)
    labels = (rng.random((96, 2)) < 0.5).astype(np.uint8)
    pixels[..., :2] += 180 * labels[:, None, None]  # a class is a colour
    data = Dataset("colours", tuple(map(str, range(96))), ("red", "green"), labels, image=ArrayImages(pixels))
    parts = pipeline.Parts(data.take(range(64)), data.take(range(64, 96)), data, None)
    bench = Bench(
        lambda head, key: build("small", num_classes=2, key=key, head=head),
        schedule=Schedule(epochs=3, sample_epoch=1, batch_size=16, learning_rate=3e-3),
        images=True,
        rates={"agcn": 6e-3},
    )
    tried = Trial(bench, parts, Truth(None, data.labels[:64]))
    assert tried.score("Standard")["mAP"] > 0.9
    assert tried.score("AGCN")["mAP"] > 0.9
    assert tried.score("WSIC")["mAP"] > 0.9
