"""Suspects go to Label Studio, FiftyOne and cleanlab and come back as decisions; read there by the tools' own code."""

import csv
import json
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from audited import simulated_audit
from paths import ROOT
from PIL import Image

from mlt_jax.audit.audit import audit_labels
from mlt_jax.audit.exports import export_audit, is_export
from mlt_jax.audit.files import read_decisions
from mlt_jax.audit.issues import find_label_issues
from mlt_jax.cli import main
from mlt_jax.files.tables import read_table

TOOLS = ROOT / ".venv-tools" / "bin" / "python"
needs_tools = pytest.mark.skipif(
    not (ROOT / ".venv-tools" / "ready").exists(), reason="the labelling tools are not installed: make tools"
)


@pytest.fixture(scope="module")
def audit():
    return simulated_audit(n=300)


@pytest.fixture(scope="module")
def issues(audit):
    return find_label_issues(audit)


@pytest.fixture
def labels_csv(audit, tmp_path):
    frame = pd.DataFrame(audit.labels.values, columns=audit.classes, index=pd.Index(audit.ids, name="id"))
    frame.to_csv(tmp_path / "labels.csv")
    return tmp_path / "labels.csv"


def in_tools(code, *args):
    """What a script prints in the environment of the tools, as JSON."""
    done = subprocess.run([TOOLS, "-c", code, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def flips(audit, cells):
    labels = audit.labels.values.copy()
    for row, column in cells:
        labels[row, column] ^= 1
    return labels


def annotate(tasks, choose):
    """The export of Label Studio in which `choose` made the choices of each task; None: skipped."""
    done = []
    for number, task in enumerate(tasks, 1):
        names = choose(task)
        region = {"type": "choices", "from_name": "labels", "to_name": "example", "value": {"choices": names}}
        entry = {"id": number, "completed_by": 1, "was_cancelled": names is None, "result": [region] if names else []}
        done.append(task | {"id": number, "annotations": [entry]})
    return done


def suggested(task):
    return [name for region in task["predictions"][0]["result"] for name in region["value"]["choices"]]


def test_a_task_asks_about_the_suspects_and_suggests_their_flip(audit, issues, tmp_path):
    tasks_json, config = export_audit("label-studio", tmp_path / "t.json", audit, issues)
    tasks = json.loads(tasks_json.read_text(encoding="utf-8"))
    assert len(tasks) == len(set(issues.example.tolist()))
    row, column = issues.example[0], issues.column[0]
    first, name = tasks[0], audit.classes[column]
    assert first["data"]["example"] == audit.ids[row]
    assert first["data"]["suspects"][name] == pytest.approx(issues.wrong[0], abs=1e-5)
    assert first["predictions"][0]["score"] == pytest.approx(issues.wrong[0], abs=1e-5)
    assert (name in suggested(first)) != (name in first["data"]["given"])
    scores = [task["predictions"][0]["score"] for task in tasks]
    assert scores == sorted(scores, reverse=True)
    assert sum(len(task["data"]["suspects"]) for task in tasks) == len(issues.wrong)
    assert [choice.get("value") for choice in ET.parse(config).iter("Choice")] == list(audit.classes)


def test_what_reviewers_submit_is_applied(audit, issues, labels_csv, capsys):
    folder = labels_csv.parent
    tasks, _ = export_audit("label-studio", folder / "t.json", audit, issues)
    extra = {}

    def choose(task):
        """Takes the suggestions of the first, skips the second, and corrects a label nobody suspected in the third."""
        number = len(extra)
        extra[task["data"]["example"]] = number
        if number == 1:
            return None
        names = suggested(task) if number in (0, 2) else task["data"]["given"]
        if number == 2:
            other = next(name for name in audit.classes if name not in task["data"]["suspects"])
            names = sorted({*names} ^ {other})
            extra["other"] = other
        return names

    (folder / "done.json").write_text(json.dumps(annotate(json.loads(tasks.read_text(encoding="utf-8")), choose)))
    assert main(["apply", str(labels_csv), str(folder / "done.json"), "--out", str(folder / "new.csv")]) == 0
    rows = list(dict.fromkeys(issues.example.tolist()))
    cells = [(row, issues.column[k]) for row in (rows[0], rows[2]) for k in np.flatnonzero(issues.example == row)]
    cells.append((rows[2], audit.classes.index(extra["other"])))
    np.testing.assert_array_equal(read_table(folder / "new.csv").values, flips(audit, cells))
    assert f"{len(cells)} labels flipped" in capsys.readouterr().out


def test_decisions_from_label_studio_serve_an_audit(audit, issues, tmp_path):
    tasks, _ = export_audit("label-studio", tmp_path / "t.json", audit, issues)
    (tmp_path / "done.json").write_text(json.dumps(annotate(json.loads(tasks.read_text(encoding="utf-8")), suggested)))
    decisions = read_decisions(tmp_path / "done.json", audit.labels, audit.ids, audit.classes)
    found = set(zip(decisions.example.tolist(), decisions.column.tolist(), decisions.label.tolist(), strict=True))
    assert found == set(zip(*(x.tolist() for x in (issues.example, issues.column, issues.suggested)), strict=True))
    assert np.isnan(decisions.probability).all()


def test_a_label_that_nobody_had_given_is_filled_in(tmp_path, capsys):
    rng = np.random.default_rng(0)
    probs = np.round(rng.random((200, 2)), 3)
    given = (rng.random((200, 2)) < probs).astype(float)
    row = int(np.argmax(np.abs(given[:, 0] - probs[:, 0])))  # a suspect
    given[row, 1] = np.nan
    frame = pd.DataFrame(given, columns=["a", "b"], index=pd.Index([f"x{k}" for k in range(200)], name="id"))
    frame.to_csv(tmp_path / "labels.csv")
    known = ~np.isnan(given)
    T = np.tile([[0.8, 0.2], [0.2, 0.8]], (2, 1, 1))
    audit = audit_labels(np.nan_to_num(given), probs=probs, T=T, observed=known, ids=frame.index, classes=["a", "b"])
    issues = find_label_issues(audit)
    assert (row, 0) in zip(issues.example, issues.column, strict=True)
    tasks, _ = export_audit("label-studio", tmp_path / "t.json", audit, issues)
    task = next(t for t in json.loads(tasks.read_text()) if t["data"]["example"] == f"x{row}")
    assert task["data"]["unlabelled"] == ["b"]
    (tmp_path / "done.json").write_text(json.dumps(annotate([task], lambda task: ["a", "b"])))
    words = ["apply", str(tmp_path / "labels.csv"), str(tmp_path / "done.json"), "--out", str(tmp_path / "n.csv")]
    assert main(words) == 0
    decisions = read_decisions(tmp_path / "done.json", audit.labels, audit.ids, audit.classes)
    assert (decisions.example.tolist(), decisions.column.tolist()) == ([row], [0])
    given[row] = 1
    np.testing.assert_array_equal(read_table(tmp_path / "n.csv").values, given)


def test_tags_of_fiftyone_are_applied_and_its_samples_are_labels(audit, issues, labels_csv):
    folder = labels_csv.parent
    (path,) = export_audit("fiftyone", folder / "set", audit, issues)
    held = read_table(path, classes=audit.classes)
    assert held.ids == audit.ids
    np.testing.assert_array_equal(held.values, audit.labels.values)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert sum("suspect" in sample["tags"] for sample in content["samples"]) == len(set(issues.example.tolist()))
    cells = []
    for row, sample in enumerate(content["samples"]):
        for k, entry in enumerate(sample["suspects"]["classifications"]):
            entry["tags"].append("flip" if k == 0 else "keep")
            cells += [(row, audit.classes.index(entry["label"]))] if k == 0 else []
    path.write_text(json.dumps(content))
    assert main(["apply", str(labels_csv), str(path), "--out", str(folder / "new.csv")]) == 0
    np.testing.assert_array_equal(read_table(folder / "new.csv").values, flips(audit, cells))


def test_the_table_for_cleanlab_has_a_row_per_example(audit, issues, tmp_path):
    (path,) = export_audit("cleanlab", tmp_path / "c.csv", audit, issues)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["example"] for row in rows] == list(audit.ids)
    flagged = {k for k, row in enumerate(rows) if row["is_label_issue"] == "True"}
    assert flagged == set(issues.example.tolist())


def test_the_command_writes_for_all_tools_with_pictures_and_again_over_its_own(audit, labels_csv, tmp_path, capsys):
    ids = [name for name in audit.ids if name.endswith(".jpg")]
    kept = [audit.ids.index(name) for name in ids]
    labels = pd.read_csv(labels_csv, index_col="id").loc[ids]
    labels.to_csv(labels_csv)
    p = 1 / (1 + np.exp(-audit.scores[kept]))
    pd.DataFrame(p, columns=audit.classes, index=labels.index).to_csv(tmp_path / "p.csv")
    audit.found.save(tmp_path / "T.npz")
    (tmp_path / "my images").mkdir()
    for name in ids:
        Image.new("L", (2, 2)).save(tmp_path / "my images" / name)
    tools = [f"label-studio={tmp_path}/t.json", f"fiftyone={tmp_path}/set", f"cleanlab={tmp_path}/c.csv"]
    words = ["audit", str(labels_csv), str(tmp_path / "p.csv"), "--out", str(tmp_path / "r.html"), "--transition",
             str(tmp_path / "T.npz"), "--images", str(tmp_path / "my images"), "--export"]  # fmt: skip
    assert main([*words, *tools]) == 0
    assert main([*words, *tools]) == 0
    tasks = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert tasks[0]["data"]["image"].startswith("/data/local-files/?d=my%20images/image%20")
    sample = json.loads((tmp_path / "set" / "samples.json").read_text(encoding="utf-8"))["samples"][0]
    assert (tmp_path / "set" / sample["filepath"]).resolve() == tmp_path / "my images" / ids[0]
    # What people did in the tool is theirs: it is not written over.
    (tmp_path / "t.json").write_text(json.dumps(annotate(tasks, suggested)))
    capsys.readouterr()
    assert main([*words, tools[0]]) == 2
    assert "--export:" in capsys.readouterr().err
    for wrong, said in {
        "labelstudio=t.json": "'labelstudio' is unknown", "label-studio": "names no file",
        "cleanlab=c.xlsx": "writes .csv",
        f"label-studio={tmp_path}/r.json": "would replace", f"cleanlab={labels_csv}": "would replace",
        "fiftyone=a.json": "a folder",
    }.items():  # fmt: skip
        assert main([*words, wrong]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"id": 7, "data": {"image": "x"}, "annotations": []}], "task 7 has no example, given or suspects"),
        ([{"id": 7, "labels": "cat"}], "export JSON (not JSON-MIN)"),
        ({"samples": [{"filepath": "x"}]}, "sample 0 has no example or suspects"),
        ({"samples": [{"example": "a", "suspects": {"classifications": [
            {"label": "cat", "given": 1, "tags": ["flip", "keep"]}]}}]}, "tagged flip and keep"),
    ],
)  # fmt: skip
def test_json_that_holds_no_decisions_is_refused_in_one_line(tmp_path, capsys, content, said):
    (tmp_path / "l.csv").write_text("id,cat\na,1\nb,0\n")
    (tmp_path / "d.json").write_text(json.dumps(content))
    words = ["apply", str(tmp_path / "l.csv"), str(tmp_path / "d.json"), "--out", str(tmp_path / "n.csv")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


LABEL_STUDIO = """
import json, sys
from label_studio_sdk.converter import Converter
from label_studio_sdk.label_interface import LabelInterface
from label_studio_sdk.label_interface.objects import TaskValue
tasks, config, done, out = sys.argv[1:]
interface = LabelInterface(open(config).read())
interface.validate()
control = interface.get_control("labels")
wrong = []
for task in json.load(open(tasks)):
    TaskValue(**task)
    wrong += [] if all(task["data"].get(shown.value_name) for shown in interface.objects) else ["no data"]
    for guess in task["predictions"]:
        wrong += interface.validate_prediction(guess, return_errors=True)
Converter(config, "/").convert_to_json(done, out, is_dir=False)
print(json.dumps({"wrong": wrong, "multiple": control.is_multiple_choice, "labels": control.labels}))
"""


@needs_tools
def test_label_studios_own_code_takes_the_tasks_and_its_export_comes_back(audit, issues, labels_csv):
    folder = labels_csv.parent
    tasks, config = export_audit("label-studio", folder / "t.json", audit, issues)
    done = annotate(json.loads(tasks.read_text(encoding="utf-8")), suggested)
    (folder / "done.json").write_text(json.dumps(done))
    found = in_tools(LABEL_STUDIO, tasks, config, folder / "done.json", folder / "exported")
    assert found == {"wrong": [], "multiple": True, "labels": list(audit.classes)}
    (exported,) = (folder / "exported").glob("*.json")
    assert main(["apply", str(labels_csv), str(exported), "--out", str(folder / "new.csv")]) == 0
    everything = flips(audit, zip(issues.example, issues.column, strict=True))
    np.testing.assert_array_equal(read_table(folder / "new.csv").values, everything)


FIFTYONE = """
import json, sys
import fiftyone.utils.data as foud
folder, out = sys.argv[1:]
importer = foud.FiftyOneDatasetImporter(folder)
importer = importer._to_legacy_importer() if importer._is_legacy_format_data() else importer
with importer:
    samples = list(importer)
with foud.LegacyFiftyOneDatasetExporter(out, export_media=False) as exporter:
    for sample in samples:
        for suspect in sample.suspects.classifications:
            suspect.tags.append("flip" if suspect.confidence > 0.7 else "keep")
        exporter.export_sample(sample)
print(json.dumps({
    "given": [[x.label for x in sample.ground_truth.classifications] for sample in samples],
    "tags": [tag for sample in samples for tag in sample.tags],
    "media": sorted({sample.media_type for sample in samples}),
}))
"""


@needs_tools
def test_fiftyones_own_code_reads_the_folder_and_its_export_comes_back(audit, issues, labels_csv):
    folder = labels_csv.parent
    export_audit("fiftyone", folder / "set", audit, issues)
    found = in_tools(FIFTYONE, folder / "set", folder / "tagged")
    assert found["given"] == [[audit.classes[j] for j in np.flatnonzero(row)] for row in audit.labels.values]
    assert Counter(found["tags"]) == {"suspect": len(set(issues.example.tolist()))}
    assert "image" in found["media"]
    assert not is_export(folder / "tagged" / "samples.json")
    assert (
        main(["apply", str(labels_csv), str(folder / "tagged" / "samples.json"), "--out", str(folder / "n.csv")]) == 0
    )
    sure = issues.wrong > 0.7
    assert 0 < sure.sum() < len(sure)
    expected = flips(audit, zip(issues.example[sure], issues.column[sure], strict=True))
    np.testing.assert_array_equal(read_table(folder / "n.csv").values, expected)
