"""One request on a connection, until the answer to it is complete, and how long that may take."""

import asyncio
from math import inf
from typing import Protocol

import httpx

from proxy.upstream.transport import body
from proxy.upstream.transport.request import Question
from proxy.upstream.wire import Head

_JOINED_BYTES = 64 * 1024
"""How long a body is sent with its head, in one call of the system: copied is cheaper than twice."""

_PIECE_BYTES = 256 * 1024
"""How much of a longer one is given to the loop at once, which may copy what the socket won't take."""


class Line(body.Line, Protocol):
    """The connection, as an exchange knows it."""

    transport: asyncio.Transport
    used: int
    write_blocked: bool

    def begin(self, exchange: "Exchange") -> None:
        """What is heard from now on is this exchange's."""


class Exchange(body.Body):
    """One request, and the body of its answer.

    One timer bounds it: it looks at the time of the last byte when it fires, so that no byte moves it.

    Args:
        loop: That of the connections.
        question: What is asked.
        started: When, as the loop counts: the whole is bounded from then on.

    Attributes:
        head: That of the answer, once it is there.
        heard_at: When something was last heard, as the loop counts.
        sent: Whether the whole request was handed to the socket.
        stale: Whether it failed on a connection that others had used, before a byte of an answer:
            nobody has looked at the request.
    """

    __slots__ = (
        "_asked_at",
        "_blocked_at",
        "_due",
        "_question",
        "_started",
        "_timer",
        "head",
        "heard_at",
        "sent",
        "stale",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, question: Question, started: float) -> None:
        super().__init__(loop)
        self._question = question
        self._started = self._asked_at = self.heard_at = started
        self._blocked_at = self._due = inf
        self._timer: asyncio.TimerHandle | None = None
        self.head: Head | None = None
        self.sent = False
        self.stale = False

    async def ask(self, line: Line) -> Head:
        """Sends the request on this connection, and returns when the head of its answer is there.

        Raises:
            httpx.TransportError: None will come. Where it was ``stale``, another may be asked.
        """
        question = self._question
        self._line, self._failure, self.sent, self.stale = line, None, False, False
        self._blocked_at = inf
        line.begin(self)
        line.reader.begin(question.method, self._keep, question.max_head_bytes)
        try:
            self._asked_at = self._loop.time()
            self._arm()
            if question.on_sent is not None:
                question.on_sent()
            await self._send(line)
            while self.head is None:
                self._check()
                await self._news()
        except BaseException:
            self._drop()
            raise
        return self.head

    # What the connection calls

    def heard(self, line: Line) -> None:
        """What it said was read."""
        if self.head is None:
            head = self.head = line.reader.head
            if head is None:
                return
            self._question.body = b""  # it is not sent again; a long answer need not hold it
            if not line.reader.complete:
                self._arm()
            self.wake()
        self._came(line)

    def broken(self, line: Line, error: httpx.TransportError) -> None:
        """It is over, in mid-answer or before."""
        self.stale = line.used > 1 and not line.reader.heard
        self.fail(error)

    def blocked(self, now: float) -> None:
        """The other side takes no more of the request."""
        self._blocked_at = now
        self._arm()

    def unblocked(self) -> None:
        """It does again."""
        self._blocked_at = inf
        self.wake()

    # Sending

    async def _send(self, line: Line) -> None:
        """Hands the request to the socket, as fast as it takes it, or until there is an answer."""
        head, content = self._question.head, self._question.body
        if len(content) <= _JOINED_BYTES:
            line.transport.write(head + content)
        else:
            line.transport.write(head)
            pieces = memoryview(content)
            for begin in range(0, len(content), _PIECE_BYTES):
                if not await self._has_room(line):
                    return
                line.transport.write(pieces[begin : begin + _PIECE_BYTES])
        self.sent = True

    async def _has_room(self, line: Line) -> bool:
        """Waits until the socket takes more. False: more is not to be sent, the answer is here."""
        while self.head is None and self._failure is None:
            if not line.write_blocked:
                return True
            await self._news()
        return False

    # Deadlines

    def _let_go(self) -> None:
        super()._let_go()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._due = None, inf

    def _earliest(self) -> float:
        """When it is too late, if nothing happens until then."""
        limits = self._question.limits
        if self.head is None:
            phase = self._asked_at + limits.first_byte
        else:
            phase = self.heard_at + limits.idle
        return min(phase, self._started + limits.total, self._blocked_at + limits.write)

    def _arm(self) -> None:
        """Has ``_look`` called in time, if it is not called earlier anyway."""
        due = self._earliest()
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._due = self._loop.call_at(due, self._look), due

    def _look(self) -> None:
        self._timer, self._due = None, inf
        now = self._loop.time()
        if now < self._earliest():
            self._arm()
        elif now >= self._blocked_at + self._question.limits.write:
            self.fail(httpx.WriteTimeout("the upstream does not read the request"))
        else:
            self.fail(httpx.ReadTimeout("the upstream said nothing in time"))
