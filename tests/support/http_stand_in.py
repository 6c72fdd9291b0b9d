"""A server of JSON for tests of clients whose own servers cannot be installed from a package index."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Answer = Callable[[str, str, dict[str, list[str]], Any, dict[str, str]], tuple[int, Any]]


@contextmanager
def serving(answer: Answer, headers: dict[str, str] | None = None) -> Iterator[str]:
    """The address of a server for which ``answer(method, path, query, body, headers)`` gives status and JSON."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            address = urlsplit(self.path)
            asked = {key.lower(): value for key, value in self.headers.items()}
            body = json.loads(content) if content else None
            status, value = answer(self.command, address.path, parse_qs(address.query), body, asked)
            found = json.dumps(value).encode()
            self.send_response(status)
            for key, text in {"content-type": "application/json", **(headers or {})}.items():
                self.send_header(key, text)
            self.send_header("content-length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

        do_GET = do_POST = do_DELETE = do_HEAD = handle_one  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
