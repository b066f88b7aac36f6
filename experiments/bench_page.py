"""How smoothly the page of an audit scrolls and answers keys in Chromium, with many suspects.

    python experiments/bench_page.py [--suspects 50000] [--images]

Prints the size of the page, how long it takes to open, frame times while it scrolls through the whole list and while
keys are pressed, and what the console said. Needs Playwright (extra [dev]) and a Chromium on PATH.
"""

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from PIL import Image

from mlt_jax import audit_labels
from mlt_jax.report import audit_page

CLASSES = 20
_PRESS = """window.press = (key) => {
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
}"""
# Milliseconds between frames, before each of which the list is scrolled or a key is pressed.
_FRAMES = """async ([step, keys, count]) => {
  const view = document.getElementById("view"), frames = [];
  let last = await new Promise(requestAnimationFrame);
  for (let k = 0; k < count; k++) {
    if (keys) press(keys[k % keys.length]);
    else view.scrollTop += step || view.scrollHeight / count;
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - last);
    last = now;
  }
  return frames;
}"""
# Milliseconds until what a key or a search changes is laid out.
_ANSWERS = """([keys, searches, count]) => Array.from({ length: count }, (_, k) => {
  const start = performance.now(), search = document.getElementById("search");
  if (keys) press(keys[k % keys.length]);
  else {
    search.value = searches[k % searches.length];
    search.dispatchEvent(new Event("input"));
  }
  document.getElementById("view").getBoundingClientRect();
  return performance.now() - start;
})"""


@dataclasses.dataclass(frozen=True)
class Options:
    """What to measure."""

    suspects: int = 50_000
    frames: int = 300
    images: bool = False
    """write a picture per example, of 640 x 480, to be loaded from a folder"""


def measure(folder: Path, options: Options, launch: Any) -> dict[str, Any]:
    """What was measured, by name: numbers, and the complaints of the console.

    Args:
      launch: gives a running browser of Playwright.
    """
    n = -(-options.suspects // CLASSES)
    rng = np.random.default_rng(0)
    probs = rng.random((n, CLASSES))
    labels = rng.random((n, CLASSES)) < 0.2
    T = np.tile([[0.9, 0.1], [0.2, 0.8]], (CLASSES, 1, 1))
    audit = audit_labels(labels, probs=probs, T=T, ids=[f"image {k:06d}" for k in range(n)])
    if options.images:
        (folder / "images").mkdir()
        for name in audit.ids:
            noise = rng.integers(0, 255, (30, 40, 3), np.uint8)
            Image.fromarray(noise).resize((640, 480)).save(folder / "images" / f"{name}.jpg")
    audit = audit._replace(wrong=np.maximum(audit.wrong, 1e-6))  # every label is on the list
    images = folder / "images" if options.images else None
    path = audit_page(audit, folder / "page.html", threshold=0.0, most=options.suspects, images=images)
    page = launch.new_page(viewport={"width": 1160, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.resolve().as_uri())
    opened = page.evaluate("performance.getEntriesByType('navigation')[0].domComplete")
    found: dict[str, Any] = {
        "suspects": page.inner_text("#shown"),
        "MB": path.stat().st_size / 1e6,
        "opened ms": opened,
    }
    page.evaluate("document.getElementById('issues').scrollIntoView({ behavior: 'instant' })")
    page.evaluate(_PRESS)
    keys, count = ["f", "ArrowDown", "k", "n"], options.frames
    found["frames, scrolling 200 px ms"] = page.evaluate(_FRAMES, [200, None, count])
    found["frames, whole list ms"] = page.evaluate(_FRAMES, [0, None, count])
    page.keyboard.press("n")
    found["frames, keys ms"] = page.evaluate(_FRAMES, [0, keys, count])
    found["key ms"] = page.evaluate(_ANSWERS, [keys, None, count])
    page.select_option("#state", "undecided")
    page.locator('.issue[aria-selected="true"]').focus()
    found["key, only the undecided ms"] = page.evaluate(_ANSWERS, [["f", "k"], None, count])
    found["search ms"] = page.evaluate(_ANSWERS, [None, ["1", "12", "image 0012", ""], 20])
    found["nodes"] = page.locator(".issue").count()
    found["decided"] = page.inner_text("#progress")
    found["console"] = said
    page.close()
    return found


def main(options: Options) -> None:
    """Prints what was measured."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for name, value in measure(Path(folder), options, launched).items():
            if isinstance(value, list) and value and isinstance(value[0], float | int):
                median, high, most = np.percentile(value, [50, 95, 100])
                value = f"median {median:.1f}, 95 % below {high:.1f}, longest {most:.1f}"
            print(f"{name:32} {value}")


if __name__ == "__main__":
    main(tyro.cli(Options))
