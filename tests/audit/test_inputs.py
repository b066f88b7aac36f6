"""Each kind of wrong input is named; honest ones of many kinds are not."""

import jax.numpy as jnp
import numpy as np
import pytest
from simulate import flip

from mlt_jax import audit_labels, cross_val_logits
from mlt_jax.audit.inputs import check_predictions
from mlt_jax.estimator.crossfit import head_logits, principal_components
from mlt_jax.labels import as_labels

N, Q = 3000, 12


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


@pytest.fixture(scope="module")
def world():
    """Features, clean labels that go together, noisy labels, and honest out-of-sample logits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 24)).astype(np.float32)
    direction = rng.normal(size=(24, Q)) + 1.5 * rng.normal(size=(24, 1))
    clean = x @ direction / 6 + 0.5 * rng.normal(size=(N, Q)) > 1
    labels = flip(rng, clean, 0.05, 0.3)
    return x, clean, labels, cross_val_logits(x, labels)


def push(scores, labels, strength):
    """Scores that have seen their labels."""
    return scores + strength * (labels - sigmoid(scores))


def warned(scores, labels, **inputs):
    return check_predictions(as_labels(labels, observed=inputs.pop("observed", None)), scores, **inputs)


def test_honest_predictions_and_features_are_not_warned_of(world):
    x, clean, labels, scores = world
    for change in (1, 3, 0.3):
        assert warned(change * scores, labels) == ()
    assert warned(cross_val_logits(x, clean), clean) == ()
    assert audit_labels(labels, probs=sigmoid(scores)).warnings == ()
    assert audit_labels(labels, features=x).warnings == ()


def test_predictions_that_have_seen_the_labels_are_called_in_sample(world):
    _, _, labels, scores = world
    for strength in (1, 4):
        (sentence,) = warned(push(scores, labels, strength), labels)
        assert "the model was trained on these labels (in-sample)" in sentence
    (perfect,) = warned(np.where(labels == 1, 4.0, -4.0) + 0.1 * scores, labels)
    assert "agree with the given labels almost everywhere (AUC 1.000)" in perfect


def test_predictions_of_a_model_that_saw_some_examples_are_named(world):
    x, _, labels, _ = world
    wide = np.concatenate([x, np.random.default_rng(5).normal(size=(N, 400))], axis=1)  # enough to learn by heart
    components = principal_components(wide, N).values
    seen, every = jnp.asarray(np.arange(N) % 2 == 0)[:, None], jnp.ones((N, Q), bool)
    heads = head_logits(components, jnp.asarray(labels, jnp.float32), every, seen, jnp.zeros((Q, 2)), 3e-4)
    (sentence,) = warned(np.asarray(heads)[:, 0], labels)
    assert "trained on some of these labels" in sentence


def test_features_of_a_network_that_was_trained_on_the_labels_are_named(world):
    x, _, labels, scores = world
    learned = np.concatenate([x, 3 * push(scores, labels, 3)], axis=1)
    audit = audit_labels(labels, features=learned)
    assert any("their network was trained on these labels" in sentence for sentence in audit.warnings)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s, y: -s, "pass P(label = 1), not 1 - p"),
        (lambda s, y: np.where(y == 1, 20.0, -20.0), "probs are the labels themselves"),
        (lambda s, y: np.where(s > 0, 20.0, -20.0), "probs are only 0 and 1"),
        (lambda s, y: np.roll(s, 1, axis=0), "probs fit the labels that stand 1 row above them"),
        (lambda s, y: np.roll(s, -3, axis=0), "probs fit the labels that stand 3 rows below them"),
        (lambda s, y: np.random.default_rng(1).permutation(s), "say nothing about the given labels of any class"),
    ],
    ids=["1 - p", "labels", "decisions", "shifted", "shifted by 3", "shuffled"],
)
def test_other_mistakes_are_named(world, change, expected):
    _, _, labels, scores = world
    (sentence,) = warned(change(scores, labels), labels)
    assert expected in sentence


def test_near_duplicates_with_the_same_labels_are_named_unless_groups_hold_them(world):
    x, _, labels, _ = world
    rng = np.random.default_rng(2)
    rows = np.concatenate([np.arange(N), rng.choice(N, N // 5, replace=False)])
    twice = x[rows] * (1 + 1e-3 * rng.normal(size=(len(rows), 1))).astype(np.float32)
    (sentence,) = audit_labels(labels[rows], features=twice).warnings
    share = int(sentence.split("about ")[1].split(" %")[0])
    assert abs(share - 33) < 8  # a fifth more rows: two sixths of all are in pairs
    assert "groups=" in sentence
    assert audit_labels(labels[rows], features=twice, groups=rows).warnings == ()
    own = flip(rng, world[1][rows], 0.05, 0.3)  # the same examples, labelled anew: their mistakes differ
    assert audit_labels(own, features=twice).warnings == ()


def test_cells_that_nobody_labelled_do_not_count(world):
    _, _, labels, scores = world
    rng = np.random.default_rng(3)
    observed = rng.random(labels.shape) < 0.7
    hidden = np.where(observed, push(scores, labels, 2), push(scores, 1 - labels, 9))
    (sentence,) = warned(hidden, labels, observed=observed)
    assert "in-sample" in sentence
    assert warned(np.where(observed, scores, 50.0), labels, observed=observed) == ()


def test_classes_without_enough_labels_leave_nothing_to_say():
    labels = np.zeros((50, 3), int)
    labels[:5, 0] = 1
    assert warned(np.random.default_rng(0).normal(size=(50, 3)), labels) == ()


@pytest.mark.parametrize("value", [-3.2, 97.0])
def test_logits_and_percentages_are_refused_with_what_to_do(world, value):
    labels = world[2]
    with pytest.raises(ValueError, match=r"of logits, percentages divided by 100"):
        audit_labels(labels, probs=np.full(labels.shape, value))
