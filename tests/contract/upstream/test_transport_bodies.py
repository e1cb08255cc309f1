"""Bodies on their way through the transport, pulled and pushed: whole, in order, bounded, in time."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from proxy.pipe import Flow, Sink
from proxy.upstream import target, transport
from proxy.upstream.transport.transport import Transport
from tests.harness.forwarding import until
from tests.harness.upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    End,
    Script,
    Upstream,
    chunk,
    event,
    response,
    sse,
)

MAX_HELD_BYTES = 128 * 1024

Taken = Callable[[httpx.Response, Sink], Awaitable[None]]


class SinkError(Exception):
    """What a sink raises."""


@pytest.fixture
async def asked(upstream: Upstream) -> AsyncIterator[Transport]:
    """A transport to the upstream."""
    async with transport.build(target.parse(upstream.url)) as made:
        assert isinstance(made, Transport)
        yield made


def question(body: bytes = b"{}", /, method: str = "POST", **seconds: Any) -> httpx.Request:
    """One request."""
    return httpx.Request(
        method,
        "http://localhost",
        headers=[(b"host", b"x")],
        stream=httpx.ByteStream(body),
        extensions={"target": b"/", "timeout": seconds},
    )


async def pulled(response_: httpx.Response, sink: Sink) -> None:
    """The body, as a stream."""
    async for piece in response_.aiter_raw():
        sink(piece)


async def pushed(response_: httpx.Response, sink: Sink) -> None:
    """The body, through the pipe."""
    await response_.extensions["pipe"](sink, Flow())


async def whole(response_: httpx.Response, taken: Taken = pulled) -> bytes:
    """All of a body."""
    pieces: list[bytes] = []
    await taken(response_, pieces.append)
    assert all(pieces)
    return b"".join(pieces)


WAYS = pytest.mark.parametrize("taken", [pulled, pushed])

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@WAYS
@pytest.mark.parametrize(
    ("reply", "body"),
    [
        pytest.param([response(b"x" * 1000)], b"x" * 1000, id="a length"),
        pytest.param([response(b"")], b"", id="none of it"),
        pytest.param([b"HTTP/1.1 204 No Content\r\n\r\n"], b"", id="no content"),
        pytest.param([CHUNKED, chunk(b"abc"), chunk(b"d"), LAST_CHUNK], b"abcd", id="chunks"),
        pytest.param([b"HTTP/1.1 200 OK\r\n\r\nabc", b"def", End.FIN], b"abcdef", id="the end"),
        pytest.param(
            [b"HTTP/1.1 103 Early Hints\r\n\r\n", response(b"abc")], b"abc", id="an interim answer"
        ),
        pytest.param([response(bytes(range(256)) * 8000)], bytes(range(256)) * 8000, id="2 MB"),
        pytest.param(
            [CHUNKED, *[chunk(bytes([n % 256]) * 999) for n in range(3000)], LAST_CHUNK],
            b"".join(bytes([n % 256]) * 999 for n in range(3000)),
            id="3 MB in chunks",
        ),
    ],
)
async def test_every_framing(
    asked: Transport, upstream: Upstream, reply: Script, body: bytes, taken: Taken
) -> None:
    """The bytes are those that were sent."""
    upstream.reply = reply
    for _ in range(2):
        answer = await asked.handle_async_request(question())
        assert await whole(answer, taken) == body
        await answer.aclose()
    assert asked.pool.busy == []


async def test_an_answer_to_head_has_no_body(asked: Transport, upstream: Upstream) -> None:
    """Whatever its fields say, and the connection is used again."""
    upstream.reply = [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"]
    for _ in range(2):
        answer = await asked.handle_async_request(question(b"", "HEAD"))
        assert await whole(answer) == b""
    assert [each.connection for each in upstream.requests] == [0, 0]


@WAYS
@pytest.mark.parametrize(
    ("end", "error"),
    [
        pytest.param([End.FIN], httpx.RemoteProtocolError, id="cut off"),
        pytest.param([End.RESET], httpx.ReadError, id="reset"),
        pytest.param([b"no chunk\r\n", End.SILENCE], httpx.RemoteProtocolError, id="no chunk"),
        pytest.param([LAST_CHUNK + b"x", End.SILENCE], httpx.RemoteProtocolError, id="too much"),
        pytest.param([End.SILENCE], httpx.ReadTimeout, id="silence"),
    ],
)
async def test_what_does_not_end(
    asked: Transport, upstream: Upstream, end: list[End | bytes], error: type, taken: Taken
) -> None:
    """What came is given, and then the error; the connection is closed."""
    gate = asyncio.Event()
    upstream.reply = [SSE_HEAD, event("a"), gate, *end]
    answer = await asked.handle_async_request(question(idle=0.2))
    pieces: list[bytes] = []

    def keep(piece: bytes) -> None:
        pieces.append(piece)
        gate.set()

    with pytest.raises(error):
        await taken(answer, keep)
    assert b"".join(pieces) == sse("a")
    assert asked.pool.busy == []
    await upstream.all_closed()


@pytest.mark.parametrize(
    ("seconds", "reply", "error"),
    [
        pytest.param({"first_byte": 0.05}, [End.SILENCE], httpx.ReadTimeout, id="no answer"),
        pytest.param(
            {"first_byte": 0.05},
            [b"HTTP/1.1 100 Continue\r\n\r\n", End.SILENCE],
            httpx.ReadTimeout,
            id="an interim answer is no answer",
        ),
        pytest.param({"total": 0.05}, [End.SILENCE], httpx.ReadTimeout, id="the whole"),
        pytest.param({"read": 0.05}, [End.SILENCE], httpx.ReadTimeout, id="httpx's own word"),
        pytest.param({"idle": 0.05}, [SSE_HEAD, End.SILENCE], httpx.ReadTimeout, id="no body"),
        pytest.param(
            {"total": 0.05},
            [SSE_HEAD, event("a"), End.SILENCE],
            httpx.ReadTimeout,
            id="the whole in mid-stream",
        ),
        pytest.param(
            {"first_byte": 0.05, "idle": None, "read": 30.0},
            [SSE_HEAD, event("a"), LAST_CHUNK],
            None,
            id="only until the head",
        ),
        pytest.param(
            {"first_byte": 9.0, "idle": 0.01, "read": 30.0}, [response(b"1")], None, id="none"
        ),
    ],
)
async def test_deadlines(
    asked: Transport,
    upstream: Upstream,
    seconds: dict[str, Any],
    reply: Script,
    error: type[Exception] | None,
) -> None:
    """Each bounds its own phase, and closes the connection."""
    upstream.reply = reply
    if error is None:
        assert await whole(await asked.handle_async_request(question(**seconds)))
        return
    with pytest.raises(error):
        await whole(await asked.handle_async_request(question(**seconds)))
    await upstream.all_closed()


async def test_silence_is_counted_from_the_last_byte(asked: Transport, upstream: Upstream) -> None:
    """A stream that goes on may take much longer than it may be silent."""
    gates = [asyncio.Event() for _ in range(10)]
    steps = [step for gate in gates for step in (event("x"), gate)]
    upstream.reply = [SSE_HEAD, *steps, LAST_CHUNK]
    loop = asyncio.get_running_loop()
    for n, gate in enumerate(gates):
        loop.call_later(0.1 * (n + 1), gate.set)
    assert await whole(await asked.handle_async_request(question(idle=0.5))) == sse("x") * 10


async def test_a_request_that_is_not_read(asked: Transport, upstream: Upstream) -> None:
    """It is given up when it is late, and after it was answered the rest is not sent."""
    upstream.reads = False
    large = b" " * 12_000_000
    with pytest.raises(httpx.WriteTimeout):
        await asked.handle_async_request(question(large, write=0.05))
    task = asyncio.create_task(asked.handle_async_request(question(large)))
    connection = await upstream.connection(1)
    connection.transport.write(response(b"no", 413))
    answer = await task
    assert (answer.status_code, await whole(answer)) == (413, b"no")
    assert (asked.pool.busy, asked.pool.idle) == ([], {})


# Backpressure


def flood(_: object) -> Script:
    """A body without end."""
    return itertools.chain([SSE_HEAD], itertools.repeat(chunk(b"x" * 8_000)))


async def test_a_reader_that_does_not_read(asked: Transport, upstream: Upstream) -> None:
    """The upstream waits, and what is held is bounded; what is read then goes on."""
    upstream.reply = flood
    answer = await asked.handle_async_request(question())
    connection = await upstream.connection(0)
    await connection.write_blocked.wait()
    assert answer.stream._held <= MAX_HELD_BYTES  # type: ignore[union-attr] # its inside
    stream, taken = answer.aiter_raw(), 0
    while taken < 50_000_000:
        taken += len(await anext(stream))
        assert answer.stream._held <= MAX_HELD_BYTES  # type: ignore[union-attr] # its inside
    await answer.aclose()
    await upstream.all_closed()


async def test_a_sink_that_is_full(asked: Transport, upstream: Upstream) -> None:
    """It gets no more than one read while its flow is paused, and all that it wants after that."""
    upstream.reply = flood
    answer = await asked.handle_async_request(question())
    flow, taken, at_pause = Flow(), 0, 0

    def sink(piece: bytes) -> None:
        nonlocal taken, at_pause
        taken += len(piece)
        if taken > 1_000_000 and not flow.paused:
            flow.pause()
            at_pause = taken

    task = asyncio.create_task(answer.extensions["pipe"](sink, flow))
    connection = await upstream.connection(0)
    for _ in range(3):
        await until(lambda: flow.paused)
        await until(lambda: not connection._writable.is_set())
        assert taken - at_pause <= MAX_HELD_BYTES
        taken = 0
        flow.resume()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert flow._source is None
    await upstream.all_closed()


# What the seam promises


async def test_what_is_buffered_comes_first(asked: Transport, upstream: Upstream) -> None:
    """A pipe that begins late gives every byte, in order."""
    gate = asyncio.Event()
    upstream.reply = [SSE_HEAD, event("a"), event("b"), gate, event("c"), LAST_CHUNK]
    answer = await asked.handle_async_request(question())
    await until(lambda: bool(answer.stream._chunks))  # type: ignore[union-attr] # its inside
    pieces: list[bytes] = []
    task = asyncio.create_task(answer.extensions["pipe"](pieces.append, Flow()))
    await until(lambda: bool(pieces))
    gate.set()
    await task
    assert b"".join(pieces) == sse("a") + sse("b") + sse("c")
    assert list(asked.pool.idle)


async def test_a_pipe_that_begins_with_a_full_client(asked: Transport, upstream: Upstream) -> None:
    """Nothing more is read until there is room."""
    upstream.reply = flood
    answer = await asked.handle_async_request(question())
    flow, taken = Flow(), 0
    flow.pause()

    def sink(piece: bytes) -> None:
        nonlocal taken
        taken += len(piece)

    task = asyncio.create_task(answer.extensions["pipe"](sink, flow))
    await (await upstream.connection(0)).write_blocked.wait()
    assert taken <= MAX_HELD_BYTES
    flow.resume()
    await until(lambda: taken > 10 * MAX_HELD_BYTES)
    await answer.aclose()
    with pytest.raises(httpx.ReadError):
        await task


@pytest.mark.parametrize("turn", [0, 1], ids=["what was buffered", "what comes then"])
async def test_a_sink_that_raises(asked: Transport, upstream: Upstream, turn: int) -> None:
    """Its error is the pipe's, and the connection is closed at once."""
    gate = asyncio.Event()
    upstream.reply = [SSE_HEAD, event("a"), gate, event("b"), End.SILENCE]
    answer = await asked.handle_async_request(question())
    await until(lambda: bool(answer.stream._chunks))  # type: ignore[union-attr] # its inside
    flow, turns = Flow(), 0

    def sink(_: bytes) -> None:
        nonlocal turns
        turns += 1
        gate.set()
        if turns > turn:
            raise SinkError

    with pytest.raises(SinkError):
        await answer.extensions["pipe"](sink, flow)
    await upstream.connection_closed(0, within=0.05)
    flow.pause()  # nobody's any more
    assert asked.pool.busy == []


async def test_a_flow_is_let_go_with_the_connection(asked: Transport, upstream: Upstream) -> None:
    """A client that is full at the end of its answer does not pause the next one's."""
    upstream.reply = [SSE_HEAD, event("a"), LAST_CHUNK]
    flow = Flow()
    answer = await asked.handle_async_request(question())
    await answer.extensions["pipe"](lambda _: flow.pause(), flow)
    for _ in range(3):
        flow.pause()
        assert await whole(await asked.handle_async_request(question()), pushed) == sse("a")
    assert len(upstream.connections) == 1


# Who is waited for


async def sleep_past(seconds: float) -> None:
    """Long enough for a deadline of so many seconds to be over, which is the case."""
    await asyncio.sleep(2 * seconds)


@WAYS
async def test_a_reader_that_rests_is_not_a_silent_upstream(
    asked: Transport, upstream: Upstream, taken: Taken
) -> None:
    """While we do not read the upstream cannot be heard: nothing is counted against it."""
    idle, pieces = 0.4, 40
    upstream.reply = [SSE_HEAD, *[chunk(b"x" * 100_000)] * pieces, LAST_CHUNK]
    answer = await asked.handle_async_request(question(idle=idle))
    if taken is pulled:
        await (await upstream.connection(0)).write_blocked.wait()
        await sleep_past(idle)
        assert len(await whole(answer)) == pieces * 100_000
        return
    flow, received = Flow(), 0

    def sink(piece: bytes) -> None:
        nonlocal received
        received += len(piece)
        if received > 1_000_000 and not rests:
            flow.pause()
            rests.append(received)

    rests: list[int] = []
    task = asyncio.create_task(answer.extensions["pipe"](sink, flow))
    await until(lambda: flow.paused)
    await sleep_past(idle)
    flow.resume()
    await task
    assert received == pieces * 100_000


@WAYS
async def test_an_upstream_that_is_silent_after_a_rest(
    asked: Transport, upstream: Upstream, taken: Taken
) -> None:
    """Its time is counted from when it is read again, all of it."""
    idle = 0.4
    loop = asyncio.get_running_loop()
    upstream.reply = [SSE_HEAD, chunk(b"x" * 200_000), End.SILENCE]
    answer = await asked.handle_async_request(question(idle=idle))
    flow, received = Flow(), 0
    flow.pause()

    def sink(piece: bytes) -> None:
        nonlocal received
        received += len(piece)

    if taken is pulled:
        await until(lambda: answer.stream._held > 32 * 1024)  # type: ignore[union-attr] # its inside
        await sleep_past(idle)
        task = asyncio.create_task(pulled(answer, sink))
    else:
        task = asyncio.create_task(answer.extensions["pipe"](sink, flow))
        await sleep_past(idle)
        flow.resume()
    since = loop.time()
    with pytest.raises(httpx.ReadTimeout):
        await task
    assert received == 200_000
    assert loop.time() - since >= 0.9 * idle
    await upstream.all_closed()


@WAYS
async def test_a_rest_does_not_make_the_whole_longer(
    asked: Transport, upstream: Upstream, taken: Taken
) -> None:
    """Who never reads on is ended by the bound on everything."""
    upstream.reply = flood
    answer = await asked.handle_async_request(question(idle=0.05, total=0.3))
    flow = Flow()
    flow.pause()
    if taken is pushed:
        with pytest.raises(httpx.ReadTimeout):
            await answer.extensions["pipe"](lambda _: None, flow)
    await upstream.all_closed()
    with pytest.raises(httpx.TransportError):
        await whole(answer)
