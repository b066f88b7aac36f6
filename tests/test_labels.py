import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from mlt_jax.labels import CODINGS, Labels, as_labels, as_mask, as_matrix, num_axes, to_lists

Y = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]])
LISTS = [[0, 3], [], [1, 2]]
NAMES = ("cat", "dog", "sofa", "tv")
HOLES = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 0]], bool)
FORMS = {
    **{
        f"numpy {dtype}": Y.astype(dtype)
        for dtype in ("bool", "uint8", "int8", "int64", "uint32", "float16", "float64")
    },
    "fortran": np.asfortranarray(Y.astype(np.uint8)),
    "strided": np.repeat(Y, 2, axis=1).astype(bool)[:, ::2],
    "jax": jnp.asarray(Y),
    "bfloat16": jnp.asarray(Y, jnp.bfloat16),
    **{f"sparse {form}": sp.csr_matrix(Y).asformat(form) for form in ("csr", "csc", "coo", "lil", "dok", "bsr", "dia")},
    "sparse array": sp.coo_array(Y.astype(bool)),
    "explicit zeros": sp.coo_matrix(([1, 1, 1, 1, 0], ([0, 0, 2, 2, 1], [0, 3, 1, 2, 1])), shape=Y.shape),
    "lists": LISTS,
    "tuple of tuples": tuple(map(tuple, LISTS)),
    "list of arrays": [np.array(row) for row in LISTS],
    "frame": pd.DataFrame(Y),
    "mixed frame": pd.DataFrame({0: Y[:, 0], 1: Y[:, 1].astype(bool), 2: Y[:, 2] * 1.0, 3: Y[:, 3]}),
    "nullable frame": pd.DataFrame({k: pd.array(Y[:, k], dtype="Int64" if k else "boolean") for k in range(4)}),
    "object frame": pd.DataFrame(Y.astype(bool), dtype=object),
    "labels": Labels(Y.astype(np.uint8), None, None),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_labels(form):
    labels = as_labels(FORMS[form])
    assert labels.values.dtype == np.uint8
    np.testing.assert_array_equal(labels.values, Y)
    assert labels.observed is None
    assert labels.classes is None
    assert to_lists(labels) == LISTS
    named = as_labels(FORMS[form], classes=np.array(NAMES), num_classes=4)
    assert named.classes == NAMES
    assert type(named.classes[0]) is str


@pytest.mark.parametrize(
    ("coding", "table"),
    [("01", [(0, 0), (1, 1)]), ("pm1", [(-1, 0), (1, 1)]), ("voc", [(-1, 0), (0, 1), (1, 1)])],
)
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_codings_mean_what_they_say(coding, table, dtype):
    codes, meaning = np.array(table).T
    labels = as_labels(codes[None].astype(dtype), coding=coding)
    np.testing.assert_array_equal(labels.values, meaning[None])
    assert labels.observed is None


def test_uncertain_cells_are_unobserved_and_combine_with_observed():
    labels = as_labels(np.array([[1, 0, -1], [1, 1, 0]]), coding="uncertain", observed=[[1, 1, 1], [0, 1, 1]])
    np.testing.assert_array_equal(labels.values, [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(labels.observed, [[True, True, False], [False, True, True]])
    alone = as_labels(sp.csr_array(np.array([[1, 0, -1], [1, 1, 0]])), coding="uncertain")
    np.testing.assert_array_equal(alone.observed, [[True, True, False], [True, True, True]])
    assert as_labels(Y, coding="uncertain").observed is None


@pytest.mark.parametrize("observed", [HOLES, HOLES * 1.0, HOLES.tolist(), sp.csr_matrix(HOLES), pd.DataFrame(HOLES)])
def test_values_at_unobserved_cells_are_ignored(observed):
    holed = np.where(HOLES, Y, np.nan)
    for form in (holed, pd.DataFrame(holed), pd.DataFrame(holed).astype("Int64"), np.where(HOLES, Y, 7), 1 - HOLES + Y):
        labels = as_labels(form, observed=observed)
        np.testing.assert_array_equal(labels.values, Y)
        np.testing.assert_array_equal(labels.observed, HOLES)


def test_a_full_mask_is_no_mask():
    assert as_labels(Y, observed=np.ones(Y.shape)).observed is None


def test_labels_pass_through_and_narrow():
    once = as_labels(Y, observed=HOLES, classes=NAMES)
    again = as_labels(once, coding="voc")
    np.testing.assert_array_equal(again.values, once.values)
    np.testing.assert_array_equal(again.observed, HOLES)
    assert again.classes == NAMES
    first_row_only = np.arange(3)[:, None] == np.zeros((1, 4))
    np.testing.assert_array_equal(as_labels(once, observed=first_row_only).observed, HOLES & first_row_only)
    with pytest.raises(ValueError, match=r"labels: row 0, column 0 is 2; pass 0 or 1"):
        as_labels(Labels(np.full((1, 1), 2, np.uint8), None, None))


def test_the_input_is_never_written_to():
    given, duplicated = Y.astype(np.uint8), sp.csr_matrix(([1, 0], [0, 0], [0, 2]), shape=(1, 1))
    as_labels(given, observed=~Y.astype(bool))
    np.testing.assert_array_equal(given, Y)
    assert as_labels(duplicated).values.item() == 1
    assert duplicated.nnz == 2


def test_num_classes_of_lists():
    assert as_labels([[1], []]).values.shape == (2, 2)
    assert as_labels([[1], []], num_classes=5).values.shape == (2, 5)
    assert as_labels([[], []], classes=["a", "b", "c"]).values.shape == (2, 3)


def test_frame_columns_name_the_classes():
    frame = pd.DataFrame(Y, columns=NAMES)
    assert as_labels(frame).classes == NAMES
    assert as_labels(pd.DataFrame(Y, columns=[7, 5, 3, 1])).classes == ("7", "5", "3", "1")
    turned = as_labels(frame, classes=NAMES[::-1])
    assert turned.classes == NAMES[::-1]
    np.testing.assert_array_equal(turned.values, Y[:, ::-1])
    np.testing.assert_array_equal(
        as_labels(frame, observed=pd.DataFrame(HOLES, columns=NAMES)[list(NAMES[::-1])]).observed, HOLES
    )


@given(st.lists(st.sets(st.integers(0, 11)), min_size=1), st.integers(12, 15))
def test_lists_survive_the_round_trip(rows, num_classes):
    lists = [sorted(row) for row in rows]
    labels = as_labels(lists, num_classes=num_classes)
    assert labels.values.shape == (len(rows), num_classes)
    assert labels.values.sum() == sum(map(len, rows))
    assert to_lists(labels) == lists
    assert to_lists(as_labels(labels.values.astype(float))) == lists


def test_voc2012_difficult_objects_count_as_present(real_data):
    data = real_data("voc2012_labels.npz")
    raw = data["trainval"]
    labels = as_labels(raw, coding="voc", classes=data["classes"])
    assert labels.values.sum() == (raw == 1).sum() + (raw == 0).sum() == 16682 + 1037
    assert labels.classes is not None
    assert labels.classes[14] == "person"
    assert as_labels(raw, coding="uncertain").values.sum() == 16682
    with pytest.raises(
        ValueError, match=r'labels: row 0, column 0 \("aeroplane"\) is -1; pass 0 or 1; or coding="pm1"'
    ):
        as_labels(raw, classes=data["classes"])


def test_eurlex_through_sparse(real_data):
    data = real_data("eurlex4k_train_labels.npz")
    matrix = sp.csr_matrix((data["data"], data["indices"], data["indptr"]), shape=tuple(data["shape"]))
    labels = as_labels(matrix)
    assert labels.values.shape == (15539, 3993)
    assert labels.values.sum() == 82530
    lists = [np.sort(row).tolist() for row in np.split(data["indices"], data["indptr"][1:-1])]
    assert to_lists(labels) == lists
    np.testing.assert_array_equal(as_labels(lists, num_classes=3993).values, labels.values)


def at(row, column, value, dtype=float):
    changed = Y.astype(dtype)
    changed[row, column] = value
    return changed


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (at(2, 2, 1.7), {"classes": NAMES}, r'labels: row 2, column 2 \("sofa"\) is 1\.7; pass 0 or 1$'),
        (at(2, 2, 1.7, "float32"), {"name": "noisy"}, r"noisy: row 2, column 2 is 1\.7; pass 0 or 1$"),
        (at(1, 3, np.inf), {}, r"row 1, column 3 is inf; pass 0 or 1"),
        (at(1, 3, np.nan), {}, r"row 1, column 3 is nan; pass 0 or 1, or observed="),
        (at(1, 3, 2, "uint8"), {}, r"row 1, column 3 is 2; pass 0 or 1$"),
        (at(1, 0, 9), {"observed": HOLES}, r"row 1, column 0 is 9"),
        (pd.DataFrame(at(1, 3, np.nan), columns=NAMES).astype("Int64"), {}, r'\("tv"\) is nan; pass .* observed='),
        (pd.DataFrame({"cat": [True, None]}), {}, r'row 1, column 0 \("cat"\) is nan; pass .* observed='),
        (sp.coo_matrix(([1, 1], ([0, 0], [1, 1]))), {}, r"row 0, column 1 is 2; pass 0 or 1"),
        (sp.coo_matrix(([True, True], ([0, 0], [1, 1]))), {}, r"row 0, column 1 is 2; pass 0 or 1"),
        (sp.csr_matrix([[0, 0.5]]), {}, r"row 0, column 1 is 0\.5"),
        (Y, {"coding": "pm1"}, r'row 0, column 1 is 0; pass -1 or 1 \(coding "pm1"\); or coding="01"'),
        (at(1, 1, 2), {"coding": "uncertain"}, r'row 1, column 1 is 2\.0; pass -1 or 0 or 1 \(coding "uncertain"\)'),
        (Y, {"coding": "xor"}, r"coding: 'xor' is unknown; pass coding=\"01\" \(0 absent, 1 present\)"),
        (sp.csr_matrix(Y), {"coding": "voc"}, r'coding: in "voc" 0 is not absent, .* pass labels\.toarray\(\)'),
        (LISTS, {"coding": "pm1"}, r'coding: "pm1" says nothing about lists of class indices'),
        (Y[0], {}, r"labels: shape \(4,\); pass \(n, q\)"),
        (Y[None], {}, r"labels: shape \(1, 3, 4\); pass \(n, q\)"),
        (Y[:0], {}, r"labels: shape \(0, 4\); pass .* at least one example"),
        (Y[:, :0], {}, r"labels: shape \(3, 0\); pass .* one class"),
        (pd.DataFrame(), {}, r"labels: shape \(0, 0\)"),
        ([], {}, r"labels: shape \(0, 0\)"),
        ([[], []], {}, r"labels: shape \(2, 0\)"),
        ([[]], {"num_classes": 0}, r"num_classes: 0; pass at least 1"),
        (Y, {"num_classes": 5}, r"num_classes: 5, labels have 4 columns"),
        (Y, {"classes": NAMES[:3]}, r"classes: 3 names, labels have 4 columns"),
        (Y, {"classes": ["a", "b", "c", "b"]}, r'classes: class name "b" occurs 2 times; pass distinct'),
        (pd.DataFrame(Y, columns=["a", "b", "c", "b"]), {}, r'labels: class name "b" occurs 2 times'),
        (pd.DataFrame(Y, columns=NAMES), {"classes": ["cat", "cow", "sofa", "tv"]}, r'labels: column "cow" is missing'),
        (Labels(Y.astype(np.uint8), None, NAMES), {"classes": NAMES[::-1]}, r"classes: labels already have other"),
        (Y, {"observed": HOLES[:2]}, r"observed: shape \(2, 4\), labels have \(3, 4\)"),
        (Y, {"observed": HOLES[:, :2]}, r"observed: shape \(3, 2\), labels have \(3, 4\)"),
        (Y, {"observed": [[True], [True, False]]}, r"observed: row 1 has length 2, row 0 1; pass rows of equal length"),
        (Y, {"observed": at(2, 1, 3), "classes": NAMES}, r'observed: row 2, column 1 \("dog"\) is 3\.0; pass True'),
        (LISTS, {"num_classes": 3}, r"labels: row 0 has class index 3 of 3 classes; pass 0 to 2"),
        (LISTS, {"classes": ["a", "b"]}, r"labels: row 0 has class index 3 of 2 classes; pass 0 to 1"),
        ([[0], [1, -1]], {}, r"labels: row 1 has class index -1 of 2 classes; pass 0 to 1"),
        ([[0, 1, 0], [1, 0, 0]], {}, r"labels: row 0 repeats class index 0; .* for a 0/1 matrix pass np\.array"),
    ],
)
def test_wrong_values_are_named(labels, options, message):
    with pytest.raises(ValueError, match=message):
        as_labels(labels, **options)


def test_minus_one_names_the_three_codings():
    with pytest.raises(ValueError, match=r"row 0, column 1 is -1; pass 0 or 1") as error:
        as_labels(np.where(Y, 1, -1))
    for coding in ("pm1", "voc", "uncertain"):
        assert f'coding="{coding}" (-1 {CODINGS[coding][-1]}' in str(error.value)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (Y.astype(object), {}, r"labels: dtype object"),
        (Y.astype(complex), {}, r"labels: dtype complex128, shape \(3, 4\); pass an \(n, q\) array of real numbers"),
        (sp.csr_matrix(Y.astype(complex)), {}, r"labels: dtype complex128"),
        (Y.astype(str), {}, r"labels: dtype <U"),
        (None, {}, r"labels: dtype object"),
        ("cat", {}, r"labels: dtype <U3"),
        (np.ma.masked_equal(Y, 1), {}, r"labels: a masked array; pass .*observed="),
        (pd.DataFrame({"id": ["x", "y"], "cat": [0, 1]}), {}, r'labels: column "id" has dtype str'),
        (pd.DataFrame({"cat": [0, 1j]}), {}, r'labels: column "cat" has dtype complex128'),
        (pd.DataFrame({"cat": [0, 1]}, dtype="category"), {}, r'labels: column "cat" has dtype category'),
        ([0, 1], {}, r"labels: row 0 is 0; pass a list of class indices per example"),
        ([[0], "cat"], {}, r"labels: row 1 is 'cat'"),
        ([[0], [1, 2.0]], {}, r"labels: row 1 has class index 2\.0; pass integers"),
        ([[0], [True, False]], {}, r"labels: row 1 has class index True; pass integers .* pass np\.array"),
        ([["cat"]], {}, r"labels: row 0 has class index 'cat'; pass integers"),
        ([np.array([0.0, 1.0])], {}, r"labels: row 0 has class index 0\.0; pass integers"),
        (Y, {"classes": 4}, r"classes: 4; pass a list of strings"),
        (Y, {"classes": "abcd"}, r"classes: 'abcd'; pass a list of strings"),
        (Y, {"classes": [1, 2, 3, 4]}, r"classes: .*; pass a list of strings"),
    ],
)
def test_impossible_types_are_named(labels, options, message):
    with pytest.raises(TypeError, match=message):
        as_labels(labels, **options)


LIKE = as_labels(Y, classes=NAMES)
PROBS = np.linspace(0, 1, 12).reshape(3, 4)


@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, jnp.asarray, sp.csr_matrix, pd.DataFrame])
def test_matrix_forms_agree(form):
    matrix = as_matrix(form(PROBS), LIKE, name="probs", low=0, high=1)
    assert matrix.dtype == np.float32
    np.testing.assert_array_equal(matrix, PROBS.astype(np.float32))


def test_matrix_columns_follow_the_class_names():
    frame = pd.DataFrame(PROBS, columns=NAMES)
    np.testing.assert_allclose(as_matrix(frame[list(NAMES[::-1])], LIKE, name="probs"), PROBS, rtol=1e-6)
    np.testing.assert_allclose(as_matrix(frame, as_labels(Y), name="probs"), PROBS, rtol=1e-6)
    numbered = pd.DataFrame(PROBS)[[3, 0, 2, 1]]
    np.testing.assert_allclose(as_matrix(numbered, as_labels(Y), name="probs"), PROBS, rtol=1e-6)


def test_matrix_lead_is_epochs():
    frames = [pd.DataFrame(PROBS, columns=NAMES), pd.DataFrame(2 * PROBS, columns=NAMES)[list(NAMES[::-1])]]
    assert as_matrix(PROBS, LIKE, name="losses", lead=True).shape == (1, 3, 4)
    for losses in (np.stack([PROBS, 2 * PROBS]), frames):
        epochs = as_matrix(losses, LIKE, name="losses", lead=True)
        np.testing.assert_allclose(epochs, [PROBS, 2 * PROBS], rtol=1e-6)


def test_matrix_and_mask_ignore_unobserved_cells():
    like = as_labels(Y, observed=HOLES)
    for wrong in (np.nan, -np.inf, 7):
        matrix = as_matrix(np.where(HOLES, PROBS, wrong), like, name="probs", low=0, high=1)
        np.testing.assert_allclose(matrix, np.where(HOLES, PROBS, 0), rtol=1e-6)
        epochs = as_matrix(np.where(HOLES, PROBS, wrong)[None], like, name="probs", low=0, high=1, lead=True)
        np.testing.assert_array_equal(epochs[0], matrix)
        mask = as_mask(np.where(HOLES, Y == 0, wrong), like, name="selected")
        np.testing.assert_array_equal(mask, (Y == 0) & HOLES)
    kept = as_matrix(PROBS, like, name="probs", low=0, high=1)
    np.testing.assert_array_equal(kept, PROBS.astype(np.float32))


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (
            at(1, 2, 1.7),
            {"low": 0, "high": 1},
            r'row 1, column 2 \("sofa"\) is 1\.7; pass values in \[0, 1\]: .* of logits, percentages divided by 100$',
        ),
        (at(1, 2, -0.1), {"low": 0, "high": 1}, r"is -0\.1; pass values in \[0, 1\]"),
        (at(1, 2, -0.1), {"low": 0}, r"is -0\.1; pass values in \[0, inf\]"),
        (at(1, 2, np.nan), {"low": 0}, r"is nan; pass values in \[0, inf\]"),
        (at(1, 2, 3), {"high": 1}, r"is 3\.0; pass values in \[-inf, 1\]"),
        (at(1, 2, np.inf), {}, r"is inf; pass finite values"),
        (at(1, 2, 1e300), {}, r"is 1e\+300; pass finite values"),
        (np.stack([Y, at(0, 3, 9)]), {"high": 1, "lead": True}, r'probs: epoch 1, row 0, column 3 \("tv"\) is 9\.0'),
        (PROBS[:2], {}, r"probs: shape \(2, 4\), labels have \(3, 4\); pass \(n, q\)$"),
        (PROBS.T, {}, r"probs: shape \(4, 3\), labels have \(3, 4\)"),
        (PROBS[None], {}, r"probs: shape \(1, 3, 4\), labels have \(3, 4\); pass \(n, q\)$"),
        (PROBS[None, :2], {"lead": True}, r"shape \(1, 2, 4\), labels .*; pass \(n, q\) or \(epochs, n, q\)"),
        (PROBS[None][:0], {"lead": True}, r"probs: shape \(0, 3, 4\)"),
        (PROBS[0], {"lead": True}, r"probs: shape \(4,\)"),
        ([[0.1, 0.2], [0.3]], {}, r"probs: row 1 has length 1, row 0 2; pass rows of equal length"),
        (pd.DataFrame(PROBS, columns=["cat", "dog", "cow", "tv"]), {}, r'probs: column "sofa" is missing'),
        (pd.DataFrame(PROBS, columns=NAMES).assign(id=1), {}, r'probs: column "id" is none of the classes'),
    ],
)
def test_wrong_matrices_are_named(array, options, message):
    with pytest.raises(ValueError, match=message):
        as_matrix(array, LIKE, name="probs", **options)
    with pytest.raises(TypeError, match=r"probs: dtype <U"):
        as_matrix(PROBS.astype(str), LIKE, name="probs")


@pytest.mark.parametrize("form", [np.asarray, np.float32, np.ndarray.tolist, jnp.asarray, sp.csr_matrix, pd.DataFrame])
def test_mask_forms_agree(form):
    mask = as_mask(form(HOLES), LIKE, name="selected")
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, HOLES)


def test_wrong_masks_are_named():
    with pytest.raises(ValueError, match=r'selected: row 1, column 2 \("sofa"\) is 0\.5; pass True or False'):
        as_mask(at(1, 2, 0.5), LIKE, name="selected")
    with pytest.raises(ValueError, match=r"selected: shape \(3, 2\), labels have \(3, 4\)"):
        as_mask(HOLES[:, :2], LIKE, name="selected")


def test_frames_are_matched_by_their_index():
    order, names = [2, 0, 1], ["a", "b", "c"]
    labels = as_labels(pd.DataFrame([[1, 0], [0, 1], [1, 1]], index=names, columns=["x", "y"]))
    assert labels.rows == ("a", "b", "c")
    scores = pd.DataFrame([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], index=names, columns=["x", "y"])
    turned = scores.iloc[order]
    np.testing.assert_array_equal(as_matrix(turned, labels, name="scores"), scores.to_numpy(np.float32))
    np.testing.assert_array_equal(as_mask(turned > 0.35, labels, name="mask"), scores.to_numpy() > 0.35)
    unnamed = turned.reset_index(drop=True)  # cannot be matched, and so counts by position
    np.testing.assert_array_equal(as_matrix(unnamed, labels, name="scores"), turned.to_numpy(np.float32))
    np.testing.assert_array_equal(as_labels(labels).rows, labels.rows)
    counted, numbered = scores.reset_index(drop=True), scores.set_index([order])
    other = as_labels(pd.DataFrame([[1, 0], [0, 1], [1, 1]], columns=["x", "y"]))
    np.testing.assert_array_equal(as_matrix(counted, other, name="scores"), scores.to_numpy(np.float32))
    for frame, like in ((numbered, other), (counted, other._replace(rows=tuple(order)))):
        with pytest.raises(ValueError, match=r"row numbers in another order, .* just count; pass the same index"):
            as_matrix(frame, like, name="scores")
    with pytest.raises(ValueError, match="row 'c' of the labels is missing"):
        as_matrix(turned.rename(index={"c": "d"}), labels, name="scores")
    with pytest.raises(ValueError, match="row 'a' occurs 2 times"):
        as_labels(pd.DataFrame([[1], [0]], index=["a", "a"]))


@pytest.mark.parametrize(
    ("labels", "options", "error", "message"),
    [
        (Y, {"coding": ["01"]}, ValueError, "coding: list is unknown"),
        (Y, {"num_classes": "4"}, TypeError, "num_classes: '4'; pass at least 1"),
        ([[2**70]], {}, ValueError, f"labels: class index {2**70}; pass smaller ones"),
        (jax.random.split(jax.random.key(0)), {}, TypeError, r"labels: .* of shape \(2,\); pass an \(n, q\) array"),
    ],
)
def test_arguments_of_another_type_are_named(unchecked_shapes, labels, options, error, message):
    with pytest.raises(error, match=message):
        as_labels(labels, **options)


def test_axes_of_lists_of_unequal_length_are_not_counted():
    assert [num_axes(x) for x in (0.5, Y, [Y, Y], [[1], [1, 2]])] == [0, 2, 3, 0]
