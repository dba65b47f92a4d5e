"""The page of a run under way, on this machine alone: `hypermargin train --live`.

It is served on 127.0.0.1 at an address with a random word in it, and can only be read. A web page elsewhere cannot
ask for it: the word is not known there, and a request that names another host is refused, so that a name which
points at 127.0.0.1 does not help either. Nothing of the folder but the numbers of the log is served.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hypermargin.runpage.page import page
from hypermargin.runpage.run import read_curves

LOCAL = "127.0.0.1"


@contextmanager
def live(folder: Path, title: str) -> Iterator[str]:
    """Serve the page of the run in `folder` while inside; gives its address."""
    token = secrets.token_urlsafe(24)
    whole = page({"title": title, "live": True}).encode()

    class Handler(_Handler):
        def content(self) -> tuple[bytes, str] | None:
            if secrets.compare_digest(self.path.encode(), f"/{token}/".encode()):
                return whole, "text/html; charset=utf-8"
            if secrets.compare_digest(self.path.encode(), f"/{token}/log.json".encode()):
                return json.dumps(read_curves(folder)).encode(), "application/json"
            return None

    server = _Server((LOCAL, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="hypermargin-live", daemon=True)
    thread.start()
    try:
        yield f"http://{LOCAL}:{server.server_port}/{token}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


class _Server(ThreadingHTTPServer):
    """Answers each request in a thread, which the end of the training does not wait for."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of two addresses, and nothing else."""

    server: ThreadingHTTPServer
    server_version, sys_version = "hypermargin", ""
    timeout = 10  # seconds for a request to arrive: an open connection must not hold a thread for ever

    def content(self) -> tuple[bytes, str] | None:
        """Return what the address holds, and its kind; None if there is no such address."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer with the content."""
        self._answer(True)

    def do_HEAD(self) -> None:
        """Answer with the headers alone."""
        self._answer(False)

    def _answer(self, body: bool) -> None:
        port = self.server.server_port
        if self.headers.get_all("Host") not in ([f"{LOCAL}:{port}"], [f"localhost:{port}"]):
            self.send_error(403)
            return
        found = self.content()
        if found is None:
            self.send_error(404)
            return
        content, kind = found
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def end_headers(self) -> None:
        """Add to every answer what keeps it here."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")  # the address holds the word
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal shows the training."""
