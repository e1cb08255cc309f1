"""The two questions to an engine, each bounded in time and in what is read of its answer.

Neither carries a key: whoever answers at this address before the engine does must not learn it.
"""

import asyncio
import errno
import socket
import ssl
import time
from dataclasses import dataclass
from typing import cast

import httpx

from proxy.patience import fail_after
from proxy.upstream.exposition import PageRefused
from proxy.upstream.readings import MAX_PAGE_BYTES, Reading, read
from proxy.upstream.states import Health
from proxy.upstream.target import Target
from proxy.upstream.transport import MAX_HEAD_BYTES

_OK = 200
_SERVER_ERROR = 500
_UNAVAILABLE = 503

_MAX_HEALTH_BYTES = 64 * 1024
_MAX_HEAD_BYTES = 64 * 1024
_NOT_FOUND = 404

_SMALL_CHUNKS = 1_000
"""How many chunks a body may have beyond one for each KiB: each costs as much as a KiB does."""

_TURN_SECONDS = 0.002
"""How long a body is read before other tasks have their turn."""


class Questions:
    """What is asked of one engine.

    Args:
        transport: The way to it.
        target: Whom to ask.
        health_path: Where it tells its health. Any answer that is not a 5xx will do: an engine that
            does not know the path serves.
        health_seconds: How long its answer may take as a whole.
        metrics_seconds: Likewise.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        target: Target,
        *,
        health_path: str = "/health",
        health_seconds: float = 2.0,
        metrics_seconds: float = 1.0,
    ) -> None:
        self._transport = transport
        # Made once: httpx takes longer over a URL than over sending it.
        self._health = _question(target, health_path, health_seconds)
        self._metrics = _question(target, "/metrics", metrics_seconds)
        self._health_seconds = health_seconds
        self._metrics_seconds = metrics_seconds

    async def health(self) -> tuple[Health, str]:
        """How it is, and what is wrong or odd about it in a word."""
        try:
            with fail_after(self._health_seconds):
                answer = await self._ask(self._health, _MAX_HEALTH_BYTES)
        except (httpx.TransportError, TimeoutError, PageRefused) as exc:
            return _failure(exc)
        if answer.status == _UNAVAILABLE:
            return Health.LOADING, "unavailable"
        if answer.status >= _SERVER_ERROR:
            return Health.FAILING, "failing"
        return Health.WELL, "no_health_page" if answer.status == _NOT_FOUND else ""

    async def metrics(self) -> Reading:
        """Its figures.

        Raises:
            PageRefused: There is no page, or none that is used.
        """
        try:
            with fail_after(self._metrics_seconds):
                answer = await self._ask(self._metrics, MAX_PAGE_BYTES)
        except TimeoutError as exc:
            raise PageRefused("late") from exc
        except httpx.TransportError as exc:
            raise PageRefused("broken") from exc
        if answer.status != _OK:
            raise PageRefused("absent")
        if answer.encoding != "identity":
            raise PageRefused("compressed")
        return read(answer.body)

    async def _ask(self, question: httpx.Request, most_bytes: int) -> "_Answer":
        """Its answer; of a body that is longer, a little more than the most of it.

        Raises:
            PageRefused: It comes in crumbs.
        """
        response = await self._transport.handle_async_request(question)
        body, chunks, began = bytearray(), 0, time.perf_counter()
        try:
            async for chunk in cast("httpx.AsyncByteStream", response.stream):
                body += chunk
                chunks += 1
                if len(body) > most_bytes:
                    break
                if chunks > _SMALL_CHUNKS + len(body) // 1024:
                    raise PageRefused("too_complex")
                if time.perf_counter() - began > _TURN_SECONDS:
                    await asyncio.sleep(0)
                    began = time.perf_counter()
        finally:
            await response.aclose()
        encoding = response.headers.get("content-encoding", "identity")
        return _Answer(response.status_code, encoding, bytes(body))


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    encoding: str
    body: bytes


def _question(target: Target, path: str, seconds: float) -> httpx.Request:
    return httpx.Request(
        "GET",
        f"{target.url}{path}",
        headers={"accept-encoding": "identity"},
        extensions={"timeout": {"connect": seconds}, MAX_HEAD_BYTES: _MAX_HEAD_BYTES},
    )


def _failure(exc: Exception) -> tuple[Health, str]:
    if isinstance(exc, TimeoutError | httpx.TimeoutException):
        return Health.FAILING, "silent"
    if not isinstance(exc, httpx.ConnectError):
        return Health.FAILING, "broken"
    causes = [cause for cause in _causes(exc) if isinstance(cause, OSError)]
    if any(map(_refused, causes)):
        return Health.ABSENT, "refused"
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        # A container that is down has no name.
        return Health.ABSENT, "unknown_host"
    tls = any(isinstance(cause, ssl.SSLError) for cause in causes)
    return Health.FAILING, "tls" if tls else "unreachable"


def _refused(cause: OSError) -> bool:
    # Where a name has two addresses that both refuse, there is but the text of it.
    return isinstance(cause, ConnectionRefusedError | FileNotFoundError) or (
        f"[Errno {errno.ECONNREFUSED}]" in str(cause)
    )


def _causes(exc: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while exc is not None:
        found.append(exc)
        # Some transports raise "from None", which hides the cause but does not drop it.
        exc = exc.__cause__ or exc.__context__
    return found
