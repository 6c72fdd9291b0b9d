"""Any server that speaks the OpenAI embeddings protocol: OpenAI's own, or vLLM, TEI, Ollama, llama.cpp and the like.

    OpenAIEmbedder("text-embedding-3-small", dimensions=512).embed(["hello"])   # (1, 512), and one text is billed

    POST {base_url}/embeddings   {"model": "m", "input": ["hello"], "encoding_format": "float"}
    -> {"data": [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}]}

The key is read from the environment when requests are sent, and stored only in the headers of the HTTP client.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import random
import re
import ssl
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import numpy as np
import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)
from pydantic_core import PydanticCustomError
from torch import Tensor

from unembed.core.errors import InputError
from unembed.embedders.base import (
    OnVectors,
    QueryLimitError,
    UnfinishedError,
    describe_invalid,
    estimated_tokens,
    fingerprint_of,
    valid_vectors,
)

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_LARGE_JOB = 1000  # texts: the cost of smaller jobs is not logged
_SHOWN_CHARACTERS = 200  # of a server's message
_LONGEST_BACKOFF = 60.0  # seconds
_LONGEST_WAIT = 600.0  # seconds: if a server asks for more, the run fails
_SILENT_WAIT = 5.0  # seconds: shorter waits are not logged
_TERMINATION_SECONDS = 5.0  # for pending requests after SIGTERM, since SIGKILL follows soon
_TRANSIENT = {408, 409, 425, 429}  # and everything from 500 on
_EXHAUSTED = b"insufficient_quota"  # OpenAI's code for an empty account: it comes as 429, and no waiting helps


_ADDRESS = re.compile(r"https?://(\[[0-9a-f:.]+\]|[^\s@?#/:\[\]]+)(:0*[1-9]\d{0,4})?(/[^\s@?#]*)?", re.IGNORECASE)


def _address(value: str) -> str:
    # The address is written into config.yaml, so it must not contain a secret.
    if not _ADDRESS.fullmatch(value) or not value.isprintable():
        raise PydanticCustomError("address", "an http or https address without user name, query or fragment")
    return value


Address = Annotated[str, AfterValidator(_address)]


class _Row(BaseModel):
    index: int
    embedding: list[float | None]


class _Answer(BaseModel):
    data: list[_Row]


class _RequestError(Exception):
    """A failed attempt; ``wait`` seconds are those that the server asks to wait."""

    def __init__(self, reason: str, transient: bool, billed: bool = False, wait: float | None = None) -> None:
        super().__init__(reason)
        self.transient, self.billed, self.wait = transient, billed, wait


class OpenAIEmbedder:
    """Texts to the vectors that a server gives for them, several requests at a time.

    Attributes:
        texts_at_once: Number of texts that keeps all concurrent requests busy.
        queries_left: Texts that ``max_queries`` still allows; None without a limit.
    """

    def __init__(
        self,
        model: str = "text-embedding-ada-002",
        base_url: Address = "https://api.openai.com/v1",
        dimensions: PositiveInt | None = None,
        api_key_env: str | None = "OPENAI_API_KEY",
        max_tokens: PositiveInt = 8191,
        batch_size: PositiveInt = 128,
        concurrency: PositiveInt = 4,
        timeout: PositiveFloat = 60.0,
        retries: NonNegativeInt = 6,
        backoff: PositiveFloat = 1.0,
        price_per_million_tokens: NonNegativeFloat | None = None,
        max_queries: PositiveInt | None = None,
    ) -> None:
        """The arguments are those of configs/embedder/openai.yaml; the key is read on first use."""
        parts = urlsplit(base_url)
        self.max_tokens = max_tokens
        self.fingerprint = fingerprint_of(
            kind="openai",
            server=f"{parts.netloc.lower()}{parts.path.rstrip('/')}",
            model=model,
            dimensions=dimensions,
            max_tokens=max_tokens,
        )
        self._name = f"embedder.model={model} at {base_url}"
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._model, self._wanted_dimension, self._dimension = model, dimensions, dimensions
        self._api_key_env, self._batch_size, self._concurrency = api_key_env, batch_size, concurrency
        self.texts_at_once = batch_size * concurrency
        self._timeout, self._retries, self._backoff = timeout, retries, backoff
        self._price, self._max_queries, self.queries_left = price_per_million_tokens, max_queries, max_queries
        self._arrived, self._answered = 0, False
        self._jitter = random.Random()  # separate from the run's seeded global generator
        self._lock = threading.Lock()

    @property
    def dimension(self) -> int:
        """Dimension of a vector; if it is unknown, a request with one text is sent."""
        return self._dimension or self.embed(["dimension"]).shape[1]

    def log_cost(self, texts: Sequence[str]) -> None:
        """Log the size and cost of embedding ``texts``; small jobs are not logged."""
        if len(texts) < _LARGE_JOB:
            return
        tokens = estimated_tokens(texts)
        cost = "embedder.price_per_million_tokens would tell the cost"
        if self._price is not None:
            cost = f"cost about {tokens / 1e6 * self._price:,.2f} at {self._price:g} per million"
        if self.queries_left is not None and self.queries_left < len(texts):
            cost += f"; embedder.max_queries ends it after {self.queries_left:,} texts"
        log.info("%s: %s texts to embed, about %s tokens; %s", self._name, f"{len(texts):,}", f"{tokens:,}", cost)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors of ``texts``, (n, d) float32 on the CPU; a QueryLimitError if ``max_queries`` is reached."""
        if not texts:
            return torch.empty(0, self.dimension)
        rows: dict[int, Tensor] = {}
        self.stream(texts, lambda places, vectors: rows.update(zip(places, vectors, strict=True)))
        vectors = torch.stack([rows[place] for place in range(len(texts))])
        if not (valid := valid_vectors(vectors)).all():
            bad = int(valid.int().argmin())
            raise InputError(f"{self._name}: gave {describe_invalid(vectors[bad])} for text {bad}")
        return vectors

    def stream(self, texts: Sequence[str], on_vectors: OnVectors) -> None:
        """See ``Remote``. The requests run in threads, since Ctrl-C only interrupts the main thread."""
        client, stop = self._client(), threading.Event()
        starts = iter(range(0, len(texts), self._batch_size))
        failures: list[BaseException] = []
        before = self._arrived

        def work() -> None:
            try:
                while not stop.is_set() and (start := next(starts, None)) is not None:
                    batch = texts[start : start + self._batch_size]
                    allowed = self._spend(len(batch))
                    if not allowed:
                        return
                    on_vectors(range(start, start + allowed), self._vectors(client, batch[:allowed], stop))
                    with self._lock:
                        self._arrived += allowed
            except BaseException as error:  # noqa: BLE001  raised in the calling thread
                failures.append(error)
                stop.set()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(self._concurrency)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:
            stop.set()
            end = time.monotonic() + _TERMINATION_SECONDS
            if isinstance(error, KeyboardInterrupt):
                log.warning("%s: waiting for pending requests, which are paid for; Ctrl-C again drops them", self._name)
                end = threading.TIMEOUT_MAX
            with contextlib.suppress(KeyboardInterrupt):
                for thread in filter(threading.Thread.is_alive, threads):
                    thread.join(max(0.0, min(end - time.monotonic(), threading.TIMEOUT_MAX)))
            raise
        client.close()
        if failures and not isinstance(failures[0], InputError):
            raise failures[0]
        if failures:
            stored = f"; vectors that had arrived and are kept in the cache: {self._arrived:,}" if self._arrived else ""
            raise UnfinishedError(f"{failures[0]}{stored}")
        if self._arrived - before < len(texts):
            raise QueryLimitError(
                f"embedder.max_queries={self._max_queries} is reached: this process has sent so many texts to "
                f"{self._name}, and the {self._arrived:,} vectors that arrived are kept in the cache. Raise it, or run "
                "the command again to send as many more: only what is missing is sent"
            )

    def _spend(self, texts: int) -> int:
        """Count ``texts`` against ``max_queries``; returns how many of them may be sent."""
        if self.queries_left is None:
            return texts
        with self._lock:
            granted = min(texts, self.queries_left)
            self.queries_left -= granted
        return granted

    def _client(self) -> httpx.Client:
        import httpx

        for name in ("httpx", "httpcore"):  # they log each request, and with a verbose Hydra all headers
            if logging.getLogger(name).level == logging.NOTSET:
                logging.getLogger(name).setLevel(logging.WARNING)
        key = self._key()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            # Surplus bytes after an answer would be read as the next one, so no connection is reused.
            limits = httpx.Limits(max_keepalive_connections=0)
            return httpx.Client(verify=_certificates(), headers=headers, timeout=self._timeout, limits=limits)
        except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:  # it may quote the password of a proxy
            raise InputError(
                f"{self._name}: no connection can be prepared ({type(error).__name__}): check the environment's "
                "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
            ) from None

    def _key(self) -> str | None:
        if self._api_key_env is None:
            return None
        key = os.environ.get(self._api_key_env, "").strip()
        if not key:
            raise InputError(
                f"embedder.api_key_env={self._api_key_env}: that environment variable is not set; export it with the "
                "server's key, or give embedder.api_key_env=null for a server that wants none"
            )
        if not (key.isascii() and key.isprintable()) or " " in key:  # an error of the HTTP library would quote it
            raise InputError(f"embedder.api_key_env={self._api_key_env}: that environment variable holds no key")
        return key

    def _vectors(self, client: httpx.Client, texts: Sequence[str], stop: threading.Event) -> Tensor:
        """Vectors of ``texts``, (n, d), from one request, which is retried after transient failures."""
        request: dict[str, Any] = {
            "model": self._model,
            "input": [text or " " for text in texts],  # OpenAI's server refuses empty texts
            "encoding_format": "float",
        }
        if self._wanted_dimension is not None:
            request["dimensions"] = self._wanted_dimension
        content = json.dumps(request).encode()  # ASCII, whatever the texts hold
        for attempt in itertools.count(1):
            try:
                return self._read(self._post(client, content), len(texts))
            except _RequestError as error:
                failure = error
            reason = f"{self._name}: {failure}" + (f" ({attempt} attempts)" if attempt > 1 else "")
            if not failure.transient or attempt > self._retries:
                raise InputError(reason)
            wait = min(self._backoff * 2.0 ** (attempt - 1), _LONGEST_BACKOFF) * self._jitter.uniform(0.5, 1.0)
            if failure.wait is not None:
                wait = failure.wait + self._jitter.uniform(0.0, self._backoff)
            if wait > _LONGEST_WAIT:
                raise InputError(f"{reason}, and asks to wait {wait:,.0f} seconds: try again then")
            if wait > _SILENT_WAIT:
                log.warning("%s; the next attempt in %.0f seconds", reason, wait)
            if stop.wait(wait):
                raise InputError(f"{reason}; given up, since another request failed")
            if failure.billed and self._spend(len(texts)) < len(texts):
                raise InputError(f"{reason}; embedder.max_queries allows no further attempt")
        raise AssertionError("the loop returns or raises")

    def _post(self, client: httpx.Client, content: bytes) -> bytes:
        """The body of the server's answer to one attempt."""
        import httpx

        try:
            answer = client.post(self._url, content=content)
        except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:
            unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            transient = isinstance(error, httpx.TimeoutException | httpx.NetworkError | httpx.RemoteProtocolError)
            # Before the first answer, a wrong address is likelier than a restarting server.
            transient = transient and (self._answered or not isinstance(error, httpx.ConnectError))
            detail = f": {type(error).__name__} {self._quoted(str(error))}"
            if isinstance(error, httpx.TimeoutException):
                detail = f" within embedder.timeout={self._timeout:g} seconds"
            reason = f"no {'connection' if unsent else 'answer'}{detail}"
            raise _RequestError(reason, transient, billed=not unsent) from None
        self._answered = True
        status = answer.status_code
        if status == 200:
            return answer.content
        if status == 401:  # the server's message may contain a part of the key
            given = f"the key in {self._api_key_env}" if self._api_key_env else "a request without a key"
            raise _RequestError(f"refuses {given} (HTTP 401)", transient=False)
        reason = f"HTTP {status}: {self._quoted(_message_in(answer.content))}"
        if status == 404:
            reason += "; check embedder.base_url (it mostly ends in /v1) and embedder.model"
        elif 300 <= status < 400:
            address = self._quoted(answer.headers.get("location", ""))
            reason += f"; redirects are not followed: give embedder.base_url the server's new address ({address})"
        transient = status in _TRANSIENT or status >= 500
        seconds = re.fullmatch(r"\d+(\.\d+)?", answer.headers.get("retry-after", ""))
        wait = float(seconds[0]) if seconds else None
        raise _RequestError(reason, transient and _EXHAUSTED not in answer.content, wait=wait)

    def _read(self, body: bytes, texts: int) -> Tensor:
        """The vectors in an answer, (texts, d); null becomes NaN, and numbers that overflow float32 infinity."""
        try:
            rows = _Answer.model_validate_json(body, strict=True).data
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "JSON"
            raise InputError(
                f"{self._name}: the answer is no list of vectors ({where}: {first['msg']}); check embedder.base_url, "
                f"which mostly ends in /v1: {self._quoted(body.decode(errors='replace'))}"
            ) from None
        rows.sort(key=lambda row: row.index)  # the protocol does not guarantee the order of the list
        if [row.index for row in rows] != list(range(texts)):
            raise InputError(
                f"{self._name}: gave {len(rows)} vectors for {texts} texts, with index fields that are not 0 to "
                f"{texts - 1}, each once"
            )
        vectors = [row.embedding for row in rows]
        self._dimension = self._dimension or len(vectors[0])
        other = [len(vector) for vector in vectors if len(vector) != self._dimension]
        if other or not self._dimension:
            wanted = "embedder.dimensions asks for" if self._wanted_dimension else "the first one had"
            raise InputError(
                f"{self._name}: gave a vector of dimension {max(other, default=0)}, {wanted} {self._dimension}"
            )
        with np.errstate(over="ignore"):
            return torch.from_numpy(np.array(vectors, dtype=np.float32))

    def _quoted(self, message: str) -> str:
        """The beginning of a server's message on one line, without the key."""
        key = self._key()
        message = " ".join((message.replace(key, "***") if key else message).split())
        return message if len(message) <= _SHOWN_CHARACTERS else f"{message[: _SHOWN_CHARACTERS - 1]}…"


def _message_in(body: bytes) -> str:
    """The error message in the body of an error response, or the body."""
    text = body.decode(errors="replace")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for name in ("error", "message", "detail"):
        message = message.get(name, message) if isinstance(message, dict) else message
    return message if isinstance(message, str) else text


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The certificates of the environment; cached, since reading them takes 20 ms."""
    import httpx

    return httpx.create_ssl_context()
