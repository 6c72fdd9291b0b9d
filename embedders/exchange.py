"""One request over HTTP that ends: within a time and with an answer of a limited size, whatever the server does.

    exchange = Exchange("https://api.openai.com/v1/embeddings", {"Authorization": "Bearer ..."}, 4, seconds=60.0)
    exchange.post(b'{"model": ...}', most_bytes=2**20)     # Answer(status=200, headers=..., body=b'{"data": ...}')

A time limit of a socket starts anew with each byte, so a server that sends one now and then would never meet it. So the
requests run in an event loop, on a thread of its own, where one that takes too long is cancelled as a whole. Redirects
are not followed, cookies are not kept, and no key is looked for in a .netrc. Proxies are those of the environment.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
import zlib
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

_REFUSAL_BYTES = 2**16  # read of an answer with another status than 200
_CLOSING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sent; ``body`` is unpacked, and that of a refusal may be cut."""

    status: int
    headers: Mapping[str, str]
    body: bytes | bytearray


class DeadlineError(Exception):
    """The time was over.

    Attributes:
        sent: Whether the server may have read the request.
    """

    def __init__(self, sent: bool) -> None:
        super().__init__("the time was over")
        self.sent = sent


class AnswerError(Exception):
    """An answer that is not read to its end; the message says why."""


class Exchange:
    """Sends requests to one address; safe to use from several threads."""

    def __init__(self, url: str, headers: Mapping[str, str], connections: int, seconds: float) -> None:
        """Nothing is sent yet.

        Args:
            url: Where all requests go.
            headers: Of all requests.
            connections: As many are open at a time, each for one request.
            seconds: From the look-up of the server's name to the last byte of its answer.

        Raises:
            OSError, ValueError, ImportError, httpx.InvalidURL: The environment names a proxy or a file of certificates
                that cannot be used.
        """
        import httpx

        self._url, self._seconds = url, seconds
        self._client = httpx.AsyncClient(
            headers={**headers, "Accept-Encoding": "gzip"},
            timeout=None,
            # Bytes behind an answer would be read as the answer to the connection's next request: other texts' vectors.
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=0),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            follow_redirects=False,
        )
        self._under_way: set[Future[Answer]] = set()
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(self._loop,), name="embedding server", daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._loop, thread, self._client)

    def post(self, content: bytes, most_bytes: int) -> Answer:
        """Send ``content`` and wait for the answer.

        Args:
            most_bytes: Of an answer with status 200, after unpacking.

        Raises:
            DeadlineError: It took longer than ``seconds``.
            AnswerError: The answer is larger, or packed in another way than asked for.
            httpx.RequestError, httpx.InvalidURL, UnicodeError: There is no connection, or it broke, or no such address.
        """
        request = _post(self._client, self._url, content, most_bytes, self._seconds)
        future = asyncio.run_coroutine_threadsafe(request, self._loop)
        self._under_way.add(future)
        try:
            return future.result()
        finally:
            self._under_way.discard(future)

    def abandon(self) -> None:
        """End all requests under way; those who wait for them get a CancelledError."""
        for future in self._under_way.copy():
            future.cancel()


async def _post(client: httpx.AsyncClient, url: str, content: bytes, most_bytes: int, seconds: float) -> Answer:
    # A function, not a method: the event loop's thread must never hold the last reference to an Exchange.
    sent = False

    async def note(event: str, _: Mapping[str, Any]) -> None:
        nonlocal sent
        sent = sent or event.endswith("send_request_headers.started")

    body = bytearray()
    try:
        async with (
            asyncio.timeout(seconds),
            client.stream("POST", url, content=content, extensions={"trace": note}) as response,
        ):
            refused = response.status_code != 200
            try:
                await _read(response, body, _REFUSAL_BYTES if refused else most_bytes)
            except AnswerError:
                if not refused:
                    raise
            return Answer(response.status_code, response.headers, body)
    except TimeoutError:
        raise DeadlineError(sent) from None


async def _read(response: httpx.Response, body: bytearray, most_bytes: int) -> None:
    """Append to ``body`` what arrives, unpacked here: the HTTP library would unpack a bomb first and count later."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity", "gzip", "x-gzip"):
        raise AnswerError(f"the answer is packed as {coding}, which was not asked for")
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16) if coding.endswith("gzip") else None
    async for chunk in response.aiter_raw():
        try:
            body += chunk if unpacking is None else unpacking.decompress(chunk, most_bytes + 1 - len(body))
        except zlib.error as error:
            raise AnswerError("the answer is said to be packed as gzip, and is not") from error
        if len(body) > most_bytes:
            raise AnswerError(f"the answer is larger than {most_bytes:,} bytes")
        if unpacking is not None and unpacking.unused_data:  # it would be kept, however much it is
            raise AnswerError("the answer is packed as gzip, and goes on behind its end")
    if unpacking is not None and not unpacking.eof:
        raise AnswerError("the answer is said to be packed as gzip, and ends too early")


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, client: httpx.AsyncClient) -> None:
    async def close() -> None:
        await client.aclose()
        loop.stop()

    asyncio.run_coroutine_threadsafe(close(), loop)
    if threading.current_thread() is not thread:  # where the garbage is collected, is nobody's choice
        thread.join(_CLOSING_SECONDS)
