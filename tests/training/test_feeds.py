import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlt_jax.data import Dataset
from mlt_jax.models import build
from mlt_jax.training import feeds as module
from mlt_jax.training import losses
from mlt_jax.training import step as training
from mlt_jax.training.feeds import Resident, Streamed

KEY = jax.random.key(0)
T = np.tile(np.array([[0.9, 0.1], [0.3, 0.7]], np.float32), (3, 1, 1))
RULE = optax.sgd(0.5)
MODEL = build("linear", num_classes=3, key=KEY, size=5)


@jax.jit
def step(state, batch, T):
    def loss(logits, labels):
        return losses.reweighted_bce(logits, labels, T)

    return training.make_train_step(MODEL.apply, loss, RULE)(state, batch)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(76, 5)).astype(np.float32)
    labels = (features[:, :3] + 0.1 * rng.normal(size=(76, 3)) > 0.5).astype(np.uint8)
    return Dataset("tiny", tuple(map(str, range(76))), ("a", "b", "c"), labels, features=features)


def state():
    return training.init_state(KEY, MODEL.params, MODEL.stats, RULE)


def train(feed, data, *, epoch=1, start=0, begin=None):
    """The state after (the rest of) an epoch and what was reported."""
    told = []
    begin = feed.put(state()) if begin is None else begin
    found = feed.train(step, begin, feed.put(T), data, epoch=epoch, seed=3, start=start,
                       report=lambda state, done, loss: told.append((int(state.step), done, loss)))  # fmt: skip
    return found, told


@pytest.fixture(scope="module")
def feeds():
    return {kind.__name__: kind(MODEL.apply, batch_size=16) for kind in (Resident, Streamed)}


def test_both_ways_see_the_same_batches_in_the_same_order(feeds, data):
    (one, whole), (other, parts) = (train(feed, data) for feed in feeds.values())
    np.testing.assert_allclose(one.params["kernel"], other.params["kernel"], atol=1e-5)
    assert abs(one.params["kernel"] - MODEL.params["kernel"]).max() > 0.1
    [(steps, done, loss)] = whole
    assert steps == done == len(parts)
    assert [entry[:2] for entry in parts] == [(k + 1, k + 1) for k in range(done)]
    assert loss == pytest.approx(sum(entry[2] for entry in parts), rel=1e-4)
    later, _ = train(feeds["Resident"], data, epoch=2)
    assert abs(later.params["kernel"] - one.params["kernel"]).max() > 1e-4  # another epoch, another order


def test_an_epoch_taken_up_in_the_middle_ends_where_a_whole_one_does(feeds, data):
    feed, middle = feeds["Streamed"], {}
    whole, parts = train(feed, data)

    def keep(state, done, loss):
        middle[done] = jax.tree.map(jnp.copy, state)

    feed.train(step, feed.put(state()), feed.put(T), data, epoch=1, seed=3, start=0, report=keep)
    begin = jax.tree.map(jnp.copy, middle[2])
    rest, told = train(feed, data, start=2, begin=middle[2])
    assert [entry[:2] for entry in told] == [entry[:2] for entry in parts[2:]]
    jax.tree.map(np.testing.assert_array_equal, rest.params, whole.params)
    # One process may go on with what several have begun.
    rest, [(_, done, _)] = train(feeds["Resident"], data, start=2, begin=feeds["Resident"].put(jax.device_get(begin)))
    assert done == len(parts)
    np.testing.assert_allclose(rest.params["kernel"], whole.params["kernel"], atol=1e-5)


def test_predictions_are_the_models_for_every_example(feeds, data):
    expected = np.asarray(MODEL.apply(MODEL.params, {}, data.features, False)[0])
    for feed in feeds.values():
        found = feed.predict(feed.put(MODEL.params), feed.put(MODEL.stats), data)
        assert found.shape == (76, 3)  # the last batch is not full
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_batch_of_predictions_is_read_back_when_the_next_is_under_way(data):
    feed, told = Streamed(MODEL.apply, batch_size=32), []

    class Late(np.lib.mixins.NDArrayOperatorsMixin):
        def __array__(self, dtype=None, copy=None):
            told.append("read")
            return np.ones((32, 3), np.float32)

    def predict(params, stats, batch):
        told.append("sent")
        return Late(), batch["index"], batch["weight"]

    feed._predict = predict
    assert feed.predict(MODEL.params, MODEL.stats, data).all()
    assert told == ["sent", "sent", "read", "sent", "read", "read"]


def test_features_go_to_the_device_once_for_all_networks(data):
    kept = {}
    for _ in range(2):
        Resident(MODEL.apply, batch_size=16, kept=kept).predict(MODEL.params, MODEL.stats, data)
    assert len(kept) == 1
    Resident(MODEL.apply, batch_size=16, kept=kept).predict(MODEL.params, MODEL.stats, data.take(range(16)))
    assert len(kept) == 2


@pytest.mark.parametrize("kind", ["Resident", "Streamed"])
def test_a_loss_that_is_not_finite_names_its_step_and_rows(feeds, data, kind):
    features = data.features.copy()
    features[40:60] = np.nan  # more rows than an epoch leaves over
    with pytest.raises(training.NonFiniteLoss, match="not finite at step") as caught:
        train(feeds[kind], data._replace(features=features))
    assert set(caught.value.rows) & set(range(40, 60))
    assert len(caught.value.rows) == 16


def test_a_batch_must_divide_over_the_devices():
    with pytest.raises(ValueError, match="batch_size: 12; pass a multiple of the 8 devices"):
        Streamed(MODEL.apply, batch_size=12)


def test_a_step_that_takes_its_states_memory_is_reported_a_state_only_where_it_is_wanted(feeds, data):
    feed, told = feeds["Streamed"], []
    donated = jax.jit(step, donate_argnums=0)
    begin = feed.put(state())
    found = feed.train(donated, begin, T, data, epoch=1, seed=3, start=0, wanted=lambda: len(told) == 1,
                       report=lambda state, done, loss: told.append(state and int(state.step)))  # fmt: skip
    assert begin.params["kernel"].is_deleted()
    assert not MODEL.params["kernel"].is_deleted()
    assert told == [None, 2, None, 4]
    jax.tree.map(np.testing.assert_array_equal, found.params, train(feed, data)[0].params)


def test_features_that_do_not_fit_are_refused_and_predictions_come_in_parts(data, monkeypatch):
    module._check_fits(10**9, None)
    module._check_fits(10**9, {"bytes_limit": 2 * 10**9, "bytes_in_use": 10**9})
    with pytest.raises(ValueError, match=r"features: 1\.0 GB, 0\.5 GB are free on the device"):
        module._check_fits(10**9, {"bytes_limit": 2 * 10**9, "bytes_in_use": 15 * 10**8})
    whole = Resident(MODEL.apply, batch_size=16).predict(MODEL.params, MODEL.stats, data)
    monkeypatch.setattr(module, "_PREDICTED", 50)
    found = Resident(MODEL.apply, batch_size=16).predict(MODEL.params, MODEL.stats, data)
    np.testing.assert_allclose(found, whole, atol=1e-6)


def test_features_of_earlier_tasks_do_not_stay_in_memory():
    kept = {}
    feed = Resident(lambda params, stats, inputs, train: (inputs, stats), batch_size=2, kept=kept)
    labels = np.zeros((4, 2), np.uint8)
    test = Dataset("test", tuple("abcd"), ("x", "y"), labels, features=np.ones((4, 2), np.float32))
    for value in range(5):
        train = test._replace(features=np.full((4, 2), value, np.float32))
        assert feed.predict(None, None, train).tolist() == train.features.tolist()
        assert feed.predict(None, None, test).tolist() == test.features.tolist()
        assert len(kept) <= 3
    assert id(test.features) in kept
