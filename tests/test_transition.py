import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax.labels import as_labels
from mlt_jax.transition import (
    Status,
    TransitionEstimate,
    apply_assumption,
    as_matrices,
    as_transition,
    from_matrices,
    given_probability,
    implied_prior,
)

T = np.array([[[0.9, 0.1], [0.3, 0.7]], [[1.0, 0.0], [0.5, 0.5]]])


def test_rates_are_read_where_the_convention_says():
    found = from_matrices(T, as_labels(np.array([[1, 0], [0, 1]])))
    np.testing.assert_allclose(found.rho_neg, [0.1, 0])
    np.testing.assert_allclose(found.rho_pos, [0.3, 0.5])
    np.testing.assert_allclose(as_matrices(jnp.stack([found.rho_neg, found.rho_pos], 1)), T, atol=1e-7)
    np.testing.assert_array_equal(as_matrices(jnp.array([[-0.2, 0.25]])), [[[1, 0], [0.25, 0.75]]])


def test_intervals_are_the_quantiles_of_a_normal_cut_to_probabilities():
    found = from_matrices(T, as_labels(np.array([[1, 0], [0, 1]])))
    assert np.isnan(found.interval()).all()
    found = found._replace(stderr=jnp.array([[0.02, 0.1], [0.01, 0.4]]))
    z = 1.959964
    expected = [[[0.1 - 0.02 * z, 0.1 + 0.02 * z], [0.3 - 0.1 * z, 0.3 + 0.1 * z]], [[0, 0.01 * z], [0, 1]]]
    np.testing.assert_allclose(found.interval(), expected, atol=1e-6)
    np.testing.assert_allclose(found.interval(0.5)[0, 0], [0.1 - 0.02 * 0.67449, 0.1 + 0.02 * 0.67449], atol=1e-6)


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        (T[0], r"T: shape \(2, 2\); pass \(2, 2, 2\), T\[j, clean, noisy\]"),
        (T.swapaxes(1, 2), r"T: class 0 is \[\[0.9, 0.3\], \[0.1, 0.7\]\]; pass rows of probabilities that sum to 1"),
        (np.stack([T[0], [[1.5, -0.5], [0.5, 0.5]]]), "T: class 1 is"),
        (np.where(T == 0.5, np.nan, T), "T: class 1 is"),
    ],
)
def test_matrices_that_are_no_transitions_are_named(matrices, message):
    with pytest.raises(ValueError, match=message):
        as_transition(matrices, 2)
    with pytest.raises(ValueError, match=message.replace("T: ", "fallback: ", 1)):
        as_transition(matrices, 2, name="fallback")


def test_valid_matrices_pass_as_floats():
    found = as_transition(T.tolist(), 2)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, T)


def test_the_prior_is_what_T_makes_of_the_given_frequency():
    # 0.1 + 0.6 * 0.4 = 0.34; below rho_neg it is cut to 0; a T that carries nothing away from 0.5 is not divided by 0.
    matrices = as_transition(np.concatenate([T[:1], T[:1], np.full((1, 2, 2), 0.5)]), 3)
    found = implied_prior(matrices, jnp.array([0.34, 0.05, 0.7]))
    np.testing.assert_allclose(found, [0.4, 0, 0.2], atol=1e-6)


@pytest.mark.parametrize(("assume", "kept"), [("general", (0, 1)), ("missing", (1,)), ("partial", (0,))])
def test_an_assumption_resets_the_row_of_its_side_alone(assume, kept):
    before = T.copy()
    found = apply_assumption(T, assume)
    np.testing.assert_array_equal(T, before)
    assert found.dtype == np.float32
    for side in (0, 1):
        np.testing.assert_allclose(found[:, side], T[:, side] if side in kept else np.eye(2)[[side, side]])
    with pytest.raises(ValueError, match=r"assume: 'none'; pass \"general\", \"missing\" \(rho_neg = 0\)"):
        apply_assumption(T, "none")


def test_matrices_alone_become_an_estimate_with_the_prior_they_imply():
    values = np.array([[1, 0], [0, 0], [1, 0], [0, 1], [0, 0]])
    found = from_matrices(T, as_labels(values))
    assert found.status.tolist() == [Status.FALLBACK] * 2
    np.testing.assert_allclose(found.prior, [(0.4 - 0.1) / 0.6, 0.2 / 0.5], atol=1e-6)
    assert np.isnan(found.stderr).all()
    assert not np.any(found.partners)
    assert not np.any(found.residual)
    observed = np.ones((5, 2), bool)
    observed[[1, 3], 0] = observed[:, 1] = False
    found = from_matrices(T, as_labels(values, observed=observed))
    np.testing.assert_allclose(found.prior, [(2 / 3 - 0.1) / 0.6, 0], atol=1e-6)


def test_the_chance_of_a_given_label_is_linear_in_that_of_the_clean_one():
    clean, rho_neg, kept = jnp.array([0.0, 0.5, 1.0]), jnp.array(0.1), jnp.array(0.6)
    np.testing.assert_allclose(given_probability(clean, rho_neg, kept), [0.1, 0.4, 0.7], atol=1e-6)
    ends = given_probability(clean, jnp.array(0.0), jnp.array(1.0))
    np.testing.assert_allclose(ends, [1e-6, 0.5, 1 - 1e-6], atol=1e-7)
    assert np.isfinite(np.log(ends)).all()
    assert np.isfinite(np.log1p(-ends)).all()


def test_save_and_load_give_the_same(tmp_path):
    found = from_matrices(T, as_labels(np.array([[1, 0], [0, 1]])))._replace(partners=jnp.array([3, 4], jnp.int32))
    found.save(tmp_path / "T.npz")
    for a, b in zip(found, TransitionEstimate.load(tmp_path / "T.npz"), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    np.savez(tmp_path / "other.npz", T=np.zeros(3))
    with pytest.raises(ValueError, match=r"has no .*prior.*; pass a file that `save` has written"):
        TransitionEstimate.load(tmp_path / "other.npz")
    np.savez(tmp_path / "pickle.npz", **found._asdict() | {"T": np.array([{}], dtype=object)})
    with pytest.raises(ValueError, match="allow_pickle"):
        TransitionEstimate.load(tmp_path / "pickle.npz")


def test_estimates_print_as_a_short_table_with_words():
    T = jnp.tile(jnp.array([[0.9, 0.1], [0.2, 0.8]]), (30, 1, 1))
    whole = jnp.full(30, int(Status.POSTERIOR))
    found = TransitionEstimate(T, T[:, 0, 1], T[:, 0] / 100, whole, 0 * whole, T[:, 0, 1])
    lines = repr(found).splitlines()
    assert lines[0] == "TransitionEstimate of 30 classes"
    assert lines[2].split() == ["0", "10.0", "(8.2", "to", "11.8)", "20.0", "(19.8", "to", "20.2)", "posterior"]
    assert lines[-1] == "22 more"
    assert len(lines) == 11
    assert str(Status.TOO_FEW) == "too_few"
    assert set(found.statuses) == {"posterior"}
    assert found.rows(["<b>"] * 30, most=1)[1][0] == "<b>"
    page = found._repr_html_()
    assert page.count("<tr>") == 31
    assert "<td>10.0 (8.2 to 11.8)</td>" in page


def test_an_estimate_inside_jit_prints_its_fields():
    seen = []
    T = jnp.tile(jnp.array([[0.9, 0.1], [0.2, 0.8]]), (2, 1, 1))

    def look(T):
        seen.append(
            repr(TransitionEstimate(T, T[:, 0, 1], T[:, 0], T[:, 0, 0].astype(int), T[:, 0, 0].astype(int), T[:, 0, 1]))
        )

    jax.jit(look)(T)
    assert seen[0].startswith("TransitionEstimate(T=")


def test_arguments_of_another_type_are_named(unchecked_shapes, tmp_path):
    found = from_matrices(T, as_labels(np.array([[1, 0], [0, 1]])))
    np.save(tmp_path / "t.npy", T)
    for error, message, call in (
        (TypeError, "T: 'x'; pass", lambda: as_transition("x", 2)),
        (ValueError, "assume: list; pass", lambda: apply_assumption(T, ["missing"])),
        (ValueError, "level: 1; pass a number between 0 and 1", lambda: found.interval(1)),
        (ValueError, "names: list; pass a list of 2 names", lambda: found.rows(["a"])),
        (TypeError, "most: 'x'; pass a whole number", lambda: found.rows(most="x")),
        (ValueError, r"path: .*t\.npy: is no npz file", lambda: TransitionEstimate.load(tmp_path / "t.npy")),
    ):
        with pytest.raises(error, match=message):
            call()
