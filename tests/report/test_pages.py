import json
import re

import numpy as np
import pytest
from browser import Browser
from PIL import Image

from mlt_jax.audit.audit import audit_labels
from mlt_jax.audit.issues import find_label_issues
from mlt_jax.report import audit_page, charts, run_page, sections
from mlt_jax.training.records import write_json, write_transition
from mlt_jax.transition import Status

EVIDENCE = ("T", "curves", "losses", "partners")
EVIL = '<script>document.title = "owned"</script>'
CLASSES = ("cat", EVIL, "\"dog\" & 'mouse'", "</script><img src=x onerror=alert(1)>")


def simulated(*, n=3000, rho=(0.1, 0.3), seed=0, **options):
    rng = np.random.default_rng(seed)
    logits = rng.normal(-0.5, 3, (n, 4))
    clean = rng.random((n, 4)) < 1 / (1 + np.exp(-logits))
    labels = clean ^ (rng.random((n, 4)) < np.where(clean, rho[1], rho[0]))
    probs = 1 / (1 + np.exp(-logits + rng.normal(0, 0.5, (n, 4))))
    T = np.tile([[1 - rho[0], rho[0]], [rho[1], 1 - rho[1]]], (4, 1, 1))  # as known; estimating is tested elsewhere
    ids = [f"<b>{i}</b>" if i % 2 else f"image {i}.jpg" for i in range(n)]
    options = {"classes": CLASSES, "ids": ids, "T": T} | options
    return audit_labels(labels, probs=probs, **options)


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    audit = simulated()
    page = audit_page(audit, folder / "report.html", images=lambda row: rng.integers(0, 255, (90, 120, 3), np.uint8))
    return audit, page


def rows(browser):
    return browser.run(
        "[...document.querySelectorAll('.issue')].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)"
        ".map(r => [r.querySelector('.who').textContent, r.querySelector('.what').textContent,"
        " Number(r.querySelector('.meter span').textContent.replace('> ', ''))])"
    )


def test_the_page_opens_offline_without_a_complaint_and_names_are_shown_not_run(browser, audited):
    _, page = audited
    browser.open(page)
    assert browser.complaints == []
    assert {url.split(":")[0] for url in browser.requests} <= {"file", "data"}
    assert browser.run("document.title") == "Label audit"
    shown = browser.run("[...document.querySelectorAll('.class button')].map(b => b.textContent)")
    assert sorted(shown) == sorted(CLASSES)
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run("document.querySelectorAll('img[src=x]').length") == 0


def test_a_policy_forbids_everything_but_the_pages_own_script(browser, audited):
    browser.open(audited[1])
    browser.run(
        "void document.body.append(Object.assign(document.createElement('script'), {text: 'window.owned = 1'}))"
    )
    browser.run(
        "void document.body.append(Object.assign(document.createElement('img'), {src: 'http://localhost:9/x.png'}))"
    )
    browser.settle()
    assert browser.run("window.owned === undefined")
    assert len(browser.complaints) == 2
    assert all("Content Security Policy" in text for text in browser.complaints)


def test_a_click_on_a_column_sorts_and_a_second_one_turns_it_round(browser, audited):
    browser.open(audited[1])
    worst = [row[2] for row in rows(browser)]
    assert worst == sorted(worst, reverse=True)
    browser.click('[data-key="wrong"] button')
    best = [row[2] for row in rows(browser)]
    assert best == sorted(best)
    assert best[0] < 0.6 < worst[0]
    browser.click('[data-key="class"] button')
    assert browser.run("document.querySelector('[data-key=class]').getAttribute('aria-sort')") == "ascending"
    first = rows(browser)[0][1]
    browser.click('[data-key="class"] button')
    assert rows(browser)[0][1] != first
    assert browser.complaints == []


def test_issues_are_filtered_by_class_kind_and_search(browser, audited):
    audit, page = audited
    issues = find_label_issues(audit)
    browser.open(page)

    def total():
        return int(browser.run("document.getElementById('shown').textContent.split(' ')[0]").replace(",", ""))

    assert total() == len(issues.wrong)
    browser.click('.class [data-column="1"]')
    assert total() == (issues.column == 1).sum() > 0
    assert {row[1] for row in rows(browser)} == {EVIL}
    browser.run("document.getElementById('kind').value = '0'; document.getElementById('kind').oninput()")
    assert total() == ((issues.column == 1) & (issues.given == 0)).sum()
    browser.click("#search")
    browser.type("<b>1")
    expected = [i for i, j, y in zip(*issues[:3], strict=True) if j == 1 and y == 0 and audit.ids[i].startswith("<b>1")]
    assert total() == len(expected) > 0
    assert browser.complaints == []


def test_decisions_are_saved_as_csv(browser, audited):
    browser.open(audited[1])
    first = rows(browser)[0]
    browser.click('.issue[aria-rowindex="1"] .f')
    browser.click('.issue[aria-rowindex="2"] .k')
    assert browser.run("document.getElementById('save').textContent") == "Save 2 decisions"
    # The blob the button makes is read in place of a download.
    browser.run("void (window.made = [], URL.createObjectURL = blob => (window.made.push(blob), '#'))")
    browser.click("#save")
    lines = browser.run("window.made[0].text()").splitlines()
    assert lines[0] == "example,class,given,suggested,p_wrong,decision"
    assert lines[1].startswith(first[0])
    assert lines[1].endswith(",flip")
    assert lines[2].endswith(",keep")


def test_a_thumbnail_is_shown_and_enlarged(browser, audited):
    browser.open(audited[1])
    assert browser.run("document.querySelector('.issue img').naturalWidth") == 120
    browser.click(".issue button.thumb")
    assert browser.run("document.getElementById('zoom').open")
    assert browser.complaints == []


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_a_phone_and_follows_light_and_dark(browser, audited, dark):
    browser.open(audited[1], width=360, height=740, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.run("document.querySelector('.issue').getBoundingClientRect().right") <= 360
    assert float(browser.run("getComputedStyle(document.querySelector('.who')).fontSize").removesuffix("px")) >= 14
    red = int(re.findall(r"\d+", browser.run("getComputedStyle(document.body).backgroundColor"))[0])
    assert red < 60 if dark else red > 200
    assert browser.complaints == []


def test_five_thousand_rows_are_a_few_dozen_nodes_and_scroll_to_the_end(browser, tmp_path):
    audit = simulated(n=30000, rho=(0.2, 0.3), ids=None, classes=None)
    page = audit_page(audit, tmp_path / "many.html")
    browser.open(page)
    assert browser.run("document.getElementById('shown').textContent").startswith("5,000 of 5,000")
    browser.run("document.getElementById('view').scrollTop = 1e9")
    browser.settle()
    browser.settle()
    assert browser.run("Math.max(...[...document.querySelectorAll('.issue')].map(r => r.ariaRowIndex))") == 5000
    assert browser.run("document.querySelectorAll('.issue').length") < 60
    assert browser.complaints == []


def test_evidence_is_drawn_for_every_class(browser, audited):
    browser.open(audited[1])
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.settle()
    counts = {
        key: browser.run(f"document.querySelectorAll('#{key} figure').length") for key in ("T", "curves", "losses")
    }
    assert counts == {"T": 4, "curves": 4, "losses": 4}
    assert browser.run("document.querySelectorAll('#losses path.fit').length") == 4 * 2 * 2
    assert browser.run("document.querySelectorAll('#partners figure').length") == 4
    assert "nan" not in browser.run("[...document.querySelectorAll('svg')].map(s => s.outerHTML).join('')").lower()


def test_a_page_of_many_classes_says_which_it_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "MOST_CHARTS", 3)
    page = audit_page(simulated(), tmp_path / "cut.html").read_text(encoding="utf-8")
    drawn = {key: page.split(f'<section id="{key}">')[1].split("</section>")[0] for key in EVIDENCE}
    assert {key: text.count("<figure>") for key, text in drawn.items()} == dict.fromkeys(EVIDENCE, 3)
    assert all("The 3 most suspect of 4 classes." in text for text in drawn.values())


def test_a_line_without_a_finite_value_is_left_out_and_the_others_are_drawn():
    drawing = charts.lines({"diverged": ([1.0, 2.0], [np.nan, np.nan]), "fine": ([1.0, 2.0], [0.5, 0.25])})
    assert drawing.count('class="line') == 1
    assert 'class="line s1"' in drawing
    assert "diverged" in drawing
    assert charts.lines({"diverged": ([1.0], [np.inf])}) == ""


def test_a_page_without_a_suspect_is_whole(browser, tmp_path):
    audit = simulated(T=np.tile(np.eye(2), (4, 1, 1)))
    browser.open(audit_page(audit, tmp_path / "none.html"))
    assert browser.complaints == []
    assert browser.run("document.getElementById('shown').textContent") == "0 of 0 suspects"


def test_images_are_found_by_id_and_a_broken_one_is_left_out(tmp_path):
    (tmp_path / "deep").mkdir()
    Image.new("RGB", (300, 200)).save(tmp_path / "deep" / "image 0.jpg")
    (tmp_path / "image 2.jpg").write_bytes(b"no picture")
    page = audit_page(simulated(), tmp_path / "report.html", images=tmp_path, threshold=0.0, most=12000)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    assert [data["ids"][int(k)] for k in data["thumbs"]] == ["image 0.jpg"]
    with pytest.raises(ValueError, match="no image is named like an id"):
        audit_page(simulated(ids=[f"x{i}" for i in range(3000)]), tmp_path / "report.html", images=tmp_path)


def fake_run(folder):
    audit = simulated()
    seed = folder / "seed0"
    true_T = np.tile([[0.9, 0.1], [0.3, 0.7]], (4, 1, 1))
    write_transition(seed, audit.found, CLASSES, true_T)
    lines = [{"phase": p, "epoch": e, "train_loss": 1 / e, "validation_loss": 2 / e, "validation_mAP": 1 - 1 / (e + 1)}
             for p in ("standard", "estimated") for e in (1, 2, 3)]  # fmt: skip
    (seed / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"phase": "estim')
    spread = {"mean": 0.71, "std": 0.02}
    test = {m: {"mAP": spread, "OF1": spread} for m in ("standard", "estimated", EVIL)}
    write_json(folder / "results.json", {"test": test, "T_error": {"T": spread}, "seconds": {"standard": spread}})
    write_json(folder / "config.json", {"dataset": "digits", "noise": "rates"})


def test_a_run_folder_becomes_a_page_with_curves_results_and_true_rates(browser, tmp_path):
    fake_run(tmp_path)
    page = run_page(tmp_path)
    assert page == tmp_path / "report.html"
    browser.open(page, width=360, height=740)
    assert browser.complaints == []
    assert browser.run("document.querySelectorAll('#training path.line').length") == 6
    assert browser.run("document.querySelectorAll('#results td').length") == 3 * 3
    assert EVIL in browser.run("document.querySelector('#results').textContent")
    assert browser.run("document.querySelectorAll('#rates line.true').length") == 8
    assert browser.run("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("missing", ["results.json", "config.json", "seed0/metrics.jsonl", "seed0/transition.npz"])
def test_what_a_run_has_not_left_is_left_out(tmp_path, missing):
    fake_run(tmp_path)
    (tmp_path / missing).unlink()
    assert len(run_page(tmp_path).read_text()) > 10_000


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no results"):
        run_page(tmp_path)
    with pytest.raises(ValueError, match="no such run folder"):
        run_page(tmp_path / "none")


def test_a_class_that_could_not_be_told_says_so(tmp_path):
    audit = simulated()
    found = audit.found._replace(status=audit.found.status.at[:2].set(Status.UNIDENTIFIABLE))
    text = audit_page(audit._replace(found=found), tmp_path / "r.html").read_text()
    assert text.count('pill bad">unidentifiable') == 2
