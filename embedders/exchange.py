"""One HTTP request with a limit on its total time and on the size of the answer.

    async with client_for({"Authorization": "Bearer ..."}, connections=4) as client:
        await post(client, "https://api.openai.com/v1/embeddings", b'{"model": ...}', most_bytes=2**20, seconds=60.0)
        # Answer(status=200, headers=..., body=b'{"data": ...}')

A socket's timeout restarts with each byte, so a server that sends slowly would never exceed it: a request that takes
too long is cancelled as a whole. Redirects are not followed, cookies are not stored, and .netrc is not read. Proxies
are taken from the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
import zlib
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_TERMINATION_SECONDS = 5.0
_REFUSAL_BYTES = 2**16  # read at most of an answer with a status other than 200


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer; ``body`` is decompressed, and truncated for an error status."""

    status: int
    headers: Mapping[str, str]
    body: bytes | bytearray


class DeadlineError(Exception):
    """The request took longer than its time limit.

    Attributes:
        sent: Whether the server may have read the request.
    """

    def __init__(self, sent: bool) -> None:
        super().__init__("the time was over")
        self.sent = sent


class AnswerError(Exception):
    """An answer that was not read completely; the message says why."""


def client_for(headers: Mapping[str, str], connections: int) -> httpx.AsyncClient:
    """An HTTP client with at most ``connections`` concurrent requests.

    Raises:
        OSError, ValueError, ImportError, httpx.InvalidURL: The environment names a proxy or certificate file that
            cannot be used.
    """
    import httpx

    for name in ("httpx", "httpcore"):  # they log each request, and with a verbose Hydra all headers
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(logging.WARNING)
    return httpx.AsyncClient(
        verify=_certificates(),
        headers={**headers, "Accept-Encoding": "gzip"},
        timeout=None,
        # No connection is reused: surplus bytes after an answer would be read as the answer to the next request.
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=0),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        follow_redirects=False,
    )


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The certificates of the environment; cached, since reading them takes 20 ms."""
    import httpx

    return httpx.create_ssl_context()


async def post(client: httpx.AsyncClient, url: str, content: bytes, most_bytes: int, seconds: float) -> Answer:
    """Send ``content`` and wait for the answer.

    Args:
        client: From :func:`client_for`.
        url: Address to post to.
        content: The request's body.
        most_bytes: Largest accepted answer with status 200, after decompression.
        seconds: Time limit, from the look-up of the server's name to the last byte of its answer.

    Raises:
        DeadlineError: The request took longer than ``seconds``.
        AnswerError: The answer is larger than ``most_bytes``, or compressed in a way that was not asked for.
        httpx.RequestError, httpx.InvalidURL, UnicodeError: The address is invalid, or the connection failed.
    """
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
    """Append the answer to ``body``; decompressed here, since httpx decompresses before a size can be checked."""
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
        if unpacking is not None and unpacking.unused_data:  # zlib would keep all of it in memory
            raise AnswerError("the answer is packed as gzip, and continues behind its end")
    if unpacking is not None and not unpacking.eof:
        raise AnswerError("the answer is said to be packed as gzip, and ends too early")


def run_beside(job: Coroutine[Any, Any, None], stop: asyncio.Event, name: str) -> None:
    """Run a job of requests in an event loop on a separate thread, since Ctrl-C only interrupts the main thread.

    After Ctrl-C, pending requests are awaited until a second Ctrl-C; after SIGTERM, for a few seconds, since SIGKILL
    follows soon.

    Args:
        job: Coroutine to run; its exceptions are raised here.
        stop: Set to tell the job to start no further request.
        name: Name of the server, for the log.
    """
    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as pool:
        loop = runner.get_loop()
        under_way = pool.submit(runner.run, job)
        try:
            under_way.result()
        except BaseException as error:
            patience: float | None = _TERMINATION_SECONDS
            if isinstance(error, KeyboardInterrupt):
                log.warning("%s: waiting for the requests under way, which are paid for; Ctrl-C again drops them", name)
                patience = None
            with contextlib.suppress(KeyboardInterrupt):
                loop.call_soon_threadsafe(stop.set)
                wait([under_way], patience)
            if not under_way.done():
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
            raise
