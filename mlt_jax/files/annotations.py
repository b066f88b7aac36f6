"""Labels in the JSON of COCO, Label Studio and FiftyOne -> a table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mlt_jax.files.columns import ID_COLUMNS, Reading, Source, Table, as_table


def annotated(path: Path, content: Any, reading: Reading) -> Table | None:
    """The table in the annotations of one of these tools; None where `content` is not of that kind.

    - COCO (`images`, `annotations`, `categories`): a class is present where the image has an object of it. Ids are the
      file names, or the images' numbers with `id_column` "id" or "image_id".
    - Label Studio (a list of tasks with `annotations`): the choices of the annotation that is ground truth, else of
      all, which must agree. A task that nobody annotated has no labels.
    - FiftyOne (`samples`, or `classes` and `labels`): the labels of a field of classifications.
    """
    if isinstance(content, dict) and {"images", "annotations", "categories"} <= set(content):
        return _coco(path, content, reading)
    if isinstance(content, list) and content and all(isinstance(x, dict) and "annotations" in x for x in content):
        rows = [(_task_id(path, task, reading), choices(path, task)) for task in content]
        return _listed(path, rows, reading)
    if isinstance(content, dict) and isinstance(content.get("samples"), list):
        return _listed(path, list(_samples(path, content["samples"], reading)), reading)
    if isinstance(content, dict) and isinstance(content.get("labels"), dict) and "classes" in content:
        return _classifications(path, content, reading)
    return None


def choices(path: Path, task: dict[str, Any]) -> list[str] | None:
    """The choices made in a task of Label Studio; None where nobody annotated it."""
    done = [entry for entry in task["annotations"] if isinstance(entry, dict) and not entry.get("was_cancelled")]
    done = [entry for entry in done if entry.get("ground_truth")] or done
    found = [
        sorted({name for result in entry.get("result", []) for name in result.get("value", {}).get("choices", [])})
        for entry in done
    ]
    for other in found[1:]:
        if other != found[0]:
            said = f"{', '.join(found[0]) or 'nothing'} and {', '.join(other) or 'nothing'}"
            which = f"task {task.get('id')} has annotations that differ"
            raise ValueError(f"{path}: {which} ({said}); mark one as ground truth")
    return found[0] if found else None


def _coco(path: Path, content: dict[str, Any], reading: Reading) -> Table:
    try:
        names = {category["id"]: str(category["name"]) for category in content["categories"]}
        numbered = reading.id_column in ("id", "image_id")
        ids = {image["id"]: str(image["id"] if numbered else image["file_name"]) for image in content["images"]}
        cells = [(entry["image_id"], entry["category_id"]) for entry in content["annotations"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: an image, category or annotation of COCO has no {error}; complete it") from None
    row, column = {key: k for k, key in enumerate(ids)}, {key: k for k, key in enumerate(names)}
    values = np.zeros((len(ids), len(names)), np.float32)
    for k, (image, category) in enumerate(cells):
        if image not in row or category not in column:
            odd = f"image {image}" if image not in row else f"category {category}"
            raise ValueError(f"{path}: annotation {k} is of {odd}, which is not listed; complete images and categories")
        values[row[image], column[category]] = 1
    return Table(path, values, tuple(names.values()), tuple(ids.values()), None, "id" if numbered else "file_name")


def _task_id(path: Path, task: dict[str, Any], reading: Reading) -> tuple[str, str]:
    """(name of the key, id) of a task: the id in its data, or that of Label Studio."""
    data = task.get("data") or {}
    if reading.id_column in data:
        return str(reading.id_column), str(data[reading.id_column])
    for key in ("example", *data):  # so `audit.exports` calls the id, whatever else is there
        if key in data and key.lower() in ID_COLUMNS:
            return key, str(data[key])
    if "id" not in task:
        raise ValueError(f"{path}: a task has neither an id nor one in its data; pass --id-column")
    return "id", str(task["id"])


def _samples(path: Path, samples: list[dict[str, Any]], reading: Reading) -> Iterator[tuple[Any, list[str] | None]]:
    """The key and the labels of each sample, as FiftyOneDataset keeps them in samples.json."""
    kinds = {value["_cls"] for one in samples for value in one.values() if isinstance(value, dict) and "_cls" in value}
    if kinds and not kinds & {"Classifications", "Classification"}:
        raise ValueError(f"{path}: has {', '.join(sorted(kinds))}, but no Classifications: export those")
    for k, sample in enumerate(samples):
        fields = {
            name: value for name, value in sample.items()
            if isinstance(value, dict) and value.get("_cls") in ("Classifications", "Classification")
        }  # fmt: skip
        held = [name for name in fields if name not in ("predictions", "suspects")]
        if len(held) > 1:
            raise ValueError(f"{path}: sample {k} has labels in {' and '.join(held[:2])}; keep one of these fields")
        wanted = reading.id_column if reading.id_column in sample else "example" if "example" in sample else None
        name = str(sample[wanted]) if wanted else Path(str(sample.get("filepath", k))).name
        value = fields[held[0]] if held else None
        entries = None if value is None else value.get("classifications", [value])
        yield ((wanted or "file_name"), name), None if entries is None else [str(entry["label"]) for entry in entries]


def _classifications(path: Path, content: dict[str, Any], reading: Reading) -> Table:
    """The table in labels.json of a FiftyOneImageClassificationDataset: labels are names, or indices of `classes`."""
    classes = content["classes"]

    def name(target: Any) -> str:
        target = target.get("label") if isinstance(target, dict) else target
        if isinstance(target, int) and classes and not 0 <= target < len(classes):
            raise ValueError(f"{path}: class index {target} of {len(classes)}; correct it")
        return str(classes[target]) if isinstance(target, int) and classes else str(target)

    def names(target: Any) -> list[str] | None:
        if isinstance(target, dict) and isinstance(target.get("label"), list):
            target = target["label"]
        return None if target is None else [name(x) for x in (target if isinstance(target, list) else [target])]

    rows = [(("file_name", key), names(target)) for key, target in content["labels"].items()]
    known = None if classes is None else tuple(map(str, classes))
    return _listed(path, rows, reading if reading.classes else reading._replace(classes=known))


def _listed(path: Path, rows: list[tuple[tuple[str, str], Any]], reading: Reading) -> Table:
    if not rows:
        raise ValueError(f"{path}: holds no examples; pass what the tool exported")
    key = rows[0][0][0]
    source = Source((key, "labels"), [[name for (_, name), _ in rows], [labels for _, labels in rows]])
    return as_table(path, source, reading._replace(id_column=key, groups=None, ignore=()), at="example", first=0)
