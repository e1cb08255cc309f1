"""Which connection a request gets, how long one waits for it, and what nobody may be given."""

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from proxy.upstream import target, transport
from proxy.upstream.transport.connection import Connection
from proxy.upstream.transport.transport import Transport
from tests.harness import awake
from tests.harness.deaf import deaf_port
from tests.harness.upstream import Upstream, response

LARGE = b" " * 2_000_000


@pytest.fixture
async def asked(upstream: Upstream) -> AsyncIterator[Transport]:
    """A transport to the upstream."""
    async with transport.build(target.parse(upstream.url)) as made:
        assert isinstance(made, Transport)
        yield made


async def ask(
    asked: httpx.AsyncBaseTransport, body: bytes = b"{}", **extensions: object
) -> tuple[int, bytes]:
    """Status and body of the answer to one request."""
    answer = await asked.handle_async_request(
        httpx.Request(
            "POST",
            "http://localhost",
            headers=[(b"host", b"x")],
            stream=httpx.ByteStream(body),
            extensions={"target": b"/v1", **extensions},
        )
    )
    return answer.status_code, await answer.aread()


# What the loop has not read yet


def server_socket(upstream: Upstream, index: int) -> int:
    """The descriptor of a connection's other side, to do something with at once."""
    number: int = upstream.connections[index].transport.get_extra_info("socket").fileno()
    return number


def an_answer(descriptor: int) -> None:
    """Something that nobody has asked for."""
    os.write(descriptor, response(b"stale"))


def the_end(descriptor: int) -> None:
    """A clean close."""
    with socket.socket(fileno=os.dup(descriptor)) as side:
        side.shutdown(socket.SHUT_WR)


def until_received(connection: Connection) -> None:
    """The system has it, and the loop, which stands still, has not."""
    descriptor = connection.transport.get_extra_info("socket").fileno()
    assert select.select([descriptor], [], [], 5)[0]


@pytest.mark.parametrize("say", [an_answer, the_end])
async def test_what_the_loop_has_not_read_is_seen(
    asked: Transport, upstream: Upstream, say: Callable[[int], None]
) -> None:
    """A connection on which something lies is not used, not even to find that it was of no use."""
    sent = 0

    def on_sent() -> None:
        nonlocal sent
        sent += 1

    extension: dict[str, Any] = {"bulwark.on_sent": on_sent}
    upstream.script.extend([[response(b"1")], [response(b"2")]])
    assert await ask(asked, **extension) == (200, b"1")
    (waiting,) = asked.pool.idle
    say(server_socket(upstream, 0))
    until_received(waiting)
    assert await ask(asked, **extension) == (200, b"2")
    assert [each.connection for each in upstream.requests] == [0, 1]
    assert (sent, waiting.closed) == (2, True)


async def test_an_answer_between_two_pieces_of_its_request(
    asked: Transport, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was written is sent, and the rest never will be: another request would be taken for it."""
    has_unread, calls, is_said = Connection.has_unread, 0, False

    def between(self: Connection) -> bool:
        nonlocal calls, is_said
        calls += 1
        # The first time only the head was written.
        if calls > 1 and not is_said and not self.transport.get_write_buffer_size():
            is_said = True
            os.write(server_socket(upstream, 0), response(b"early", 413))
            until_received(self)
        return has_unread(self)

    upstream.reply = [response(b"ok")]
    assert await ask(asked) == (200, b"ok")
    monkeypatch.setattr(Connection, "has_unread", between)
    assert await ask(asked, LARGE) == (413, b"early")
    assert is_said
    assert (asked.pool.busy, asked.pool.idle) == ([], {})
    await upstream.connection_closed(0)
    assert await ask(asked) == (200, b"ok")
    assert [each.connection for each in upstream.requests] == [0, 1]


# Which one, and how long


async def two_waiting(asked: Transport, upstream: Upstream, order: list[int], gap: float) -> None:
    """Two connections that were used, until so long after one another, in this order."""
    gates = [asyncio.Event(), asyncio.Event()]
    upstream.script.extend([gate, response(b"{}")] for gate in gates)
    tasks = []
    for index in range(2):
        tasks.append(asyncio.create_task(ask(asked)))
        await upstream.request(index)
    first, second = order
    gates[first].set()
    await tasks[first]
    asyncio.get_running_loop().call_later(gap, gates[second].set)
    await tasks[second]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["the newer one", "the older one"])
async def test_the_one_used_last_is_used_next(
    asked: Transport, upstream: Upstream, order: list[int]
) -> None:
    """So that those that are too many grow old."""
    await two_waiting(asked, upstream, order, 0)
    assert len(asked.pool.idle) == 2
    await ask(asked)
    assert upstream.requests[2].connection == order[-1]


async def test_each_that_waits_too_long_is_closed(
    asked: Transport, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the one that began to wait later, and without any request that would find it."""
    monkeypatch.setattr("proxy.upstream.transport.pool.KEEPALIVE_EXPIRY_SECONDS", 0.2)
    await two_waiting(asked, upstream, [0, 1], 0.1)
    await upstream.connection_closed(0)
    await upstream.connection_closed(1, within=1.0)
    assert asked.pool.idle == {}


# How long it is waited for a new one


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        pytest.param({"connect": 0.1, "total": 60.0}, httpx.ConnectTimeout, id="connecting"),
        pytest.param({"connect": 60.0, "total": 0.1}, httpx.ReadTimeout, id="the whole"),
        pytest.param({"connect": None, "total": 0.1}, httpx.ReadTimeout, id="the whole alone"),
    ],
)
async def test_an_address_that_swallows_everything(
    seconds: dict[str, float | None], error: type[Exception]
) -> None:
    """Whichever time is over first ends it then, and is the one that is told."""
    with deaf_port() as port:
        async with transport.build(target.parse(f"http://127.0.0.1:{port}")) as asked:
            with pytest.raises(error):
                async with awake.timeout(2.0):
                    await ask(asked, timeout=seconds)
