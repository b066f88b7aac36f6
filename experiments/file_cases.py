# ruff: noqa: E501 -- a case per line
"""Files as people have them, tried one after the other: case, outcome, verdict.

    python experiments/file_cases.py

Every case writes the same labels in its own way and runs `mlt`. Where the file can be read, the suspects must be those
of the plain CSV file (or the relabelled file must be as expected); where it cannot, one line must say what to do. In any
case there is no traceback, no input changes by a byte, and no fragment is left. Exits with 1 where a verdict is bad.
"""

import contextlib
import csv
import io
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd

from mlt_jax.cli import main as mlt
from mlt_jax.transition import TransitionEstimate

N, CLASSES = 90, ("cat", "dog", "hot dog")
IDS = tuple(f"img_{k:03d}.jpg" for k in range(N))
RNG = np.random.default_rng(0)
PROBS = np.round(1 / (1 + np.exp(-RNG.normal(-1, 3, (N, len(CLASSES))))), 4)
LABELS = (RNG.random(PROBS.shape) < PROBS).astype(int) ^ (RNG.random(PROBS.shape) < 0.1)
NAMES = [[CLASSES[j] for j in np.flatnonzero(row)] for row in LABELS]


class Case(NamedTuple):
    """One trial: `write` writes into a folder and gives the words after `mlt`; `says` what a refusal must contain."""

    name: str
    write: Callable[[Path], list[str]]
    says: str | None = None  # None: it must work
    expect: Callable[[Path], bool] | None = None  # by default: the suspects are those of the plain file


def frame(key: str = "id", values: np.ndarray = LABELS) -> pd.DataFrame:
    """A column of ids and one per class."""
    return pd.DataFrame(values, columns=list(CLASSES), index=pd.Index(IDS, name=key)).reset_index()


def write_probs(folder: Path, key: str = "id") -> None:
    """probs.csv with rows and columns in another order than the labels', and T."""
    frame(key, PROBS)[[key, *CLASSES[::-1]]].iloc[::-1].to_csv(folder / "probs.csv", index=False)
    T = np.tile(np.array([[0.95, 0.05], [0.1, 0.9]], np.float32), (len(CLASSES), 1, 1))
    zero = np.zeros(len(CLASSES), np.int32)
    arrays = map(jnp.asarray, (T, T[:, 0, 1], T[:, 0], zero, zero, T[:, 0, 1]))
    TransitionEstimate(*arrays).save(folder / "T.npz")


def audit(labels: str, *more: str) -> list[str]:
    """The words of an audit of labels in the folder."""
    return ["audit", labels, "probs.csv", "--transition", "T.npz", "--out", "r.html", *more]


def table(name: str, labels: str, write: Callable[[Path], object], *more: str, says: str | None = None,
          key: str = "id") -> Case:  # fmt: skip
    """A case that writes `labels` by `write` and audits it; `key` names the ids of probs.csv."""

    def prepare(folder: Path) -> list[str]:
        write_probs(folder, key)
        (folder / labels).parent.mkdir(exist_ok=True, parents=True)
        write(folder / labels)
        return audit(labels, *more)

    return Case(name, prepare, says)


def text(name: str, content: str, *more: str, says: str | None = None, encoding: str = "utf-8") -> Case:
    """A case of labels.csv with this content."""
    return table(name, "labels.csv", lambda path: path.write_bytes(content.encode(encoding)), *more, says=says)


def listed(join: Callable[[list[str]], str], column: str = "labels", separator: str = ",") -> str:
    """The labels as lists in CSV."""
    out = io.StringIO()
    csv.writer(out, delimiter=separator).writerows(
        [["id", column], *([name, join(names)] for name, names in zip(IDS, NAMES, strict=True))]
    )
    return out.getvalue()


def wide(**options: object) -> str:
    """The labels as CSV by pandas."""
    return frame().to_csv(index=False, **options)


def coco(**wrong: object) -> str:
    """The labels as COCO's json; `wrong` replaces parts of it."""
    images = [{"id": 100 + k, "file_name": name} for k, name in enumerate(IDS)]
    cells = [{"id": k, "image_id": 100 + i, "category_id": 7 * j, "bbox": [0, 0, 1, 1]}
             for k, (i, j) in enumerate(np.argwhere(LABELS).tolist())]  # fmt: skip
    categories = [{"id": 7 * j, "name": name} for j, name in enumerate(CLASSES)]
    return json.dumps({"images": images, "annotations": cells, "categories": categories} | wrong)


def tasks(twice: bool = False) -> str:
    """The labels as Label Studio exports them; `twice`: two people disagree."""

    def annotation(names: list[str]) -> dict[str, object]:
        return {"result": [{"type": "choices", "from_name": "c", "to_name": "i", "value": {"choices": names}}]}

    rows = [{"id": k, "data": {"image": name}, "annotations": [annotation(names)]}
            for k, (name, names) in enumerate(zip(IDS, NAMES, strict=True))]  # fmt: skip
    if twice:
        rows[3]["annotations"] = [annotation(["cat"]), annotation(["dog"])]
    return json.dumps(rows)


def fiftyone() -> str:
    """The labels as samples.json of a FiftyOneDataset."""
    return json.dumps({"samples": [
        {"filepath": f"data/{name}", "ground_truth": {
            "_cls": "Classifications", "classifications": [{"_cls": "Classification", "label": x} for x in names]}}
        for name, names in zip(IDS, NAMES, strict=True)]})  # fmt: skip


def hugging_face(folder: Path) -> None:
    """Two parquet files with class indices, their names in the schema as `datasets` writes them, and pictures."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    feature = {"feature": {"names": list(CLASSES), "_type": "ClassLabel"}, "_type": "Sequence"}
    stored = {b"huggingface": json.dumps({"info": {"features": {"labels": feature}}}).encode()}
    (folder / "data").mkdir(parents=True)
    for part, rows in enumerate((slice(0, 25), slice(25, N))):
        content = {
            "image": [{"bytes": b"x", "path": name} for name in IDS[rows]],
            "labels": [np.flatnonzero(row).tolist() for row in LABELS[rows]],
        }
        whole = pa.table(content).replace_schema_metadata(stored)
        pq.write_table(whole, folder / "data" / f"train-0000{part}-of-00002.parquet")


def applied(name: str, content: str, decisions: str, out: str, wanted: str | None, *more: str,
            says: str | None = None, encoding: str = "utf-8", saved: str = "utf-8") -> Case:  # fmt: skip
    """A case of `mlt apply`: labels.csv with `content` and decisions, `saved` in their own encoding, become `wanted`, line by line."""

    def prepare(folder: Path) -> list[str]:
        (folder / "labels.csv").write_bytes(content.encode(encoding))
        (folder / "d.csv").write_bytes(("example,class,given,p_wrong,decision\n" + decisions).encode(saved))
        return ["apply", "labels.csv", "d.csv", "--out", out, *more]

    def as_wanted(folder: Path) -> bool:
        return (folder / out).read_bytes().decode(encoding).splitlines() == (wanted or "").splitlines()

    return Case(name, prepare, says, as_wanted)


def write_csv(key: str, path: Path) -> None:
    """The plain file, with the ids in a column of another name."""
    frame(key).to_csv(path, index=False)


def unpicklable(path: Path) -> None:
    """Writes an array that only pickle could read."""
    np.save(path, np.array([{"a": 1}], dtype=object))


def cases() -> list[Case]:
    """All of them."""
    flags = frame().astype(dict.fromkeys(CLASSES, bool))
    gaps = frame().astype(dict.fromkeys(CLASSES, object))
    records = [{"id": name, "labels": names} for name, names in zip(IDS, NAMES, strict=True)]
    lists = pd.DataFrame({"id": IDS, "labels": NAMES})
    plain = wide()
    short = "id,cat,dog\na,1,0\nb,0,1\n"
    shuffled = frame().sample(frac=1, random_state=0)
    other = frame().rename(columns={"cat": "id", "id": "picture"})

    def id_is_a_class(folder: Path) -> list[str]:
        write_probs(folder)
        other.to_csv(folder / "labels.csv", index=False)
        frame("picture", PROBS).rename(columns={"cat": "id"}).to_csv(folder / "probs.csv", index=False)
        return audit("labels.csv", "--id-column", "picture")

    def id_is_a_class_unasked(folder: Path) -> list[str]:
        return id_is_a_class(folder)[:-2]

    def renamed_suspects(folder: Path) -> bool:
        return suspects(folder, {"id": "cat"}) == baseline()

    def over_input(folder: Path) -> list[str]:
        write_probs(folder)
        (folder / "labels.csv").write_text(plain)
        return ["audit", "labels.csv", "probs.csv", "--out", "labels.csv"]

    def option(*more: str) -> Callable[[Path], list[str]]:
        def prepare(folder: Path) -> list[str]:
            write_probs(folder)
            (folder / "labels.csv").write_text(plain)
            return audit("labels.csv", *more)

        return prepare

    def folder_as_labels(folder: Path) -> list[str]:
        write_probs(folder)
        (folder / "things").mkdir()
        return audit("things")

    def decimal_commas(folder: Path) -> list[str]:
        write_probs(folder)
        (folder / "labels.csv").write_text(plain)
        frame("id", PROBS).to_csv(folder / "probs.csv", index=False, sep=";", decimal=",")
        return audit("labels.csv")

    def umlauts(labels: str, probs: str, *more: str) -> Callable[[Path], list[str]]:
        def prepare(folder: Path) -> list[str]:
            write_probs(folder)
            for name, values, encoding in (("labels", LABELS, labels), ("probs", PROBS, probs)):
                content = (
                    frame("id", values).to_csv(index=False).replace("img_0", "bild_für_0").replace("dog", "Döggel")
                )
                (folder / f"{name}.csv").write_bytes(content.encode(encoding))
            return audit("labels.csv", *more)

        return prepare

    def numbered(labels: str, probs: str) -> Callable[[Path], list[str]]:
        def prepare(folder: Path) -> list[str]:
            write_probs(folder)
            turned = frame().drop(columns="id").iloc[::-1]
            turned.to_csv(folder / "labels.csv") if labels == "csv" else turned.to_parquet(folder / "labels.parquet")
            plain = frame("id", PROBS).drop(columns="id")
            plain.to_csv(folder / "probs.csv") if probs == "csv" else np.save(folder / "probs.npy", PROBS)
            return [word.replace("probs.csv", f"probs.{probs}") for word in audit(f"labels.{labels}")]

        return prepare

    def renumbered(folder: Path) -> bool:
        return sorted((IDS[int(example)], *rest) for example, *rest in suspects(folder)) == baseline()

    def without_umlauts(folder: Path) -> bool:
        rows = suspects(folder, {"Döggel": "dog", "hot Döggel": "hot dog"})
        return sorted((example.replace("bild_für_0", "img_0"), *rest) for example, *rest in rows) == baseline()

    def words_for_gaps(folder: Path) -> list[str]:
        write_probs(folder)
        words = itertools.cycle(("", "NA", "null", "nan", "n/a"))
        holes = {example for example, *_ in baseline()}
        rows = [[name, *(next(words) if name in holes else x for x in row)] for name, *row in frame().values.tolist()]
        pd.DataFrame(rows, columns=["id", *CLASSES]).to_csv(folder / "labels.csv", index=False)
        return audit("labels.csv")

    def without_gaps(folder: Path) -> bool:
        holes = {example for example, *_ in baseline()}
        counts = [row["given"] for row in json.loads((folder / "r.json").read_text())["classes"].values()]
        rest = LABELS[[name not in holes for name in IDS]].sum(axis=0).tolist()
        return counts == rest and holes.isdisjoint(example for example, *_ in suspects(folder))

    def decided(name: str, content: object) -> Callable[[Path], list[str]]:
        def prepare(folder: Path) -> list[str]:
            (folder / "labels.csv").write_text(short)
            (folder / name).write_text(json.dumps(content))
            return ["apply", "labels.csv", name, "--out", "n.csv"]

        return prepare

    def dog_of_a(folder: Path) -> bool:
        return (folder / "n.csv").read_text().split() == ["id,cat,dog", "a,1,1", "b,0,1"]

    def exported(folder: Path) -> bool:
        count = len({example for example, *_ in baseline()})
        there = [json.loads((folder / name).read_text()) for name in ("t.json", "set/samples.json")]
        flags = pd.read_csv(folder / "c.csv").is_label_issue
        return (len(there[0]), len(there[1]["samples"]), int(flags.sum())) == (count, N, count)

    answer = [{"value": {"choices": ["cat", "dog"]}}]
    task = {"id": 1, "data": {"example": "a", "given": ["cat"], "suspects": {"dog": 0.9}}}
    tagged = {"label": "dog", "confidence": 0.9, "given": 0, "tags": ["add", "flip"]}

    def two_splits(path: Path) -> None:
        path.mkdir()
        for split in ("train", "test"):
            frame().to_parquet(path / f"{split}-00000-of-00001.parquet")

    found = [
        text("plain CSV", plain),
        table("rows in another order", "labels.csv", lambda p: shuffled.to_csv(p, index=False)),
        *(table(f"ids called {key}", "labels.csv", partial(write_csv, key), key=key)
          for key in ("image_id", "file_name", "filename", "path", "uid", "Image")),
        table("ids called otherwise, --id-column", "labels.csv",
              lambda p: frame("scan").iloc[:, [1, 0, 2, 3]].to_csv(p, index=False), "--id-column", "scan"),
        table("--id-column that is not there", "labels.csv",
              lambda p: frame("scan").iloc[:, [1, 0, 2, 3]].to_csv(p, index=False), "--id-column", "scna",
              says='has no column "scna"'),
        Case("a class called id, --id-column", id_is_a_class, None, renamed_suspects),
        Case("a class called id, unasked", id_is_a_class_unasked, None, renamed_suspects),
        table("a column that is no class, --ignore-columns", "labels.csv",
              lambda p: frame().assign(width=640).to_csv(p, index=False), "--ignore-columns", "width"),
        table("a column that is no class, unasked", "labels.csv",
              lambda p: frame().assign(width=640).to_csv(p, index=False), says='column "width" is missing'),
        table("a column of words", "labels.csv", lambda p: frame().assign(note="good").to_csv(p, index=False),
              says="line 2"),
        text("--ignore-columns that is nowhere", plain, "--ignore-columns", "widht", says='no file has a column "widht"'),
        text("semicolons", wide(sep=";")),
        text("tabs in .csv", wide(sep="\t")),
        text("bars", wide(sep="|")),
        text("colons, --separator", wide(sep=":"), "--separator", ":"),
        text("colons, unasked", wide(sep=":"), says="is --separator right?"),
        text("a separator of two characters", plain, "--separator", "::", says="--separator"),
        text("UTF-8 with its mark", "\ufeff" + plain),
        text("UTF-16 with its mark", plain, encoding="utf-16"),
        text("UTF-16 without its mark", plain, encoding="utf-16-le", says="--encoding utf-16-le"),
        text("cp1252, unasked", plain.replace("img_000", "img_ü00"), encoding="cp1252", says="byte 0xfc in line 2"),
        text("cp1252, --encoding, an id that is not in probs.csv", plain.replace("img_000", "img_ü00"), "--encoding",
             "cp1252", encoding="cp1252", says='the first is "img_ü00.jpg"'),
        text("an encoding that is not", plain, "--encoding", "utf8x", says="--encoding: 'utf8x' is unknown"),
        text("line ends of Windows", plain.replace("\n", "\r\n")),
        text("line ends of old Macs", plain.replace("\n", "\r")),
        text("True and False", flags.to_csv(index=False)),
        text("TRUE and FALSE", flags.to_csv(index=False).replace("True", "TRUE").replace("False", "FALSE")),
        text("0.0 and 1.0", frame().astype(dict.fromkeys(CLASSES, float)).to_csv(index=False)),
        text("decimal commas", wide(sep=";").replace(";1", ";1,0")),
        Case("predictions with decimal commas", decimal_commas),
        Case("gaps as NA, null, n/a, nothing", words_for_gaps, None, without_gaps),
        Case("cp1252, --encoding", umlauts("cp1252", "cp1252", "--encoding", "cp1252"), None, without_umlauts),
        Case("labels in cp1252, predictions in UTF-8", umlauts("cp1252", "utf-8", "--encoding", "cp1252"), None,
             without_umlauts),
        Case("labels in UTF-8, predictions in UTF-16", umlauts("utf-8", "utf-16"), None, without_umlauts),
        text("yes and no", flags.replace({True: "yes", False: "no"}).to_csv(index=False), says='is "'),
        text("lists a;b", listed(";".join)),
        text("lists a; b", listed("; ".join)),
        text("lists a|b", listed("|".join)),
        text("lists a, b in quotes", listed(", ".join)),
        text("lists with ; between cells, too", listed("|".join, separator=";")),
        text("lists as Python writes them", listed(str)),
        text("lists as NumPy writes them", listed(lambda names: str(np.array(names, object)))),
        text("lists as JSON writes them", listed(json.dumps)),
        text("a list that is none", listed(str).replace("['cat']", "['cat'", 1), says="no list"),
        text("lists with ; and |", listed(";".join).replace("cat;dog", "cat|dog", 1), says='has "|"'),
        text("lists called tags", listed(";".join, "tags")),
        text("lists called anything", listed(";".join, "what is seen")),
        text("lists of a class that probs.csv has not", listed(";".join).replace("cat", "cta"), says='lists "cta"'),
        table("two columns of lists", "labels.parquet", lambda p: lists.assign(tags=NAMES).to_parquet(p), says="hold lists"),
        table("lists beside 0/1", "labels.parquet", lambda p: lists.assign(seen=LABELS[:, 0]).to_parquet(p),
              says="--ignore-columns"),
        table("parquet", "labels.parquet", lambda p: frame().to_parquet(p)),
        table("parquet, ids as index, other order", "labels.parquet", lambda p: shuffled.set_index("id").to_parquet(p)),
        table("parquet, index of two levels", "labels.parquet",
              lambda p: frame().assign(fold=1).set_index(["fold", "id"]).to_parquet(p), "--ignore-columns", "fold"),
        table("parquet, an index that is a column, too", "labels.parquet",
              lambda p: frame().set_index("id", drop=False).to_parquet(p), says="is an index and a column"),
        Case("index without name, other order", numbered("csv", "csv"), None, renumbered),
        Case("index of numbers, other order, beside none", numbered("parquet", "npy"), "row numbers in another order"),
        table("parquet of bools", "labels.parquet", lambda p: flags.to_parquet(p)),
        table("parquet of objects", "labels.parquet", lambda p: gaps.to_parquet(p)),
        table("parquet of lists", "labels.parquet", lambda p: lists.to_parquet(p)),
        table("Hugging Face folder", "set", hugging_face),
        table("Hugging Face folder of two splits", "set", two_splits, says="is a folder with test, train"),
        table("JSON lines of lists", "labels.jsonl", lambda p: p.write_text("\n".join(map(json.dumps, records)))),
        table("JSON lines of numbers", "labels.jsonl", lambda p: frame().to_json(p, orient="records", lines=True)),
        table("JSON lines, one broken", "labels.jsonl", lambda p: p.write_text('{"id": 1}\n{"id": \n'), says="line 2 is no"),
        table("JSON, names by id", "labels.json",
              lambda p: p.write_text(json.dumps(dict(zip(IDS, NAMES, strict=True))))),
        table("COCO", "labels.json", lambda p: p.write_text(coco())),
        table("COCO without a category", "labels.json", lambda p: p.write_text(coco(categories=[])),
              says="category"),
        table("Label Studio's export", "labels.json", lambda p: p.write_text(tasks())),
        table("Label Studio, two people disagree", "labels.json", lambda p: p.write_text(tasks(twice=True)),
              says="task 3 has annotations that differ"),
        table("FiftyOne's samples", "labels.json", lambda p: p.write_text(fiftyone())),
        table("JSON of something else", "labels.json", lambda p: p.write_text("17"), says="pass a list of objects"),
        table("npz with names", "labels.npz",
              lambda p: np.savez(p, labels=LABELS, classes=np.array(CLASSES), ids=np.array(IDS))),
        table("npy with pickle", "labels.npy", unpicklable, says="no npy file"),
        table("Excel", "labels.xlsx", lambda p: p.write_bytes(b"PK"), says="cannot read .xlsx"),
        Case("a folder without parquet", folder_as_labels, "is a folder"),
        text("empty", "", says="has 0 lines"),
        text("one line", "id,cat\n", says="has 1 lines"),
        text("a short line", plain.replace("img_005.jpg,", "img_005.jpg", 1), says="line 7"),
        text("an id twice", plain.replace("img_005", "img_004"), says="occurs twice"),
        text("an example without id", plain.replace("img_005.jpg", ""), says="has no id"),
        text("one example less", plain.rsplit("\n", 2)[0], says="ids are not in"),
        Case("--out is an input", over_input, "would replace an input"),
        Case("--out is a folder", lambda folder: [*folder_as_labels(folder)[:1], *option()(folder)[1:-1], "things"],
             "things is a folder"),
        Case("--export to all tools", option("--export", "label-studio=t.json", "fiftyone=set", "cleanlab=c.csv"), None,
             exported),
        Case("--export over an input", option("--export", "cleanlab=labels.csv"), "would replace an input"),
        Case("--export to an unknown tool", option("--export", "cvat=x.xml"), "'cvat' is unknown"),
        Case("apply what Label Studio exported", decided("d.json", [task | {"annotations": [{"result": answer}]}]), None,
             dog_of_a),
        Case("apply another project of Label Studio", decided("d.json", [{"id": 1, "data": {}, "annotations": []}]),
             "mlt did not export it"),
        Case("apply what FiftyOne exported", decided("samples.json", {"samples": [
            {"example": "a", "suspects": {"classifications": [tagged]}}]}), None, dog_of_a),
        Case("--most -5", option("--most", "-5"), "--most: -5"),
        Case("--threshold 95", option("--threshold", "95"), "--threshold: 95"),
        applied("apply --above 95", short, "a,cat,1,.9,\n", "n.csv", None, "--above", "95", says="0.95 for 95 %"),
        applied("apply keeps other columns and their order", "note,id,cat,dog\nx y,a,1,0\n,b,NA,1\n", "a,dog,0,.9,flip\n",
                "n.csv", "note,id,cat,dog\nx y,a,1,1\n,b,NA,1\n", "--ignore-columns", "note"),
        applied("apply keeps words, separator, encoding", "id;cat;dög\na;True;False\nb;False;NA\n", "a,dög,0,.9,flip\n",
                "n.csv", "id;cat;dög\na;True;True\nb;False;NA\n", "--encoding", "cp1252", encoding="cp1252"),
        applied("apply reads decisions in the encoding it is told", "id;dög\na;1\nb;0\n", "a,dög,1,.9,flip\n", "n.csv",
                "id;dög\na;0\nb;0\n", "--encoding", "cp1252", encoding="cp1252", saved="cp1252"),
        applied("apply keeps Python's lists", "id,tags\na,\"['cat', 'dog']\"\nb,[]\n", "a,dog,1,.9,flip\n", "n.csv",
                "id,tags\na,['cat']\nb,[]\n"),
        applied("apply keeps a|b", "id,tags\na,cat|dog\nb,dog\n", "b,cat,0,.9,flip\n", "n.csv",
                "id,tags\na,cat|dog\nb,cat|dog\n"),
        applied("apply guards formulas", "id,cat\n'=a,1\nb,0\n", "'=a,cat,1,.9,flip\n", "n.csv", "id,cat\n'=a,0\nb,0\n"),
        applied("apply over its input", short, "a,cat,1,.9,flip\n", "labels.csv", None, says="would replace an input"),
        applied("apply into Excel", short, "a,cat,1,.9,flip\n", "n.xlsx", None, says="cannot write .xlsx"),
        applied("apply to a class that is not there", short, "a,cow,1,.9,flip\n", "n.csv", None, says="not among the labels"),
    ]  # fmt: skip
    return found


def suspects(folder: Path, names: dict[str, str] | None = None) -> list[tuple[str, ...]]:
    """The rows of r.issues.csv, classes renamed, sorted; four decimals, as sums depend on the order of the rows."""
    with (folder / "r.issues.csv").open(newline="") as file:
        rows = [
            (row["example"], row["class"], row["given"], f"{float(row['p_wrong']):.4f}") for row in csv.DictReader(file)
        ]
    return sorted((example, (names or {}).get(name, name), *rest) for example, name, *rest in rows)


def baseline() -> list[tuple[str, ...]]:
    """The suspects of the plain file; told by hand: labels that contradict the predictions."""
    if not _BASELINE:
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name), contextlib.redirect_stdout(io.StringIO()):
            write_probs(Path(name))
            frame().to_csv("labels.csv", index=False)
            assert mlt(audit("labels.csv")) == 0
            _BASELINE.extend(suspects(Path(name)))
    return _BASELINE


_BASELINE: list[tuple[str, ...]] = []


def run(case: Case) -> tuple[str, str]:
    """(outcome, verdict) of one case."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        words = case.write(folder)
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = mlt(words)
        except BaseException as error:  # a traceback, whatever its kind, is the finding
            return f"{type(error).__name__}: {error}", "TRACEBACK"
        said = err.getvalue().strip().replace(f"{folder}/", "")
        lost = [path.name for path, content in before.items() if not path.exists() or path.read_bytes() != content]
        drafts = [path.name for path in folder.rglob(".*")]
        if lost or drafts:
            return f"changed {lost}, left {drafts}", "LOST BYTES"
        if case.says is not None:
            new = [path for path in folder.rglob("*") if path.is_file() and path not in before]
            good = code == 2 and case.says in said and said.count("\n") == 0 and not new
            return said or "was taken", "refused" if good else "NOT REFUSED WELL"
        if code != 0:
            return said, "NOT READ"
        expect = case.expect or (lambda folder: suspects(folder) == baseline())
        return out.getvalue().strip().splitlines()[-1], "as expected" if expect(folder) else "MISMATCH"


def main() -> int:
    """Prints the table; the exit code is 1 where a verdict is bad."""
    bad = 0
    assert len(contradicting(baseline())) == len(baseline()) > 3
    for case in cases():
        outcome, verdict = run(case)
        bad += verdict.isupper()
        print(f"{case.name:52} {verdict:12} {outcome[:160]}")
    print(f"{len(cases())} cases, {bad} bad")
    return int(bad > 0)


def contradicting(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Those suspects whose given label is that of the example and class, and contradicts the prediction."""
    place = {name: k for k, name in enumerate(IDS)}, {name: k for k, name in enumerate(CLASSES)}
    cells = [(place[0][example], place[1][name], int(given)) for example, name, given, _ in rows]
    kept = [abs(PROBS[i, j] - given) > 0.5 and LABELS[i, j] == given for i, j, given in cells]
    return [row for row, keep in zip(rows, kept, strict=True) if keep]


if __name__ == "__main__":
    sys.exit(main())
