"""One answer as the client gets it: a head, chunks, an end; or nothing that looks like an end.

Usually the head is the upstream's. Where the upstream takes long to say anything, the answer may be
*committed*: a 200 event stream is begun in its place, so that a tunnel has something to pass on.
From then on everything else has to be said as an event (``Answer.refuse``, ``middleware.errors``).
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from starlette.types import Message, Send

from proxy.context import RequestContext
from proxy.errors import ProxyError, RawHeaders
from proxy.headers import EVENT_STREAM
from proxy.keepalive import KeepAlive
from proxy.pipe import Client, Flow, Sink

Write = Callable[[bytes], Awaitable[None]]
"""Takes the chunks of a body, one after the other."""


class Answer:
    """The answer to one request. A context manager: what it began is ended with its block.

    Args:
        context: Learns whether the answer is committed.
        send: The ASGI ``send``.
        client: What can be pushed into past ``send``, if anything can.
        own: Fields of our own, which every head has.
        keep_alive_seconds: The silence in an event stream after which a comment is sent; 0: none.
    """

    def __init__(
        self,
        context: RequestContext,
        send: Send,
        *,
        client: Client | None = None,
        own: RawHeaders = (),
        keep_alive_seconds: float = 0.0,
    ) -> None:
        self._context = context
        self._send = send
        self._client = client
        self._is_open = False
        self._own = own
        self._keep_alive_seconds = keep_alive_seconds
        self._keep_alive: KeepAlive | None = None  # of an event stream
        self._patience: asyncio.TimerHandle | None = None
        self._commitment: asyncio.Task[None] | None = None
        self._start: Message = {}
        self._announced: int | None = None
        self._written = 0
        self._last = b""

    @property
    def committed(self) -> bool:
        """Whether its head was sent before the upstream's was known."""
        return self._context.committed

    def commit_after(self, seconds: float) -> None:
        """Commits the answer in `seconds`, unless it is settled by then."""
        self._patience = asyncio.get_running_loop().call_later(seconds, self._begin_commitment)

    def _begin_commitment(self) -> None:
        self._commitment = asyncio.create_task(self._commit())

    async def settle(self) -> None:
        """From here on ``committed`` is what it will be: the upstream's head is known."""
        if self._patience is not None:
            self._patience.cancel()
        if self._commitment is not None:
            await self._commitment

    async def begin(self, status: int, fields: RawHeaders, announced: int | None) -> Write:
        """Sends the head, unless the head is all there is, and says where the chunks go.

        Args:
            status: The upstream's.
            fields: Of the upstream's head, without a length where none is to be announced.
            announced: The bytes of body to come; None where nobody knows.
        """
        self._announced = announced
        self._start = {
            "type": "http.response.start",
            "status": status,
            "headers": [*fields, *self._own],
        }
        if announced != 0:
            await self._send(self._start)
        return self._write

    async def begin_events(self, fields: RawHeaders) -> Write:
        """As ``begin``, for the events of a 200, which a comment may come between."""
        if self.committed:
            self._context.committed = False
        else:
            await self.begin(200, fields, None)
            self._keep_alive = KeepAlive(self._send, self._keep_alive_seconds)
            self._keep_alive.start()
        return self._keep_alive.write if self._keep_alive is not None else self._write

    @property
    def can_be_pushed(self) -> bool:
        """Whether ``open`` is worth a try: nothing can be pushed into a body of announced length."""
        return self._client is not None and self._announced is None

    async def open(self, flow: Flow) -> Sink | None:
        """Where the body can be pushed from now on, instead of being written; None if nowhere.

        Args:
            flow: Is paused while the client does not take what there is.
        """
        if self._client is None or self._announced is not None:
            return None
        keep_alive = self._keep_alive
        if keep_alive is not None:
            await keep_alive.settle()
        sink = self._client.open(flow)
        if sink is None:
            return None
        self._is_open = True
        return sink if keep_alive is None else keep_alive.through(sink, flow)

    def refuse(self, status: int, error: ProxyError) -> None:
        """Has the end of a committed answer tell that the upstream refuses the request.

        Args:
            status: The upstream's, which would have been the answer's.
            error: What its event says.
        """
        self._context.told_status = status
        self._last = error.event(self._context.dialect, self._context.request_id)

    async def finish(self) -> None:
        """Sends what is left, and the end."""
        self._stop()
        if self._announced == 0:
            await self._send(self._start)
        await self._send({"type": "http.response.body", "body": self._last, "more_body": False})

    def _stop(self) -> None:
        if self._keep_alive is not None:
            self._keep_alive.stop()
        if self._is_open and self._client is not None:
            self._is_open = False
            self._client.done()

    async def _commit(self) -> None:
        await self.begin(200, EVENT_STREAM, None)
        # Not before: an answer whose head may not be out yet can only be broken off.
        self._context.committed = True
        # With a body, because not everything on the way passes on a head alone.
        self._keep_alive = KeepAlive(self._send, self._keep_alive_seconds)
        await self._keep_alive.comment()
        self._keep_alive.start()

    async def _write(self, chunk: bytes) -> None:
        """Sends a chunk at once, unless the announced length is reached with it.

        A client that has every announced byte may send its next request at once. Were the answer
        still pending then, that request would count as pipelined, and be dropped: of 5,704 by a
        client without a pause, 5,376 were. So the last byte goes out together with the end.
        """
        self._written += len(chunk)
        if self._announced is not None and self._written >= self._announced:
            self._last += chunk
        else:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._commitment is not None:
            self._commitment.cancel()
        if exc_type is not None and self._keep_alive is not None:
            behind = self._client is not None and self._client.behind
            said_all = self._keep_alive.has_said_all(self._context.dialect)
            self._context.has_all = said_all and not behind
        self._stop()
