import jax
import numpy as np
import pytest
from paths import DATA
from simulate import flip

from mlt_jax import assumption_test
from mlt_jax.estimator.assumption import _ends, _upper_end, find_swaps, likely_cells
from mlt_jax.estimator.curves import fit_curves
from mlt_jax.estimator.evidence import judge, score_blocks
from mlt_jax.labels import as_labels
from mlt_jax.paper.noise import corrupt_pairwise

CLASSES = ["cat", "dog", "tree", "car", "boat", "sky"]


def scored(rng, *, n=3000, q=6, common=2.0):
    """Scores and clean labels, logistic in the scores; labels share a cause, so they co-occur."""
    scores = 4 * rng.normal(size=(n, q)) + common * rng.normal(size=(n, 1)) - 3
    return scores.astype(np.float32), (rng.random((n, q)) < 1 / (1 + np.exp(-scores))).astype(np.uint8)


def fired(tests):
    return np.mean([test.p < 0.05 for test in tests])


@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.0, 0.3), (0.1, 0.1), (0.05, 0.4)])
def test_class_dependent_noise_does_not_fire_although_labels_co_occur(rates):
    rng, tests = np.random.default_rng(0), []
    for _ in range(3):
        scores, clean = scored(rng)
        labels = flip(rng, clean, *rates)
        tests.append(assumption_test(labels, scores=scores))
    assert fired(tests) <= 0.05
    assert all(test.tested.all() for test in tests)


def test_swapped_pairs_are_found_and_named():
    scores, clean = scored(np.random.default_rng(1))
    labels = np.asarray(corrupt_pairwise(jax.random.key(0), clean, 0.2))
    found = assumption_test(labels, scores=scores)
    assert (found.p < 0.05).all()
    for j, (test, partner) in enumerate(zip(found.test, found.partner, strict=True)):
        assert (test, partner) in (("missed", (j + 1) % 6), ("instead", (j - 1) % 6))


def test_most_swaps_are_found_with_their_share_and_class_dependent_noise_has_none():
    rng = np.random.default_rng(5)
    scores, clean = scored(rng)
    swapped, flipped = np.asarray(corrupt_pairwise(jax.random.key(1), clean, 0.3)), flip(rng, clean, 0.05, 0.3)

    def swaps(given):
        labels = as_labels(given)
        (block,) = score_blocks([scores], labels)
        evidence = judge(block.bins())
        curve = fit_curves(evidence.bins)
        return find_swaps(likely_cells(block, curve.clean), labels, evidence, curve)

    found = swaps(swapped)
    share = np.array([found.share[j][found.partner[j] == (j + 1) % 6].sum() for j in range(6)])
    assert (share > 0).sum() >= 4
    assert share[share > 0].mean() > 0.5
    np.testing.assert_allclose(found.share.sum(1), share)  # nothing is found beside the partners
    assert swaps(flipped) is None


@pytest.mark.parametrize("seen", [1.0, 0.7])
def test_pairs_are_counted_from_the_likely_cells_alone_as_from_all(seen):
    rng = np.random.default_rng(7)
    scores, clean = scored(rng)
    labels = as_labels(corrupt_pairwise(jax.random.key(2), clean, 0.3), observed=rng.random(clean.shape) < seen)
    (block,) = score_blocks([scores], labels)
    evidence = judge(block.bins())
    curve = fit_curves(evidence.bins)
    likely = likely_cells(block, curve.clean)
    found = _upper_end(likely, labels, evidence, curve, np.arange(6))
    expected, _ = _ends(scores, labels, evidence, curve)
    for name in ("size", "odd", "beside", "both", "p"):
        for j in range(6):
            at = {i: getattr(expected, name)[j, k] for k, i in enumerate(expected.partner[j]) if expected.use[j, k]}
            of = {i: getattr(found, name)[j, k] for k, i in enumerate(found.partner[j]) if found.use[j, k]}
            assert of.keys() == at.keys()
            assert at
            np.testing.assert_allclose([of[i] for i in at], list(at.values()), rtol=1e-5)
    assert _upper_end(likely, labels, evidence, curve, np.arange(1)).size.shape == (1, 0)


def test_labels_given_many_at_a_time_are_found_at_the_lower_end():
    rng = np.random.default_rng(2)
    scores, clean = scored(rng)
    careless = rng.random((len(clean), 1)) < 0.05
    labels = (clean | (careless & (rng.random(clean.shape) < 0.6))).astype(np.uint8)
    found = assumption_test(labels, scores=scores)
    assert (found.p < 0.05).sum() >= 5
    assert set(found.test) <= {"false", ""}
    assert "surely absent, it is given in" in found.sentences[0]
    # As many false labels, each on its own:
    alone = assumption_test(flip(rng, clean, 0.03, 0.0), scores=scores)
    assert (alone.p > 0.05).all()


def test_classes_that_the_features_cannot_tell_apart_are_no_swap():
    rng = np.random.default_rng(3)
    scores, clean = scored(rng)
    animal = clean[:, 0].copy()
    second = rng.random(len(clean)) < 0.5  # an animal is a cat or a dog, and only the labels know
    clean[:, 0], clean[:, 1] = animal & ~second, animal & second
    scores[:, 1] = scores[:, 0]
    assert (assumption_test(clean, scores=scores).p > 0.05).all()


def test_sentences_name_the_classes_and_count():
    pd = pytest.importorskip("pandas")
    scores, clean = scored(np.random.default_rng(4))
    labels = clean.copy()
    swapped = (clean[:, 0] == 1) & (clean[:, 1] == 0) & (np.random.default_rng(5).random(len(clean)) < 0.2)
    labels[swapped, 0], labels[swapped, 1] = 0, 1
    found = assumption_test(pd.DataFrame(labels, columns=CLASSES), scores=scores)
    assert found.sentences[0].startswith("'cat': surely present, it is missing in ")
    assert "examples with 'dog'" in found.sentences[0]
    assert found.sentences[1].startswith("'dog': given in ")
    assert "that lack a sure 'cat'" in found.sentences[1]
    assert found.sentences[2].startswith("'tree': no sign that its mistakes depend on other labels (p = ")
    assert list(found.test[2:]) == [""] * 4
    assert (found.partner == [1, 0, -1, -1, -1, -1]).all()


def test_classes_without_evidence_are_not_tested():
    rng = np.random.default_rng(6)
    scores, clean = scored(rng)
    scores[:, 0] = rng.normal(size=len(scores))  # says nothing
    clean[:, 1] = 0
    found = assumption_test(clean, scores=scores)
    assert found.sentences[1] == "'class 1': could not be tested."
    assert not found.tested[1]
    assert found.p[1] == 1
    assert (found.p > 0.05).all()
    single = assumption_test(clean[:, 2:3], scores=scores[:, 2:3])  # no other label
    assert single.p == [1]
    assert not single.tested[0]


def test_unobserved_cells_count_nowhere():
    rng = np.random.default_rng(7)
    scores, clean = scored(rng)
    labels = np.asarray(corrupt_pairwise(jax.random.key(0), clean, 0.2)).astype(int)
    observed = rng.random(labels.shape) < 0.9
    found = assumption_test(labels, scores=scores, observed=observed)
    other = assumption_test(np.where(observed, labels, -1), scores=np.where(observed, scores, 50), coding="uncertain")
    np.testing.assert_array_equal(found.p, other.p)
    assert (found.p < 0.05).mean() > 0.8
    # A class whose partner was never labelled beside it:
    alternate = np.ones(labels.shape, bool)
    alternate[::2, 0] = alternate[1::2, 1] = False
    assert found.partner[0] == 1
    assert assumption_test(labels, scores=scores, observed=alternate).partner[0] != 1


def test_probs_and_scores_agree_and_features_are_cross_fitted():
    scores, clean = scored(np.random.default_rng(8))
    labels = np.asarray(corrupt_pairwise(jax.random.key(0), clean, 0.2))
    by_scores = assumption_test(labels, scores=np.clip(scores, -12, 12))
    by_probs = assumption_test(labels, probs=1 / (1 + np.exp(-np.clip(scores, -12, 12).astype(float))))
    np.testing.assert_allclose(by_probs.p, by_scores.p, rtol=0.1)
    by_features = [assumption_test(labels, features=scores, seed=seed).p for seed in (0, 0, 1)]
    assert (by_features[0] < 0.05).all()
    np.testing.assert_array_equal(by_features[0], by_features[1])
    assert (by_features[0] != by_features[2]).any()


def test_two_sources_or_none_are_refused():
    scores, labels = scored(np.random.default_rng(9), n=100)
    with pytest.raises(ValueError, match="probs: nothing given; pass one of probs, features and scores"):
        assumption_test(labels)
    with pytest.raises(ValueError, match="probs: features and scores given"):
        assumption_test(labels, features=scores, scores=scores)


@pytest.mark.skipif(not (DATA / "voc2007_features.npz").exists(), reason=f"no voc2007_features.npz in {DATA}")
def test_swaps_are_found_in_real_images_and_class_dependent_noise_is_not_accused():
    from mlt_jax.data import load
    from mlt_jax.estimator.crossfit import Components, principal_components

    data = load("voc2007", features=DATA)
    clean = np.asarray(data.labels, np.uint8)
    x = Components(principal_components(data.features, len(clean)).values[:, :64])
    swapped = np.asarray(corrupt_pairwise(jax.random.key(1), clean, 0.2))
    assert (assumption_test(swapped, features=x).p < 0.05).mean() >= 0.8
    noisy = flip(np.random.default_rng(0), clean, 0.034, 0.4)
    assert (assumption_test(noisy, features=x).p < 0.05).mean() <= 0.05
