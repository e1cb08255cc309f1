"""Which ends of a reused connection were on their way when the request was: only then it is asked again."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from proxy.upstream import target, transport
from proxy.upstream.transport import exchange
from proxy.upstream.transport.transport import Transport
from tests.harness.forwarding import until
from tests.harness.upstream import End, Upstream, response

SMALL, LARGE = b"{}", b" " * 12_000_000


@pytest.fixture
async def asked(upstream: Upstream) -> AsyncIterator[Transport]:
    """A transport to the upstream."""
    async with transport.build(target.parse(upstream.url)) as made:
        assert isinstance(made, Transport)
        yield made


async def ask(asked: Transport, body: bytes = SMALL) -> bytes:
    """One request, and the body of its answer."""
    answer = await asked.handle_async_request(
        httpx.Request(
            "POST",
            "http://localhost",
            headers=[(b"host", b"x")],
            stream=httpx.ByteStream(body),
            extensions={"target": b"/v1/chat/completions", "timeout": {"total": 20.0}},
        )
    )
    return await answer.aread()


async def passed(seconds: float) -> None:
    """That much time has passed as the loop counts: its patience is the case."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_later(seconds, future.set_result, None)
    await future


@pytest.mark.parametrize("end", [End.FIN, End.RESET], ids=["closed", "reset"])
async def test_a_request_that_was_worked_on_is_not_repeated(
    asked: Transport, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, end: End
) -> None:
    """Who closes long after the request came has read it, and may have worked on it meanwhile."""
    monkeypatch.setattr(exchange, "CROSSING_SECONDS", 0.05)
    gate = asyncio.Event()
    upstream.script.extend([[response(b"1")], [gate, end], [response(b"2")]])
    assert await ask(asked) == b"1"
    task = asyncio.create_task(ask(asked))
    await upstream.request(1)
    await passed(0.1)
    gate.set()
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await task
    assert [each.connection for each in upstream.requests] == [0, 0]


async def test_the_end_of_a_connection_crosses_a_request_for_a_second() -> None:
    """Longer than the way to any engine and back; shorter than what is worth being asked once."""
    assert exchange.CROSSING_SECONDS == 1


@pytest.mark.parametrize("end", [End.FIN, End.RESET], ids=["closed", "reset"])
async def test_an_end_that_crosses_a_request_costs_nothing(
    asked: Transport, upstream: Upstream, end: End
) -> None:
    """It comes at once, be the request one that does not fit into the socket."""
    upstream.reply = [response(b"1")]
    for body in (SMALL, LARGE):
        assert await ask(asked) == b"1"
        count = len(upstream.connections)
        upstream.connections[-1].transport.pause_reading()
        task = asyncio.create_task(ask(asked, body))
        await until(lambda: bool(asked.pool.busy))
        if end is End.FIN:
            upstream.connections[-1].close()
        else:
            upstream.connections[-1].reset()
        assert await task == b"1"
        assert len(upstream.connections) == count + 1


async def test_a_long_request_that_is_read_is_not_repeated(
    asked: Transport, upstream: Upstream
) -> None:
    """Who has taken more than the socket holds has begun to read."""
    await ask(asked)
    connection = upstream.connections[0]
    connection.transport.pause_reading()
    task = asyncio.create_task(ask(asked, LARGE))
    await until(lambda: any(line.write_blocked for line in asked.pool.busy))
    begun = len(connection.received)
    connection.transport.resume_reading()
    await until(lambda: len(connection.received) > begun + len(LARGE) // 2)
    connection.reset()
    with pytest.raises((httpx.ReadError, httpx.WriteError)):
        await task
    assert len(upstream.connections) == 1
