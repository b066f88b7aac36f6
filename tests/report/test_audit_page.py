"""The page of an audit in a real browser: what it shows, and what clicks do."""

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from audited import CLASSES, EVIL, simulated_audit
from PIL import Image

from mlt_jax.audit.files import read_decisions
from mlt_jax.audit.issues import find_label_issues
from mlt_jax.cli import main
from mlt_jax.report import audit_page
from mlt_jax.transition import from_matrices

# Two frames have been painted, so that what a script does on scrolling is done.
SETTLED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
UNFOLD = "document.querySelectorAll('details').forEach(d => { d.open = true; })"
ROWS = """[...document.querySelectorAll('.issue')].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)
.map(r => [r.querySelector('.who').textContent, r.querySelector('.what').textContent,
Number(r.querySelector('.meter span').textContent.replace('> ', ''))])"""

# Decides the rows from the second on, scrolling as it goes.
DECIDE = """async (marks) => { for (const [k, mark] of marks.entries()) {
const find = () => document.querySelector(`.issue[aria-rowindex="${k + 2}"] .${mark}`);
while (!find()) { document.getElementById("view").scrollTop += 200; await new Promise(requestAnimationFrame); }
find().click(); } }"""


def total(page):
    return int(page.inner_text("#shown").split(" ")[0].replace(",", ""))


def test_the_page_opens_offline_without_a_complaint_and_names_are_shown_not_run(show, audited):
    page, complaints, requests = show(audited[1])
    assert complaints == []
    assert requests == [audited[1].as_uri()]
    assert page.title() == "Label audit"
    assert sorted(page.locator(".class > button").all_text_contents()) == sorted(CLASSES)
    assert page.locator("script").count() == 2
    assert page.locator("img[src=x]").count() == 0


def test_a_policy_forbids_everything_but_the_pages_own_script(show, audited):
    page, complaints, _ = show(audited[1])
    page.evaluate(
        "void document.body.append(Object.assign(document.createElement('script'), {text: 'window.owned = 1'}))"
    )
    page.evaluate(
        "void document.body.append(Object.assign(document.createElement('img'), {src: 'http://localhost:9/x.png'}))"
    )
    page.evaluate(SETTLED)
    assert page.evaluate("window.owned === undefined")
    assert len(complaints) == 2
    assert all("Content Security Policy" in text for text in complaints)


def test_a_click_on_a_column_sorts_and_a_second_one_turns_it_round(show, audited):
    page, complaints, _ = show(audited[1])
    worst = [row[2] for row in page.evaluate(ROWS)]
    assert worst == sorted(worst, reverse=True)
    page.click('[data-key="wrong"] button')
    best = [row[2] for row in page.evaluate(ROWS)]
    assert best == sorted(best)
    assert best[0] < 0.6 < worst[0]
    page.click('[data-key="class"] button')
    assert page.get_attribute("[data-key=class]", "aria-sort") == "ascending"
    first = page.evaluate(ROWS)[0][1]
    page.click('[data-key="class"] button')
    assert page.get_attribute("[data-key=class]", "aria-sort") == "descending"
    assert page.evaluate(ROWS)[0][1] != first
    assert complaints == []


def test_issues_are_filtered_by_class_kind_and_search(show, audited):
    audit, path = audited
    issues = find_label_issues(audit)
    page, complaints, _ = show(path)
    assert total(page) == len(issues.wrong)
    page.click('.class [data-column="1"]')
    assert total(page) == (issues.column == 1).sum() > 0
    assert {row[1] for row in page.evaluate(ROWS)} == {EVIL}
    page.select_option("#kind", "0")
    assert total(page) == ((issues.column == 1) & (issues.given == 0)).sum()
    page.click("#search")
    page.keyboard.type("<b>1")
    expected = [i for i, j, y in zip(*issues[:3], strict=True) if j == 1 and y == 0 and audit.ids[i].startswith("<b>1")]
    assert total(page) == len(expected) > 0
    assert complaints == []


def test_decisions_outlive_a_reload_and_leaving_without_saving_is_asked_about(show, audited, tmp_path):
    page, complaints, _ = show(audited[1])
    page.click('.issue[aria-rowindex="1"] .f')
    page.click('.issue[aria-rowindex="3"] .k')
    page.reload()
    assert complaints == ["asked before leaving"]
    assert page.inner_text("#save") == "Save 2 decisions"
    assert page.locator(".issue.flip").get_attribute("aria-rowindex") == "1"
    assert page.locator(".issue.keep").get_attribute("aria-rowindex") == "3"
    with page.expect_download():
        page.click("#save")
    page.reload()
    other = audit_page(simulated_audit(seed=5), tmp_path / "other.html")
    page.goto(other.as_uri())
    assert page.is_disabled("#save")
    assert complaints == ["asked before leaving"]  # once: then all was saved


def test_names_that_look_like_formulas_are_saved_as_text_and_read_back(show, tmp_path):
    audit = simulated_audit(ids=None)
    audit = audit._replace(ids=tuple(f"=cmd|{k}" for k in range(len(audit.ids))))
    page, _, _ = show(audit_page(audit, tmp_path / "report.html"))
    page.click('.issue[aria-rowindex="1"] .f')
    with page.expect_download() as saved:
        page.click("#save")
    first = find_label_issues(audit, most=1).example[0]
    assert Path(saved.value.path()).read_text().splitlines()[1].startswith(f"'=cmd|{first},")
    decided = read_decisions(saved.value.path(), audit.labels, audit.ids, audit.classes)
    assert decided.example.tolist() == [first]


def test_decisions_are_saved_as_csv(show, audited):
    page, complaints, _ = show(audited[1])
    first, second = page.evaluate(ROWS)[:2]
    assert page.is_disabled("#save")
    page.click('.issue[aria-rowindex="1"] .f')
    page.click('.issue[aria-rowindex="2"] .k')
    assert page.inner_text("#save") == "Save 2 decisions"
    with page.expect_download() as saved:
        page.click("#save")
    assert saved.value.suggested_filename == "decisions.csv"
    with Path(saved.value.path()).open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["example", "class", "given", "suggested", "p_wrong", "decision", "reviewer"]
    found = [(line["example"], line["class"], line["decision"]) for line in lines]
    assert found == [(*first[:2], "flip"), (*second[:2], "keep")]
    assert all(int(line["given"]) + int(line["suggested"]) == 1 for line in lines)
    assert complaints == []


def test_proposed_cells_are_decided_in_the_browser_saved_and_read_back(show, tmp_path, capsys):
    audit = simulated_audit()
    shape, files = audit.wrong.shape, [tmp_path / name for name in ("labels.npz", "probs.npz", "T.npz")]
    clean = np.random.default_rng(1).random(shape) < 1 / (1 + np.exp(-audit.scores))
    for path, name, values in zip(files, ("labels", "probs"), (audit.labels.values, audit.clean_probs), strict=False):
        np.savez(path, **{name: values}, classes=np.array(CLASSES), ids=np.array(audit.ids))
    from_matrices(audit.found.T, audit.labels).save(files[2])
    command = ["audit", *map(str, files[:2]), "--transition", str(files[2]), "--out", str(tmp_path / "r.html")]
    assert main([*command, "--propose", "50"]) == 0
    with (tmp_path / "r.proposal.csv").open(newline="", encoding="utf-8") as file:
        proposed = list(csv.DictReader(file))
    page, complaints, _ = show(tmp_path / "r.html")
    assert page.inner_text("#shown") == "200 of 200 cells"
    assert page.locator(".meter span").count() == 0  # what the audit thinks would sway the decision
    right = [clean[audit.ids.index(row["example"]), CLASSES.index(row["class"])] for row in proposed[:120]]
    marks = ["k" if r == int(row["given"]) else "f" for r, row in zip(right, proposed, strict=False)]
    then = ["mlt", "audit", *map(str, files[:2]), "--transition", str(files[2]), "--decisions", "decisions.csv"]
    assert shlex.split(page.inner_text("#command")) == [*then, "--out", "verified.html"]
    page.click(f'.issue[aria-rowindex="1"] .{marks[0]}')
    page.evaluate(DECIDE, marks[1:])
    with page.expect_download() as saved:
        page.click("#save")
    with Path(saved.value.path()).open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(line["example"], line["class"]) for line in lines] == [(r["example"], r["class"]) for r in proposed]
    assert [float(line["probability"]) for line in lines] == [float(row["probability"]) for row in proposed]
    assert [bool(line["decision"]) for line in lines] == [True] * 120 + [False] * 80
    assert complaints == []
    capsys.readouterr()
    assert main([*command, "--decisions", str(saved.value.path())]) == 0
    assert "by 120 decisions" in capsys.readouterr().out
    found = json.loads((tmp_path / "r.json").read_text())
    low, high = found["share_interval"]
    assert low <= (audit.labels.values != clean).mean() <= high
    assert sum(row["decisions"] for row in found["classes"].values()) == 120
    page, complaints, _ = show(tmp_path / "r.html")
    assert complaints == []
    assert "verified" in page.inner_text("#rates")


def test_a_thumbnail_is_shown_and_enlarged(show, audited):
    page, complaints, _ = show(audited[1])
    assert page.evaluate("document.querySelector('.issue img').naturalWidth") == 120
    assert not page.evaluate("document.getElementById('zoom').open")
    page.locator(".issue button.thumb").first.click()
    assert page.evaluate("document.getElementById('zoom').open")
    assert complaints == []


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_a_phone_and_follows_light_and_dark(show, audited, dark):
    page, complaints, _ = show(audited[1], width=360, height=740, dark=dark)
    page.evaluate(UNFOLD)
    page.evaluate(SETTLED)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("document.querySelector('.issue').getBoundingClientRect().right") <= 360
    assert float(page.evaluate("getComputedStyle(document.querySelector('.who')).fontSize").removesuffix("px")) >= 14
    red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
    assert red < 60 if dark else red > 200
    assert complaints == []


def test_five_thousand_rows_are_a_few_dozen_nodes_and_scroll_to_the_end(show, tmp_path):
    audit = simulated_audit(n=30000, rho=(0.2, 0.3), ids=None, classes=None)
    page, complaints, _ = show(audit_page(audit, tmp_path / "many.html"))
    total = (audit.wrong > 0.5).sum()
    assert page.inner_text("#shown") == f"5,000 of {total:,} suspects"
    assert f"The 5,000 most suspect of {total:,} are listed" in page.inner_text("#issues")
    page.evaluate("document.getElementById('view').scrollTop = 1e9")
    page.locator('.issue[aria-rowindex="5000"]').wait_for()
    page.select_option("#kind", "0")
    assert page.inner_text("#shown").endswith(f" of {total:,} suspects, 5,000 listed")
    assert 0 < page.locator(".issue").count() < 60
    assert complaints == []


def test_evidence_is_drawn_for_every_class(show, audited):
    page, _, _ = show(audited[1])
    page.evaluate(UNFOLD)
    counts = {key: page.locator(f"#{key} figure").count() for key in ("T", "curves", "losses", "partners")}
    assert counts == {"T": 4, "curves": 4, "losses": 4, "partners": 4}
    assert page.locator("#losses path.fit").count() == 4 * 2 * 2
    assert "nan" not in page.evaluate("[...document.querySelectorAll('svg')].map(s => s.outerHTML).join('')").lower()


def test_a_page_without_a_suspect_is_whole(show, tmp_path):
    audit = simulated_audit(T=np.tile(np.eye(2), (4, 1, 1)))
    page, complaints, _ = show(audit_page(audit, tmp_path / "none.html"))
    assert complaints == []
    assert page.inner_text("#shown") == "0 of 0 suspects"


def test_images_are_found_by_id_and_a_broken_one_is_left_out(tmp_path):
    (tmp_path / "deep").mkdir()
    Image.new("RGB", (300, 200)).save(tmp_path / "deep" / "image 0.jpg")
    (tmp_path / "image 2.jpg").write_bytes(b"no picture")
    page = audit_page(simulated_audit(), tmp_path / "report.html", images=tmp_path, threshold=0.0, most=12000)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    assert [data["ids"][int(k)] for k in data["thumbs"]] == ["image 0.jpg"]
