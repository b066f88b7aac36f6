import numpy as np
from simulate import scored

from mlt_jax.estimator.evidence import gather
from mlt_jax.labels import as_labels


def test_chance_does_not_make_classes_identifiable():
    rng = np.random.default_rng(11)
    labels = (rng.random((1000, 200)) < 0.1).astype(np.uint8)
    found = gather(rng.normal(size=labels.shape), as_labels(labels))
    assert found.enough.all()
    assert found.identifiable.sum() <= 1


def test_scores_that_predict_identify_and_few_positives_do_not():
    scores, labels = scored(np.random.default_rng(0), n=2000, q=4)
    labels[9:, 0] = 0
    found = gather(scores, as_labels(labels))
    assert found.enough.tolist() == [False, True, True, True]
    assert found.identifiable.tolist() == [False, True, True, True]
    np.testing.assert_allclose(found.frequency, labels.mean(0), atol=1e-6)
    assert not gather(-scores, as_labels(labels)).identifiable.any()
