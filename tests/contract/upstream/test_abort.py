"""When the client leaves, in any phase, the upstream connection is closed: the GPU stops.

Twenty hang-ups in each phase, every other one a reset. After each the upstream's socket is closed
within a second, and after all of them no slot, no memory, no task and no pooled connection is left.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from proxy.errors import Reason
from tests.harness.client import RawClient
from tests.harness.deaf import connecting, deaf_port
from tests.harness.forwarding import Front, chat, forwarding, post, until
from tests.harness.upstream import SSE_HEAD, End, Script, Upstream, chunk, event, response, sse

pytestmark = pytest.mark.both_ways

HANG_UPS = 20
WITHIN_SECONDS = 1.0


def hang_up(client: RawClient, turn: int) -> None:
    """Leaves, politely or not."""
    if turn % 2:
        client.reset()
    else:
        client.close()


@pytest.fixture
async def front(upstream: Upstream) -> AsyncIterator[Front]:
    """A front with generous limits."""
    async with forwarding(upstream.url) as served:
        yield served


@pytest.mark.parametrize(
    ("reply", "stream", "reads"),
    [
        pytest.param([End.SILENCE], True, b"", id="before the headers of a stream"),
        pytest.param([End.SILENCE], False, b"", id="before the headers of an answer in one piece"),
        pytest.param([b"HTTP/1.1 200 O", End.SILENCE], False, b"", id="in the middle of the head"),
        pytest.param([SSE_HEAD, End.SILENCE], True, b"", id="after the headers of a stream"),
        pytest.param([SSE_HEAD, event("a"), End.SILENCE], True, sse("a"), id="in mid-stream"),
        pytest.param(
            [response(b'{"id":', content_length=99), End.SILENCE],
            False,
            b'{"id":',
            id="in the middle of an answer in one piece",
        ),
    ],
)
async def test_hang_up_while_the_upstream_works(
    front: Front, upstream: Upstream, reply: Script, stream: bool, reads: bytes
) -> None:
    """The upstream sees the connection close, whatever it was doing for the client."""
    upstream.reply = reply
    for turn in range(HANG_UPS):
        client = await front.connect()
        await client.send(post(chat(stream=stream)))
        await upstream.request(turn)
        if reads:
            await client.read_head()
            assert await client.read_chunk() == reads
        hang_up(client, turn)
        await upstream.connection_closed(turn, WITHIN_SECONDS)
    await front.nothing_held()
    assert [context.outcome for context in front.contexts] == [Reason.CLIENT_DISCONNECTED] * 20


async def test_hang_up_with_a_pipelined_request_behind(front: Front, upstream: Upstream) -> None:
    """What a client has sent too early does not hide that it has left."""
    upstream.reply = [SSE_HEAD, event("a"), End.SILENCE]
    for turn in range(HANG_UPS):
        client = await front.connect()
        await client.send(post(chat(stream=True)) * 2)
        await client.read_head()
        hang_up(client, turn)
        await upstream.connection_closed(turn, WITHIN_SECONDS)
    await front.nothing_held()
    assert len(upstream.requests) == HANG_UPS


async def test_hang_up_in_the_queue(upstream: Upstream) -> None:
    """Whoever leaves the queue leaves no trace, and the next one gets the turn."""
    gate = asyncio.Event()
    upstream.script.append([gate, response(b"{}")])
    async with (
        forwarding(upstream.url, max_inflight=1) as front,
        await front.connect() as first,
        await front.connect() as last,
    ):
        await first.send(post(chat()))
        await upstream.request(0)
        for turn in range(HANG_UPS):
            client = await front.connect()
            await client.send(post(chat()))
            await until(lambda: front.slots.queued == 1)
            hang_up(client, turn)
            await until(lambda: front.slots.queued == 0, WITHIN_SECONDS)
        await last.send(post(chat()))
        await until(lambda: front.slots.queued == 1)
        gate.set()
        assert (await first.read_response()).status == (await last.read_response()).status == 200
        await front.nothing_held()
    assert len(upstream.requests) == 2


async def test_hang_up_while_uploading_to_the_proxy(front: Front, upstream: Upstream) -> None:
    """Half a request is never sent on."""
    whole = post(chat("x" * 5000))
    for turn in range(HANG_UPS):
        client = await front.connect()
        await client.send(whole[: len(whole) // 2])
        await until(lambda: front.buffers.leased_bytes > 0)
        hang_up(client, turn)
        await until(lambda: front.buffers.leased_bytes == 0, WITHIN_SECONDS)
    await front.nothing_held()
    assert [context.outcome for context in front.contexts] == [Reason.CLIENT_DISCONNECTED] * 20
    assert upstream.connections == []


async def test_hang_up_while_the_upstream_does_not_read(upstream: Upstream) -> None:
    """A request that does not get rid of its body ends like any other."""
    upstream.reads = False
    body = chat(logit_bias={}, image="", images=[], padding="") + b" " * 12_000_000
    async with forwarding(upstream.url, max_body_bytes=len(body)) as front:
        for turn in range(HANG_UPS):
            client = await front.connect()
            await client.send(post(body))
            await upstream.connection(turn)
            hang_up(client, turn)
            # The upstream does not read, so that it is the proxy's side which has to be looked at.
            await until(lambda: not front.open_upstream(), WITHIN_SECONDS)
        await front.nothing_held()


async def test_hang_up_of_a_client_that_does_not_read(front: Front, upstream: Upstream) -> None:
    """A flood that fills every buffer on the way does not hide that the client has left."""
    upstream.reply = lambda _: itertools.chain([SSE_HEAD], itertools.repeat(chunk(b"x" * 65_000)))
    for turn in range(HANG_UPS):
        client = await front.connect(receive_buffer_bytes=4096)
        await client.send(post(chat(stream=True)))
        await (await upstream.connection(turn)).write_blocked.wait()
        client.reset()  # a FIN would be told to nobody: what was received is not read
        await upstream.connection_closed(turn, WITHIN_SECONDS)
    await front.nothing_held()


async def test_hang_up_while_connecting() -> None:
    """A connection that was not there yet is not opened any more."""
    with deaf_port() as port:
        before = connecting(port)
        async with forwarding(f"http://127.0.0.1:{port}") as front:
            for turn in range(HANG_UPS):
                client = await front.connect()
                await client.send(post(chat()))
                await until(lambda: connecting(port) == before + 1)
                hang_up(client, turn)
                await until(lambda: connecting(port) == before, WITHIN_SECONDS)
            await front.nothing_held()


async def test_hang_up_at_any_moment(front: Front, upstream: Upstream) -> None:
    """No moment between two phases is a gap through which a connection is lost."""
    upstream.reply = [SSE_HEAD, event("a"), event("b"), chunk(b"c"), b"0\r\n\r\n"]
    for turn in range(300):
        client = await front.connect()
        await client.send(post(chat(stream=True)))
        for _ in range(turn % 60):
            await asyncio.sleep(0)
        hang_up(client, turn)
    await front.nothing_held()


async def test_many_hang_up_at_once(front: Front, upstream: Upstream) -> None:
    """Nor does one request's end disturb another's."""
    upstream.reply = [SSE_HEAD, event("a"), End.SILENCE]
    clients = [await front.connect() for _ in range(32)]
    for client in clients:
        await client.send(post(chat(stream=True)))
    for client in clients:
        await client.read_head()
    for turn, client in enumerate(clients):
        hang_up(client, turn)
    await upstream.all_closed(WITHIN_SECONDS)
    await front.nothing_held()
