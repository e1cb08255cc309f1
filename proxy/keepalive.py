"""Comments into a silent event stream, so that nothing on the way takes it for dead.

Tunnels and load balancers cut a connection on which nothing has come for 60 to 120 s, and a long
prefill takes longer. A comment (a line that begins with a colon; WHATWG HTML, "Server-sent events",
§9.2.6) is what the format has for it: clients drop it unread. It must never come into the middle of
an event, and never wait in front of one.
"""

import asyncio

from starlette.types import Send

from proxy.endings import is_over
from proxy.errors import Dialect
from proxy.pipe import Flow, Sink

COMMENT = b": keep-alive\n\n"

IS_COMMENT = "bulwark.comment"
"""Marks the message of a comment, which is no byte of the upstream's answer."""

# Events end with an empty line, and a line with LF, CR or CRLF. "\n\r" may be half of "\n\r\n".
_ENDS_OF_EVENT = (b"\n\n", b"\n\r\n", b"\r\r")
# As much as the last events of all dialects are long that are short.
_TAIL_BYTES = 64


class Boundary:
    """Whether a stream of events, cut into any chunks, is between two events now. Pure.

    Only its last bytes tell: noting a chunk takes 0.1 µs, whatever its size.

    Attributes:
        tail: How it ends: its last chunk, or of several short ones the last bytes.
    """

    __slots__ = ("tail",)

    def __init__(self) -> None:
        self.tail = b"\n\n"

    def note(self, chunk: bytes) -> None:
        """This came next."""
        if len(chunk) >= _TAIL_BYTES:
            self.tail = chunk
        else:
            self.tail = (self.tail[-_TAIL_BYTES:] + chunk)[-_TAIL_BYTES:]

    @property
    def between_events(self) -> bool:
        """Whether a comment would be one here; false where it is not certain."""
        return self.tail.endswith(_ENDS_OF_EVENT)


class KeepAlive:
    """Writes the body of one event stream: chunks as they come, a comment where none has.

    One timer a stream, which looks at the time of the last write when it fires; a task only for a
    comment, and never two writes at a time.

    Args:
        send: The ASGI ``send``; its head must be on its way before anything is written here.
        seconds: The silence after which a comment is sent; 0 sends none.
    """

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._boundary = Boundary()
        self._last_write = self._loop.time()
        self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None
        self._sink: Sink | None = None
        self._flow: Flow | None = None

    def start(self) -> None:
        """Watches for silence from now on, until ``stop``."""
        if self._seconds:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def stop(self) -> None:
        """No comment is written from now on, not even one that has begun to wait for the client."""
        if self._timer is not None:
            self._timer.cancel()
        self._sink = None
        if self._comment is not None:
            self._comment.cancel()

    async def settle(self) -> None:
        """Returns once no comment is on its way."""
        if self._comment is not None:
            await self._comment

    async def write(self, chunk: bytes) -> None:
        """Sends a chunk of the upstream's, at once unless the client still takes a comment."""
        await self.settle()
        # Left as it is where the send fails: whatever failed, no comment may follow.
        self._writing = True
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._writing = False
        self._last_write = self._loop.time()
        self._boundary.note(chunk)

    def through(self, sink: Sink, flow: Flow) -> Sink:
        """Where chunks go that are pushed rather than written, and comments with them.

        Args:
            sink: The client's; nothing is written any more, and no comment is on its way.
            flow: Says whether the client takes what there is.
        """
        time, note = self._loop.time, self._boundary.note
        if self._timer is None:

            def pass_on(chunk: bytes) -> None:
                sink(chunk)
                note(chunk)

            return pass_on
        self._sink, self._flow = sink, flow

        def push(chunk: bytes) -> None:
            sink(chunk)
            self._last_write = time()
            note(chunk)

        return push

    def has_said_all(self, dialect: Dialect) -> bool:
        """Whether what was written last is the event after which nothing has to come."""
        return self._boundary.between_events and is_over(dialect, self._boundary.tail)

    async def comment(self) -> None:
        """Sends a comment now."""
        message = {"type": "http.response.body", "body": COMMENT, "more_body": True}
        await self._send({**message, IS_COMMENT: True})
        self._last_write = self._loop.time()

    def _look(self) -> None:
        due = self._last_write + self._seconds
        if self._loop.time() >= due:
            # A client that does not take what there is has no use for more; and a comment inside an
            # event would be a part of it.
            if self._boundary.between_events:
                self._say_something()
            due = self._loop.time() + self._seconds
        self._timer = self._loop.call_at(due, self._look)

    def _say_something(self) -> None:
        if self._sink is not None and self._flow is not None:
            if not self._flow.paused:
                self._sink(COMMENT)
                self._last_write = self._loop.time()
        elif not self._writing and self._comment is None:
            self._comment = self._loop.create_task(self.comment())
            self._comment.add_done_callback(self._sent)

    def _sent(self, comment: asyncio.Task[None]) -> None:
        self._comment = None
        # What failed here fails for the next chunk too, and that is where it is told.
        _ = comment.cancelled() or comment.exception()
