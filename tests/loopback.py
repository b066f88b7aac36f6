"""A web server on this machine that can fail as real ones do."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files` (path -> bytes) with `headers` (path -> dict); a path in `cuts` is cut at these bytes, an
    answer each."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.headers, self.cuts, self.asked, self.begun = {}, {}, {}, [], []
        self.ranges = True
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self._answer(False)

    def do_GET(self):
        self._answer(True)

    def _answer(self, send):
        self.server.asked.append((self.command, self.path))
        self.server.begun.append(self.headers.get("Range"))
        content = self.server.files.get(self.path)
        if content is None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.send_header("X-Error-Code", "EntryNotFound")  # as the Hugging Face hub says it
            return self.end_headers()
        wanted = self.headers.get("Range", "bytes=0-") if self.server.ranges else "bytes=0-"
        start = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        for name, value in self.server.headers.get(self.path, {}).items():
            self.send_header(name, value)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if send:
            ends = self.server.cuts.get(self.path)
            end = ends.pop(0) if ends else len(content)
            self.wfile.write(content[start:end])
            if end < len(content):
                self.close_connection = True

    def log_message(self, *_):
        pass
