"""Answers of an embedding server, byte for byte, as embedder=openai receives them from a socket."""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import socket
import threading
import zlib
from pathlib import Path

from hypothesis import strategies as st

from unembed.embedders.openai_api import OpenAIEmbedder

from .broken import Inputs, changed, json_of, json_values, replaced, weighted
from .reader import Reader

TEXTS = ["one", "two"]
ROWS = [{"object": "embedding", "index": n, "embedding": [0.5, -0.25, 1.0, float(n)]} for n in range(len(TEXTS))]
ANSWER = {"object": "list", "data": ROWS, "model": "m", "usage": {"prompt_tokens": 2, "total_tokens": 2}}
_TIMEOUT_SECONDS = 0.5


def readers() -> dict[str, Reader]:
    """One reader, of whole answers."""
    return {"answer of a server": Reader(_embed, lambda: answered(200, [], json_of(ANSWER)), _inputs, 1.0, ("httpx",))}


def answered(status: int, headers: list[tuple[bytes, bytes]], body: bytes, length: bool = True) -> bytes:
    """An answer of HTTP/1.1."""
    given = [(b"Content-Type", b"application/json")] if not any(name == b"Content-Type" for name, _ in headers) else []
    given += [*headers, *([(b"Content-Length", str(len(body)).encode())] if length else [])]
    return b"HTTP/1.1 %d Said\r\n" % status + b"".join(b"%s: %s\r\n" % pair for pair in given) + b"\r\n" + body


# -- the server, and who asks it, both in the process that reads ------------------------------------------------------


class _Server:
    """Answers every connection with the content it was given last."""

    def __init__(self) -> None:
        self.content = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            threading.Thread(target=self._answer, args=(connection, self.content), daemon=True).start()

    def _answer(self, connection: socket.socket, content: bytes) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5)
            received = b""
            while b'"encoding_format"' not in received:
                part = connection.recv(1 << 16)
                if not part:
                    return
                received += part
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # until the other side has had enough


@functools.cache
def _asked(process: int) -> tuple[_Server, OpenAIEmbedder]:
    """One of each for all inputs of a process, since a client takes tens of milliseconds to make."""
    server = _Server()
    return server, OpenAIEmbedder(
        "m", f"http://127.0.0.1:{server.port}/v1", dimensions=4, api_key_env=None, concurrency=1,
        timeout=_TIMEOUT_SECONDS, retries=0, backoff=0.001,
    )  # fmt: skip


def _embed(folder: Path, content: bytes) -> object:
    server, embedder = _asked(os.getpid())
    server.content = content
    return embedder.embed(TEXTS)


# -- answers ----------------------------------------------------------------------------------------------------------


@st.composite
def _structured(draw: st.DrawFn) -> bytes:
    """Well-formed HTTP with odd headers and odd JSON."""
    vectors = st.floats() | st.floats(width=32) | st.integers() | st.none() | st.text(max_size=3) | json_values()
    rows = st.lists(st.lists(vectors, min_size=4, max_size=4) | st.lists(vectors, max_size=5), min_size=2, max_size=2)
    body = draw(
        st.sampled_from([json_of(ANSWER), json_of({"error": {"message": "no", "code": "insufficient_quota"}})])
        | replaced(ANSWER, json_values()).map(json_of)
        | rows.map(lambda found: json_of({"data": [{"index": n, "embedding": row} for n, row in enumerate(found)]}))
        | json_values().map(lambda value: json_of({"error": value}))
        | json_values().map(json_of)
        | st.sampled_from(
            [b"[" * 200_000, b'{"a":' * 100_000, b"", b"\xff\xfe[", b"1" * 5000, b'"' + b"a" * 10**6 + b'"']
        )
    )
    text = body.decode("utf-8", "replace")
    charset = draw(
        st.sampled_from(["utf-8"] * 6 + ["utf-16", "utf-7", "bz2", "hex", "undefined", "idna", "punycode", "zlib", "",
                                         "rot13", "unicode_escape", "mbcs", "base64", "no-such", "\u00e9"])
    )  # fmt: skip
    kind = f"application/json; charset={charset}".encode()
    headers = [(b"Content-Type", draw(st.sampled_from([b"application/json", kind, kind, b"text/html", b"\xff", b""])))]
    packing = draw(
        st.sampled_from([None] * 8 + ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x", "gzip, br", "identity"])
    )
    if packing is not None:
        headers.append((b"Content-Encoding", packing.encode()))
        right = draw(st.booleans())
        packed = {"gzip": gzip.compress(body, mtime=0), "deflate": zlib.compress(body)}
        body = packed.get(packing, body) if right else body
    elif charset == "utf-16":
        body = text.encode("utf-16")
    waits = ["1", "-1", "nan", "inf", "1e400", "9" * 5000, "Wed, 21 Oct 2099 07:28:00 GMT", "Wed, 99 Oct 2099",
             "", "\xe9", "Fri, 31 Dec 9999 23:59:60 -2359", "Mon, 01 Jan 0001 00:00:00 +2359",
             "x" * 70_000]  # fmt: skip
    if draw(st.booleans()):
        headers.append((b"Retry-After", draw(st.sampled_from(waits)).encode("latin-1")))
    odd = [(b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"x"),
           (b"Content-Length", b"99999999999999999999"), (b"Content-Length", b"-1"), (b"Location", b"http://127.0.0.1:1/"),
           (b"Set-Cookie", b"a=\xff; Max-Age=1e99"), (b"Connection", b"upgrade"), (b"X", b"y" * 100_000),
           (b"Content-Encoding", b"gzip"), (b"A b", b"c")]  # fmt: skip
    headers += draw(st.lists(st.sampled_from(odd), max_size=2) if draw(st.booleans()) else st.just([]))
    status = draw(
        st.sampled_from(
            [200] * 8 + [100, 101, 103, 204, 206, 301, 304, 307, 400, 401, 403, 404, 413, 429, 500, 503, 999]
        )
    )
    return answered(status, headers, body, length=draw(st.sampled_from([True, True, True, False])))


def _inputs(whole: bytes) -> Inputs:
    silent = st.just(b"HTTP/1.1 200 OK\r\n")
    return weighted((150, changed(whole)), (500, _structured()), (20, st.binary(max_size=200)), (1, silent))
