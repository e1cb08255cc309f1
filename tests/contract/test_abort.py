"""Promise 4: when the client leaves, in any phase, the GPU stops within a second.

Through the whole chain, because any layer of it could hide that a client has left. What the parts
below do in each moment is in ``tests/contract/upstream``.
"""

import itertools
from collections.abc import Callable

import pytest

from tests.harness.client import RawClient, request_bytes
from tests.harness.deaf import connecting, deaf_port
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch, Running
from tests.harness.upstream import SSE_HEAD, End, Script, chunk, event, response, sse

pytestmark = pytest.mark.both_ways

HANG_UPS = 20
WITHIN_SECONDS = 1.0

PLAIN = request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY)
STREAM = request_bytes("POST", CHAT, {**BEARER, **JSON}, b'{"stream":true,' + CHAT_BODY[1:])


def hang_up(client: RawClient, turn: int) -> None:
    """Leaves, politely or not."""
    if turn % 2:
        client.reset()
    else:
        client.close()


async def assert_nothing_left(running: Running, hang_ups: int = HANG_UPS) -> None:
    """Every request is recorded as left by its client, and holds nothing any more."""
    await running.idle()
    outcomes = [line["outcome"] for line in running.log.requests()]
    assert outcomes.count("client_disconnected") == hang_ups
    assert "Traceback" not in running.log.text
    assert running.bulwark.lifelines.in_flight == 0
    for gauge in ("bulwark_slots_in_use", "bulwark_queue_length", "bulwark_buffered_bytes"):
        assert running.registry.get_sample_value(gauge) == 0


@pytest.mark.parametrize(
    ("request_", "reply", "reads"),
    [
        pytest.param(STREAM, [End.SILENCE], b"", id="before the headers of a stream"),
        pytest.param(PLAIN, [End.SILENCE], b"", id="before an answer in one piece"),
        pytest.param(
            PLAIN,
            [response(b'{"id":', content_length=99), End.SILENCE],
            b'{"id":',
            id="in the middle of an answer in one piece",
        ),
        pytest.param(STREAM, [SSE_HEAD, event("a"), End.SILENCE], sse("a"), id="in mid-stream"),
        pytest.param(
            STREAM + PLAIN,
            [SSE_HEAD, event("a"), End.SILENCE],
            sse("a"),
            id="with a pipelined request behind",
        ),
    ],
)
async def test_hang_up_while_the_upstream_works(
    proxy: Launch, request_: bytes, reply: Script, reads: bytes
) -> None:
    """The upstream sees its connection close."""
    running = await proxy()
    running.upstream.reply = reply
    for turn in range(HANG_UPS):
        client = await running.connect()
        await client.send(request_)
        await running.upstream.request(turn)
        if reads:
            await client.read_head()
            assert await client.read_chunk() == reads
        hang_up(client, turn)
        await running.upstream.connection_closed(turn, WITHIN_SECONDS)
    await assert_nothing_left(running)
    assert len(running.upstream.requests) == HANG_UPS


async def test_hang_up_in_the_queue(proxy: Launch) -> None:
    """The upstream never hears of the request."""
    running = await proxy(max_inflight=1)
    running.upstream.reply = [End.SILENCE]
    first = await running.connect()
    await first.send(PLAIN)
    await running.upstream.request(0)

    def queued(number: int) -> Callable[[], bool]:
        return lambda: running.metric("bulwark_queue_length") == number

    for turn in range(HANG_UPS):
        client = await running.connect()
        await client.send(PLAIN)
        await until(queued(1))
        hang_up(client, turn)
        await until(queued(0), WITHIN_SECONDS)
    first.close()
    await running.upstream.connection_closed(0, WITHIN_SECONDS)
    await assert_nothing_left(running, HANG_UPS + 1)
    assert len(running.upstream.requests) == 1


async def test_hang_up_while_connecting(proxy: Launch) -> None:
    """A connection that was not there yet is not opened any more."""
    with deaf_port() as port:
        before = connecting(port)
        running = await proxy(upstream_url=f"http://127.0.0.1:{port}")
        for turn in range(HANG_UPS):
            client = await running.connect()
            await client.send(PLAIN)
            await until(lambda: connecting(port) == before + 1)
            hang_up(client, turn)
            await until(lambda: connecting(port) == before, WITHIN_SECONDS)
        await assert_nothing_left(running)


async def test_hang_up_while_uploading(proxy: Launch) -> None:
    """Half a request is never sent on."""
    running = await proxy()
    for turn in range(HANG_UPS):
        client = await running.connect()
        await client.send(PLAIN[:-10])
        await until(lambda: running.metric("bulwark_buffered_bytes") > 0)
        hang_up(client, turn)
        await until(lambda: running.metric("bulwark_buffered_bytes") == 0, WITHIN_SECONDS)
    await assert_nothing_left(running)
    assert running.upstream.connections == []


async def test_hang_up_of_a_client_that_does_not_read(proxy: Launch) -> None:
    """A flood that fills every buffer on the way does not hide that the client has left."""
    running = await proxy()
    running.upstream.reply = lambda _: itertools.chain(
        [SSE_HEAD], itertools.repeat(chunk(b"x" * 65_000))
    )
    for turn in range(HANG_UPS):
        client = await running.connect(receive_buffer_bytes=4096)
        await client.send(STREAM)
        await (await running.upstream.connection(turn)).write_blocked.wait()
        client.reset()
        await running.upstream.connection_closed(turn, WITHIN_SECONDS)
    await assert_nothing_left(running)


SEVERAL = 6
WRITE_SECONDS = 1.0


async def test_several_clients_that_stop_reading(proxy: Launch) -> None:
    """Each is taken for gone when it has taken nothing for so long, and its engine stops then.

    An engine that is waited for by none of them is not blamed, however short its own time is.
    """
    running = await proxy(write_timeout_seconds=WRITE_SECONDS, idle_timeout_seconds=0.3)
    running.upstream.reply = lambda _: itertools.chain(
        [SSE_HEAD], itertools.repeat(chunk(b"x" * 65_000))
    )
    clients = [await running.connect(receive_buffer_bytes=4096) for _ in range(SEVERAL)]
    for turn, client in enumerate(clients):
        await client.send(STREAM)
        await (await running.upstream.connection(turn)).write_blocked.wait()
    await running.upstream.all_closed(WRITE_SECONDS + WITHIN_SECONDS)
    await assert_nothing_left(running, SEVERAL)
    assert {line["status"] for line in running.log.requests()} == {499}
