"""Client of one server with the OpenAI embeddings protocol: sends requests, retries transient failures, checks answers.

    POST {base_url}/embeddings   {"model": "m", "input": ["hello"], "encoding_format": "float"}
    -> {"data": [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}]}

    vectors_of(body, texts=2)     # [[1, 0], [0, 1]]

The key is read from the environment when requests are sent, and stored only in the headers of the HTTP client.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import os
import random
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import numpy as np
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from unembed.core.errors import InputError
from unembed.embedders.cache.shards import Vectors

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_READ_CHARACTERS, _SHOWN_CHARACTERS = 2000, 200  # of a server's message
_QUOTED_BYTES = 2**13  # of an answer that is not understood
_NUMBERS = {int, float, type(None)}
_LONGEST_BACKOFF = 60.0  # seconds
_LONGEST_WAIT = 600.0  # seconds: if a server asks for more, the run fails
_SILENT_WAIT = 5.0  # seconds: shorter waits are not logged
_TRIED_AGAIN = {408, 409, 425, 429}  # and everything from 500 on
_EXHAUSTED = b"insufficient_quota"  # OpenAI's code for an empty account: it comes as 429, and no waiting helps


def _address(value: str) -> str:
    # The address is written into config.yaml, so it must not contain a secret.
    try:
        parts = urlsplit(value)
        plain = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        plain = plain and value.isprintable() and not any(letter in value for letter in "@?# ")
    except ValueError:  # the port is not a number
        plain = False
    if not plain:
        raise PydanticCustomError("address", "an http or https address without user name, query or fragment")
    return value


Address = Annotated[str, AfterValidator(_address)]


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an attempt failed.

    Attributes:
        again: Whether another attempt may succeed.
        billed: Whether the server may have billed the attempt although it failed.
        asked_wait: Seconds that the server asks to wait.
    """

    reason: str
    again: bool
    billed: bool = False
    asked_wait: float | None = None


class EmbeddingServer:
    """Requests the vectors of a few texts at a time.

    Attributes:
        name: Model and address, for messages.
        dimension: Dimension of a vector; without the argument ``dimensions``, None until the first answer.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        dimensions: int | None,
        api_key_env: str | None,
        timeout: float,
        retries: int,
        backoff: float,
    ) -> None:
        """No request is sent yet; the arguments are those of ``OpenAIEmbedder``."""
        self.name = f"embedder.model={model} at {base_url}"
        self.dimension = dimensions
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._model, self._dimensions, self._api_key_env = model, dimensions, api_key_env
        self._timeout, self._retries, self._backoff = timeout, retries, backoff
        self._reached = False
        self._jitter = random.Random()  # separate from the run's seeded global generator

    def client(self, connections: int) -> httpx.AsyncClient:
        """An HTTP client with at most ``connections`` concurrent requests.

        Raises:
            InputError: The environment variable of the key is not set or holds no valid key; or a proxy or certificate
                file that the environment names cannot be used.
        """
        import httpx

        for name in ("httpx", "httpcore"):  # they log each request, and with a verbose Hydra all headers
            if logging.getLogger(name).level == logging.NOTSET:
                logging.getLogger(name).setLevel(logging.WARNING)
        key = self._key()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            return httpx.AsyncClient(
                verify=_certificates(),
                headers=headers,
                timeout=self._timeout,
                # No connection is reused: surplus bytes after an answer would be read as the next one.
                limits=httpx.Limits(max_connections=connections, max_keepalive_connections=0),
                follow_redirects=False,
            )
        except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:  # it may quote the password of a proxy
            raise InputError(
                f"{self.name}: no connection can be prepared ({type(error).__name__}): check the environment variables "
                "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
            ) from None

    async def vectors(
        self,
        client: httpx.AsyncClient,
        texts: Sequence[str],
        stop: asyncio.Event,
        spend: Callable[[int], int],
    ) -> Vectors:
        """Vectors of ``texts``, (n, d) float32, from one request, which is retried after transient failures.

        Args:
            client: From :meth:`client`.
            texts: At least one. An empty text is sent as a space, since OpenAI's server refuses empty texts.
            stop: Interrupts the wait before the next attempt.
            spend: Called with n before n texts are sent again after an attempt that the server may have billed;
                returns how many of them may be sent.

        Returns:
            The vectors; null becomes NaN, and numbers that overflow float32 become infinity.

        Raises:
            InputError: The server refuses the request, does not answer, or answers with anything but a list of vectors.
        """
        wanted = {} if self._dimensions is None else {"dimensions": self._dimensions}
        inputs = [text or " " for text in texts]
        request = {"model": self._model, "input": inputs, "encoding_format": "float", **wanted}
        content = json.dumps(request).encode()  # ASCII, whatever the texts hold
        attempt = 0
        while True:
            outcome = await self._attempt(client, content)
            if not isinstance(outcome, _Failure):
                return await asyncio.to_thread(self._vectors_in, outcome, len(texts))
            reason = f"{self.name}: {outcome.reason}" + (f" ({attempt + 1} attempts)" if attempt else "")
            if not outcome.again or attempt == self._retries:
                raise InputError(reason)
            wait = self._wait(attempt, outcome.asked_wait)
            if wait > _LONGEST_WAIT:
                raise InputError(f"{reason}, and asks to wait {wait:,.0f} seconds: try again then")
            if wait > _SILENT_WAIT:
                log.warning("%s; the next attempt in %.0f seconds", reason, wait)
            if await stopped_within(wait, stop):
                raise InputError(f"{reason}; given up, since another request failed")
            if outcome.billed and spend(len(texts)) < len(texts):
                raise InputError(f"{reason}; embedder.max_queries allows no further attempt")
            attempt += 1

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

    async def _attempt(self, client: httpx.AsyncClient, content: bytes) -> httpx.Response | _Failure:
        """The answer of one attempt, or the reason why it failed."""
        import httpx

        try:
            answer = await client.post(self._url, content=content)
        except httpx.TimeoutException as error:
            sent = not isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout)
            what = "answer" if sent else "connection"
            reason = f"no {what} within embedder.timeout={self._timeout:g} seconds"
            return _Failure(reason, again=True, billed=sent)
        except httpx.ConnectError as error:
            # Before the first answer, a wrong address is likelier than a restarting server.
            return _Failure(f"no connection: {self._quoted(_cause(error))}", again=self._reached)
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            return _Failure(f"the connection broke: {self._quoted(_cause(error))}", again=True, billed=True)
        except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:
            return _Failure(f"{type(error).__name__}: {self._quoted(str(error))}", again=False)
        self._reached = True
        return answer if answer.status_code == 200 else self._refusal(answer)

    def _refusal(self, answer: httpx.Response) -> _Failure:
        status, said = answer.status_code, self._quoted(words_of(answer.content))
        if status == 401:  # the server's message may contain a part of the key
            given = f"the key in {self._api_key_env}" if self._api_key_env else "a request without a key"
            return _Failure(f"refuses {given} (HTTP 401)", again=False)
        reason = f"HTTP {status}" + (f": {said}" if said else "")
        if status == 404:
            reason += "; check embedder.base_url (it mostly ends in /v1) and embedder.model"
        elif 300 <= status < 400:  # following a redirect would send the texts and the key to another server
            reason += "; redirects are not followed: give embedder.base_url the address that the server names"
            if answer.headers.get("location"):
                reason += f" ({self._quoted(answer.headers['location'])})"
        exhausted = status == 429 and _EXHAUSTED in answer.content
        again = not exhausted and (status in _TRIED_AGAIN or status >= 500)
        return _Failure(reason, again=again, asked_wait=retry_after(answer.headers))

    def _wait(self, attempt: int, asked: float | None) -> float:
        """Seconds until the next attempt: the server's request or exponential backoff, with jitter."""
        jitter = self._jitter.random()
        if asked is not None:
            return asked + jitter * self._backoff
        return min(self._backoff * 2.0**attempt, _LONGEST_BACKOFF) * (0.5 + 0.5 * jitter)

    def _vectors_in(self, answer: httpx.Response, texts: int) -> Vectors:
        try:
            vectors = vectors_of(answer.content, texts)
        except NoJSONError as error:
            said = f"{answer.headers.get('content-type', 'no content type')}, {error}"
            raise InputError(
                f"{self.name}: the answer is no JSON; check embedder.base_url, which mostly ends in /v1 "
                f"({self._quoted(said)})"
            ) from None
        except ValueError as error:
            raise InputError(f"{self.name}: {self._quoted(str(error))}") from None
        self.dimension = self.dimension or vectors.shape[1]
        if vectors.shape[1] != self.dimension:
            wanted = "embedder.dimensions asks for" if self._dimensions else "the first answer had"
            raise InputError(f"{self.name}: gave vectors of dimension {vectors.shape[1]}, {wanted} {self.dimension}")
        return vectors

    def _quoted(self, said: str) -> str:
        """A server's message on one line, without control characters and without the key."""
        key = self._key()
        said, whole = said[:_READ_CHARACTERS], len(said) <= _READ_CHARACTERS
        if key:
            said = said.replace(key, "***")
            said = said if whole else said[: -len(key)]  # truncation may have left a part of the key
        said = " ".join("".join(letter if letter.isprintable() else " " for letter in said).split())
        return said if len(said) <= _SHOWN_CHARACTERS else f"{said[: _SHOWN_CHARACTERS - 1]}…"


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The certificates of the environment; cached, since reading them takes 20 ms."""
    import httpx

    return httpx.create_ssl_context()


async def stopped_within(seconds: float, stop: asyncio.Event) -> bool:
    """Wait for ``stop``; False if it is not set within ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False


def _cause(error: BaseException) -> str:
    """The original error, below wrappers such as "all connection attempts failed"."""
    while isinstance(error, BaseExceptionGroup) or error.__cause__ is not None:
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error
    return str(error) or type(error).__name__


class NoJSONError(ValueError):
    """An answer that cannot be parsed; the message is its beginning."""


def vectors_of(body: bytes, texts: int) -> Vectors:
    """The vectors of an answer in the order of its index fields, (texts, d) float32.

    null becomes NaN, and numbers that overflow float32 become infinity.

    Raises:
        NoJSONError: The answer cannot be parsed.
        ValueError: The answer is not a list of ``texts`` vectors of one dimension with the indices 0 to ``texts`` - 1.
            The message quotes at most the beginning of the answer.
    """
    answer = _parsed(body)
    rows = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "embedding" in row for row in rows):
        raise ValueError(f"the answer holds no list of vectors: {beginning(body)}")
    if len(rows) != texts:
        raise ValueError(f"gave {len(rows)} vectors for {texts} texts")
    # Sort by the index field: the protocol does not guarantee the order of the list.
    indices = [row.get("index") for row in rows]
    if {index for index in indices if type(index) is int} != set(range(texts)):
        shown = [index if isinstance(index, str | int | float | None) else "..." for index in indices]
        raise ValueError(
            f"the index fields are not 0 to {texts - 1}, each once, so it is unknown whose the vectors are: "
            f"{json.dumps(shown)}"
        )
    ordered = [row["embedding"] for row in sorted(rows, key=lambda row: row["index"])]
    # NumPy would also convert strings such as "0.5" and booleans.
    if not all(isinstance(vector, list) and set(map(type, vector)) <= _NUMBERS for vector in ordered):
        raise ValueError("gave an embedding that is no list of numbers")
    found = sorted({len(vector) for vector in ordered})
    if len(found) > 1 or found[0] == 0:
        raise ValueError(f"gave vectors of the dimensions {', '.join(map(str, found))} in one answer")
    try:
        with np.errstate(over="ignore"):
            return np.array(ordered, dtype=np.float32)  # null becomes NaN
    except OverflowError as error:
        raise ValueError("gave an embedding that is no list of numbers") from error


def words_of(body: bytes) -> str:
    """The error message in the body of an error response, or the beginning of the body."""
    try:
        found = _parsed(body)
    except NoJSONError as error:
        return str(error)
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else beginning(body)


def beginning(body: bytes) -> str:
    """The first characters of an answer, as UTF-8."""
    return body[:_QUOTED_BYTES].decode("utf-8", errors="replace")


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise NoJSONError(beginning(body)) from None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds until the time given by the Retry-After header (a number or a date); None without a valid header."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
            seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else max(seconds, 0.0)
