import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from audited import simulated_audit

from mlt_jax.report import audit_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


class Shown(NamedTuple):
    page: Any  # Playwright's
    complaints: list[str]  # console errors and warnings, uncaught exceptions, blocked or failed loads, dialogs
    requests: list[str]  # every address the page asked for, but for data: ones


@pytest.fixture(scope="module")  # no longer: while Playwright runs, no other event loop starts, and orbax needs one
def chromium():
    """The system's browser, headless."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser on PATH (tried {', '.join(NAMES)}); apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra [dev])")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def show(chromium):
    """Opens a file in a fresh window of a size and colour scheme."""
    contexts = []

    def open_file(path, *, width=1160, height=900, dark=False):
        size = {"width": width, "height": height}
        context = chromium.new_context(viewport=size, is_mobile=width < 600, color_scheme="dark" if dark else "light")
        contexts.append(context)
        shown = Shown(context.new_page(), [], [])

        def dialog(opened):
            leaving = opened.type == "beforeunload"
            shown.complaints.append("asked before leaving" if leaving else f"dialog: {opened.message}")
            opened.accept() if leaving else opened.dismiss()

        def console(message):
            if message.type in ("error", "warning", "assert"):
                shown.complaints.append(message.text)

        shown.page.on("console", console)
        shown.page.on("pageerror", lambda error: shown.complaints.append(str(error)))
        shown.page.on("dialog", dialog)
        shown.page.on("request", lambda request: shown.requests.append(request.url))
        shown.page.goto(Path(path).resolve().as_uri())
        return shown

    yield open_file
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def audited(tmp_path_factory):
    """An audit and its page, with a picture of every example."""
    rng = np.random.default_rng(0)
    audit = simulated_audit()
    path = tmp_path_factory.mktemp("page") / "report.html"
    return audit, audit_page(audit, path, images=lambda row: rng.integers(0, 255, (90, 120, 3), np.uint8))
