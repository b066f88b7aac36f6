import csv
import html
import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from PIL import Image
from simulate import flip, unbiased

from mlt_jax import estimate_all
from mlt_jax.cli import main
from mlt_jax.files.tables import read_table
from mlt_jax.transition import TransitionEstimate

CLASSES = ["cat", "dog", "<script>alert(1)</script>", "naïve, with a comma"]
N = 3000


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    probs = 1 / (1 + np.exp(-rng.normal(-1, 3, (N, 4))))
    clean = (rng.random((N, 4)) < probs).astype(np.uint8)
    return flip(rng, clean, 0.1, 0.2), probs.astype(np.float32), [f"img{i:04d}" for i in range(N)]


@pytest.fixture
def files(data, tmp_path):
    """labels.csv and probs.csv, the second in another order of rows and columns; T as if from an earlier audit."""
    labels, probs, ids = data
    pd.DataFrame(labels, columns=CLASSES, index=pd.Index(ids, name="id")).to_csv(tmp_path / "labels.csv")
    frame = pd.DataFrame(probs, columns=CLASSES, index=pd.Index(ids, name="image"))
    frame[CLASSES[::-1]].iloc[::-1].to_csv(tmp_path / "probs.csv")
    T = np.tile([[0.9, 0.1], [0.2, 0.8]], (4, 1, 1)).astype(np.float32)
    zero = np.zeros(4, np.int32)
    TransitionEstimate(T, T[:, 0, 1], 0 * T[:, 0], zero, zero, T[:, 0, 1]).save(tmp_path / "T.npz")
    return tmp_path


def audit(files, *more, labels="labels.csv", probs="probs.csv"):
    return main(["audit", str(files / labels), str(files / probs), "--out", str(files / "r.html"),
                 "--transition", str(files / "T.npz"), *map(str, more)])  # fmt: skip


def complaint(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mlt: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_an_audit_prints_the_classes_and_writes_page_csv_json_and_T(files, data, capsys):
    assert audit(files) == 0
    out = capsys.readouterr().out
    assert "falsely given, %" in out
    assert all(name[:30] in out for name in CLASSES)
    with (files / "r.issues.csv").open(newline="", encoding="utf-8") as file:
        issues = list(csv.DictReader(file))
    wrong = [float(row["p_wrong"]) for row in issues]
    assert wrong == sorted(wrong, reverse=True)
    labels, probs, ids = data
    for row in issues:  # rows and columns were matched by name
        cell = ids.index(row["example"]), CLASSES.index(row["class"])
        assert labels[cell] == int(row["given"]) != int(row["suggested"])
        assert abs(probs[cell] - labels[cell]) > 0.3
    summary = json.loads((files / "r.json").read_text())
    assert summary["suspects"] == len(issues) == sum(entry["suspects"] for entry in summary["classes"].values())
    assert list(summary["classes"]) == CLASSES
    assert TransitionEstimate.load(files / "r.transition.npz").T.shape == (4, 2, 2)
    page = (files / "r.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_T_is_estimated_unless_it_is_given(files, capsys):
    assert main(["audit", str(files / "labels.csv"), str(files / "probs.csv"), "--out", str(files / "r.html")]) == 0
    assert "posterior" in capsys.readouterr().out
    classes = json.loads((files / "r.json").read_text())["classes"]
    assert all(abs(entry["rho_neg"] - 0.1) < 0.08 and abs(entry["rho_pos"] - 0.2) < 0.15 for entry in classes.values())
    assert all(low <= entry["rho_neg"] <= high for entry in classes.values() for low, high in [entry["interval_neg"]])


@pytest.mark.parametrize("form", ["npy", "npz", "parquet", "tsv", "lists"])
def test_other_forms_of_the_same_table_give_the_same_issues(files, data, form, capsys):
    labels, probs, ids = data
    assert audit(files) == 0
    expected = (files / "r.issues.csv").read_text(encoding="utf-8")
    frame = pd.DataFrame(labels, columns=CLASSES, index=pd.Index(ids, name="id"))
    if form == "npy":
        np.save(files / "labels.npy", labels)
        pd.DataFrame(probs, columns=CLASSES, index=pd.Index(ids, name="id")).to_csv(files / "probs.csv")
    elif form == "npz":
        np.savez(files / "labels.npz", labels=labels, classes=np.array(CLASSES), ids=np.array(ids))
    elif form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        frame.reset_index().to_parquet(files / "labels.parquet")
    elif form == "tsv":
        frame.to_csv(files / "labels.tsv", sep="\t")
    else:
        names = [";".join(np.array(CLASSES)[row == 1]) for row in labels]
        pd.DataFrame({"id": ids, "labels": names}).to_csv(files / "labels2.csv", index=False)
        # Classes are then in the order of the predictions.
        pd.DataFrame(probs, columns=CLASSES, index=pd.Index(ids, name="id")).to_csv(files / "probs.csv")
    assert audit(files, labels="labels2.csv" if form == "lists" else f"labels.{form}") == 0
    assert (files / "r.issues.csv").read_text(encoding="utf-8") == expected


def test_an_empty_cell_is_a_label_nobody_gave(files):
    lines = (files / "labels.csv").read_text().splitlines()
    lines[1:200] = [",".join([line.split(",")[0], "", *line.split(",")[2:]]) for line in lines[1:200]]
    (files / "labels.csv").write_text("\n".join(lines) + "\n")
    assert audit(files) == 0
    blank = {f"img{i:04d}" for i in range(199)}
    with (files / "r.issues.csv").open(newline="") as file:
        assert not [row for row in csv.DictReader(file) if row["class"] == "cat" and row["example"] in blank]


def broken(files, name):
    """Makes one thing wrong; the arguments of the command and what it must say."""
    labels = pd.read_csv(files / "labels.csv")
    probs = pd.read_csv(files / "probs.csv")
    more: list[str] = []
    if name == "missing column":
        probs.drop(columns="dog").to_csv(files / "probs.csv", index=False)
        said = 'probs.csv: column "dog" is missing'
    elif name == "extra column":
        probs.assign(cow=0.5).to_csv(files / "probs.csv", index=False)
        said = 'probs.csv: column "cow" is not in'
    elif name == "lengths":
        probs.drop(columns="image").iloc[:-3].to_csv(files / "probs.csv", index=False)
        said = "probs.csv: 2997 rows"
    elif name == "range":
        probs.loc[5, "dog"] = 1.7
        probs.to_csv(files / "probs.csv", index=False)
        said = '"img2994", column "dog" is 1.7; pass probabilities in [0, 1]'
    elif name == "ids":
        probs.replace({"image": {"img0007": "img9999"}}).to_csv(files / "probs.csv", index=False)
        said = "1 ids of"
    elif name == "twice":
        probs.replace({"image": {"img0007": "img0008"}}).to_csv(files / "probs.csv", index=False)
        said = '"img0008" occurs twice'
    elif name == "words":
        labels.astype({"cat": object}).replace({"cat": {1: "yes"}}).to_csv(files / "labels.csv", index=False)
        said = 'column "cat" is "yes"; write a number'
    elif name == "codes":
        labels.replace({"dog": {0: -1}}).to_csv(files / "labels.csv", index=False)
        said = "is -1.0; pass 0 or 1"
    elif name == "no header":
        np.savetxt(files / "labels.csv", labels[CLASSES].to_numpy(), fmt="%d", delimiter=",")
        said = "its first line is numbers"
    elif name == "ragged":
        (files / "labels.csv").write_text("id,cat,dog\na,1,0\nb,1\n")
        said = "line 3 has 2 cells, the header 3"
    elif name == "binary":
        (files / "labels.csv").write_bytes(b"\xff\xfe\x00\x01" * 50)
        said = "no CSV in UTF-8"
    elif name == "no file":
        (files / "labels.csv").unlink()
        said = "no such file"
    elif name == "images":
        more = ["--images", str(files)]
        said = 'no image is named like an id such as "img0000"'
    elif name == "embed":
        more = ["--embed", "-1"]
        said = "--embed: -1.0"
    elif name == "most":
        more = ["--most", "200001"]
        said = "--most: 200001; pass how many suspects to show, 200,000 at most"
    elif name == "no page":
        more = ["--out", str(files / "r.csv")]
        said = "r.csv gets a page; pass a name that ends with .html"
    elif name == "threshold":
        more = ["--threshold", "2"]
        said = "--threshold: 2.0"
    else:
        more = ["--coding", "xy"]
        said = "--coding: 'xy' is unknown"
    return more, said


WRONG = ("missing column", "extra column", "lengths", "range", "ids", "twice", "words", "codes", "no header", "ragged",
         "binary", "no file", "images", "embed", "most", "no page", "threshold", "coding")  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_gets_one_clear_line_and_exit_code_2(files, capsys, name):
    more, said = broken(files, name)
    assert audit(files, *more) == 2
    assert said in complaint(capsys)
    assert not list(files.glob("r.*"))


def test_predictions_may_be_features(files, data, capsys):
    np.save(files / "x.npy", np.log(data[1] / (1 - data[1])))
    arguments = ["audit", str(files / "labels.csv"), "--features", str(files / "x.npy"), "--out", str(files / "r.html")]
    assert main([*arguments, "--transition", str(files / "T.npz")]) == 0
    page = (files / "r.html").read_text(encoding="utf-8")
    sections = re.findall(r'<section id="(\w+)">', page)
    assert sections == ["rates", "issues", "curves", "T", "losses", "partners"]
    with (files / "r.issues.csv").open(newline="", encoding="utf-8") as file:
        wrong = [(data[2].index(row["example"]), CLASSES.index(row["class"])) for row in csv.DictReader(file)]
    # The features are the logits that the labels were drawn from: a suspect contradicts them.
    assert len(wrong) > 100
    assert np.mean([abs(data[1][cell] - data[0][cell]) > 0.5 for cell in wrong]) > 0.95
    capsys.readouterr()
    assert main(["audit", str(files / "labels.csv")]) == 2
    assert "no predictions" in complaint(capsys)


def test_groups_come_from_a_column_or_a_file_and_reach_the_folds(files, data, capsys):
    np.save(files / "x.npy", np.log(data[1] / (1 - data[1])))
    who = [f"p{k // 3}" for k in range(len(data[2]))]
    frame = pd.read_csv(files / "labels.csv", dtype=str)
    frame.insert(2, "patient", who)
    frame.to_csv(files / "grouped.csv", index=False)
    pd.DataFrame({"id": data[2][::-1], "who": who[::-1]}).to_csv(files / "who.csv", index=False)

    def scores(labels, *more):
        arguments = ["audit", files / labels, "--features", files / "x.npy", "--out", files / "r.html", *more]
        assert main([*map(str, arguments), "--transition", str(files / "T.npz")]) == 0
        return (files / "r.issues.csv").read_text(encoding="utf-8")

    column, file = scores("grouped.csv", "--groups", "patient"), scores("labels.csv", "--groups", files / "who.csv")
    assert column == file != scores("labels.csv") != scores("labels.csv", "--seed", 1)
    out = files / "new.csv"
    assert main(["apply", str(files / "grouped.csv"), str(files / "r.issues.csv"), "--above", "0.9", "--groups",
                 "patient", "--out", str(out)]) == 0  # fmt: skip
    kept = read_table(out, groups="patient")
    assert kept.groups == tuple(who)
    assert (kept.values != data[0]).any()
    capsys.readouterr()
    assert audit(files, "--groups", "patient") == 2
    assert "--groups: they keep folds apart, but there are no --features" in complaint(capsys)
    assert main(["apply", str(files / "labels.csv"), str(files / "r.issues.csv"), "--groups", "patient"]) == 2
    assert 'has no column "patient"' in complaint(capsys)


def test_wrong_inputs_are_named_in_the_terminal_the_json_and_on_the_page(files, data, capsys):
    _, probs, ids = data
    assert audit(files) == 0
    assert "warning" not in capsys.readouterr().out
    assert json.loads((files / "r.json").read_text())["warnings"] == []
    assert "Look at the inputs first" not in (files / "r.html").read_text()
    frame = pd.DataFrame(1 - probs, columns=CLASSES, index=pd.Index(ids, name="id"))
    frame.to_csv(files / "turned.csv")
    assert audit(files, probs="turned.csv") == 0
    (sentence,) = json.loads((files / "r.json").read_text())["warnings"]
    assert "pass P(label = 1), not 1 - p" in sentence
    assert capsys.readouterr().out.startswith(f"warning: {sentence}\n")
    page = (files / "r.html").read_text()
    assert page.index("Look at the inputs first") < page.index("not 1 - p") < page.index("labels to re-check")
    (100 * frame).to_csv(files / "percent.csv")
    assert audit(files, probs="percent.csv") == 2
    assert "percentages divided by 100" in complaint(capsys)


def test_what_rates_suppose_stands_beside_them(files, capsys):
    assert main(["audit", str(files / "labels.csv"), str(files / "probs.csv"), "--out", str(files / "r.html")]) == 0
    out = capsys.readouterr().out
    classes = json.loads((files / "r.json").read_text())["classes"]
    assert {row["status"] for row in classes.values()} == {"posterior"}
    for row in classes.values():
        assert row["assumes"].startswith("mistakes that depend on the class only; if ambiguous examples have more")
        assert f"- posterior: {row['assumes']}\n" in out


def test_thumbnails_come_from_a_folder(files, data):
    (files / "pictures").mkdir()
    for name in data[2][:50]:
        Image.new("RGB", (40, 30), "red").save(files / "pictures" / f"{name}.png")
    assert audit(files, "--images", files / "pictures") == 0
    assert "data:image/png;base64" in (files / "r.html").read_text()


def test_decisions_are_applied_and_only_those(files, data, capsys):
    labels, _, ids = data
    assert audit(files) == 0
    with (files / "r.issues.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rows[0]["decision"], rows[1]["decision"], rows[2]["decision"] = "flip", "keep", "Wrong"
    pd.DataFrame(rows).to_csv(files / "decisions.csv", index=False)
    out = files / "new.csv"
    apply = ["apply", str(files / "labels.csv"), str(files / "decisions.csv"), "--out", str(out)]
    assert main(apply) == 0
    table = read_table(out)
    assert table.ids == tuple(ids)
    changed = np.argwhere(table.values != labels)
    wanted = [[ids.index(row["example"]), CLASSES.index(row["class"])] for row in (rows[0], rows[2])]
    assert sorted(changed.tolist()) == sorted(wanted)
    capsys.readouterr()
    assert main([*apply, "--above", "0.9"]) == 2
    assert "was not written by mlt" in complaint(capsys)  # new.csv may hold other work by now
    apply.append("--force")
    assert main([*apply, "--above", "0.9"]) == 0
    unseen = [p for row in rows[3:] if (p := float(row["p_wrong"])) > 0.9]
    assert (read_table(out).values != labels).sum() == 2 + len(unseen) > 2
    right = len(unseen) - sum(unseen)
    said = (
        f"{2 + len(unseen)} labels flipped ({len(unseen)} unseen, of which {right:.1f} are expected to be right labels)"
    )
    assert said in capsys.readouterr().out
    rows[3]["decision"] = "perhaps"
    pd.DataFrame(rows).to_csv(files / "decisions.csv", index=False)
    assert main(apply) == 2
    assert 'line 5 decides "perhaps"' in complaint(capsys)


def test_relabelled_files_keep_their_coding(tmp_path, capsys):
    (tmp_path / "l.csv").write_text("id,cat,dog\na,-1,1\nb,0,-1\n")  # 0: difficult, taken as given
    (tmp_path / "d.csv").write_text("example,class,given,decision\na,cat,0,flip\na,dog,1,flip\nb,cat,1,flip\n")
    apply = ["apply", str(tmp_path / "l.csv"), str(tmp_path / "d.csv"), "--out", str(tmp_path / "new.csv")]
    assert main([*apply, "--coding", "voc"]) == 0
    assert (tmp_path / "new.csv").read_text().split() == ["id,cat,dog", "a,1,-1", "b,-1,-1"]
    capsys.readouterr()
    assert main([*apply, "--force"]) == 2
    assert "line 2, the label is -1, not 0 (coding 01)" in complaint(capsys)


def test_decisions_of_several_reviewers_are_merged_and_disagreements_left(tmp_path, capsys):
    (tmp_path / "l.csv").write_text("id,cat,dog\na,0,1\nb,1,1\n")
    header = "example,class,given,suggested,p_wrong,decision,reviewer\n"
    (tmp_path / "1.csv").write_text(header + "a,cat,0,1,0.9,flip,ann\nb,cat,1,0,0.9,keep,ann\nb,dog,1,0,0.99,,\n")
    (tmp_path / "2.csv").write_text(header + "a,cat,0,1,0.9,flip,ben\nb,cat,1,0,0.9,flip,ben\na,dog,1,0,0.8,flip,ben\n")
    files = [str(tmp_path / name) for name in ("l.csv", "1.csv", "2.csv")]
    apply = ["apply", *files, "--out", str(tmp_path / "new.csv"), "--above", "0.5"]
    assert main(apply) == 0
    assert (tmp_path / "new.csv").read_text().split() == ["id,cat,dog", "a,1,0", "b,1,0"]
    out = capsys.readouterr().out
    assert out.startswith("3 labels flipped (1 unseen, of which 0.0 are expected to be right labels); ")
    assert "1 left as they are, reviewers disagree; " in out
    assert "  b, cat: ann: keep, ben: remove label\n" in out
    apart = tmp_path / "new.disagreements.csv"
    assert apart.read_text() == header + "b,cat,1,0,0.9,keep,ann\nb,cat,1,0,0.9,flip,ben\n"
    assert main([*apply[:3], *apply[4:], "--force"]) == 0  # one reviewer: none is left, and no old list remains
    assert apart.read_text().count("\n") == 1
    capsys.readouterr()
    (tmp_path / "other.disagreements.csv").write_text("mine")
    assert main(["apply", *files, "--out", str(tmp_path / "other.csv")]) == 2
    assert "other.disagreements.csv is there and was not written by mlt, or was filled in" in complaint(capsys)
    assert main(["apply", files[0], "--out", str(tmp_path / "x.csv")]) == 2
    assert "decisions: no file" in complaint(capsys)


def test_decisions_about_other_labels_are_refused(files, capsys):
    (files / "d.csv").write_text("example,class,given,decision\nimg0000,cow,1,flip\n")
    assert main(["apply", str(files / "labels.csv"), str(files / "d.csv")]) == 2
    assert 'class "cow", which is not among the labels' in complaint(capsys)
    (files / "d.csv").write_text("example,class\nimg0000,cat\n")
    assert main(["apply", str(files / "labels.csv"), str(files / "d.csv")]) == 2
    assert "is missing; pass the issues CSV" in complaint(capsys)


@pytest.mark.parametrize("out", ["labels.csv", "probs.csv", "labels.issues.html", "folder"])
def test_an_audit_replaces_no_input_no_folder_and_no_strangers_file(files, capsys, out):
    (files / "folder").mkdir()
    (files / "labels.issues.json").write_text("[1]")
    before = {path: path.read_bytes() for path in files.iterdir() if path.is_file()}
    assert main(["audit", str(files / "labels.csv"), str(files / "probs.csv"), "--out", str(files / out)]) == 2
    assert "--out: " in complaint(capsys)
    assert {path: path.read_bytes() for path in files.iterdir() if path.is_file()} == before
    assert not list((files / "folder").iterdir())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_relabelled_csv_differs_in_the_flipped_cells_alone(end, tmp_path):
    """Formulas and line ends are the user's own."""
    lines = ["image;cat;dog;note", "-1a;1;0;=SUM(A1)", "b;0;1;@home"]
    (tmp_path / "l.csv").write_bytes(end.join([*lines, ""]).encode())
    (tmp_path / "d.csv").write_text("example,class,given,decision\n'-1a,dog,0,flip\n")
    out = tmp_path / "new.csv"
    words = ["apply", str(tmp_path / "l.csv"), str(tmp_path / "d.csv"), "--out", str(out), "--ignore-columns", "note"]
    assert main(words) == 0
    assert out.read_bytes() == end.join([lines[0], "-1a;1;1;=SUM(A1)", lines[2], ""]).encode()


@pytest.mark.parametrize("kind", ["npy", "lists", "csv without ids"])
def test_names_that_only_the_predictions_have_are_known_to_the_command_on_the_page(kind, files, data):
    labels, probs, ids = data
    names = ["cat", "dog", "bird", "cow"]
    table = pd.DataFrame(probs, columns=names, index=pd.Index(ids, name="id"))
    table.to_csv(files / "p.csv")
    if kind == "npy":
        np.save(files / "given.npy", labels)
    elif kind == "lists":
        never = labels.copy()
        never[:, 0] = 0  # a class that no list has
        listed = [";".join(name for name, y in zip(names, row, strict=True) if y) for row in never]
        pd.DataFrame({"id": ids, "labels": listed}).to_csv(files / "given.csv", index=False)
    else:
        pd.DataFrame(labels, columns=names).to_csv(files / "given.csv", index=False)
    given = files / ("given.npy" if kind == "npy" else "given.csv")
    assert (
        main(
            [
                "audit",
                str(given),
                str(files / "p.csv"),
                "--out",
                str(files / "r.html"),
                "--threshold",
                "0",
                "--transition",
                str(files / "T.npz"),
            ]
        )
        == 0
    )
    page = html.unescape((files / "r.html").read_text())
    command = shlex.split(re.search(r"mlt apply [^<]+", page)[0])
    assert command[command.index("--probs") + 1] == str(files / "p.csv")
    with (files / "r.issues.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    flips = [row for row in rows if row["class"] == names[0] and row["given"] == "0"][:3]
    decided = [row | {"decision": "flip"} for row in flips]
    pd.DataFrame(decided).to_csv(files / "decisions.csv", index=False)
    out = files / command[command.index("--out") + 1]
    words = [str(files / word) if word in ("decisions.csv", out.name) else word for word in command[1:]]
    assert main(words) == 0
    before, after = (read_table(path, classes=tuple(names)) for path in (given, out))
    changed = np.argwhere(before.values != after.values)
    assert sorted(changed.tolist()) == sorted([ids.index(row["example"]), 0] for row in flips)
    without = [word for k, word in enumerate(words) if "--probs" not in words[max(k - 1, 0) : k + 1]]
    assert main([*without, "--force"]) == 2  # nothing else knows these names


def test_relabelled_files_have_the_format_of_their_name_and_the_form_of_the_labels(tmp_path):
    (tmp_path / "l.csv").write_text("image,cat,dog\n'=a,1,0\nb,0,1\n")
    (tmp_path / "lists.csv").write_text("path,labels\n'=a,cat\nb,dog\n")
    (tmp_path / "d.csv").write_text("example,class,given,decision\n'=a,dog,0,flip\n")

    def applied(labels, out):
        assert main(["apply", str(tmp_path / labels), str(tmp_path / "d.csv"), "--out", str(tmp_path / out)]) == 0
        return tmp_path / out

    wanted = [[1, 1], [0, 1]]
    assert applied("l.csv", "new.csv").read_text().split() == ["image,cat,dog", "'=a,1,1", "b,0,1"]
    assert applied("lists.csv", "lists_new.csv").read_text().split() == ["path,labels", "'=a,cat;dog", "b,dog"]
    np.testing.assert_array_equal(np.load(applied("l.csv", "new.npy")), wanted)
    frame = pd.read_parquet(applied("l.csv", "new.parquet"))
    assert frame.columns.tolist() == ["image", "cat", "dog"]
    assert frame["image"].tolist() == ["=a", "b"]
    for out in ("new.npz", "new.parquet", "new.csv"):
        table = read_table(applied("l.csv", out) if out == "new.npz" else tmp_path / out)
        assert (table.ids, table.classes) == (("=a", "b"), ("cat", "dog"))
        np.testing.assert_array_equal(table.values, wanted)


def test_a_transition_of_another_class_order_is_matched_by_name(files, capsys):
    rho_pos = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    T = np.stack([np.tile([0.9, 0.1], (4, 1)), np.stack([rho_pos, 1 - rho_pos], 1)], 1).astype(np.float32)
    zero = np.zeros(4, np.int32)
    known = TransitionEstimate(T, T[:, 0, 1], T[:, 0], zero, zero, T[:, 0, 1])
    known.save(files / "named.npz", classes=CLASSES[::-1])
    command = ["audit", str(files / "labels.csv"), str(files / "probs.csv"), "--out", str(files / "t.html")]
    assert main([*command, "--transition", str(files / "named.npz")]) == 0
    found = json.loads((files / "t.json").read_text())["classes"]
    np.testing.assert_allclose([found[name]["rho_pos"] for name in CLASSES], rho_pos[::-1])
    again = TransitionEstimate.load(files / "t.transition.npz", classes=CLASSES[::-1])  # the audit stores names too
    np.testing.assert_allclose(again.rho_pos, rho_pos)
    capsys.readouterr()
    known.save(files / "named.npz", classes=["cow", *CLASSES[1:]])
    assert main([*command, "--transition", str(files / "named.npz")]) == 2
    assert "is of other classes" in complaint(capsys)


def test_a_run_without_a_page_is_said_in_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "no such run folder" in complaint(capsys)


@pytest.fixture
def judgements(data, tmp_path):
    """Three raters' judgements of 300 examples and two classes, a line each, with gaps; beside probs.csv."""
    _, probs, ids = data
    rng = np.random.default_rng(1)
    clean = (probs[:300, :2] > 0.5).astype(np.uint8)
    seen = np.stack([flip(rng, clean, 0.05, rho) for rho in (0.1, 0.2, 0.4)], 2)
    cells = [cell for cell in np.ndindex(seen.shape) if rng.random() < 0.8]
    rows = [(ids[i], CLASSES[j], f"rater {r}", seen[i, j, r]) for i, j, r in cells]
    pd.DataFrame(rows, columns=["example", "class", "rater", "label"]).to_csv(tmp_path / "judged.csv", index=False)
    frame = pd.DataFrame(probs[:300, :2], columns=CLASSES[:2], index=pd.Index(ids[:300], name="id"))
    frame.to_csv(tmp_path / "probs.csv")
    return tmp_path, clean, set(cells)


def test_raters_are_compared_from_a_long_table(judgements, data, capsys):
    folder, clean, cells = judgements
    arguments = ["raters", str(folder / "judged.csv"), "--out", str(folder / "out"), "--most", "50"]
    assert main([*arguments, "--probs", str(folder / "probs.csv")]) == 0
    assert "all classes: alpha 0." in capsys.readouterr().out
    raters, consensus, ask = (pd.read_csv(folder / "out" / f"{name}.csv") for name in ("raters", "consensus", "ask"))
    missed = raters.groupby("rater")["rho_pos"].mean()
    assert missed["rater 0"] < missed["rater 1"] < missed["rater 2"]
    assert (raters["pos_low"] <= raters["rho_pos"]).all()
    assert set(raters["status"]) <= {"estimated", "pooled"}
    right = consensus["consensus"].to_numpy().reshape(300, 2) == clean
    assert right.mean() > 0.97
    assert len(ask) == 50
    place = {name: i for i, name in enumerate(data[2])}
    asked = {(place[e], CLASSES.index(c), int(r[-1])) for e, c, r in ask[["example", "class", "rater"]].to_numpy()}
    assert not asked & cells
    assert main(arguments) == 0  # its own files are replaced


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("example,class,rater\na,b,c\n", 'judged.csv: column "label" is missing'),
        ("example,class,rater,label\na,b,c,2\n", "judged.csv: row 0 has label 2"),
        ("example,class,rater,label\na,b,c,maybe\n", "judged.csv: row 0 has label maybe; pass 0 or 1"),
        ("", "judged.csv: has 0 lines; pass a header"),
        ("example,class,rater,label\na,b,c,1\nb,b,c\n", "judged.csv: line 3 has 3 cells, the header 4"),
        ("example,class,rater,label\na,caf\xe9,c,1\n", "judged.csv: is no CSV in UTF-8 (byte 0xe9 in line 2)"),
    ],
)
def test_a_wrong_table_of_judgements_gets_one_line(tmp_path, capsys, text, said):
    (tmp_path / "judged.csv").write_text(text, encoding="latin-1")
    assert main(["raters", str(tmp_path / "judged.csv"), "--out", str(tmp_path / "out")]) == 2
    assert said in complaint(capsys)


@pytest.fixture
def matrices(tmp_path):
    """Labels and the cells taken as clean: sparse, dense, and in forms that are refused."""
    labels, selected = unbiased(np.random.default_rng(0), n=2000, q=6)
    sp.save_npz(tmp_path / "labels.npz", sp.csr_array(labels))
    sp.save_npz(tmp_path / "cells.npz", sp.csr_array(~selected))
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "selected.npy", selected)
    np.save(tmp_path / "narrow.npy", selected[:, :5])
    np.save(tmp_path / "flat.npy", labels[:, 0])
    np.save(tmp_path / "twos.npy", 2 * labels)
    np.save(tmp_path / "pickled.npy", np.array([{"evil": 1}], dtype=object))
    np.savez(tmp_path / "dense.npz", labels=labels)
    (tmp_path / "broken.npz").write_bytes(b"no zip at all")
    (tmp_path / "zipped.npy").write_bytes((tmp_path / "dense.npz").read_bytes())
    return tmp_path, labels, selected


@pytest.mark.parametrize("names", [("labels.npz", "--unselected", "cells.npz"),
                                   ("labels.npy", "--selected", "selected.npy")], ids=["sparse", "dense"])  # fmt: skip
def test_estimate_writes_the_T_of_the_function(matrices, names, capsys):
    folder, labels, selected = matrices
    rule = ["--aggregate", "medoid", "--assume", "missing", "--min-selected", "20"]
    out = folder / "new" / "T.npz"
    assert main(["estimate", str(folder / names[0]), names[1], str(folder / names[2]), "--out", str(out), *rule]) == 0
    assert "6 classes (" in capsys.readouterr().out
    expected = estimate_all(labels, selected, aggregate="medoid", assume="missing", min_selected=20)
    for found, wanted in zip(TransitionEstimate.load(out), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("labels", "words", "said"),
    [
        ("none.npz", ["--selected", "selected.npy"], "none.npz: there is no such file"),
        ("broken.npz", ["--selected", "selected.npy"], "broken.npz: is neither npz of scipy.sparse.save_npz nor npy"),
        ("dense.npz", ["--selected", "selected.npy"], "dense.npz: is neither npz of scipy.sparse.save_npz nor npy"),
        ("pickled.npy", ["--selected", "selected.npy"], "pickled.npy: is neither npz of scipy.sparse.save_npz nor npy"),
        ("zipped.npy", ["--selected", "selected.npy"], "zipped.npy: is neither npz of scipy.sparse.save_npz nor npy"),
        ("flat.npy", ["--selected", "selected.npy"], "flat.npy: has shape (2000,)"),
        ("twos.npy", ["--selected", "selected.npy"], "is 2; pass 0 or 1"),
        ("labels.npy", ["--selected", "narrow.npy"], "selected: shape (2000, 5), labels have (2000, 6)"),
        ("labels.npy", [], "selected, unselected: neither is given"),
        ("labels.npy", ["--selected", "selected.npy", "--unselected", "cells.npz"], "both are given"),
        ("labels.npy", ["--selected", "selected.npy", "--aggregate", "x"], "--aggregate: 'x' is unknown; pass joint"),
        ("labels.npy", ["--selected", "selected.npy", "--assume", "x"], "assume: 'x'; pass"),
        ("labels.npy", ["--selected", "selected.npy", "--process-id", "0"], "pass all three"),
    ],
)
def test_an_estimate_of_wrong_files_is_refused_in_one_line(matrices, capsys, monkeypatch, labels, words, said):
    monkeypatch.chdir(matrices[0])
    assert main(["estimate", labels, "--out", "T.npz", *words]) == 2
    assert said in complaint(capsys)
    assert not (matrices[0] / "T.npz").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["estimate", "labels.npy", "--selected", "selected.npy", "--out", "labels.npy"],
        ["estimate", "labels.npy", "--selected", "selected.npy", "--out", "stranger.npz"],
        ["raters", "raters.csv", "--out", "."],
        ["raters", "stranger.npz", "--out", "."],
        ["report", ".", "--out", "raters.csv"],
    ],
)
def test_no_command_replaces_an_input_or_a_stranger_s_file(matrices, capsys, monkeypatch, words):
    folder, *_ = matrices
    (folder / "raters.csv").write_text("example,class,rater,label\na,cat,anna,1\na,cat,ben,1\n")
    for name in ("stranger.npz", "metrics.jsonl"):
        (folder / name).write_text("theirs")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.chdir(folder)
    assert main(words) == 2
    assert complaint(capsys).startswith("mlt: --out: ")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_proposed_cells_are_decided_and_give_rates_that_cover_the_truth(files, data, capsys):
    labels, probs, ids = data
    clean = (np.random.default_rng(0).random(labels.shape) < probs).astype(int)  # not the labels' own: other mistakes
    assert audit(files, "--propose", 100) == 0
    assert "400 cells to decide, in random order" in capsys.readouterr().out
    frame = pd.read_csv(files / "r.proposal.csv", keep_default_na=False)
    assert list(frame) == ["example", "class", "given", "suggested", "p_wrong", "decision", "probability"]
    assert np.isclose((1 / frame["probability"]).sum(), labels.size)
    cells = [ids.index(e) for e in frame["example"]], [CLASSES.index(c) for c in frame["class"]]
    frame["decision"] = np.where(labels[cells] == clean[cells], "keep", "flip")
    frame.to_csv(files / "decisions.csv", index=False)
    assert audit(files, "--decisions", files / "decisions.csv") == 0
    out = capsys.readouterr().out
    assert "4 of 4 classes have enough decisions" in out
    found = json.loads((files / "r.json").read_text())
    low, high = found["share_interval"]
    assert low < (labels != clean).mean() < high
    assert f"{100 * found['share_wrong']:.1f} % of all labels are wrong" in out
    rows = [found["classes"][name] for name in CLASSES]
    assert {row["status"] for row in rows} == {"verified"}
    truth = [((labels == 0) & (clean == 1))[:, j].sum() / (clean == 1)[:, j].sum() for j in range(4)]
    inside = [row["interval_pos"][0] <= t <= row["interval_pos"][1] for row, t in zip(rows, truth, strict=True)]
    assert sum(inside) >= 3
    assert all(row["decisions"] == 100 and row["more_pos"] > 100 for row in rows)
    flips = {
        (e, c) for e, c, d in zip(*(frame[k] for k in ("example", "class", "decision")), strict=True) if d == "flip"
    }
    with (files / "r.issues.csv").open(newline="", encoding="utf-8") as file:
        first = [(row["example"], row["class"]) for row in list(csv.DictReader(file))[: len(flips)]]
    assert set(first) == flips


def test_decisions_on_suspects_alone_give_a_ranking_and_the_reason_for_no_rates(files, capsys):
    assert audit(files) == 0
    before = json.loads((files / "r.json").read_text())
    frame = pd.read_csv(files / "r.issues.csv").head(50)
    frame["decision"] = "keep"
    frame.to_csv(files / "decisions.csv", index=False)
    capsys.readouterr()
    assert audit(files, "--decisions", files / "decisions.csv") == 0
    assert "rates are as without decisions: no decision has the probability" in capsys.readouterr().out
    after = json.loads((files / "r.json").read_text())
    assert [row["rho_pos"] for row in after["classes"].values()] == [r["rho_pos"] for r in before["classes"].values()]
    kept = set(zip(frame["example"], frame["class"], strict=True))
    listed = pd.read_csv(files / "r.issues.csv")
    assert not kept & set(zip(listed["example"], listed["class"], strict=True))


def test_proposing_and_deciding_at_once_is_refused(files, capsys):
    assert audit(files, "--propose", 10, "--decisions", files / "labels.csv") == 2
    assert "--propose: --decisions is given as well" in complaint(capsys)
