"""Behind a tunnel that gives up a silent origin, with its time and ours scaled alike."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.keepalive import COMMENT
from tests.harness import edge as edges
from tests.harness.client import RawClient, RawResponse, request_bytes
from tests.harness.edge import Edge
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, STREAM_BODY, Launch, Running
from tests.harness.upstream import DONE, LAST_CHUNK, SSE_HEAD, Step, chunk, event, response, sse

pytestmark = pytest.mark.both_ways

SCALE = 1 / 200
"""Of an edge that cuts after 100 s, comments after 15 s and a commitment after 45 s."""

SILENCE = 100 * SCALE
SCALED: dict[str, Any] = {"sse_keepalive_seconds": 15 * SCALE, "sse_commit_seconds": 45 * SCALE}


async def through(edge: Edge, body: bytes) -> RawResponse:
    """One chat from beyond the edge."""
    async with await RawClient.open("127.0.0.1", edge.port) as client:
        await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, body))
        return await client.read_response()


@contextlib.asynccontextmanager
async def behind(running: Running) -> AsyncIterator[Edge]:
    """An edge in front of this proxy."""
    async with edges.in_front_of(running.port, SILENCE) as edge:
        yield edge


async def after(gate: asyncio.Event, limits: float) -> None:
    """Opens the gate when an edge of its own would have given up so many times."""
    # The one thing here that is about time itself: an edge's patience.
    await asyncio.sleep(limits * SILENCE)
    gate.set()


@pytest.mark.parametrize(
    ("before", "then"),
    [
        pytest.param([], [SSE_HEAD, event("a")], id="before its status"),
        pytest.param([SSE_HEAD], [event("a")], id="before its first event"),
        pytest.param([SSE_HEAD, event("a")], [], id="between two events"),
    ],
)
async def test_a_stream_survives_a_long_silence(
    proxy: Launch, before: list[Step], then: list[Step]
) -> None:
    """Twice as long as the edge's patience: every event arrives, and the edge cut nothing."""
    running = await proxy(**SCALED)
    gate = asyncio.Event()
    running.upstream.reply = [*before, gate, *then, chunk(DONE), LAST_CHUNK]
    async with behind(running) as edge, asyncio.TaskGroup() as tasks:
        tasks.create_task(after(gate, 2))
        answer = await through(edge, STREAM_BODY)
    assert (answer.status, answer.complete, edge.given_up) == (200, True, 0)
    assert answer.body.replace(COMMENT, b"") == sse("a") + DONE


@pytest.mark.parametrize(
    ("before", "status"),
    [
        pytest.param([], 524, id="before its status"),
        pytest.param([SSE_HEAD, event("a")], 200, id="between two events"),
    ],
)
async def test_without_comments_the_edge_cuts(
    proxy: Launch, before: list[Step], status: int
) -> None:
    """The control: this edge does what it is there for."""
    running = await proxy(**SCALED | {"sse_keepalive_seconds": 0})
    gate = asyncio.Event()
    running.upstream.reply = [*before, gate, LAST_CHUNK]
    async with behind(running) as edge:
        answer = await through(edge, STREAM_BODY)
    assert (answer.status, edge.given_up) == (status, 1)
    assert answer.complete == (status == 524)
    await running.upstream.connection_closed(0, 1.0)


async def test_an_answer_in_one_piece_is_cut(proxy: Launch) -> None:
    """Nothing can be sent ahead of a status that is not known: let clients stream."""
    running = await proxy(**SCALED)
    running.upstream.reply = [asyncio.Event(), response(b"{}")]
    async with behind(running) as edge:
        answer = await through(edge, CHAT_BODY)
    assert (answer.status, edge.given_up) == (524, 1)
    await running.upstream.connection_closed(0, 1.0)


async def test_an_error_after_a_long_silence_is_readable(proxy: Launch) -> None:
    """It arrives as an event, because its status cannot any more."""
    running = await proxy(**SCALED)
    gate = asyncio.Event()
    running.upstream.reply = [gate, response(b'{"error":{"message":"out of memory"}}', 500)]
    async with behind(running) as edge, asyncio.TaskGroup() as tasks:
        tasks.create_task(after(gate, 2))
        answer = await through(edge, STREAM_BODY)
    assert (answer.status, answer.complete, edge.given_up) == (200, True, 0)
    event_ = answer.body.replace(COMMENT, b"").removeprefix(b"data: ")
    assert json.loads(event_)["error"]["message"] == "out of memory"


async def test_the_edges_fields_stay_here(proxy: Launch) -> None:
    """None of them reaches the upstream, and none grants or changes anything."""
    running = await proxy(**SCALED)
    async with behind(running) as edge:
        assert (await through(edge, CHAT_BODY)).status == 200
    names = {name for name, _ in running.upstream.requests[0].headers}
    added = {line.partition(b":")[0].lower() for line in edges.ADDED.splitlines()}
    assert names & added == {b"accept-encoding"}
    assert running.upstream.requests[0].header(b"accept-encoding") == b"identity"
    assert (await running.log.nth(0))["client"] == "127.0.0.1"


async def test_a_hang_up_beyond_the_edge(proxy: Launch) -> None:
    """Reaches the upstream, comments or not."""
    running = await proxy(**SCALED)
    running.upstream.reply = [SSE_HEAD, asyncio.Event()]
    async with behind(running) as edge:
        client = await RawClient.open("127.0.0.1", edge.port)
        await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, STREAM_BODY))
        await client.read_head()
        assert await client.read_chunk() == COMMENT
        client.close()
        await running.upstream.connection_closed(0, 1.0)
