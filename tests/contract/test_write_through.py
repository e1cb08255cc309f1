"""Which way a body takes: pushed from socket to socket, or pulled through ASGI's ``send``.

All else about the two is the same, so that only who counts can tell.
"""

import os

import pytest

from proxy.pipe import Flow, Sink
from proxy.upstream.transport.body import Body
from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, JSON, STREAM_BODY, WAY, Launch, Running
from tests.harness.upstream import DONE, LAST_CHUNK, SSE_HEAD, chunk, event, response, sse

EVENTS = [SSE_HEAD, event("a"), event("b"), chunk(DONE), LAST_CHUNK]
STREAM = sse("a") + sse("b") + DONE
CHUNKED = SSE_HEAD.replace(b"text/event-stream; charset=utf-8", b"application/json")
HTTP_1_0 = b"HTTP/1.0"


class Ways:
    """What the transport has pushed, and pulled."""

    def __init__(self) -> None:
        self.pushed = b""
        self.pulled = b""


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """Counts at the transport's two ends, and changes nothing."""
    counted = Ways()
    pipe, pull = Body.pipe, Body.__anext__

    async def counted_pipe(self: Body, sink: Sink, flow: Flow) -> None:
        def counted_sink(data: bytes) -> None:
            counted.pushed += data
            sink(data)

        await pipe(self, counted_sink, flow)

    async def counted_pull(self: Body) -> bytes:
        data = await pull(self)
        counted.pulled += data
        return data

    monkeypatch.setattr(Body, "pipe", counted_pipe)
    monkeypatch.setattr(Body, "__anext__", counted_pull)
    return counted


async def ask(running: Running, version: bytes = b"HTTP/1.1") -> bytes:
    """The body of an answer."""
    client = await running.connect()
    request = request_bytes("POST", CHAT, {**BEARER, **JSON}, STREAM_BODY)
    await client.send(request.replace(b"HTTP/1.1", version, 1))
    answer = await client.read_response()
    assert (answer.status, answer.complete) == (200, True)
    return answer.body


@pytest.mark.both_ways
@pytest.mark.parametrize(
    ("reply", "body"),
    [
        pytest.param(EVENTS, STREAM, id="a stream"),
        pytest.param([CHUNKED, chunk(b"{}"), LAST_CHUNK], b"{}", id="one that is no stream"),
    ],
)
async def test_a_body_is_pushed_where_write_through_is_on(
    proxy: Launch, ways: Ways, reply: list[bytes], body: bytes
) -> None:
    """All of it, and pulled where it is off, all of it."""
    running = await proxy()
    running.upstream.reply = [*reply]
    assert await ask(running) == body
    pushed = os.environ[WAY] == "pushed"
    assert (ways.pushed, ways.pulled) == ((body, b"") if pushed else (b"", body))


@pytest.mark.parametrize(
    ("setting", "pushed"),
    [
        pytest.param(None, True, id="by default"),
        pytest.param("true", True, id="on"),
        pytest.param("false", False, id="off"),
    ],
)
async def test_what_switches_it(
    proxy: Launch, ways: Ways, setting: str | None, pushed: bool
) -> None:
    """``PROXY_WRITE_THROUGH``."""
    running = await proxy(write_through=setting)
    running.upstream.reply = [*EVENTS]
    assert await ask(running) == STREAM
    assert (bool(ways.pushed), bool(ways.pulled)) == (pushed, not pushed)


@pytest.mark.parametrize(
    ("reply", "version", "body"),
    [
        pytest.param([response(b"{}")], b"HTTP/1.1", b"{}", id="a length was announced"),
        pytest.param(EVENTS, HTTP_1_0, STREAM, id="HTTP/1.0 has no chunks"),
    ],
)
async def test_where_nothing_can_be_pushed(
    proxy: Launch, ways: Ways, reply: list[bytes], version: bytes, body: bytes
) -> None:
    """Whatever the setting says."""
    running = await proxy(write_through=True)
    running.upstream.reply = [*reply]
    assert await ask(running, version) == body
    assert (ways.pushed, ways.pulled) == (b"", body)
