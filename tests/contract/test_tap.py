"""The relay that the live tests look through changes nothing of what it relays."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.harness import tap
from tests.harness import upstream as upstreams
from tests.harness.client import BrokenOff, RawClient, request_bytes
from tests.harness.tap import Tap
from tests.harness.upstream import LAST_CHUNK, SSE_HEAD, End, Upstream, event, response, sse

pytestmark = pytest.mark.both_ways

REQUEST = request_bytes("POST", "/v1/x", {}, b'{"a":1}')


@pytest_asyncio.fixture(loop_scope="module")
async def engine() -> AsyncIterator[Upstream]:
    """What stands in for an engine."""
    async with upstreams.serve() as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="module")
async def between(engine: Upstream) -> AsyncIterator[Tap]:
    """The relay in front of it."""
    async with tap.relay(engine.port) as between:
        yield between


async def connect(between: Tap) -> RawClient:
    """What stands in for the proxy."""
    return await RawClient.open("127.0.0.1", between.port)


async def test_it_remembers_what_crosses(engine: Upstream, between: Tap) -> None:
    """Requests taken apart, answers as bytes, by connection."""
    answer = response(b'{"b":2}')
    engine.reply = [answer]
    async with await connect(between) as client:
        for _ in range(2):
            await client.send(REQUEST)
            assert (await client.read_response()).body == b'{"b":2}'
    assert [request.body for request in between.requests] == [b'{"a":1}'] * 2
    assert bytes(engine.connections[0].received) == REQUEST * 2
    assert between.answers == [bytearray(answer * 2)]


async def test_a_stream_passes_as_it_comes(engine: Upstream, between: Tap) -> None:
    """Each event arrives before the next is sent."""
    gate = asyncio.Event()
    engine.reply = [SSE_HEAD, event("a"), gate, event("b"), LAST_CHUNK]
    async with await connect(between) as client:
        await client.send(REQUEST)
        await client.read_head()
        assert await client.read_chunk() == sse("a")
        gate.set()
        assert await client.read_chunk() == sse("b")
        assert await client.read_chunk() == b""


@pytest.mark.parametrize(("end", "reset"), [(End.FIN, False), (End.RESET, True)])
async def test_how_the_engine_ends_is_how_it_ends(
    engine: Upstream, between: Tap, end: End, reset: bool
) -> None:
    """A close stays a close, and a reset a reset."""
    engine.reply = [SSE_HEAD, event("a"), end]
    async with await connect(between) as client:
        await client.send(REQUEST)
        await client.read_head()
        assert await client.read_chunk() == sse("a")
        with pytest.raises(BrokenOff):
            await client.read_chunk()
        assert client.was_reset is reset


@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset, RawClient.half_close])
async def test_the_engine_learns_that_the_other_side_has_left(
    engine: Upstream, between: Tap, leave: object
) -> None:
    """However it leaves."""
    engine.reply = [SSE_HEAD, event("a"), End.SILENCE]
    client = await connect(between)
    await client.send(REQUEST)
    await client.read_head()
    await client.read_chunk()
    leave(client)  # type: ignore[operator] # one of the three
    await engine.connection_closed(0, within=1.0)
    await between.all_closed(within=1.0)
    client.close()


async def test_an_engine_that_is_not_there_is_a_reset() -> None:
    """A relay has accepted already when it learns of it."""
    async with upstreams.serve() as gone:
        port = gone.port
    async with tap.relay(port) as between, await connect(between) as client:
        await client.send(REQUEST)
        assert await client.read_until_closed() == b""
        assert client.was_reset


async def test_who_does_not_read_holds_up_the_engine(engine: Upstream, between: Tap) -> None:
    """The relay does not become a buffer without bounds."""
    engine.reply = [SSE_HEAD, *[upstreams.chunk(b"x" * 65_000)] * 400, LAST_CHUNK]
    async with await RawClient.open("127.0.0.1", between.port, receive_buffer_bytes=4096) as client:
        await client.send(REQUEST)
        connection = await engine.connection(0)
        async with asyncio.timeout(5):
            await connection.write_blocked.wait()
        assert len((await client.read_response()).body) == 400 * 65_000
