"""One request on a connection, until the answer to it is complete, and how long that may take."""

import asyncio
from math import inf
from typing import Protocol

import httpx

from proxy.upstream.transport import body
from proxy.upstream.transport.request import Question
from proxy.upstream.wire import Head, ResponseReader

_JOINED_BYTES = 64 * 1024
"""How long a body is sent with its head, in one call of the system: copied is cheaper than twice."""

_PIECE_BYTES = 256 * 1024
"""How much of a longer one is given to the loop at once, which may copy what the socket won't take."""

_TURNS_TO_READ = 3
"""In how many turns the loop has read what the system has: it may be one in which to tell us, and one
in which it is decrypted."""

_READING_SECONDS = 0.05
"""When to look again at who is late but has something to read: the loop reads it in its next turn."""

CROSSING_SECONDS = 1.0
"""How long after a request the end of its connection may still be one that had no request in sight: as
long as it takes to the engine and back, and a busy loop to see it. Whoever closes later has read it."""


class Line(body.Line, Protocol):
    """The connection, as an exchange knows it."""

    transport: asyncio.Transport
    used: int
    read_paused: bool
    write_blocked: bool

    def begin(self, exchange: "Exchange") -> None:
        """What is heard from now on is this exchange's."""

    def has_unread(self) -> bool:
        """Whether something has come that the loop has not read."""

    def watch(self, due: float) -> None:
        """Has ``look`` of the exchange called by then, if it has not called ``release``."""


class Exchange(body.Body):
    """One request, and the body of its answer.

    One timer bounds it, its connection's: when that fires, it is looked at when the last byte came, so
    that no byte moves it.

    Args:
        loop: That of the connections.
        question: What is asked.
        started: When, as the loop counts: the whole is bounded from then on.

    Attributes:
        head: That of the answer, once it is there.
        heard_at: When something was last heard, or could be heard again, as the loop counts.
        sent: Whether the whole request was handed to the socket.
        stale: Whether it failed on a connection that others had used, so soon that its end must have
            crossed the request: nobody has looked at that.
    """

    __slots__ = (
        "_asked_at",
        "_blocked_at",
        "_is_taken",
        "_question",
        "_started",
        "head",
        "heard_at",
        "sent",
        "stale",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, question: Question, started: float) -> None:
        super().__init__(loop)
        self._question = question
        self._started = self._asked_at = self.heard_at = started
        self._blocked_at = inf
        self._is_taken = False
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
        self._blocked_at, self._is_taken = inf, False
        line.begin(self)
        try:
            self._expect(line.reader)
            self._asked_at = self._loop.time()
            line.watch(self._earliest(line))
            if question.on_sent is not None:
                question.on_sent()
            if self._is_short:
                line.transport.write(question.head + question.body)
                self.sent = True
            else:
                self.sent = await self._send_in_pieces(line)
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
                line.watch(self._earliest(line))
            self.wake()
        self._came(line)

    def broken(self, line: Line, error: httpx.TransportError, *, is_all_read: bool) -> None:
        """It is over, in mid-answer or before; some of what it said may be lost."""
        late = self._is_taken or self._loop.time() - self._asked_at > CROSSING_SECONDS
        # While a long one is sent, an answer to its head may have come, and be what is lost.
        looked_at = late or line.reader.heard or not (is_all_read or self._is_short)
        self.stale = line.used > 1 and not looked_at
        self.fail(error)

    def blocked(self, line: Line, now: float) -> None:
        """The other side takes no more of the request."""
        self._blocked_at = now
        line.watch(self._earliest(line))

    def resumed(self, line: Line, now: float) -> None:
        """It is read again: what it had to say until now, nobody would have heard."""
        self.heard_at = now
        line.watch(self._earliest(line))

    def look(self, line: Line, now: float) -> None:
        """Whether it is too late for something."""
        due, limits = self._earliest(line), self._question.limits
        if now < due:
            line.watch(due)
        elif now >= self._blocked_at + limits.write:
            self.fail(httpx.WriteTimeout("the upstream does not read the request"))
        elif now < self._started + limits.total and line.has_unread():
            # It is we who are late: a process that was stopped, or had no processor, has its timers
            # called before it reads. All streams of one that was stopped for longer than ``idle``
            # were cut off, though their engines had gone on.
            line.watch(now + _READING_SECONDS)
        else:
            self.fail(httpx.ReadTimeout("the upstream said nothing in time"))

    def unblocked(self) -> None:
        """It does again: it is there, and reads."""
        self._blocked_at, self._is_taken = inf, True
        self.wake()

    # Sending

    @property
    def _is_short(self) -> bool:
        """Whether it is sent in one call."""
        return len(self._question.body) <= _JOINED_BYTES

    def _expect(self, reader: ResponseReader) -> None:
        question = self._question
        try:
            reader.begin(question.method, self._keep, question.max_head_bytes)
        except ValueError as exc:
            raise httpx.LocalProtocolError(str(exc)) from exc

    async def _send_in_pieces(self, line: Line) -> bool:
        """As fast as the socket takes them. False: not all, for the answer is here."""
        line.transport.write(self._question.head)
        pieces = memoryview(self._question.body)
        for begin in range(0, len(pieces), _PIECE_BYTES):
            if not await self._has_room(line):
                return False
            line.transport.write(pieces[begin : begin + _PIECE_BYTES])
        return True

    async def _has_room(self, line: Line) -> bool:
        """Waits until the socket takes more. False: more is not to be sent, the answer is here."""
        turns = _TURNS_TO_READ
        while self.head is None and self._line is not None:
            if line.write_blocked or line.transport.is_closing():
                await self._news()
            elif turns and line.has_unread():
                # Before a write finds that the other side has closed, after which the loop reads no
                # more: an engine may say that the request is too long, and not take the rest.
                turns -= 1
                await asyncio.sleep(0)
            else:
                return True
        return False

    # Deadlines

    def _earliest(self, line: Line) -> float:
        """When it is too late, if nothing happens until then."""
        limits = self._question.limits
        if self.head is None:
            phase = self._asked_at + limits.first_byte
        elif line.read_paused:
            phase = inf  # it is our client that takes its time; the server bounds that
        else:
            phase = self.heard_at + limits.idle
        return min(phase, self._started + limits.total, self._blocked_at + limits.write)
