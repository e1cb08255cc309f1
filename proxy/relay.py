"""The answer on its way back: each chunk as it comes, unmodified, or a clear end.

The status is held until the upstream's own is known, and what must not cross (a redirect, a
compressed body, a complaint about our key) becomes a 502 before anything was sent, or an error event
where the answer was committed. After that it is either complete or visibly broken off; nothing is
ever invented to make it look complete.
"""

from dataclasses import dataclass
from http import HTTPStatus

import anyio
import httpx
from starlette.types import Send

from proxy import headers
from proxy.answer import Answer, Write
from proxy.context import RequestContext
from proxy.errors import RawHeaders, UpstreamError
from proxy.lifeline import Deadline, Lifeline
from proxy.pipe import PIPE, Client, Flow, Pipe
from proxy.pump import Body
from proxy.telemetry.usage import UsageMeter
from proxy.upstream import complaints
from proxy.upstream.heads import announced_length, check_head

# An upstream's error is a message and the names of a few fields.
MAX_ERROR_BYTES = 64 * 1024

_BY_THE_CLIENT = {"type": "invalid_request_error"}
"""What a refused request's error is, in either dialect, unless the upstream has its own word."""


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

    def answer(
        self,
        context: RequestContext,
        send: Send,
        own: RawHeaders = (),
        client: Client | None = None,
    ) -> Answer:
        """An answer to fill, with our own fields in its head."""
        return Answer(
            context, send, client=client, own=own, keep_alive_seconds=self.keep_alive_seconds
        )

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
            status, fields = response.status_code, response.headers.raw
            events = status == HTTPStatus.OK and headers.is_event_stream(fields)
            if meter is not None:
                meter.begin(status, events=events)
            body = self._body(status, fields, self.max_response_bytes, meter)
            if answer.committed and not events:
                await self._complain(response, body, answer, lifeline)
            else:
                write = await self._begin(status, fields, body, answer, events=events)
                await _pass_on(response, body, answer, write, lifeline)
        finally:
            await _close(response)
        # Last, and after everything that could wait: a client that leaves now has its answer.
        await answer.finish()

    async def _begin(
        self, status: int, received: RawHeaders, body: Body, answer: Answer, *, events: bool
    ) -> Write:
        fields = headers.to_client(received, extra=self.response_headers)
        announced, meter = body.announced, body.meter
        if announced is not None and meter is not None and meter.takes_out:
            # What is taken out was announced with the rest.
            fields = [item for item in fields if item[0].lower() != b"content-length"]
            announced = None
        # Nothing of ours fits into a body whose length the upstream has announced.
        if events and (announced is None or answer.committed):
            return await answer.begin_events(fields)
        return await answer.begin(
            status, fields, 0 if status == HTTPStatus.NO_CONTENT else announced
        )

    async def _complain(
        self, response: httpx.Response, body: Body, answer: Answer, lifeline: Lifeline
    ) -> None:
        """Tells what the upstream said in place of the events that its client was promised.

        Raises:
            UpstreamError: It has failed, or it has not said all. That it does not want what the client
                asked for (4xx) is no failure, and counts as it would have without the events.
        """
        status = response.status_code
        if response.is_success:
            raise UpstreamError(
                "The model server was asked for a stream and answered with something else."
            )
        message = f"The model server answered with status {status}."
        told = complaints.told(await _beginning(response, body, lifeline))
        if not response.is_client_error:
            raise UpstreamError(message, told=told)
        answer.refuse(status, UpstreamError(message, told=_BY_THE_CLIENT | (told or {})))

    async def collect(self, response: httpx.Response, max_bytes: int, lifeline: Lifeline) -> bytes:
        """The whole body of an answer that must be looked at, and closes it in any case.

        Raises:
            UpstreamError: It must not be passed on, is longer than `max_bytes`, or ended early.
        """
        chunks: list[bytes] = []

        async def keep(chunk: bytes) -> None:
            chunks.append(chunk)

        try:
            body = self._body(response.status_code, response.headers.raw, max_bytes)
            await body.pull(response, keep, lifeline)
        finally:
            await _close(response)
        return b"".join(chunks)

    def _body(
        self, status: int, fields: RawHeaders, max_bytes: int, meter: UsageMeter | None = None
    ) -> Body:
        """What is known of the body of an answer whose head is in order."""
        check_head(status, fields)
        body = Body(announced_length(fields), max_bytes, self.idle, meter)
        if body.announced is not None and body.announced > max_bytes:
            raise body.too_long()
        return body


async def _pass_on(
    response: httpx.Response, body: Body, answer: Answer, write: Write, lifeline: Lifeline
) -> None:
    """Pushed where both sides can; pulled otherwise."""
    # A transport that can push keeps the time of each chunk, which nobody else sees.
    pipe: Pipe | None = response.extensions.get(PIPE)
    flow = sink = None
    if pipe is not None and answer.can_be_pushed:
        flow = Flow()
        sink = await answer.open(flow)
    if pipe is not None and flow is not None and sink is not None:
        await body.push(pipe, flow, sink)
    else:
        await body.pull(response, write, lifeline)


class _EnoughError(Exception):
    """No error is that long."""


async def _beginning(response: httpx.Response, body: Body, lifeline: Lifeline) -> bytes:
    """The body of an upstream's error; nothing where it is longer than one can be.

    Raises:
        ProxyError: It is not complete, or did not go on.
    """
    chunks: list[bytes] = []

    async def keep(chunk: bytes) -> None:
        chunks.append(chunk)
        if body.passed > MAX_ERROR_BYTES:
            raise _EnoughError

    try:
        await body.pull(response, keep, lifeline)
    except _EnoughError:
        return b""
    return b"".join(chunks)


async def _close(response: httpx.Response) -> None:
    if PIPE in response.extensions:
        # Ours closes at once, and waits for nothing. By itself: httpx puts a context around it.
        await response.stream.aclose()  # type: ignore[union-attr] # a transport's is async
        return
    # Shielded: it is often a request that is being ended which comes by here, and a connection
    # half closed is one that the pool never gets back.
    with anyio.CancelScope(shield=True):
        await response.aclose()
