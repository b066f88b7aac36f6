"""Annotations: ground truth wins, skipped tasks have no labels, FiftyOne's class indices are names."""

from pathlib import Path

import numpy as np

from mlt_jax.files.annotations import annotated, choices
from mlt_jax.files.columns import Reading

PATH = Path("t.json")


def annotation(*names, **more):
    return {"result": [{"type": "choices", "value": {"choices": list(names)}}], **more}


def test_ground_truth_wins_and_cancelled_annotations_do_not_count():
    task = {"id": 1, "annotations": [annotation("a"), annotation("b", ground_truth=True)]}
    assert choices(PATH, task) == ["b"]
    assert choices(PATH, {"annotations": [annotation("a", was_cancelled=True)]}) is None


def test_a_task_that_nobody_annotated_has_no_labels():
    tasks = [{"id": 4, "data": {}, "annotations": [annotation("a")]}, {"id": 5, "data": {}, "annotations": []}]
    found = annotated(PATH, tasks, Reading())
    assert found.ids == ("4", "5")
    np.testing.assert_array_equal(found.values, [[1], [np.nan]])


def test_fiftyones_labels_are_names_or_indices():
    for labels in (["a", "b"], [0, 1], [{"label": "a"}, {"label": "b"}]):
        found = annotated(PATH, {"classes": ["a", "b"], "labels": {"x": labels, "y": []}}, Reading())
        assert (found.ids, found.classes) == (("x", "y"), ("a", "b"))
        np.testing.assert_array_equal(found.values, [[1, 1], [0, 0]])


def test_coco_goes_by_file_name_or_by_number():
    content = {"images": [{"id": 9, "file_name": "x.jpg"}], "categories": [{"id": 3, "name": "a"}],
               "annotations": [{"image_id": 9, "category_id": 3}]}  # fmt: skip
    assert annotated(PATH, content, Reading()).ids == ("x.jpg",)
    assert annotated(PATH, content, Reading(id_column="image_id")).ids == ("9",)
    assert annotated(PATH, [1], Reading()) is None
