"""Suspects to where people label, and what they decided there back: Label Studio, FiftyOne, cleanlab's table.

Label Studio gets a task per example with suspects, the worst first; the suggested labels are a prediction, which
reviewers correct and submit. FiftyOne gets all examples with the fields `ground_truth` and `suspects`; reviewers tag
suspects flip or keep. The JSON that either tool exports is read by `decisions_in`. cleanlab's table is its Datalab's.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np

from mlt_jax.audit.audit import Audit
from mlt_jax.audit.cleanlab import cleanlab_columns
from mlt_jax.audit.issues import Issues
from mlt_jax.files.annotations import choices
from mlt_jax.files.records import load_json
from mlt_jax.outputs import atomic, write_csv

MADE_BY = "mlt_jax"
_ADDRESS = re.compile(r"[a-z][a-z0-9-]*://|/data/")  # what Label Studio shows as it stands

Picture = Callable[[int], Path | None]  # of a row


def export_files(tool: str, path: Path) -> list[Path]:
    """The files that `export_audit` writes.

    Raises:
      ValueError: a tool that is not in `EXPORTS`, or a name that does not end as its files do.
    """
    if tool not in EXPORTS:
        raise ValueError(f"--export: {tool!r} is unknown; pass {', '.join(f'{name}=FILE' for name in EXPORTS)}")
    end = {"label-studio": ".json", "cleanlab": ".csv"}.get(tool)
    if end is not None and path.suffix.lower() != end:
        raise ValueError(f"--export: {tool} writes {end}, not {path.name}; pass {tool}={path.stem}{end}")
    if tool == "fiftyone":
        if path.suffix:
            raise ValueError(f"--export: fiftyone writes a folder, {path.name} looks like a file; pass fiftyone=FOLDER")
        return [path / "samples.json"]
    return [path, path.with_suffix(".xml")] if tool == "label-studio" else [path]


def export_audit(
    tool: str,
    path: str | Path,
    audit: Audit,
    issues: Issues,
    *,
    images: str | Path | None = None,
    picture: Picture | None = None,
) -> list[Path]:
    """The files written for a tool.

    Args:
      tool: "label-studio" (tasks as JSON, and the labelling interface as XML beside them), "fiftyone" (a folder) or
        "cleanlab" (CSV).
      path: file or folder.
      issues: the suspects, see `find_label_issues`.
      images: the folder of the pictures. Label Studio serves them if it is started with the folder above it as
        LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT.
      picture: from a row to its picture in `images`.
    """
    path = Path(path).expanduser()
    files = export_files(tool, path)
    EXPORTS[tool](files, audit, issues, None if images is None else Path(images).expanduser(), picture)
    return files


def label_studio_config(classes: Sequence[str], *, pictures: bool) -> str:
    """The labelling interface of the tasks: the picture or the example's name, why it is shown, and all classes."""
    shown = '<Image name="example" value="$image"/>' if pictures else '<Text name="example" value="$example"/>'
    lines = (f"    <Choice value={quoteattr(name)}/>" for name in classes)
    head = ["<View>", f"  <!-- made by {MADE_BY} -->", f"  {shown}", '  <Header value="$note"/>']
    control = '  <Choices name="labels" toName="example" choice="multiple" showInline="true">'
    return "\n".join([*head, control, *lines, "  </Choices>", "</View>", ""])


def decisions_in(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each decision stands in the JSON that Label Studio or FiftyOne exported, and its row (`decision_rows`).

    In Label Studio a submitted annotation decides the suspects of its task and every other label that it changes. A
    label of a cell that nobody had labelled has no `given`. In FiftyOne the tags flip and keep of `suspects` decide.
    """
    content = load_json(path)
    if isinstance(content, dict) and isinstance(content.get("samples"), list):
        yield from _tagged(path, content["samples"])
    elif isinstance(content, list) and all(isinstance(task, dict) and "annotations" in task for task in content):
        for task in content:
            yield from _annotated(path, task)
    else:
        hint = "export JSON (not JSON-MIN) from Label Studio, or samples.json from FiftyOne"
        raise ValueError(f"{path}: holds no annotated tasks and no samples; {hint}")


def is_export(path: Path) -> bool:
    """Whether a file looks like one that `export_audit` wrote and that nobody has annotated since."""
    if path.suffix not in (".csv", ".xml", ".json"):
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".csv":
        return text.startswith("example,is_label_issue,")
    if path.suffix == ".xml":
        return f"made by {MADE_BY}" in text
    return text.strip() == "[]" or (f'"{MADE_BY}"' in text and '"annotations"' not in text)


def _label_studio(
    files: list[Path], audit: Audit, issues: Issues, images: Path | None, picture: Picture | None
) -> None:
    tasks, config = files
    names, known = np.array(audit.classes, object), audit.labels.observed
    addresses = images is None and all(_ADDRESS.match(audit.ids[row]) for row in issues.example)
    pictures = images is not None or (addresses and len(issues.wrong) > 0)

    def task(row: int, cells: list[int]) -> str:
        given, wanted = names[audit.labels.values[row] == 1], names[_suggested(audit, issues, row, cells)]
        p = {names[issues.column[k]]: round(float(issues.wrong[k]), 6) for k in cells}
        doubts = (f"{'remove' if name in given else 'add'} {name}? ({100 * x:.0f} %)" for name, x in p.items())
        data: dict[str, Any] = {"example": audit.ids[row]}
        if pictures:
            data["image"] = audit.ids[row] if addresses else _served(images, picture, row)
        data |= {"note": "; ".join(doubts), "given": list(given), "suspects": p}
        if known is not None and not known[row].all():
            data["unlabelled"] = list(names[~known[row]])
        chosen = {"from_name": "labels", "to_name": "example", "type": "choices", "value": {"choices": list(wanted)}}
        guess = {"model_version": MADE_BY, "score": max(p.values()), "result": [chosen] if len(wanted) else []}
        return json.dumps({"data": data, "predictions": [guess]}, ensure_ascii=False)

    _write_lines(tasks, "[", (task(row, cells) for row, cells in _by_row(issues).items()), "]")
    with atomic(config, encoding="utf-8") as file:
        file.write(label_studio_config(audit.classes, pictures=pictures))


def _fiftyone(files: list[Path], audit: Audit, issues: Issues, images: Path | None, picture: Picture | None) -> None:
    suspects = _by_row(issues)

    def classifications(entries: list[dict[str, Any]]) -> dict[str, Any]:
        return {"_cls": "Classifications", "classifications": [{"_cls": "Classification"} | x for x in entries]}

    def sample(row: int) -> str:
        cells = suspects.get(row, [])
        found = None if picture is None else picture(row)
        # Relative to the folder, so that both can be moved together.
        where = audit.ids[row] if found is None else os.path.relpath(found.resolve(), files[0].parent.resolve())
        given = [{"label": audit.classes[j]} for j in np.flatnonzero(audit.labels.values[row])]
        doubts = [
            {"label": audit.classes[issues.column[k]], "confidence": round(float(issues.wrong[k]), 6),
             "given": int(issues.given[k]), "tags": ["remove" if issues.given[k] else "add"]} for k in cells
        ]  # fmt: skip
        fields = {"ground_truth": classifications(given), "suspects": classifications(doubts)}
        p = max((x["confidence"] for x in doubts), default=0.0)
        tags = ["suspect"] if cells else []
        return json.dumps(
            {"filepath": where, "tags": tags, "example": audit.ids[row], "p_wrong": p} | fields, ensure_ascii=False
        )

    _write_lines(files[0], f'{{"made_by": "{MADE_BY}", "samples": [', map(sample, range(len(audit.ids))), "]}")


def _cleanlab(files: list[Path], audit: Audit, issues: Issues, images: Path | None, picture: Picture | None) -> None:
    columns = cleanlab_columns(audit, issues)
    write_csv(files[0], [("example", *columns), *zip(audit.ids, *columns.values(), strict=True)])


EXPORTS: dict[str, Callable[[list[Path], Audit, Issues, Path | None, Picture | None], None]] = {
    "label-studio": _label_studio, "fiftyone": _fiftyone, "cleanlab": _cleanlab,
}  # fmt: skip


def _by_row(issues: Issues) -> dict[int, list[int]]:
    """The places in `issues` of each example's suspects; examples in the order of their worst."""
    found: dict[int, list[int]] = {}
    for k, row in enumerate(issues.example.tolist()):
        found.setdefault(row, []).append(k)
    return found


def _suggested(audit: Audit, issues: Issues, row: int, cells: list[int]) -> np.ndarray:
    """Which labels the example has once its suspects are flipped, (q,)."""
    labels = audit.labels.values[row] == 1
    labels[issues.column[cells]] ^= True
    return labels


def _served(images: Path | None, picture: Picture | None, row: int) -> str:
    """The address under which Label Studio serves a picture in a folder of this machine; none where it has none."""
    found = None if images is None or picture is None else picture(row)
    if found is None or images is None:
        return ""
    inside = Path(os.path.abspath(found)).relative_to(Path(os.path.abspath(images)).parent)  # links stay as they are
    return f"/data/local-files/?d={quote(inside.as_posix())}"


def _write_lines(path: Path, start: str, lines: Iterator[str], end: str) -> None:
    """JSON with an object per line, so that large files can be looked into."""
    with atomic(path, encoding="utf-8") as file:
        file.write(start + "\n" + ",\n".join(lines) + f"\n{end}\n")


def _annotated(path: Path, task: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    where, data = f"{path}: task {task.get('id', '')}".rstrip(), task.get("data") or {}
    if not {"example", "given", "suspects"} <= set(data):
        hint = "pass it in place of the labels, not of the decisions"
        raise ValueError(f"{where} has no example, given or suspects in its data, mlt did not export it; {hint}")
    chosen, given, unlabelled = choices(path, task), set(data["given"]), set(data.get("unlabelled", ()))
    changed = [] if chosen is None else sorted((given ^ set(chosen)) - set(data["suspects"]))
    for name in (*data["suspects"], *changed):
        decision = "" if chosen is None else "flip" if (name in chosen) != (name in given) else "keep"
        before = np.nan if name in unlabelled else float(name in given)
        yield where, _row(data["example"], name, before, data["suspects"].get(name, np.nan), decision)


def _tagged(path: Path, samples: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, sample in enumerate(samples):
        where = f"{path}: sample {number}"
        if not isinstance(sample, dict) or not {"example", "suspects"} <= set(sample):
            hint = "pass it in place of the labels, not of the decisions"
            raise ValueError(f"{where} has no example or suspects, mlt did not export it; {hint}")
        for entry in (sample["suspects"] or {}).get("classifications", []):
            said = [tag for tag in ("flip", "keep") if tag in entry.get("tags", ())]
            if len(said) > 1:
                raise ValueError(f'{where}: "{entry["label"]}" is tagged flip and keep; take one away')
            p = entry.get("confidence")
            yield where, _row(sample["example"], entry["label"], float(entry["given"]), p, "".join(said))


def _row(example: Any, name: str, given: float, p: Any, decision: str) -> dict[str, Any]:
    p = np.nan if p is None else float(p)
    return {"example": str(example), "class": name, "given": given, "p_wrong": p, "probability": np.nan,
            "decision": decision}  # fmt: skip
