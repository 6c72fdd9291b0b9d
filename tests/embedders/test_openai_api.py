"""embedder=openai against a real HTTP server on this machine that misbehaves on demand."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from support.processes import ROOT, Warm
from unembed import launch
from unembed.core import stopping
from unembed.core.errors import InputError
from unembed.embedders import openai_api
from unembed.embedders.base import Embedder, QueryLimitError, UnfinishedError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.openai_api import OpenAIEmbedder

KEY = "sk-planted-1f2e3d4c5b6a7988"
DIM = 6
Behaviour = Callable[["Handler", dict[str, Any]], None]


def vector_of(text: str, dimension: int = DIM) -> list[float]:
    digest = hashlib.sha256(text.encode(errors="replace")).digest() * (dimension // 32 + 1)
    return [byte / 256 for byte in digest[:dimension]]


def vectors_of(texts: Sequence[str], dimension: int = DIM) -> Tensor:
    return torch.tensor([vector_of(text, dimension) for text in texts])


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it would hold every answer back for 40 ms

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.paths.append(self.path)
            self.server.keys.append(self.headers["Authorization"])
            self.server.requests.append(body)
            behaviour = self.server.script.pop(0) if self.server.script else self.server.otherwise
        behaviour(self, body)

    def answer(self, content: object, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Answers by ``script`` as long as that lasts, then by ``otherwise``, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Behaviour] = []
        self.otherwise: Behaviour = good
        self.lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.answered: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def sizes(self) -> list[int]:
        return [len(body["input"]) for body in self.requests]

    @property
    def texts(self) -> list[str]:
        return [text for body in self.requests for text in body["input"]]

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that stopped waiting


def rows(body: dict[str, Any]) -> list[dict[str, Any]]:
    dimension = body.get("dimensions", DIM)
    return [{"index": i, "embedding": vector_of(text, dimension)} for i, text in enumerate(body["input"])]


def good(handler: Handler, body: dict[str, Any]) -> None:
    handler.answer({"object": "list", "data": rows(body)})
    with handler.server.lock:
        handler.server.answered.update(body["input"])


def changed(change: Callable[[list[dict[str, Any]]], object]) -> Behaviour:
    """A good answer whose list of rows ``change`` edits."""

    def behaviour(handler: Handler, body: dict[str, Any]) -> None:
        found = rows(body)
        change(found)
        handler.answer({"data": found})

    return behaviour


def changed_row(number: int, **fields: object) -> Behaviour:
    """A good answer with other fields in one row."""
    return changed(lambda found: found[number].update(fields))


def changed_number(number: int, value: object) -> Behaviour:
    """A good answer with another first coordinate of one vector."""
    return changed(lambda found: found[number]["embedding"].__setitem__(0, value))


def refusal(status: int, message: str = "out of order", **headers: str) -> Behaviour:
    return lambda handler, body: handler.answer({"error": {"message": message}}, status, **headers)


def raw(content: bytes, **headers: str) -> Behaviour:
    return lambda handler, body: handler.answer(content, **headers)


def slow(handler: Handler, body: dict[str, Any]) -> None:
    time.sleep(0.5)
    good(handler, body)


def reset(handler: Handler, body: dict[str, Any]) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def half(handler: Handler, body: dict[str, Any]) -> None:
    """Promises more than it sends."""
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"data": [')


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    found = Server()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def embedder(server: Server, **arguments: Any) -> OpenAIEmbedder:
    quick = {"model": "m", "base_url": server.url, "backoff": 0.001, "timeout": 5.0}
    return OpenAIEmbedder(**{**quick, **arguments})


def test_it_sends_what_the_protocol_asks_for(server: Server) -> None:
    texts = ["grün", "two\nlines", "\ud800 alone"]
    assert torch.equal(embedder(server, base_url=f"{server.url}/").embed(texts), vectors_of(texts))
    assert server.requests == [{"model": "m", "input": texts, "encoding_format": "float"}]
    assert server.paths == ["/v1/embeddings"]
    assert server.keys == [f"Bearer {KEY}"]
    assert torch.equal(embedder(server).embed(["a", ""]), vectors_of(["a", " "]))


def test_the_dimension_is_asked_for_or_found_with_one_text(server: Server) -> None:
    found = embedder(server)
    assert isinstance(found, Embedder)
    assert found.dimension == found.dimension == DIM
    assert server.sizes == [1]
    assert embedder(server, dimensions=3).dimension == 3
    assert server.sizes == [1]
    assert embedder(server, dimensions=3).embed(["a"]).shape == (1, 3)
    assert server.requests[-1]["dimensions"] == 3
    server.script = [good, changed(lambda found: found[0]["embedding"].append(0.0))]
    first = embedder(server)
    first.embed(["a"])
    with pytest.raises(InputError, match="gave a vector of dimension 7, the first one had 6"):
        first.embed(["b"])
    server.otherwise = lambda handler, body: good(handler, {"input": body["input"]})
    with pytest.raises(InputError, match=r"gave a vector of dimension 6, embedder\.dimensions asks for 3"):
        embedder(server, dimensions=3).embed(["a"])


def test_a_call_is_cut_into_requests_and_put_together_in_order(server: Server) -> None:
    texts = [f"text {i}" for i in range(47)]
    assert torch.equal(embedder(server, batch_size=10, concurrency=3).embed(texts), vectors_of(texts))
    assert sorted(server.sizes) == [7, 10, 10, 10, 10]
    assert sorted(server.texts) == sorted(texts)


def test_requests_run_at_the_same_time_and_no_more_than_allowed(server: Server) -> None:
    running, most = 0, 0

    def counted(handler: Handler, body: dict[str, Any]) -> None:
        nonlocal running, most
        with server.lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with server.lock:
            running -= 1
        good(handler, body)

    server.otherwise = counted
    embedder(server, batch_size=1, concurrency=3).embed(list("abcdefghi"))
    assert most == 3


def twice(handler: Handler, body: dict[str, Any]) -> None:
    """Sends its answer twice: the second is there before the connection's next request is."""
    data = json.dumps({"data": rows(body)}).encode()
    handler.wfile.write((b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data) * 2)


def test_each_text_has_its_own_vector(server: Server) -> None:
    server.otherwise = twice
    found = embedder(server, batch_size=1, concurrency=1).embed(["a", "b", "c"])
    assert torch.equal(found, vectors_of(["a", "b", "c"]))
    server.script = [changed(list.reverse)]
    assert torch.equal(embedder(server).embed(["a", "b", "c"]), vectors_of(["a", "b", "c"]))


@pytest.mark.parametrize("status", [429, 500, 503, 529, 408])
def test_a_passing_failure_is_tried_again(server: Server, status: int) -> None:
    server.script = [refusal(status), refusal(status)]
    assert torch.equal(embedder(server).embed(["a"]), vectors_of(["a"]))
    assert len(server.requests) == 3


@pytest.mark.parametrize("break_off", [reset, half], ids=["reset", "half an answer"])
def test_a_broken_connection_is_tried_again(server: Server, break_off: Behaviour) -> None:
    server.script = [break_off]
    assert torch.equal(embedder(server).embed(["a"]), vectors_of(["a"]))
    assert len(server.requests) == 2


def test_a_time_out_is_tried_again_until_attempts_end(server: Server) -> None:
    server.script = [slow]
    assert torch.equal(embedder(server, timeout=0.25).embed(["a"]), vectors_of(["a"]))
    assert len(server.requests) >= 2
    server.requests.clear()
    server.otherwise = slow
    with pytest.raises(InputError, match=r"embedder.model=m at http.*: no answer within embedder.timeout=0.05 seconds"):
        embedder(server, timeout=0.05, retries=1).embed(["a"])
    assert len(server.requests) == 2
    server.otherwise = refusal(500)
    with pytest.raises(InputError, match=r"HTTP 500: out of order \(3 attempts\)$"):
        embedder(server, retries=2).embed(["a"])
    assert len(server.requests) == 5


class Clock(threading.Event):
    """Notes the seconds before each further attempt, in place of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return False


def waits(server: Server, script: list[Behaviour], backoff: float) -> list[float]:
    """Seconds before each attempt after those that ``script`` answers."""
    server.script, clock = script, Clock()
    found = embedder(server, retries=len(script), backoff=backoff)
    found._vectors(found._client(), ["a"], clock)
    return clock.waits


def test_waits_between_attempts(server: Server) -> None:
    found = waits(server, [refusal(500)] * 8, 1.0)
    assert all(low / 2 <= wait <= low for wait, low in zip(found, [1, 2, 4, 8, 16, 32, 60, 60], strict=True))
    assert found != waits(server, [refusal(500)] * 8, 1.0)
    asked = ["3", "0", "0.25", "soon", "-1"]
    found = waits(server, [refusal(429, Retry_After=value) for value in asked], 0.1)
    assert all(low <= wait <= low + 0.1 for wait, low in zip(found[:3], [3, 0, 0.25], strict=True))
    assert all(wait <= 1.6 for wait in found[3:])
    server.script = [refusal(429, Retry_After="3600")]
    with pytest.raises(InputError, match="asks to wait 3,600 seconds"):
        embedder(server).embed(["a"])


def empty_account(handler: Handler, body: dict[str, Any]) -> None:
    handler.answer({"error": {"message": "no money", "code": "insufficient_quota"}}, 429)


PAGE = raw(b"<html>\x1b[31mHello</html>", Content_Type="text/html; charset=bz2")
NO_LIST = "no list of vectors"
WRONG: dict[str, tuple[Behaviour, str]] = {
    "count": (changed(list.pop), "gave 2 vectors for 3 texts"),
    "index twice": (changed_row(1, index=0), "index fields that are not 0 to 2"),
    "index from one": (changed_row(0, index=3), "index fields that are not 0 to 2"),
    "no index": (changed(lambda found: found[0].pop("index")), NO_LIST),
    "NaN": (changed_number(1, float("nan")), "NaN, null or infinity for text 1"),
    "null": (changed_number(2, None), "NaN, null or infinity for text 2"),
    "too large": (changed_number(0, 1e60), "infinity for text 0"),
    "a word": (changed_number(0, "0.5"), NO_LIST),
    "true": (changed_number(0, True), NO_LIST),
    "base64": (changed_row(0, embedding="AAAA"), NO_LIST),
    "ragged": (changed_row(1, embedding=[1.0]), "gave a vector of dimension 1"),
    "empty": (changed(lambda found: [row["embedding"].clear() for row in found]), "gave a vector of dimension 0"),
    "no data": (raw(b'{"object": "list"}'), r'no list of vectors \(data: .*: {"object": "list"}'),
    "a page": (PAGE, r"no list of vectors .*; check embedder\.base_url.*: <html>.\[31mHello"),
    "not UTF-8": (raw(b'{"data": "\xff"}'), NO_LIST),
    "deep": (raw(b"[" * 40_000), NO_LIST),
    "not packed": (raw(b"{}", Content_Encoding="gzip"), "DecodingError"),
    "bad request": (refusal(400, "too long"), "HTTP 400: too long"),
    "unknown key": (refusal(401), r"refuses the key in OPENAI_API_KEY \(HTTP 401\)"),
    "not found": (refusal(404, "no such model"), r"HTTP 404: no such model; check embedder\.base_url"),
    "moved": (refusal(301, Location="http://elsewhere/"), r"HTTP 301: .*\(http://elsewhere/\)"),
    "empty account": (empty_account, "HTTP 429: no money"),
    "zero": (changed_row(1, embedding=[0.0] * DIM), "gave a vector of zeros for text 1"),
    "3e38": (changed_row(2, embedding=[3e38] * DIM), r"largest number is 3\.0e\+38 .* for text 2"),
    "1e-30": (changed_row(0, embedding=[1e-30] * DIM), r"largest number is 1\.0e-30 .* for text 0"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_is_named_at_once_and_not_tried_again(server: Server, kind: str) -> None:
    server.otherwise, message = WRONG[kind]
    with pytest.raises(InputError, match=message) as raised:
        embedder(server).embed(["a", "b", "c"])
    assert str(raised.value).startswith(f"embedder.model=m at {server.url}: ")
    assert len(server.requests) == 1


def test_of_an_answer_with_a_vector_that_is_none_the_others_are_kept(server: Server, tmp_path: Path) -> None:
    server.otherwise = lambda handler, body: changed_row(body["input"].index("c"), embedding=[0] * DIM)(handler, body)
    cached = CachedEmbedder(embedder(server, dimensions=DIM), tmp_path)
    with pytest.raises(UnfinishedError, match=r"gave a vector of zeros for text 2 \('c'\): it is not stored"):
        cached.fill(list("abcd"), "training")
    server.otherwise = good
    cached.fill(list("abcd"), "training")
    assert server.texts[4:] == ["c"]
    assert cached.queries.sent["training"] == 5


def test_after_ctrl_c_what_is_under_way_is_awaited_and_kept(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def behaviour(handler: Handler, body: dict[str, Any]) -> None:
        if "text 0" in body["input"]:
            time.sleep(0.2)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.4)
        good(handler, body)

    server.otherwise = behaviour
    texts = [f"text {i}" for i in range(9)]
    cached = CachedEmbedder(embedder(server, dimensions=DIM, batch_size=2, concurrency=3), tmp_path, batch_size=9)
    with pytest.raises(KeyboardInterrupt):
        cached.fill(texts, "training")
    assert "waiting for pending requests" in caplog.text
    assert server.sizes == [2, 2, 2]  # those that were not under way are not sent any more
    server.otherwise = good
    CachedEmbedder(embedder(server, dimensions=DIM), tmp_path).fill(texts, "training")
    assert sorted(server.texts) == texts  # each once in all


def test_ctrl_c_again_does_not_wait(server: Server, tmp_path: Path) -> None:
    def behaviour(handler: Handler, body: dict[str, Any]) -> None:
        if "c" in body["input"]:
            return good(handler, body)
        if "a" in body["input"]:
            time.sleep(0.3)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.3)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(40)
        return None

    server.otherwise = behaviour
    begun = time.monotonic()
    cached = CachedEmbedder(embedder(server, dimensions=DIM, batch_size=1, timeout=60), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cached.fill(["a", "b", "c"], "training")
    assert time.monotonic() - begun < 20
    assert len(CachedEmbedder(embedder(server, dimensions=DIM), tmp_path).embed(["c"])) == 1
    assert server.texts.count("c") == 1


def test_sigterm_leaves_the_requests_under_way_some_seconds(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behaviour(handler: Handler, body: dict[str, Any]) -> None:
        if "a" not in body["input"]:
            return time.sleep(40)
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        time.sleep(0.2)
        return good(handler, body)

    def end(number: int, frame: object) -> None:
        raise stopping.Terminated

    server.otherwise = behaviour
    monkeypatch.setattr(openai_api, "_TERMINATION_SECONDS", 2.0)
    before = signal.signal(signal.SIGTERM, end)
    begun = time.monotonic()
    cached = CachedEmbedder(embedder(server, dimensions=DIM, batch_size=1, timeout=60), tmp_path)
    try:
        with pytest.raises(stopping.Terminated):
            cached.fill(["a", "b"], "training")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - begun < 20
    assert len(CachedEmbedder(embedder(server, dimensions=DIM), tmp_path).embed(["a"])) == 1
    assert server.texts.count("a") == 1


def test_a_cache_that_has_all_texts_needs_no_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a", "b"]
    CachedEmbedder(embedder(server), tmp_path).fill(texts, "training")
    assert server.texts == ["dimension", "a", "b"]
    server.otherwise = refusal(500)
    monkeypatch.delenv("OPENAI_API_KEY")
    found = CachedEmbedder(embedder(server, retries=0), tmp_path)
    assert found.dimension == DIM
    found.fill(texts, "training")
    assert torch.equal(found.view(texts)[:], vectors_of(texts))
    assert torch.equal(found.embed(["b"]), vectors_of(["b"]))
    assert len(found.embed([])) == 0
    assert len(server.requests) == 2


def test_of_two_that_fill_one_cache_at_a_time_one_pays_for_a_text(server: Server, tmp_path: Path) -> None:
    texts = [f"text {i:02d}" for i in range(30)]

    def behaviour(handler: Handler, body: dict[str, Any]) -> None:
        time.sleep(0.02)
        good(handler, body)

    server.otherwise = behaviour
    one, other = (
        CachedEmbedder(embedder(server, dimensions=DIM, batch_size=2), tmp_path, batch_size=4, shard_size=8)
        for _ in range(2)
    )
    first = threading.Thread(target=one.fill, args=(texts[:20], "training"))
    first.start()
    other.fill(texts[10:], "training")
    first.join()
    assert Counter(server.texts) == Counter(texts)
    assert torch.equal(other.view(texts[10:])[:], vectors_of(texts[10:]))
    assert one.queries.sent["training"] + other.queries.sent["training"] == 30


@pytest.mark.parametrize("content", [b"", b'{"dimension": "6"}'])
def test_a_damaged_description_of_the_cache_costs_one_query(server: Server, tmp_path: Path, content: bytes) -> None:
    CachedEmbedder(embedder(server), tmp_path).fill(["a"], "training")
    (path,) = tmp_path.glob("*/embedder.json")
    sound = path.read_bytes()
    path.write_bytes(content)
    for _ in range(2):
        assert torch.equal(CachedEmbedder(embedder(server), tmp_path).embed(["a"]), vectors_of(["a"]))
    assert path.read_bytes() == sound
    assert server.texts == ["dimension", "a", "dimension"]


def test_the_key_goes_nowhere_else(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No redirect is followed, no cookie kept, no other key taken from a .netrc."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    heard: list[Any] = []

    def behaviour(handler: Handler, body: dict[str, Any]) -> None:
        heard.append(handler.headers["Cookie"])
        moved = {"Location": f"http://localhost:{server.server_port}/v2/embeddings"}
        handler.answer({"data": rows(body)}, 200 if len(heard) < 3 else 307, Set_Cookie="who=you; Path=/", **moved)

    server.otherwise = behaviour
    found = embedder(server, api_key_env=None)
    found.embed(["a"])
    found.embed(["b"])
    with pytest.raises(InputError, match=r"HTTP 307: .*redirects are not followed: .* \(http://localhost:\d+/v2"):
        found.embed(["c"])
    assert (server.keys, heard) == ([None] * 3, [None] * 3)


def test_an_address_where_nothing_listens_and_a_wrong_proxy_are_named(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        with pytest.raises(InputError, match=f"at {url}: no connection: "):
            embedder(server, base_url=url, backoff=60.0).embed(["a"])
    monkeypatch.setenv("ALL_PROXY", "nonsense://me:secret@proxy:1")
    with pytest.raises(InputError, match="check the environment's HTTP_PROXY") as raised:
        embedder(server).embed(["a"])
    assert "secret" not in str(raised.value)


def test_a_missing_key_is_found_before_anything_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(InputError, match=r"embedder.api_key_env=OPENAI_API_KEY: .* is not set"):
        embedder(server).embed(["a"])
    assert len(embedder(server, api_key_env=None).embed(["a"])) == 1
    assert server.keys == [None]


@pytest.mark.parametrize("value", ["two words", "line\nbreak", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_not_quoted(
    server: Server, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("MINE", value)
    with pytest.raises(InputError, match=r"embedder.api_key_env=MINE: .* holds no key") as raised:
        embedder(server, api_key_env="MINE").embed(["a"])
    assert value not in str(raised.value)
    assert server.requests == []


@pytest.mark.parametrize(
    "behaviour",
    [
        *(refusal(status, f"wrong key {KEY}, {'x' * 180} {KEY}") for status in (400, 401, 429, 500)),
        raw(f"<html>{KEY}</html>".encode(), Content_Type=f"text/{KEY}"),
        raw(json.dumps({"data": KEY}).encode()),
        changed_row(0, index=KEY),
    ],
)
def test_a_server_that_repeats_the_key_does_not_spread_it(
    server: Server, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.otherwise = behaviour
    with pytest.raises(InputError) as raised:
        embedder(server, retries=1).embed(["a"])
    assert server.keys[0] == f"Bearer {KEY}"
    chain: list[BaseException] = [raised.value]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    assert KEY not in "".join(f"{error!r}{error}{vars(error)}" for error in chain)
    assert KEY[:12] not in str(raised.value)
    assert KEY not in caplog.text


def test_the_object_does_not_show_the_key(server: Server) -> None:
    found = embedder(server)
    found.embed(["a"])
    assert KEY not in repr(found) + str(vars(found)) + found.fingerprint


def test_the_fingerprint_covers_what_changes_a_vector_and_nothing_else(server: Server) -> None:
    fingerprint = embedder(server).fingerprint
    assert server.requests == []
    same: list[dict[str, Any]] = [
        {"base_url": server.url.replace("http:", "https:") + "/"},
        {"api_key_env": "OTHER", "batch_size": 1, "concurrency": 9, "timeout": 1.0, "retries": 0, "backoff": 2.0},
        {"price_per_million_tokens": 1.0, "max_queries": 5},
    ]
    assert {embedder(server, **arguments).fingerprint for arguments in same} == {fingerprint}
    other: list[dict[str, Any]] = [
        {"base_url": f"{server.url}/other"},
        {"base_url": server.url.replace("127.0.0.1", "localhost")},
        {"base_url": "http://127.0.0.1:1/v1"},
        *({"model": "n"}, {"dimensions": 6}, {"max_tokens": 512}),
    ]
    assert len({embedder(server, **arguments).fingerprint for arguments in other} | {fingerprint}) == 7


def test_the_limit_counts_texts_and_keeps_what_arrived(server: Server, tmp_path: Path) -> None:
    texts = [f"text {i:02d}" for i in range(30)]
    cached = CachedEmbedder(embedder(server, batch_size=4, concurrency=2, max_queries=16), tmp_path)
    with pytest.raises(QueryLimitError, match=r"max_queries=16 is reached: .* the 16 vectors that arrived are kept"):
        cached.fill(texts, "training")
    assert sum(server.sizes) == 16  # the probe is one of them
    assert cached.queries.sent["training"] == 15
    with pytest.raises(QueryLimitError):
        cached.embed(["never seen"])
    assert sum(server.sizes) == 16
    assert cached.queries.sent["attack"] == 0

    again = CachedEmbedder(embedder(server, batch_size=4, concurrency=2, max_queries=16), tmp_path)
    again.fill(texts, "training")
    assert torch.equal(again.view(texts)[:], vectors_of(texts))
    assert Counter(text for text in server.texts if text in texts) == Counter(texts)  # each was sent once in all


def test_an_attempt_that_may_be_billed_counts_and_a_refused_one_does_not(server: Server) -> None:
    server.script = [refusal(429), refusal(500), reset]
    found = embedder(server, dimensions=DIM, max_queries=3)
    assert len(found.embed(["a"])) == 1  # sent, refused twice, sent and lost, sent again: two texts are counted
    assert len(found.embed(["b"])) == 1
    with pytest.raises(QueryLimitError):
        found.embed(["c"])
    server.script = [reset]
    with pytest.raises(InputError, match=r"no answer: .*max_queries allows no further attempt"):
        embedder(server, dimensions=DIM, max_queries=1).embed(["d"])


def test_what_arrived_of_a_batch_before_a_failure_is_kept(server: Server, tmp_path: Path) -> None:
    def fails_for_seven(handler: Handler, body: dict[str, Any]) -> None:
        if "text 7" in body["input"]:
            time.sleep(0.3)
            refusal(400, "no sevens")(handler, body)
        else:
            good(handler, body)

    server.otherwise = fails_for_seven
    texts = [f"text {i}" for i in range(9)]
    cached = CachedEmbedder(embedder(server, batch_size=1, concurrency=9), tmp_path)
    with pytest.raises(UnfinishedError, match=r"no sevens; vectors that had arrived and are kept in the cache: 9$"):
        cached.fill(texts, "training")
    server.otherwise = good
    server.requests.clear()
    fresh = CachedEmbedder(embedder(server, dimensions=None), tmp_path)
    assert torch.equal(fresh.embed(texts), vectors_of(texts))
    assert server.texts == ["text 7"]  # and the dimension is known


def test_a_failure_ends_the_waits_of_the_others(server: Server) -> None:
    def behaviour(handler: Handler, body: dict[str, Any]) -> None:
        if body["input"] == ["bad"]:
            time.sleep(0.2)
            refusal(400, "bad")(handler, body)
        else:
            refusal(429, Retry_After="60")(handler, body)

    server.otherwise = behaviour
    begun = time.monotonic()
    with pytest.raises(InputError, match=r"HTTP 400: bad$"):
        embedder(server, batch_size=1).embed(["waiting", "bad", "waiting too"])
    assert time.monotonic() - begun < 5


def test_the_cache_keeps_all_requests_busy_and_another_model_is_found(server: Server, tmp_path: Path) -> None:
    texts = [f"text {i:02d}" for i in range(12)]
    CachedEmbedder(embedder(server, dimensions=DIM, batch_size=3, concurrency=2), tmp_path).fill(texts, "training")
    assert server.sizes == [3, 3, 3, 3]
    CachedEmbedder(embedder(server, dimensions=4), tmp_path, batch_size=5).fill(texts, "training")
    assert sorted(server.sizes[4:]) == [2, 5, 5]
    CachedEmbedder(embedder(server), tmp_path).fill(["a"], "training")
    server.otherwise = lambda handler, body: good(handler, {**body, "dimensions": 7})
    with pytest.raises(InputError, match=r"shape \(1, 7\) instead of \(1, 6\), .* needs another cache_dir than"):
        CachedEmbedder(embedder(server), tmp_path).embed(["b"])


def test_a_large_job_is_announced_with_its_cost(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    texts = [f"{i:04d}" + "x" * 16 for i in range(1200)]  # 20 bytes: 5 tokens each
    found = embedder(server, dimensions=DIM, price_per_million_tokens=250.0, max_queries=1000)
    with pytest.raises(QueryLimitError):
        CachedEmbedder(found, tmp_path).fill(texts, "training")
    assert caplog.messages == [
        f"embedder.model=m at {server.url}: 1,200 texts to embed, about 6,000 tokens; cost about 1.50 at 250 per "
        "million; embedder.max_queries ends it after 1,000 texts"
    ]
    caplog.clear()
    CachedEmbedder(embedder(server, dimensions=DIM), tmp_path).fill(texts, "training")  # 200 are left
    assert caplog.messages == []
    embedder(server).log_cost(["grün"] * 2000)  # 5 bytes: 2 tokens
    assert "2,000 texts to embed, about 4,000 tokens; embedder.price_per_million_tokens would" in caplog.text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("base_url=https://me:secret@host/v1", "must be an http or https address without user name, query or fragment"),
        ("base_url='https://host/v1?api-key=1'", "must be an http or https address"),
        ("base_url=api.openai.com/v1", "must be an http or https address"),
        ("base_url=http://host:port/v1", "must be an http or https address"),
        ("base_url='http://host/\u202ev1'", "must be an http or https address"),
        ("base_url=http:///v1", "must be an http or https address"),
        ("api_key_env=sk-123", "key_env=***: must be the name of an environment variable in capitals, or null"),
        ("api_key_env=abcdef0123", "key_env=***: must be the name of an environment variable in capitals, or null"),
        ("max_queries=0", "must be at least 1"),
        ("concurrency=0", "must be at least 1"),
        ("timeout=0", "must be greater than 0"),
    ],
)
def test_wrong_values_are_found_before_a_run(override: str, message: str) -> None:
    config = launch.compose("train", ["embedder=openai", f"embedder.{override}"])
    [found] = launch.check(config)
    assert message in found


def test_the_option_gives_every_argument_its_default() -> None:
    written = yaml.safe_load((ROOT / "configs" / "embedder" / "openai.yaml").read_text(encoding="utf-8"))
    assert written.pop("_target_") == "unembed.embedders.openai_api.OpenAIEmbedder"
    assert launch.check(launch.compose("train", ["embedder=openai"])) == []
    parameters = inspect.signature(OpenAIEmbedder).parameters
    assert written == {name: parameter.default for name, parameter in parameters.items()}


@pytest.mark.slow
def test_a_run_goes_through_and_leaves_no_key_behind(server: Server, tmp_path: Path, warm: Warm) -> None:
    server.script = [refusal(429, f"slow down, {KEY}"), good, refusal(500)]
    environment = {**os.environ, "OPENAI_API_KEY": KEY, "OMP_NUM_THREADS": "1"}

    def run(*overrides: str) -> subprocess.CompletedProcess[str]:
        command = [
            *(str(ROOT / "train.py"), "embedder=openai", f"embedder.base_url={server.url}", "embedder.model=m"),
            *("debug=smoke", "trainer=cpu", "embedder.backoff=0.001", "hydra.verbose=true"),
            *("attack.backbone.layers=1", "attack.backbone.width=32", "attack.backbone.heads=2"),
            *("attack.refine.lexicon.vocabulary=false", "attack.refine.lexicon.numbers=10"),
            *("++datamodule.source.sentences=400", "++datamodule.source.valid=20", "++datamodule.source.test=60"),
            *(f"cache_dir={tmp_path / 'cache'}", *overrides),
        ]
        return warm.run(command, environment=environment)

    done = run(f"run_dir={tmp_path / 'limited'}", "embedder.max_queries=100")
    assert done.returncode == 2
    assert "embedder.max_queries=100 is reached" in done.stderr.splitlines()[-1]
    assert sum(server.sizes) >= 100
    spoken = done.stdout + done.stderr
    server.script = [good, reset]
    done = run(f"run_dir={tmp_path / 'whole'}")
    assert done.returncode == 0, done.stderr
    spoken += done.stdout + done.stderr
    assert json.loads((tmp_path / "whole" / "record.json").read_text())["embedder"]["dimension"] == DIM
    assert server.answered.pop("dimension") == 1
    assert len(server.answered) > 256
    assert set(server.answered.values()) == {1}  # the second run has sent what the first has not

    asked, server.otherwise = len(server.requests), refusal(500)
    del environment["OPENAI_API_KEY"]
    trust = f"trust=[{server.url},OPENAI_API_KEY]"
    command = [str(ROOT / "evaluate.py"), f"run={tmp_path / 'whole'}", "trainer=cpu", trust]
    done = warm.run(command, environment=environment)
    assert done.returncode == 0, done.stderr
    assert len(server.requests) == asked

    assert set(server.keys) == {f"Bearer {KEY}"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in spoken
