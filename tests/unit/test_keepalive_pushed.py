"""Comments into a stream that is pushed: between its chunks, past ASGI's ``send``."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from proxy.answer import Answer
from proxy.context import RequestContext
from proxy.errors import Dialect, Refusal
from proxy.keepalive import COMMENT, IS_COMMENT, KeepAlive
from proxy.pipe import Flow, Sink
from tests.harness import warp

EVENT = b"data: a\n\n"
HALF = b"data: a\n"
REST = b"\n"
DONE = b"data: [DONE]\n\n"


class Stream:
    """One that is pushed, with a comment after ten seconds of silence."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.taken: list[tuple[int, bytes]] = []
        self.sent: list[Any] = []
        self.flow = Flow()
        self._began = warp.now()
        self.keep_alive = KeepAlive(self._send, seconds)
        self.keep_alive.start()

    def open(self) -> None:
        """From now on."""
        self.push = self.keep_alive.through(self.take, self.flow)

    def take(self, chunk: bytes) -> None:
        """The client's sink."""
        self.taken.append((round(warp.now() - self._began), chunk))

    async def _send(self, message: Any) -> None:
        self.sent.append(message["body"])


Step = tuple[int, Callable[[Stream], None]]


def pushes(second: int, chunk: bytes) -> Step:
    """A chunk comes."""
    return second, lambda stream: stream.push(chunk)


@pytest.mark.parametrize(
    ("steps", "taken"),
    [
        pytest.param([], [(10, COMMENT), (20, COMMENT), (30, COMMENT)], id="into silence"),
        pytest.param(
            [pushes(5, EVENT)],
            [(5, EVENT), (15, COMMENT), (25, COMMENT)],
            id="counted from the last chunk",
        ),
        pytest.param(
            [pushes(9, EVENT), pushes(18, EVENT), pushes(27, EVENT)],
            [(9, EVENT), (18, EVENT), (27, EVENT)],
            id="none where chunks come soon enough",
        ),
        pytest.param(
            [pushes(5, HALF), pushes(22, REST)],
            [(5, HALF), (22, REST), (32, COMMENT)],
            id="none within an event",
        ),
        pytest.param(
            [(5, lambda stream: stream.flow.pause()), (22, lambda stream: stream.flow.resume())],
            [(30, COMMENT)],
            id="none while the client does not take what there is",
        ),
        pytest.param(
            [(15, lambda stream: stream.keep_alive.stop())],
            [(10, COMMENT)],
            id="none after the end",
        ),
    ],
)
def test_comments_between_pushes(steps: list[Step], taken: list[tuple[int, bytes]]) -> None:
    """Within 34 seconds; none goes through ``send``, where it could come out of turn."""

    async def play() -> Stream:
        stream = Stream()
        stream.open()
        second = 0
        for at, step in steps:
            await asyncio.sleep(at - second)
            step(stream)
            second = at
        await asyncio.sleep(34 - second)
        stream.keep_alive.stop()
        return stream

    stream = warp.run(play())
    assert (stream.taken, stream.sent) == (taken, [])


def test_what_was_written_before_counts() -> None:
    """Half an event that went through ``send`` is one all the same."""

    async def play() -> Stream:
        stream = Stream()
        await stream.keep_alive.write(HALF)
        stream.open()
        await asyncio.sleep(15)
        stream.push(REST)
        await asyncio.sleep(12)
        stream.keep_alive.stop()
        return stream

    stream = warp.run(play())
    assert (stream.sent, stream.taken) == ([HALF], [(15, REST), (25, COMMENT)])


async def test_where_comments_are_off_chunks_go_through() -> None:
    """And how the stream ends is known all the same."""
    stream = Stream(seconds=0.0)
    stream.open()
    stream.push(REST)
    assert not stream.keep_alive.has_said_all(Dialect.OPENAI)
    stream.push(DONE)
    assert [chunk for _, chunk in stream.taken] == [REST, DONE]
    assert stream.keep_alive.has_said_all(Dialect.OPENAI)


class Client:
    """What a server offers beyond ASGI, and the order in which everything comes."""

    behind = False

    def __init__(self) -> None:
        self.order: list[object] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, message: Any) -> None:
        """ASGI's."""
        await self.reads.wait()
        self.order.append("comment" if IS_COMMENT in message else message["type"])

    def on_disconnect(self, leave: Callable[[Refusal | None], None]) -> None:
        """It stays."""

    def open(self, flow: Flow) -> Sink:
        """Notes the chunks as they are."""
        self.order.append("open")
        return self.order.append

    def done(self) -> None:
        """The end."""
        self.order.append("done")


def test_a_comment_that_waits_comes_before_what_is_pushed() -> None:
    """Nothing is pushed past it: behind the first chunk it could stand within an event."""

    async def play() -> list[object]:
        client = Client()
        context = RequestContext(request_id="r", method="POST", client="c", headers=[], started=0.0)
        with Answer(context, client.send, client=client, keep_alive_seconds=10.0) as answer:
            await answer.begin_events([])
            client.reads.clear()
            await asyncio.sleep(11)
            opening = asyncio.create_task(answer.open(Flow()))
            await asyncio.sleep(60)
            assert client.order == ["http.response.start"]
            client.reads.set()
            sink = await opening
            assert sink is not None
            sink(HALF)
            await answer.finish()
        return client.order

    order = warp.run(play())
    start, body = "http.response.start", "http.response.body"
    assert order == [start, "comment", "open", HALF, "done", body]


@pytest.mark.parametrize(
    ("last", "behind", "has_all"),
    [
        pytest.param(DONE, False, True, id="at the last event"),
        pytest.param(DONE, True, False, id="with so much unread that it may not have come"),
        pytest.param(EVENT, False, False, id="before it"),
        pytest.param(DONE[:-1], False, False, id="within it"),
    ],
)
async def test_whether_who_leaves_has_had_everything(
    last: bytes, *, behind: bool, has_all: bool
) -> None:
    """It is known once the answer is broken off."""
    client = Client()
    client.behind = behind
    context = RequestContext(request_id="r", method="POST", client="c", headers=[], started=0.0)

    async def play() -> None:
        with Answer(context, client.send, client=client) as answer:
            await answer.begin_events([])
            sink = await answer.open(Flow())
            assert sink is not None
            sink(EVENT)
            sink(last)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        await play()
    assert context.has_all is has_all
