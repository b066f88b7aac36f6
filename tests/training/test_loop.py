import json
import os
import signal
import subprocess
import sys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import ROOT

from mlt_jax.data import ArrayImages, Dataset
from mlt_jax.models import build
from mlt_jax.paper import noise
from mlt_jax.paper.methods import ESTIMATORS, METHODS
from mlt_jax.paper.tasks import Noisy, make_task
from mlt_jax.training import loop
from mlt_jax.training.loop import Engine, Schedule, Session, Task, fit
from mlt_jax.training.methods import Truth

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


def make_engine(schedule=SCHEDULE, rates=None):
    return Engine(lambda name, key: build(name, num_classes=4, key=key, size=6), schedule=schedule, rates=rates)


shared_engine = cache(make_engine)  # its steps are compiled once for all tests


def make_session(*, seed=3, side=None, rho=(0.1, 0.2), n=200, schedule=SCHEDULE, engine=None, **more):
    train, test = dataset(n, side=side), dataset(100, seed=1, side=side)
    T = np.asarray(noise.transition(*rho, 4))
    noisy = Noisy(np.asarray(noise.corrupt(jax.random.key(seed), train.labels, T)), T)
    return Session(engine or shared_engine(schedule), make_task(train, test, noisy), seed=seed, **more)


@pytest.fixture(scope="module")
def on_maps():
    return make_session(side=2)


# Those left out differ from one that is there in their estimator, or model, alone.
LEFT_OUT = (
    "Reweight-Ours, blind", "AGCN+Reweight-Ours", "AGCN+Reweight", "CSRA+Reweight", "Reweight", "Forward", "Backward",
    "Revision", "Reweight-Ours (tau=0.4)", "Reweight-Ours (tau=0.6)",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in METHODS if name not in LEFT_OUT])
def test_every_method_learns(on_maps, name):
    scores = on_maps.score(name)
    assert np.isfinite(list(scores.values())).all()
    assert 1 <= scores["epoch"] <= 3
    assert scores["mAP"] > 0.6, "chance is 0.4"


@pytest.mark.parametrize("name", ["Reweight", "Forward", "Backward", "Revision"])
def test_a_method_that_uses_T_beats_plain_training_and_a_transposed_T_does_not(name, monkeypatch):
    """At (0.05, 0.45) plain training misses most positives; T[noisy, clean] would make it worse."""
    schedule = Schedule(epochs=8, sample_epoch=2, batch_size=32, learning_rate=5e-3)
    of1 = {}
    for kind, turn in (("right", lambda T: T), ("transposed", lambda T: T[:, ::-1, ::-1])):
        session = make_session(rho=(0.05, 0.45), n=600, schedule=schedule, chosen="given")
        estimator = ESTIMATORS["True T"]._replace(
            estimate=lambda evidence, truth, turn=turn: np.ascontiguousarray(turn(truth.T))
        )
        monkeypatch.setitem(ESTIMATORS, "given", estimator)
        of1[kind] = session.score(name)["OF1"]
        plain = session.score("Standard")["OF1"]
    assert of1["right"] > plain + 0.05
    assert of1["transposed"] < of1["right"] - 0.05


def test_methods_share_the_warm_up(monkeypatch):
    session, trained = make_session(), []
    run = loop._Training.run
    monkeypatch.setattr(loop._Training, "run", lambda self: (trained.append(self.name), run(self))[1])
    for name in ("Standard", "Reweight-T max", "Reweight-TrueT", "Reweight-TrueT", "Reweight-Ours"):
        session.score(name)
    assert trained == ["Standard", "Reweight-T max", "Reweight-TrueT", "Reweight-Ours"]


def test_steps_are_compiled_once_for_all_t_and_noise_rates():
    first = make_session(seed=3, engine=make_engine())
    second = make_session(seed=4, engine=first.engine)
    for session in (first, second):
        for name in ("Standard", "CDR", "Reweight-T max", "Reweight-TrueT"):
            session.score(name)
    feed, _ = first.engine.tools(METHODS["CDR"], num_classes=4)
    assert len(feed._epochs) == 3  # plain, CDR's, reweighted
    assert all(epoch._cache_size() == 1 for epoch in feed._epochs.values())


def test_fit_is_what_a_session_trains():
    session = make_session()
    found = fit("GCE", session.task, engine=session.engine, seed=3)
    jax.tree.map(np.testing.assert_array_equal, found.params, session.fit("GCE").params)


def test_a_training_in_a_folder_gives_the_bits_of_one_in_memory_and_is_not_repeated(tmp_path, monkeypatch):
    in_memory, in_folder = make_session(), make_session(folder=tmp_path, save_every=0.0)
    for name in ("Standard", "Reweight"):
        assert in_folder.score(name) == in_memory.score(name)
    again = make_session(folder=tmp_path)
    monkeypatch.setattr(loop._Training, "_run_epoch", None)  # a finished training is read, not repeated
    for name in ("Standard", "Reweight"):
        assert again.score(name) == in_memory.score(name)
    assert set(again.seconds) == {"Standard", "Reweight", "estimation"}


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1] + "/tests", sys.argv[1] + "/tests/training"]
import test_loop
from mlt_jax.training.loop import _Training
run_epoch = _Training._run_epoch
def patched(self, epoch, *rest):
    run_epoch(self, epoch, *rest)
    if self.name == "Reweight-Ours" and epoch == 1:
        os.kill(os.getpid(), signal.SIGKILL)
_Training._run_epoch = patched
test_loop.make_session(folder=Path(sys.argv[2]), save_every=0.0).score("Reweight-Ours")
"""


def test_a_session_killed_while_retraining_ends_with_the_same_bits(tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(ROOT), str(tmp_path)], env=env, capture_output=True, text=True
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert len((tmp_path / "Reweight-Ours" / "metrics.jsonl").read_text().splitlines()) == 2
    found, expected = make_session(folder=tmp_path), make_session()
    assert found.score("Reweight-Ours") == expected.score("Reweight-Ours")
    jax.tree.map(np.testing.assert_array_equal, found.fit("Reweight-Ours"), expected.fit("Reweight-Ours"))
    np.testing.assert_array_equal(found.transition("Our estimator").T, expected.transition("Our estimator").T)


def test_validation_labels_that_nobody_has_never_select_untrained_weights():
    """Without a positive mAP is not a number: the last epoch is taken."""
    session = make_session()
    blank = session.task.validation._replace(labels=np.zeros_like(session.task.validation.labels))
    session.task = session.task._replace(validation=blank)
    found = session.fit("Standard")
    assert np.isnan(found.validation_mAP)
    assert found.epoch == 3
    fresh = session.engine.make_model("linear", jax.random.key(session.seed)).params
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, fresh, found.params)))


def test_a_score_that_is_not_a_number_never_displaces_a_number():
    assert loop._better(0.1, None)
    assert loop._better(float("nan"), None)
    assert loop._better(0.1, float("nan"))
    assert not loop._better(float("nan"), 0.1)
    assert not loop._better(0.1, 0.1)


def test_t_error_needs_one_t():
    session = make_session()
    assert session.error("True T") == 0
    assert session.error("T-estimator max") > 0
    session.task = session.task._replace(truth=session.task.truth._replace(T=None))
    with pytest.raises(ValueError, match="no one T"):
        session.error("True T")
    with pytest.raises(ValueError, match="estimator: 'Mine' is unknown; pass one of auto, T-estimator max"):
        session.transition("Mine")


def test_without_the_truth_oracles_are_refused_and_the_noise_rate_is_estimated():
    session = make_session(n=1000)
    session.task = session.task._replace(truth=None)
    with pytest.raises(ValueError, match="'True T' reads the truth, which nobody knows here"):
        session.score("Reweight-TrueT")
    assert session.noise_rate == pytest.approx(0.6 * 0.1 + 0.4 * 0.2, abs=0.06)


def test_probabilities_come_from_each_class_s_epoch_of_least_validation_loss(monkeypatch):
    session = make_session()
    seen = []
    watch = loop._Training._watch
    monkeypatch.setattr(
        loop._Training,
        "_watch",
        lambda self, epoch, now, loss: (seen.append((loop._copy(now), loss)), watch(self, epoch, now, loss)),
    )
    # Class 0 of the validation labels is turned round: the better it is learned, the worse its validation loss.
    labels = session.task.validation.labels.copy()
    labels[:, 0] = 1 - labels[:, 0]
    session.task = session.task._replace(validation=session.task.validation._replace(labels=labels))
    feed, _ = session.engine.tools(METHODS["Standard"], num_classes=4)
    predict, drawn = feed.predict, []
    monkeypatch.setattr(feed, "predict", lambda *now, **how: (drawn.append(how.get("drawn")), predict(*now, **how))[1])
    warm = session.warm_up("linear")
    # Images are read through the crops that the seed and the epoch draw; validation images as they are.
    assert {None, (3, 0), (3, 1)} <= set(drawn)
    best = np.argmin([loss.mean(axis=0) for _, loss in seen], axis=0)
    assert best[0] < best[1:].min()
    for j, epoch in enumerate(best):
        logits = feed.predict(*seen[epoch][0], session.task.train)
        np.testing.assert_allclose(warm.probs[:, j], 1 / (1 + np.exp(-logits[:, j])), atol=1e-6)
    # Losses are of the epochs that end at the sampling epoch, the second.
    for slot in (0, 1):
        logits = feed.predict(*seen[slot][0], session.task.train)
        given = np.where(session.task.train.labels == 1, logits, -logits)
        np.testing.assert_allclose(warm.losses[slot], np.logaddexp(0, -given), atol=1e-5)


def test_gradients_are_cut_where_training_starts_afresh():
    assert loop.clip_of(METHODS["Standard"]) == loop.CLIP == 10
    assert loop.clip_of(METHODS["Reweight"]) == float("inf")


def test_a_head_can_have_a_learning_rate_of_its_own():
    session = make_session(side=2, engine=make_engine(rates={"csra": 0.0}))
    for name, model in (("CSRA", "csra"), ("Standard", "linear")):
        fresh = session.engine.make_model(model, jax.random.key(session.seed)).params
        stayed = jax.tree.map(np.array_equal, fresh, session.fit(name).params)
        assert set(jax.tree.leaves(stayed)) == {name == "CSRA"}


def test_in_a_whole_network_a_head_s_own_rate_is_not_the_backbone_s():
    engine = Engine(lambda *_: None, schedule=SCHEDULE, images=True, rates={"agcn": 10 * SCHEDULE.learning_rate})
    params = {"stem": jnp.ones(2), "head": {"scores": jnp.ones(3)}}
    grads = jax.tree.map(lambda x: 0.3 * x, params)
    for name, factor in (("AGCN", 10), ("AGCN+Reweight-Ours", 10), ("CSRA", 1)):
        rule = engine.optimizer(METHODS[name], noise_rate=0.0)
        with jax.numpy_dtype_promotion("standard"):
            updates, _ = rule.update(grads, rule.init(params), params)
        assert np.allclose(updates["stem"], -SCHEDULE.learning_rate, rtol=1e-4)
        assert np.allclose(updates["head"]["scores"], -factor * SCHEDULE.learning_rate, rtol=1e-4)


@pytest.mark.slow
def test_a_session_trains_whole_networks_from_images_and_can_be_resumed(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 60, (96, 32, 32, 3)).astype(np.uint8)
    labels = (rng.random((96, 2)) < 0.5).astype(np.uint8)
    pixels[..., :2] += 180 * labels[:, None, None]  # a class is a colour
    data = Dataset("colours", tuple(map(str, range(96))), ("red", "green"), labels, image=ArrayImages(pixels))
    engine = Engine(
        lambda head, key: build("small", num_classes=2, key=key, head=head),
        schedule=Schedule(epochs=3, sample_epoch=1, batch_size=16, learning_rate=3e-3),
        images=True,
        rates={"agcn": 6e-3},
    )
    task = Task(data.take(range(64)), data.take(range(64, 96)), data, Truth(None, data.labels[:64]))
    session = Session(engine, task, folder=tmp_path, save_every=0.0)
    for name in ("Standard", "AGCN", "WSIC"):
        assert session.score(name)["mAP"] > 0.9
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines] == [1, 2, 3]
        assert list((tmp_path / name).glob("weights.*"))
    again = Session(engine, task, folder=tmp_path)
    assert again.score("WSIC") == session.score("WSIC")
