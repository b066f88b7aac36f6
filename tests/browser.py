"""A headless Chromium driven over DevTools by a pipe: real clicks, and whatever the console complains about."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find():
    """The browser's path; skips where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser on PATH (tried {', '.join(NAMES)}); apt-get install chromium")
    return path


class Browser:
    """One page at a time; `complaints` collects console errors, uncaught exceptions and blocked or failed loads."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_theirs, self.write = os.pipe()
        self.read, write_theirs = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
                 "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"]  # fmt: skip
        # Chromium reads commands from descriptor 3 and answers on 4.
        shell = f'exec "$@" 3<&{read_theirs} 4>&{write_theirs}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", find(), *flags],
            pass_fds=(read_theirs, write_theirs),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_theirs)
        os.close(write_theirs)
        self.buffer, self.number, self.session = b"", 0, None
        self.complaints, self.requests, self.events = [], [], []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.send(f"{domain}.enable")

    def close(self):
        try:
            self.session = None
            self.send("Browser.close")
        except OSError:
            pass
        self.process.wait(timeout=60)
        os.close(self.read)
        os.close(self.write)
        self.profile.cleanup()

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _receive(self):
        while b"\0" not in self.buffer:
            chunk = os.read(self.read, 1 << 20)
            if not chunk:
                raise OSError("the browser has gone")
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, event):
        name, params = event.get("method"), event.get("params", {})
        self.events.append(name)
        if name == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([argument.get("value") for argument in params["args"]]))
        elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif name == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {params['message']}")
        elif name == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path, *, width=1160, height=900, dark=False):
        """Loads a file at a window size and colour scheme."""
        self.complaints, self.requests = [], []
        mode = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Page.navigate", url=Path(path).resolve().as_uri())
        self.run("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")
        self.settle()

    def settle(self):
        """Waits for two frames to be painted."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector):
        """A real mouse click in the middle of an element."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.settle()
        box = self.run(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({found}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
        self.settle()

    def type(self, text):
        """Types into the element that has the focus."""
        self.send("Input.insertText", text=text)
        self.settle()

    def screenshot(self, path):
        """Writes what the window shows as PNG."""
        Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
