"""The page with 50,000 suspects opens, scrolls and answers keys, and the console is silent."""

import importlib.util
import shutil
import sys

import numpy as np
import pytest
from paths import ROOT

SCRIPT = ROOT / "experiments" / "bench_page.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_page", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_page"] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bench_page"]


def test_fifty_thousand_suspects_are_a_few_dozen_nodes_and_answer(bench, tmp_path):
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no browser on PATH; apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra [dev])")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        found = bench.measure(tmp_path, bench.Options(frames=12), browser)
        browser.close()
    assert found["console"] == []
    assert found["suspects"] == "50,000 of 50,000 suspects"
    assert 0 < found["nodes"] < 60
    assert found["decided"].startswith("24 of 50,000 decided")  # every second key of twice 12, then 12
    frames = [value for name, value in found.items() if name.startswith("frames")]
    assert [len(value) for value in frames] == [12] * 3
    assert np.min(frames) >= 0
