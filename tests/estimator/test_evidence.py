import numpy as np
import scipy.sparse as sp
from simulate import scored

from mlt_jax.estimator.evidence import as_columns, gather, score_blocks
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


def test_scores_in_pieces_of_any_size_come_back_256_classes_at_a_time():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 600)).astype(np.float32)
    labels = (rng.random(scores.shape) < 0.3).astype(np.uint8)
    for widths in ([600], [100, 300, 0, 200], [1] * 600):
        pieces = np.split(scores, np.cumsum(widths)[:-1], axis=1)
        for given in (as_labels(labels), as_columns(sp.csr_array(labels), observed=None, coding="01")):
            blocks = list(score_blocks(pieces, given))
            assert [block.classes for block in blocks] == [slice(0, 256), slice(256, 512), slice(512, 600)]
            np.testing.assert_array_equal(np.concatenate([block.scores for block in blocks], 1), scores)
            np.testing.assert_array_equal(np.concatenate([block.labels for block in blocks], 1), labels)
            assert all(block.known.all() for block in blocks)


def test_unobserved_cells_stay_with_their_classes():
    labels = as_labels(np.ones((4, 300), int), observed=np.arange(300) % 7 > 0 * np.ones((4, 1)))
    first, second = score_blocks([np.zeros((4, 300), np.float32)], labels)
    np.testing.assert_array_equal(np.concatenate([first.known, second.known], 1), labels.observed)
