"""The list of labels to decide in a real browser: keys, undo, reviewers, files, pictures, names for all controls."""

import csv
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from audited import CLASSES, simulated_audit
from PIL import Image

from mlt_jax.audit.issues import find_label_issues
from mlt_jax.cli import main
from mlt_jax.files.tables import read_table
from mlt_jax.report import audit_page
from mlt_jax.transition import from_matrices

FOCUS = "document.activeElement.ariaRowIndex"
SETTLED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
CORNERS = "ks => ks.map(k => document.querySelector(`.issue[aria-rowindex='${k}']`).getBoundingClientRect().toJSON())"
AXE = "axe-core@4.14.0"


def row(k):
    return f'.issue[aria-rowindex="{k}"]'


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def states(page, *places):
    """What is decided in these rows."""
    words = [set(page.get_attribute(row(k), "class").split()) & {"flip", "keep", "split"} for k in places]
    return ["".join(word) for word in words]


def saved(page):
    with page.expect_download() as file:
        page.click("#save")
    with Path(file.value.path()).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def chosen(page, path, text):
    path.write_bytes(text.encode())
    page.set_input_files("#file", path)
    page.wait_for_function("document.getElementById('said').textContent")
    return page.inner_text("#said")


def test_keys_decide_move_and_undo_and_the_focus_stays(show, audited):
    page, complaints, _ = show(audited[1])
    page.click(f"{row(1)} .who")
    press(page, "f")
    assert (states(page, 1), page.evaluate(FOCUS)) == (["flip"], "1")
    press(page, "ArrowDown", "k", "n")
    assert (states(page, 1, 2, 3), page.evaluate(FOCUS)) == (["flip", "keep", ""], "3")
    press(page, "ArrowUp", "ArrowUp", "n")  # the next one that is undecided
    assert page.evaluate(FOCUS) == "3"
    assert page.inner_text("#progress").startswith("2 of ")
    press(page, "u")
    assert (states(page, 1, 2), page.evaluate(FOCUS)) == (["flip", ""], "2")
    press(page, "Control+z")
    assert (states(page, 1, 2), page.evaluate(FOCUS)) == (["", ""], "1")
    assert page.is_disabled("#undo")
    press(page, "f", "k", "k")  # changed, then taken back
    assert states(page, 1) == [""]
    press(page, "End")
    assert page.evaluate(FOCUS) == str(len(find_label_issues(audited[0]).wrong))
    press(page, "Home", "PageDown")
    assert 5 < int(page.evaluate(FOCUS)) < 20
    assert complaints == []


def test_a_click_keeps_the_focus_and_so_does_scrolling_away(show, audited):
    page, _, _ = show(audited[1])
    page.click(f"{row(2)} .f")
    assert page.evaluate("document.activeElement.textContent") == page.inner_text(f"{row(2)} .f")
    press(page, "ArrowUp")
    page.evaluate("document.getElementById('view').scrollTop = 1e9")
    page.evaluate(SETTLED)
    assert page.evaluate(FOCUS) == "1"
    press(page, "ArrowDown")
    assert page.evaluate(FOCUS) == "2"
    assert page.evaluate("document.getElementById('view').scrollTop") <= 64


def test_with_only_the_undecided_shown_one_key_decides_and_moves_on(show, audited):
    page, complaints, _ = show(audited[1])
    several = len(find_label_issues(audited[0]).wrong)
    worst = [page.inner_text(f"{row(k)} .who") for k in (1, 2, 3, 4)]
    page.select_option("#state", "undecided")
    page.click(f"{row(1)} .who")
    press(page, "f", "k", "f")
    assert (page.evaluate(FOCUS), page.inner_text(f"{row(1)} .who")) == ("1", worst[3])
    assert page.inner_text("#progress") == f"3 of {several:,} decided"
    assert page.evaluate("document.getElementById('done').value") == 3
    assert page.inner_text("#shown") == f"{several - 3:,} of {several:,} suspects"
    press(page, "u")
    assert (page.evaluate(FOCUS), page.inner_text(f"{row(1)} .who")) == ("1", worst[2])
    page.select_option("#state", "decided")
    assert states(page, 1, 2) == ["flip", "keep"]
    assert page.locator(".issue").count() == 2
    assert complaints == []


def test_letters_in_a_field_and_far_from_the_list_decide_nothing(show, audited):
    page, _, _ = show(audited[1])
    page.evaluate("scrollTo(0, 0)")
    press(page, "f")
    page.click("#search")
    page.keyboard.type("fkn")
    page.click("#reviewer")
    page.keyboard.type("frank")
    assert page.is_disabled("#save")


def test_people_read_remove_or_add_label_and_files_say_flip(show, audited):
    page, _, _ = show(audited[1])
    for given, words in (("1", "remove label"), ("0", "add label")):
        page.select_option("#kind", given)
        assert page.inner_text(f"{row(1)} .f") == words
        page.click(f"{row(1)} .f")
    assert "flip" not in page.inner_text("body").lower()
    assert {line["decision"] for line in saved(page)} == {"flip"}


def test_all_given_labels_of_an_example_stand_beside_the_suspect_one(show, audited):
    audit, path = audited
    page, _, _ = show(path)
    for k in range(6):
        example, column = (x[k] for x in find_label_issues(audit)[:2])
        names = [CLASSES[j] for j in np.flatnonzero(audit.labels.values[example])]
        text = page.text_content(f"{row(k + 1)} .has")
        assert text == (f"given: {', '.join(names)}" if names else "no label is given")
        marked = page.locator(f"{row(k + 1)} .has b").all_text_contents()
        assert marked == ([CLASSES[column]] if audit.labels.values[example, column] else [])


def test_reviewers_import_each_other_see_disagreements_and_settle_them(show, audited, tmp_path):
    page, complaints, _ = show(audited[1])
    press(page, "n")  # the list is not on screen: nothing happens
    page.click(f"{row(1)} .f")  # decided before the name was given
    page.fill("#reviewer", "anna")
    page.click(f"{row(2)} .k")
    page.click(f"{row(3)} .k")
    first = saved(page)
    assert [(line["decision"], line["reviewer"]) for line in first] == [
        ("flip", "anna"),
        ("keep", "anna"),
        ("keep", "anna"),
    ]
    first[1] |= {"decision": "flip", "reviewer": "ben"}
    first[2] |= {"decision": "Right", "reviewer": ""}
    stranger = ["nobody", CLASSES[0], "1", "0", "0.9", "flip", "ben"]
    lines = [list(first[0]), *(list(line.values()) for line in first), stranger]
    csv.writer(text := StringIO(), delimiter=";").writerows(lines)
    said = chosen(page, tmp_path / "ben.csv", "\ufeff" + text.getvalue())  # as Excel saves it in Germany
    assert said.startswith("ben.csv: 3 decisions taken; 1 disagreement; 1 left")
    assert states(page, 1, 2, 3) == ["flip", "split", "keep"]
    assert page.inner_text("#progress").endswith("decided, 1 disagreement")
    assert page.inner_text(f"{row(2)} .by").startswith("anna: keep; ben: ")
    lines = saved(page)
    assert Counter((line["decision"], line["reviewer"]) for line in lines) == Counter(
        [("flip", "anna"), ("keep", "anna"), ("flip", "ben"), ("keep", "anna"), ("keep", "ben.csv")]
    )
    page.reload()
    assert page.input_value("#reviewer") == "anna"
    page.select_option("#state", "split")
    assert page.locator(".issue").count() == 1
    page.click(f"{row(1)} .f")
    assert page.is_visible("#none")
    lines = saved(page)
    assert [(line["decision"], line["reviewer"]) for line in lines][1] == ("flip", "anna")
    assert len(lines) == 4
    assert complaints == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("example,class,given\na,b,1\n", 'column "decision" is missing. Nothing was taken.'),
        ("example,class,given,decision\na,b,1,perhaps\n", 'line 2 decides "perhaps"; write flip, keep or nothing.'),
        ('example,class,given,decision\na,"b\n', "line 2 is no CSV. Nothing was taken."),
        ("example,class,given,decision\na,b,1,flip\n", "0 decisions taken; 1 left: their labels are not on this page"),
    ],
)
def test_a_file_that_does_not_fit_is_explained_on_the_page(show, audited, tmp_path, text, complaint):
    page, complaints, _ = show(audited[1])
    assert complaint in chosen(page, tmp_path / "d.csv", text)
    assert page.is_disabled("#save")
    assert complaints == []


def test_names_of_all_kinds_survive_saving_and_importing(show, tmp_path):
    ids = ["=cmd|1", "'=x", "a,b", 'say "x"', "two\nlines", "-1", "naïve"]
    audit = simulated_audit(ids=[ids[k] if k < len(ids) else f"e{k}" for k in range(3000)])
    wrong = np.full(audit.wrong.shape, 0.1, np.float32)
    wrong[: len(ids)] = 0.9
    path = audit_page(audit._replace(wrong=wrong), tmp_path / "r.html")
    page, _, _ = show(path)
    page.click(f"{row(1)} .who")
    for _ in range(4 * len(ids)):
        press(page, "f", "ArrowDown")
    with page.expect_download() as file:
        page.click("#save")
    other, complaints, _ = show(path)
    said = chosen(other, tmp_path / "decisions.csv", Path(file.value.path()).read_text(encoding="utf-8"))
    assert said == "decisions.csv: 28 decisions taken."
    assert other.inner_text("#progress") == "28 of 28 decided"
    press(other, "u")  # nothing: the list is not on screen
    other.click("#undo")
    assert other.inner_text("#progress") == "0 of 28 decided"
    assert complaints == []


def test_a_browser_that_keeps_nothing_says_so_and_saves(chromium, audited):
    context = chromium.new_context()
    page = context.new_page()
    page.add_init_script("Storage.prototype.setItem = () => { throw new Error('full') }")
    page.goto(audited[1].as_uri())
    page.click(f"{row(1)} .f")
    assert page.inner_text("#said") == "This browser does not keep decisions: save them before you leave."
    assert len(saved(page)) == 1
    context.close()


def written(folder, audit):
    """labels.csv with a column that is no class, and predictions, as files of an audit."""
    for name, values in (("labels", audit.labels.values), ("probs", audit.clean_probs)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, delimiter=";")
            table.writerow(
                ["scan", "width", *map(str, range(4))] if name == "labels" else ["scan", *map(str, range(4))]
            )
            rows = zip(audit.ids, values.tolist(), strict=True)
            table.writerows([i, 7, *x] if name == "labels" else [i, *x] for i, x in rows)


def test_the_command_on_the_page_is_the_one_to_run(show, tmp_path, monkeypatch):
    audit = simulated_audit(classes=None)
    written(tmp_path, audit)
    from_matrices(audit.found.T, audit.labels).save(tmp_path / "T.npz")
    monkeypatch.chdir(tmp_path)
    options = ["--id-column", "scan", "--ignore-columns", "width", "--separator", ";", "--transition", "T.npz"]
    assert main(["audit", "labels.csv", "probs.csv", "--out", "r.html", *options]) == 0
    page, complaints, _ = show(tmp_path / "r.html")
    page.click(f"{row(1)} .f")
    command = page.inner_text("#command")
    assert command.startswith("mlt apply labels.csv decisions.csv --id-column scan --separator ';' ")
    page.click("#copy")
    assert page.evaluate("getSelection().toString()").strip() == command
    with page.expect_download() as file:
        page.click("#save")
    shutil.copy(file.value.path(), "decisions.csv")
    assert main(shlex.split(command)[1:]) == 0
    before, after = (
        read_table(Path(name), id_column="scan", ignore=("width",)) for name in ("labels.csv", "relabelled.csv")
    )
    assert (before.values != after.values).sum() == 1
    assert complaints == []


@pytest.fixture
def pictured(tmp_path):
    """An audit, and a folder of pictures of its examples, 300 x 200."""
    audit = simulated_audit(ids=[f"image {k}#é" for k in range(3000)])
    (tmp_path / "pics").mkdir()
    first = list(dict.fromkeys(find_label_issues(audit).example.tolist()))[:60]
    for k in first:
        Image.new("RGB", (300, 200), (k % 256, 90, 120)).save(tmp_path / "pics" / f"{audit.ids[k]}.jpg")
    return audit, tmp_path


def width(page, which):
    page.wait_for_function(f"document.querySelector('{which}').naturalWidth")
    return page.evaluate(f"document.querySelector('{which}').naturalWidth")


def test_a_click_shows_the_original_beside_the_page_or_else_the_thumbnail(show, pictured):
    audit, folder = pictured
    path = audit_page(audit, folder / "report.html", images=folder / "pics")
    page, complaints, requests = show(path)
    assert width(page, ".issue img") == 160
    page.click(f"{row(1)} button.thumb")
    assert width(page, "#large") == 300
    assert requests[1:] == [(folder / "pics" / f"{page.inner_text(f'{row(1)} .who')}.jpg").as_uri()]
    press(page, "ArrowRight", "f")  # keys go on in the picture
    assert states(page, 1, 2) == ["", "flip"]
    assert page.inner_text("#about").startswith(page.inner_text(f"{row(2)} .who"))
    press(page, "Escape")
    page.evaluate(SETTLED)  # the dialog says a little later that it is closed
    assert page.evaluate(FOCUS) == "2"
    assert "Pictures: 60 of " in page.inner_text("#issues")
    assert complaints == []
    (folder / "pics").rename(folder / "gone")
    page.reload()
    page.click(f"{row(1)} button.thumb")
    assert width(page, "#large") == 160


def test_pictures_that_are_not_in_the_page_are_loaded_as_they_come_into_view(show, pictured):
    audit, folder = pictured
    page, complaints, requests = show(
        audit_page(audit, folder / "out" / "r.html", images=folder / "pics", embed=0.0, most=40)
    )
    assert width(page, ".issue img") == 300
    page.evaluate(SETTLED)
    assert 8 <= len(requests) - 1 <= 24
    several = len(set(find_label_issues(audit, most=40).example.tolist()))
    said = f"0 of {several} are in the page (0.0 MB); {several} are loaded from the image folder"
    assert said in page.inner_text("#issues")
    page.evaluate("document.getElementById('view').scrollTop = 1e9")
    page.locator(row(40)).wait_for()
    page.wait_for_function(f"document.querySelector('{row(40)} img').naturalWidth")
    assert len(set(requests)) - 1 <= 40
    assert complaints == []


@pytest.mark.parametrize("size", [(1160, 900), (360, 740)])
def test_a_gallery_shows_the_pictures_of_a_class(show, audited, size):
    audit, path = audited
    page, complaints, _ = show(path, width=size[0], height=size[1])
    page.click('.class .count [data-column="2"]')
    issues = find_label_issues(audit)
    assert page.inner_text("#shown").startswith(f"{(issues.column == 2).sum()} of ")
    assert set(page.locator(".issue .what").all_text_contents()) == {CLASSES[2]}
    first, second = page.evaluate(CORNERS, [1, 2])
    assert first["y"] == second["y"]
    assert second["right"] <= size[0]
    page.click(f"{row(1)} .who")
    press(page, "ArrowDown")
    place = int(page.evaluate(FOCUS))
    assert place > 2
    assert page.evaluate(CORNERS, [place])[0]["x"] == first["x"]
    press(page, "ArrowRight", "f")
    assert states(page, place + 1) == ["flip"]
    page.click("#layout")
    assert page.get_attribute("#layout", "aria-pressed") == "false"
    first, second = page.evaluate(CORNERS, [1, 2])
    assert (first["x"], first["bottom"]) == (second["x"], second["y"])
    assert complaints == []


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The source of axe-core, from npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not on PATH; axe-core comes from there")
    folder = tmp_path_factory.mktemp("axe")
    install = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", AXE]
    done = subprocess.run(install, capture_output=True, text=True, env=os.environ | {"HOME": str(folder)})
    if done.returncode:
        pytest.skip(f"npm could not fetch {AXE}: {done.stderr.strip()[-200:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(("size", "dark"), [((1160, 900), False), ((1160, 900), True), ((360, 740), False)])
def test_axe_finds_names_for_all_controls_and_contrast_of_AA(show, audited, axe, dark, size):
    page, _, _ = show(audited[1], width=size[0], height=size[1], dark=dark)
    page.click(f"{row(1)} .f")
    page.click(f"{row(2)} .k")
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.evaluate(axe)
    run = "where => axe.run(where, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
    steps = {"#search": "html", "#layout": "#issues", f"{row(1)} button.thumb": "#zoom"}  # list, gallery, picture
    for step, where in steps.items():
        page.click(step)
        found = page.evaluate(run, where)
        broken = {rule["id"]: [node["html"][:200] for node in rule["nodes"][:3]] for rule in found["violations"]}
        assert broken == {}
        assert len(found["passes"]) > 5
        if step == "#search":
            assert {"color-contrast", "button-name", "select-name", "label"} <= {rule["id"] for rule in found["passes"]}


def test_every_status_is_explained_and_seen_on_phones(show, audited):
    page, _, _ = show(audited[1], width=360, height=740)
    assert page.locator(".class .pill").count() == 4
    for pill in page.locator(".class .pill").all():
        assert pill.is_visible()
        assert pill.get_attribute("title") == "not estimated here: rates that were passed in, or by another method"
    page.click(".meanings summary")
    assert "fallback" in page.inner_text(".meanings dl")


def test_a_long_list_of_labels_is_cut_and_says_so(show, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[audit_page.__module__], "_MOST_LABELS", 1)
    audit = simulated_audit(classes=list("abcd"))
    values = np.ones_like(audit.labels.values)
    page, _, _ = show(audit_page(audit._replace(labels=audit.labels._replace(values=values)), tmp_path / "r.html"))
    assert page.inner_text(f"{row(1)} .has") == "given: a, 3 more"
