import numpy as np

from mlt_jax.data import Dataset
from mlt_jax.paper.tasks import Noisy, make_task, split_rows


def dataset(n):
    labels = (np.random.default_rng(0).random((n, 3)) < 0.4).astype(np.uint8)
    return Dataset("tiny", tuple(map(str, range(n))), ("a", "b", "c"), labels, features=np.zeros((n, 2), np.float32))


def test_nine_tenths_train_and_the_split_is_the_same_for_every_seed():
    kept, held_out = split_rows(200)
    assert (len(kept), len(held_out)) == (180, 20)
    assert sorted([*kept, *held_out]) == list(range(200))
    np.testing.assert_array_equal(split_rows(200)[0], kept)
    assert (np.diff(kept) > 0).all()


def test_only_training_and_validation_labels_are_noisy_and_the_truth_is_kept_apart():
    train, test = dataset(50), dataset(30)
    noisy = Noisy(1 - train.labels, None, "missing")
    task = make_task(train, test, noisy)
    kept, held_out = split_rows(50)
    np.testing.assert_array_equal(task.train.labels, 1 - train.labels[kept])
    np.testing.assert_array_equal(task.validation.labels, 1 - train.labels[held_out])
    np.testing.assert_array_equal(task.truth.clean, train.labels[kept])
    assert task.test is test
    assert (task.truth.T, task.assume) == (None, "missing")
    assert make_task(train, test, noisy, known=False).truth is None


def test_rows_taken_before_are_not_taken_again():
    train = dataset(50)
    parts = tuple(train.take(rows) for rows in split_rows(50))
    task = make_task(train, train, Noisy(train.labels, None), parts=parts)
    assert task.train.features is parts[0].features
