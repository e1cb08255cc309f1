"""The body of one answer as it comes in: pulled as a stream, or pushed into a sink.

It is filled from within the loop's callbacks. What has come before anybody asked for it waits here,
bounded; what a slow client has not taken when the answer is complete waits here too, while the
connection serves the next request.
"""

import asyncio
from collections import deque
from typing import Protocol, Self

import httpx

from proxy.pipe import Flow, Sink
from proxy.upstream.wire import ResponseReader

MAX_HELD_BYTES = 32 * 1024
"""How much may wait before no more is read. With what one read brings, and with what the server's
side holds, the bound is 256 KiB a request. That is so on uvloop; over TLS, asyncio's
loop reads 256 KiB at once, and may hold twice that encrypted besides."""

_LOW_BYTES = MAX_HELD_BYTES // 2
"""How little must wait before more is read: each change costs the loop a call of the system."""

_CHUNK_BYTES = 64
"""What a chunk costs beside its bytes: a body of crumbs must not hold thirty times its length."""


class Line(Protocol):
    """The connection, as the body of an answer knows it."""

    reader: ResponseReader

    def release(self) -> None:
        """The answer is complete: what is heard from now on is another's."""

    def abort(self) -> None:
        """Closes at once."""

    def pause(self) -> None:
        """Reads no more until ``resume``."""

    def resume(self) -> None:
        """Reads again."""


class Body(httpx.AsyncByteStream):
    """The body of one answer.

    Args:
        loop: That of the connection.

    Attributes:
        is_pushed: What comes goes into a sink, so that only the end of it is news here.
    """

    __slots__ = (
        "_chunks",
        "_complete",
        "_failure",
        "_held",
        "_line",
        "_loop",
        "_waiter",
        "is_pushed",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: Line | None = None
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._complete = False
        self._failure: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.is_pushed = False

    # Who takes it

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk, never an empty one.

        Raises:
            httpx.TransportError: The rest will not come.
        """
        while not self._chunks:
            self._check()
            if self._complete:
                raise StopAsyncIteration
            try:
                await self._news()
            except BaseException:
                self._drop()
                raise
        chunk = self._chunks.popleft()
        held = self._held = self._held - len(chunk) - _CHUNK_BYTES
        if held <= _LOW_BYTES and self._line is not None:
            self._line.resume()
        return chunk

    async def pipe(self, sink: Sink, flow: Flow) -> None:
        """See ``proxy.pipe.Pipe``."""
        try:
            while self._chunks:
                sink(self._chunks.popleft())
            self._held = 0
            if self._line is not None:
                self._line.reader.on_body = sink
                self.is_pushed = True
                flow.attach(self)
                if not flow.paused:
                    self._line.resume()
            while not self._complete:
                self._check()
                await self._news()
        except BaseException:
            self._drop()
            raise
        finally:
            flow.detach()

    async def aclose(self) -> None:
        """Closes the connection at once if the answer is not complete: the engine must stop."""
        self._drop()

    # The source of a flow

    def pause(self) -> None:
        """Reads no more, while the connection is this answer's."""
        if self._line is not None:
            self._line.pause()

    def resume(self) -> None:
        """Reads again, while the connection is this answer's."""
        if self._line is not None:
            self._line.resume()

    # What the connection calls

    def fail(self, error: BaseException) -> None:
        """Nothing more will come, and this is why; of several errors the first counts."""
        line = self._line
        if line is not None:
            self._let_go()
            self._failure = error
            line.abort()
            self.wake()

    def wake(self) -> None:
        """There is something new for whoever waits."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # Inside

    def _keep(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._held += len(chunk) + _CHUNK_BYTES

    def _came(self, line: Line) -> None:
        """What one read brought of it is here."""
        if line.reader.complete:
            self._let_go()
            self._complete = True
            line.release()
            self.wake()
        elif self._chunks:
            if self._held > MAX_HELD_BYTES:
                line.pause()
            self.wake()

    def _drop(self) -> None:
        if self._line is not None:
            self.fail(httpx.ReadError("the answer was closed before it was complete"))
        self._failure = None

    def _let_go(self) -> None:
        """The connection is not this answer's any more."""
        self._line = None

    def _check(self) -> None:
        """Raises why nothing more will come, if that is so."""
        if self._line is None and not self._complete:
            raise self._why()

    def _why(self) -> BaseException:
        """Why nothing more will come, told once.

        What is raised holds the frames it went through, and they hold us, and the body that was sent:
        were it held here too, all of that would wait for the collector of garbage.
        """
        failure, self._failure = self._failure, None
        return failure or httpx.ReadError("the answer was closed before it was complete")

    def _news(self) -> asyncio.Future[None]:
        """Is over when something has happened."""
        waiter = self._waiter = self._loop.create_future()
        return waiter
