"""The answer on its way back: each chunk as it comes, unmodified, or a clear end.

The status is held until the upstream's own is known, and what must not cross (a redirect, a
compressed body, a complaint about our key) becomes a 502 before anything was sent, or an error event
where the answer was committed. After that it is either complete or visibly broken off; nothing is
ever invented to make it look complete.
"""

import json
import re
from dataclasses import dataclass
from http import HTTPStatus

import anyio
import httpx
import jiter
from starlette.types import Send

from proxy import headers
from proxy.answer import Answer, Sink
from proxy.context import RequestContext
from proxy.errors import RawHeaders, UpstreamError
from proxy.lifeline import Deadline, Lifeline
from proxy.telemetry.usage import UsageMeter
from proxy.upstream import faults

# Whoever announces more than an exabyte is not counting bytes.
_LENGTH = re.compile(rb"[0-9]{1,18}")

# What belongs to the hop between the two of us, and what only a request of ours could have asked for:
# a part of an answer must never pass for the whole.
_NOT_THE_CLIENTS = frozenset(
    {
        HTTPStatus.RESET_CONTENT,
        HTTPStatus.PARTIAL_CONTENT,
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
        HTTPStatus.MISDIRECTED_REQUEST,
        HTTPStatus.UPGRADE_REQUIRED,
    }
)

# An upstream's error is a message and the names of a few fields.
MAX_ERROR_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Relay:
    """Passes answers on.

    Attributes:
        idle: How long the upstream may be silent between two chunks.
        max_response_bytes: The longest body that is passed on (``PROXY_MAX_RESPONSE_BYTES``).
        response_headers: More fields to let through, lowercase (``PROXY_RESPONSE_HEADERS``).
        keep_alive_seconds: The silence in a stream of events after which a comment is sent; 0 sends
            none (``PROXY_SSE_KEEPALIVE_SECONDS``).
    """

    idle: Deadline
    max_response_bytes: int
    response_headers: frozenset[bytes] = frozenset()
    keep_alive_seconds: float = 0.0

    def answer(self, context: RequestContext, send: Send, own: RawHeaders = ()) -> Answer:
        """An answer to fill, with our own fields in its head."""
        return Answer(context, send, own=own, keep_alive_seconds=self.keep_alive_seconds)

    async def stream(
        self,
        response: httpx.Response,
        answer: Answer,
        lifeline: Lifeline,
        meter: UsageMeter | None = None,
    ) -> None:
        """Passes the upstream's answer on as it comes, and closes it in any case.

        Args:
            response: The upstream's.
            answer: What the client gets of it.
            lifeline: Of the request.
            meter: Sees the body, and may take out of it what the client must not see.

        Raises:
            UpstreamError: It must not be passed on, or it ended before it was complete.
        """
        try:
            await answer.settle()
            if meter is not None:
                meter.begin(response.status_code, events=_is_events(response))
            announced = self._check(response, self.max_response_bytes)
            sink = await self._begin(response, announced, answer, lifeline, meter)
            await self._pump(
                response, announced, self.max_response_bytes, lifeline, sink, meter=meter
            )
        finally:
            await _close(response)
        # Last, and after everything that could wait: a client that leaves now has its answer.
        await answer.finish()

    async def _begin(
        self,
        response: httpx.Response,
        announced: int | None,
        answer: Answer,
        lifeline: Lifeline,
        meter: UsageMeter | None,
    ) -> Sink:
        status, received = response.status_code, response.headers.raw
        events = _is_events(response)
        if answer.committed and not events:
            raise await self._complaint(response, lifeline)
        fields = headers.to_client(received, extra=self.response_headers)
        if meter is not None and meter.takes_out and announced is not None:
            # What is taken out was announced with the rest.
            fields = [item for item in fields if item[0].lower() != b"content-length"]
            announced = None
        # Nothing of ours fits into a body whose length the upstream has announced.
        if events and (announced is None or answer.committed):
            return await answer.begin_events(fields)
        return await answer.begin(
            status, fields, 0 if status == HTTPStatus.NO_CONTENT else announced
        )

    async def _complaint(self, response: httpx.Response, lifeline: Lifeline) -> UpstreamError:
        """What the upstream said in place of the events that its client was promised."""
        if response.is_success:
            return UpstreamError(
                "The model server was asked for a stream and answered with something else."
            )
        message = f"The model server answered with status {response.status_code}."
        try:
            body = await self.collect(response, MAX_ERROR_BYTES, lifeline)
        except UpstreamError:
            return UpstreamError(message)
        return UpstreamError(message, told=_told(body))

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
        sink: Sink,
        *,
        meter: UsageMeter | None = None,
    ) -> None:
        passed = 0
        lifeline.expect(self.idle)
        try:
            async for chunk in response.stream:  # type: ignore[union-attr] # a transport's is async
                lifeline.progress()
                passed += len(chunk)
                if passed > max_bytes:
                    raise _too_long(max_bytes)
                if to_pass := chunk if meter is None else meter.note(chunk):
                    await sink(to_pass)
        except httpx.TransportError as exc:
            await _end(meter, sink, complete=False)
            raise faults.translate(exc) from exc
        # The transport should have seen it, but not every transport looks.
        if announced is not None and passed != announced:
            await _end(meter, sink, complete=False)
            raise UpstreamError("The model server's answer does not have the length it announced.")
        await _end(meter, sink, complete=True)


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
    if status in _NOT_THE_CLIENTS:
        raise UpstreamError(
            f"The model server answered with status {status}, which is not for you."
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


def _told(body: bytes) -> dict[str, object] | None:
    """The error object in an upstream's answer, if one says anything.

    Some send a bare string in its place, and SGLang sends it without the envelope.
    """
    try:
        answer = jiter.from_json(body, allow_inf_nan=False)
        # 1e999 can be read, as infinity, but not be written again.
        json.dumps(answer, allow_nan=False)
    except ValueError:
        return None
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    message = error.get("message") if isinstance(error, dict) else None
    return error if message and isinstance(message, str) else None


def _too_long(max_bytes: int) -> UpstreamError:
    return UpstreamError(
        f"The answer is longer than {max_bytes:,} bytes (PROXY_MAX_RESPONSE_BYTES)."
    )


def _is_events(response: httpx.Response) -> bool:
    return response.status_code == HTTPStatus.OK and headers.is_event_stream(response.headers.raw)


async def _end(meter: UsageMeter | None, sink: Sink, *, complete: bool) -> None:
    """Passes on what the meter has held back: what the upstream has said, the client gets."""
    if meter is not None and (rest := meter.end(complete=complete)):
        await sink(rest)


async def _close(response: httpx.Response) -> None:
    # Shielded: it is often a request that is being ended which comes by here, and a connection
    # half closed is one that the pool never gets back.
    with anyio.CancelScope(shield=True):
        await response.aclose()
