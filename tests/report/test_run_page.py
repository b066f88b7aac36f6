"""The page of a run, from the files that the run left."""

import json
import re

import numpy as np
import pytest
from audited import CLASSES, EVIL, simulated_audit

from mlt_jax.report import run_page
from mlt_jax.training.records import write_json, write_transition
from mlt_jax.transition import Status


@pytest.fixture(scope="module")
def found():
    return simulated_audit().found._replace(status=np.full(4, Status.POSTERIOR))


@pytest.fixture
def folder(tmp_path, found):
    """What two methods of three epochs leave, the last line of a log cut off."""
    seed = tmp_path / "seed0"
    write_transition(seed, found, CLASSES, np.tile([[0.9, 0.1], [0.3, 0.7]], (4, 1, 1)))
    for method in ("Standard", "Reweight"):
        lines = [{"method": method, "epoch": e, "train_loss": 1 / e, "validation_loss": 2 / e,
                  "validation_mAP": 1 - 1 / (e + 1)} for e in (1, 2, 3)]  # fmt: skip
        (seed / method).mkdir()
        (seed / method / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"method": "Rew')
    tests = zip(CLASSES, ("", "missed", "", ""), strict=True)
    write_json(seed / "assumption.json", {name: {"test": test, "sentence": f"{name} goes"} for name, test in tests})
    spread = {"mean": 0.71, "std": 0.02}
    test = {m: {"mAP": spread, "OF1": spread} for m in ("Standard", "Reweight", EVIL)}
    errors = {"auto": {"mean": 1.25, "std": 0.0}, "identity": {"mean": 3.5, "std": 0.0}}
    write_json(tmp_path / "results.json", {"test": test, "T_error": errors, "seconds": {"Standard": spread}})
    write_json(tmp_path / "config.json", {"dataset": "digits", "noise": "rates"})
    return tmp_path


def test_a_run_folder_becomes_a_page_with_curves_results_and_true_rates(show, folder):
    path = run_page(folder)
    assert path == folder / "report.html"
    page, complaints, requests = show(path, width=360, height=740)
    assert complaints == []
    assert requests == [path.as_uri()]
    assert page.locator("#training path.line").count() == 6
    assert page.locator("#training .legend").first.inner_text().split() == ["Reweight", "Standard"]
    assert page.locator("#results td").count() == 3 * 3
    assert "1.25" in page.inner_text(".tiles")
    assert "T = identity: 3.50" in page.inner_text(".tiles")
    assert EVIL in page.text_content("#results")
    assert page.locator("#rates line.true").count() == 8
    assert [item.inner_text() for item in page.locator("#assumption li").all()] == [f"{CLASSES[1]} goes"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize(
    ("missing", "without"),
    [
        ("results.json", {"results"}),
        ("config.json", {"settings"}),
        ("seed0/*/metrics.jsonl", {"training"}),
        ("seed0/transition.npz", {"rates", "T", "assumption"}),
    ],
)
def test_what_a_run_has_not_left_is_left_out(folder, missing, without):
    for path in folder.glob(missing):
        path.unlink()
    text = run_page(folder).read_text(encoding="utf-8")
    sections = set(re.findall(r'<section id="(\w+)">', text))
    assert sections == {"results", "settings", "training", "rates", "assumption", "T"} - without
    assert ("Run on digits" in text) == (missing != "config.json")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no results"):
        run_page(tmp_path)
    with pytest.raises(ValueError, match="no such run folder"):
        run_page(tmp_path / "none")


def test_bytes_that_are_no_text_are_left_out_and_what_is_no_table_or_estimate_is_named(folder):
    (folder / "config.json").write_bytes(b"\xff\xfe")
    log = folder / "seed0/Standard/metrics.jsonl"
    log.write_bytes(b"\xff\x00\n" + log.read_bytes())
    assert "training loss" in run_page(folder).read_text()
    (folder / "results.json").write_text('{"test": 3}')
    with pytest.raises(ValueError, match=r'results\.json: "test" is 3, no table; delete it and give the run'):
        run_page(folder)
    (folder / "results.json").unlink()
    (folder / "seed0/transition.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"seed0/transition\.npz: is no npz file of arrays"):
        run_page(folder)
