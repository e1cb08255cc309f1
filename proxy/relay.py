"""The answer on its way back: each chunk as it comes, unmodified, or a clear end.

The status is held until the upstream's own is known, and what must not cross (a redirect, a
compressed body, a complaint about our key) becomes a 502 before anything was sent. After that an
answer is either complete or visibly broken off; nothing is ever invented to make it look complete.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import anyio
import httpx
from starlette.types import Message, Send

from proxy import headers
from proxy.errors import RawHeaders, UpstreamError
from proxy.lifeline import Deadline, Lifeline
from proxy.upstream import faults

# Whoever announces more than an exabyte is not counting bytes.
_LENGTH = re.compile(rb"[0-9]{1,18}")

_Sink = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Relay:
    """Passes answers on.

    Attributes:
        idle: How long the upstream may be silent between two chunks.
        max_response_bytes: The longest body that is passed on (``PROXY_MAX_RESPONSE_BYTES``).
        response_headers: More fields to let through, lowercase (``PROXY_RESPONSE_HEADERS``).
    """

    idle: Deadline
    max_response_bytes: int
    response_headers: frozenset[bytes] = frozenset()

    async def stream(
        self, response: httpx.Response, send: Send, lifeline: Lifeline, own: RawHeaders = ()
    ) -> None:
        """Passes the answer on as it comes, with our own fields, and closes it in any case.

        Raises:
            UpstreamError: It must not be passed on, or it ended before it was complete.
        """
        try:
            announced = self._check(response, self.max_response_bytes)
            fields = headers.to_client(response.headers.raw, extra=self.response_headers)
            start = {"status": response.status_code, "headers": [*fields, *own]}
            answer = _Answer(
                send, start, 0 if response.status_code == HTTPStatus.NO_CONTENT else announced
            )
            await answer.begin()
            await self._pump(response, announced, self.max_response_bytes, lifeline, answer.write)
        finally:
            await _close(response)
        # Last, and after everything that could wait: a client that leaves now has its answer.
        await answer.finish()

    async def collect(self, response: httpx.Response, max_bytes: int, lifeline: Lifeline) -> bytes:
        """The whole body of an answer that must be looked at, and closes it in any case.

        Raises:
            UpstreamError: It must not be passed on, is longer than `max_bytes`, or ended early.
        """
        chunks: list[bytes] = []

        async def keep(chunk: bytes) -> None:
            chunks.append(chunk)

        try:
            announced = self._check(response, max_bytes)
            await self._pump(response, announced, max_bytes, lifeline, keep)
        finally:
            await _close(response)
        return b"".join(chunks)

    def _check(self, response: httpx.Response, max_bytes: int) -> int | None:
        """The announced length, if there is one, of an answer whose head is in order."""
        check_head(response.status_code, response.headers.raw)
        announced = announced_length(response.headers.raw)
        if announced is not None and announced > max_bytes:
            raise _too_long(max_bytes)
        return announced

    async def _pump(
        self,
        response: httpx.Response,
        announced: int | None,
        max_bytes: int,
        lifeline: Lifeline,
        sink: _Sink,
    ) -> None:
        passed = 0
        lifeline.expect(self.idle)
        try:
            async for chunk in response.stream:  # type: ignore[union-attr] # a transport's is async
                lifeline.progress()
                passed += len(chunk)
                if passed > max_bytes:
                    raise _too_long(max_bytes)
                await sink(chunk)
        except httpx.TransportError as exc:
            raise faults.translate(exc) from exc
        # The transport should have seen it, but not every transport looks.
        if announced is not None and passed != announced:
            raise UpstreamError("The model server's answer does not have the length it announced.")


class _Answer:
    """Writes an answer so that its last byte and its end go out together.

    A client that has every announced byte may send its next request at once. Were the answer still
    pending then, that request would count as pipelined, and be dropped: of 5,704 by a client
    without a pause, 5,376 were.
    """

    def __init__(self, send: Send, start: Mapping[str, object], announced: int | None) -> None:
        self._send = send
        self._start: Message = {"type": "http.response.start", **start}
        self._announced = announced
        self._written = 0
        self._last = b""

    async def begin(self) -> None:
        """Sends the head, unless the head is all there is."""
        if self._announced != 0:
            await self._send(self._start)

    async def write(self, chunk: bytes) -> None:
        """Sends a chunk at once, unless the announced length is reached with it."""
        self._written += len(chunk)
        if self._announced is not None and self._written >= self._announced:
            self._last += chunk
        else:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self) -> None:
        """Sends what is left, and the end."""
        if self._announced == 0:
            await self._send(self._start)
        await self._send({"type": "http.response.body", "body": self._last, "more_body": False})


def check_head(status: int, fields: RawHeaders) -> None:
    """Lets the head of an answer pass, or says why it must not cross.

    Raises:
        UpstreamError: In the upstream's place.
    """
    match status // 100:
        case 2 | 4 | 5:
            pass
        case 3:
            # Followed, it would let the engine choose whom we talk to; relayed, whom the client does.
            raise UpstreamError(f"The model server answered with a redirect ({status}).")
        case _:
            raise UpstreamError(f"The model server answered with status {status}: no answer.")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        # It is our key that was refused: a client that reads 401 would throw its own away.
        raise UpstreamError(
            f"The model server refused this proxy's own key ({status}, PROXY_UPSTREAM_API_KEY). "
            "Your key is not at fault."
        )
    codings = [value for name, value in fields if name.lower() == b"content-encoding"]
    if any(coding.strip().lower() not in (b"", b"identity") for coding in codings):
        # Asked for identity. What cannot be read cannot be measured either.
        raise UpstreamError("The model server compressed its answer, which it was asked not to do.")


def announced_length(fields: RawHeaders) -> int | None:
    """The length that an answer announces; None where its framing or its end tells.

    Raises:
        UpstreamError: Two framings, which two readers could read differently (RFC 9112 §6.3).
    """
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    if not lengths:
        return None
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in fields)
    if chunked or len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise UpstreamError("The model server's answer states its length in more than one way.")
    return int(lengths[0])


def _too_long(max_bytes: int) -> UpstreamError:
    return UpstreamError(
        f"The answer is longer than {max_bytes:,} bytes (PROXY_MAX_RESPONSE_BYTES)."
    )


async def _close(response: httpx.Response) -> None:
    # Shielded: it is often a request that is being ended which comes by here, and a connection
    # half closed is one that the pool never gets back.
    with anyio.CancelScope(shield=True):
        await response.aclose()
