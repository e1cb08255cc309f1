"""Keep-alive comments: into silent event streams, between events, and nowhere else."""

import asyncio

import pytest

from proxy.keepalive import COMMENT
from tests.harness.client import RawClient, request_bytes
from tests.harness.running import BEARER, CHAT, JSON, STREAM_BODY, Launch, Running
from tests.harness.upstream import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    End,
    Step,
    chunk,
    event,
    response,
    sse,
)

pytestmark = pytest.mark.both_ways

SOON = 0.02

JSON_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


async def begun(running: Running) -> RawClient:
    """A client that has the head of its stream."""
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, STREAM_BODY))
    assert (await client.read_head()).status == 200
    return client


async def silence(running: Running, among: int = 3) -> None:
    """Returns after a time in which a stream that may have comments has had so many."""
    reply = running.upstream.reply
    running.upstream.reply = [SSE_HEAD, End.SILENCE]
    client = await begun(running)
    for _ in range(among):
        assert await client.read_chunk() == COMMENT
    client.close()
    running.upstream.reply = reply


async def test_a_silent_stream_gets_comments(proxy: Launch) -> None:
    """Before its first event, and between two, as chunks of their own; its bytes are all there."""
    running = await proxy(sse_keepalive_seconds=SOON)
    first, last = asyncio.Event(), asyncio.Event()
    running.upstream.reply = [SSE_HEAD, first, event("a"), last, chunk(DONE), LAST_CHUNK]
    client = await begun(running)
    assert [await client.read_chunk() for _ in range(2)] == [COMMENT, COMMENT]
    first.set()
    pieces = [await client.read_chunk()]
    while sse("a") not in pieces:
        pieces.append(await client.read_chunk())
    pieces.append(await client.read_chunk())
    assert pieces[-1] == COMMENT
    last.set()
    rest = (await client.read_rest()).body
    assert (b"".join(pieces) + rest).replace(COMMENT, b"") == sse("a") + DONE
    line = await running.log.nth(0)
    assert (line["outcome"], line["status"]) == ("ok", 200)


async def test_the_first_byte_is_the_upstreams(proxy: Launch) -> None:
    """A comment is no token: the time to the first byte goes on until one comes."""
    running = await proxy(sse_keepalive_seconds=SOON)
    gate = asyncio.Event()
    running.upstream.reply = [SSE_HEAD, gate, event("a"), LAST_CHUNK]
    client = await begun(running)
    for _ in range(3):
        assert await client.read_chunk() == COMMENT
    gate.set()
    await client.read_rest()
    line = await running.log.nth(0)
    assert line["first_byte_seconds"] >= 3 * SOON
    assert line["bytes_out"] >= len(sse("a")) + 3 * len(COMMENT)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(
            [SSE_HEAD, chunk(b"data: a")],
            [chunk(b"\n\n"), LAST_CHUNK],
            sse("a"),
            id="within an event",
        ),
        pytest.param(
            [SSE_HEAD, chunk(b"data: a\n")],
            [chunk(b"\n"), LAST_CHUNK],
            sse("a"),
            id="between two lines of an event",
        ),
        pytest.param(
            [JSON_HEAD, chunk(b'{"a":')],
            [chunk(b"1}"), LAST_CHUNK],
            b'{"a":1}',
            id="in an answer that is no event stream",
        ),
        pytest.param(
            [response(b"", headers=[(b"Content-Type", b"text/event-stream")], content_length=9)],
            [sse("a")],
            sse("a"),
            id="in an event stream of an announced length",
        ),
        pytest.param(
            [SSE_HEAD.replace(b"200 OK", b"503 Busy")],
            [event("a"), LAST_CHUNK],
            sse("a"),
            id="in an error",
        ),
    ],
)
async def test_no_comment_where_none_may_be(
    proxy: Launch, before: list[Step], after: list[Step], expected: bytes
) -> None:
    """However long the silence: the client gets the upstream's bytes and no others."""
    running = await proxy(sse_keepalive_seconds=SOON)
    gate = asyncio.Event()
    running.upstream.reply = [*before, gate, *after]
    asking = asyncio.create_task(running.chat(STREAM_BODY))
    await running.upstream.request(0)
    await silence(running)
    gate.set()
    answer = await asking
    assert (answer.body, answer.complete) == (expected, True)


async def test_no_comment_where_they_are_off(proxy: Launch) -> None:
    """``PROXY_SSE_KEEPALIVE_SECONDS=0``."""
    running = await proxy(sse_keepalive_seconds=0)
    beside = await proxy(sse_keepalive_seconds=SOON)
    gate = asyncio.Event()
    running.upstream.reply = [SSE_HEAD, gate, event("a"), LAST_CHUNK]
    asking = asyncio.create_task(running.chat(STREAM_BODY))
    await running.upstream.request(0)
    await silence(beside)
    gate.set()
    assert (await asking).body == sse("a")


async def test_comments_do_not_keep_the_upstream_alive(proxy: Launch) -> None:
    """Its own silence is measured all the same, and ends the stream visibly."""
    running = await proxy(sse_keepalive_seconds=SOON, idle_timeout_seconds=5 * SOON)
    running.upstream.reply = [SSE_HEAD, event("a"), End.SILENCE]
    answer = await running.chat(STREAM_BODY)
    assert not answer.complete
    assert answer.body.startswith(sse("a") + COMMENT)
    assert (await running.log.nth(0))["outcome"] == "upstream_timeout"
    await running.upstream.connection_closed(0, 1.0)


async def test_a_stream_of_http_1_0(proxy: Launch) -> None:
    """Comments need no chunks: the connection's end is the stream's."""
    running = await proxy(sse_keepalive_seconds=SOON)
    gate = asyncio.Event()
    running.upstream.reply = [SSE_HEAD, gate, event("a"), LAST_CHUNK]
    client = await running.connect()
    fields = "".join(f"{name}: {value}\r\n" for name, value in {**BEARER, **JSON}.items())
    await client.send(
        f"POST {CHAT} HTTP/1.0\r\nHost: x\r\n{fields}Content-Length: {len(STREAM_BODY)}\r\n\r\n".encode()
        + STREAM_BODY
    )
    await running.upstream.request(0)
    await silence(running)
    gate.set()
    answer = await client.read_response()
    assert answer.body.replace(COMMENT, b"") == sse("a")
    assert answer.body.startswith(COMMENT)


async def test_hang_up_between_comments(proxy: Launch) -> None:
    """A client that leaves takes its upstream connection with it, comments or not."""
    running = await proxy(sse_keepalive_seconds=SOON)
    running.upstream.reply = [SSE_HEAD, End.SILENCE]
    client = await begun(running)
    assert await client.read_chunk() == COMMENT
    client.reset()
    await running.upstream.connection_closed(0, 1.0)
    await running.idle()
    assert "Traceback" not in running.log.text
