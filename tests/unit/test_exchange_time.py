"""When an exchange is given up: by a clock that is set, and a connection that says what it has."""

import asyncio
from dataclasses import dataclass, field
from math import inf
from typing import cast

import httpx
import pytest

from proxy.upstream.transport.deadlines import Limits
from proxy.upstream.transport.exchange import Exchange
from proxy.upstream.transport.request import Question
from proxy.upstream.wire import ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMITS = Limits(first_byte=10.0, idle=2.0, total=60.0, write=5.0)
AGAIN_SECONDS = 0.05
"""When who has something unread is looked at again."""


class Clock:
    """As much of a loop as an exchange needs, with a time that stands still."""

    now = 0.0

    def time(self) -> float:
        """What was set."""
        return self.now

    def create_future(self) -> asyncio.Future[None]:
        """That of the loop which runs."""
        return asyncio.get_running_loop().create_future()


class Transport(asyncio.Transport):
    """Takes what is written."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Takes it."""


@dataclass
class Line:
    """A connection, as far as time is concerned.

    Attributes:
        unread: Whether something has come that was not read.
        looks: When it was last to call ``look``.
        aborted: Whether it was given up.
    """

    unread: bool = False
    looks: float = inf
    aborted: bool = False
    used: int = 1
    read_paused: bool = False
    write_blocked: bool = False
    transport: asyncio.Transport = field(default_factory=Transport)
    reader: ResponseReader = field(default_factory=ResponseReader)

    def begin(self, exchange: Exchange) -> None:
        """Its answer is read from now on."""

    def has_unread(self) -> bool:
        """As it was set."""
        return self.unread

    def watch(self, due: float) -> None:
        """Remembers it."""
        self.looks = due

    def release(self) -> None:
        """The answer is complete."""

    def abort(self) -> None:
        """It is given up."""
        self.aborted = True

    def pause(self) -> None:
        """It is not read."""
        self.read_paused = True

    def resume(self) -> None:
        """It is read."""
        self.read_paused = False


@dataclass(frozen=True)
class Case:
    """A request asked at 0, and what has happened until it is looked at.

    Attributes:
        head: When the head of the answer came, if it has.
        rest: From when until when the client took nothing, if it did; up to now where it still does.
        blocked: Since when the upstream takes no more of the request.
        unread: Whether something has come that was not read.
        again: When it is looked at next; None: it is given up.
    """

    look: float
    again: float | None
    head: float | None = None
    rest: tuple[float, float] | None = None
    blocked: float | None = None
    unread: bool = False


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(9.9, 10.0), id="no head yet"),
        pytest.param(Case(10.0, None), id="no head in time"),
        pytest.param(Case(10.0, 10.0 + AGAIN_SECONDS, unread=True), id="perhaps it is here"),
        pytest.param(Case(6.9, 7.0, head=5.0), id="a short silence"),
        pytest.param(Case(7.0, None, head=5.0), id="a long silence"),
        pytest.param(Case(7.0, 7.0 + AGAIN_SECONDS, head=5.0, unread=True), id="it was not silent"),
        pytest.param(Case(12.0, 60.0, head=5.0, rest=(6.0, inf)), id="the client rests"),
        pytest.param(Case(12.0, 13.9, head=5.0, rest=(6.0, 11.9)), id="the client is back"),
        pytest.param(Case(13.8, 13.9, head=5.0, rest=(6.0, 11.9)), id="back for less than idle"),
        pytest.param(Case(13.9, None, head=5.0, rest=(6.0, 11.9)), id="back for as long as idle"),
        pytest.param(
            Case(13.9, 13.9 + AGAIN_SECONDS, head=5.0, rest=(6.0, 11.9), unread=True),
            id="back, and what came meanwhile is not read",
        ),
        pytest.param(Case(59.9, 60.0, head=5.0, rest=(6.0, inf)), id="it rests for long"),
        pytest.param(Case(60.0, None, head=5.0, rest=(6.0, inf), unread=True), id="for too long"),
        pytest.param(Case(60.0, None, head=59.0, unread=True), id="everything has its time"),
        pytest.param(Case(5.9, 6.0, blocked=1.0), id="it takes no more of the request"),
        pytest.param(Case(6.0, None, blocked=1.0, unread=True), id="and has not for long"),
    ],
)
async def test_when_it_is_given_up(case: Case) -> None:
    """Silence is what we have listened to; what was said and not read is none."""
    clock, line = Clock(), Line()
    question = Question(b"POST", b"", b"", LIMITS, None, None)
    exchange = Exchange(cast("asyncio.AbstractEventLoop", clock), question, clock.now)
    asking = asyncio.create_task(exchange.ask(line))
    await asyncio.sleep(0)
    if case.head is not None:
        clock.now = exchange.heard_at = case.head
        line.reader.feed(HEAD)
        exchange.heard(line)
        await asking
    if case.rest is not None:
        line.pause()
        if case.rest[1] < inf:
            line.resume()
            exchange.resumed(line, case.rest[1])
    if case.blocked is not None:
        exchange.blocked(line, case.blocked)
    line.unread, line.looks = case.unread, inf
    clock.now = case.look
    exchange.look(line, case.look)
    assert line.aborted == (case.again is None)
    assert line.looks == (inf if case.again is None else pytest.approx(case.again))
    if case.again is None:
        with pytest.raises(httpx.TimeoutException):
            await (asking if case.head is None else exchange.__anext__())
    asking.cancel()
