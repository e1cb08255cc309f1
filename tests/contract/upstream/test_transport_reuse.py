"""Connections that end at the wrong moment, and requests that are called off at any."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, cast

import anyio
import httpx
import pytest

from proxy.upstream import target, transport
from proxy.upstream.transport.transport import Transport
from tests.harness.forwarding import until
from tests.harness.upstream import (
    CERTIFICATE,
    LAST_CHUNK,
    SSE_HEAD,
    End,
    Script,
    Upstream,
    event,
    response,
    serve,
)

REQUESTS = 10_000


@pytest.fixture
async def asked(upstream: Upstream) -> AsyncIterator[Transport]:
    """A transport to the upstream."""
    async with transport.build(target.parse(upstream.url)) as made:
        assert isinstance(made, Transport)
        yield made


def question(body: bytes = b"{}", **extensions: object) -> httpx.Request:
    """One request."""
    return httpx.Request(
        "POST",
        "http://localhost",
        headers=[(b"host", b"x")],
        stream=httpx.ByteStream(body),
        extensions={"target": b"/v1/chat/completions", **extensions},
    )


async def ask(asked: Transport, body: bytes = b"{}", **extensions: object) -> bytes:
    """One request, and the body of its answer."""
    answer = await asked.handle_async_request(question(body, **extensions))
    try:
        return await answer.aread()
    finally:
        await answer.aclose()


@dataclass
class Seen:
    """What a server has seen."""

    accepted: int = 0
    asked: int = 0


class Closing(asyncio.Protocol):
    """Answers each request; every other time it closes soon after, so that the next one crosses it.

    Not HTTP beyond what it needs: ten thousand of these have to be quick.
    """

    def __init__(self, seen: "Seen") -> None:
        self.seen = seen

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        """Accepted."""
        self.seen.accepted += 1
        # uvloop's transports do not inherit from asyncio's.
        self.made = cast("asyncio.Transport", made)

    def data_received(self, data: bytes) -> None:
        """A whole request: they are small."""
        assert data.endswith(b"\r\n\r\n{}")
        self.seen.asked += 1
        self.made.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        if self.seen.asked % 2:
            loop = asyncio.get_running_loop()
            turns = self.seen.asked % 7

            def close() -> None:
                nonlocal turns
                turns -= 1
                if turns < 0:
                    self.made.close()
                else:
                    loop.call_soon(close)

            close()


async def test_a_server_that_closes_at_the_wrong_moment() -> None:
    """Ten thousand requests, many of which cross the close of their connection: no error."""
    seen, sent = Seen(), 0

    def on_sent() -> None:
        nonlocal sent
        sent += 1

    extension: dict[str, Any] = {"bulwark.on_sent": on_sent}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Closing(seen), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with transport.build(target.parse(f"http://127.0.0.1:{port}")) as made:
        assert isinstance(made, Transport)

        async def some(count: int) -> None:
            for _ in range(count):
                assert await ask(made, b"{}", **extension) == b"ok"

        await asyncio.gather(*(some(REQUESTS // 4) for _ in range(4)))
    server.close()
    assert seen.accepted > 1000
    # Handed to a socket once more than there are of them: what was asked again.
    assert sent > REQUESTS
    assert seen.asked == REQUESTS, "an answered request was asked twice, or one was never asked"


async def cancelled_after(steps: int, work: Callable[[], object], *, scoped: bool) -> bool:
    """Whether the work was over before it was called off, which it is after so many turns."""
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope if scoped else contextlib.nullcontext():
            await work()  # type: ignore[misc] # it is async

    task = asyncio.create_task(run())
    for _ in range(steps):
        await asyncio.sleep(0)
    finished = task.done()
    if scoped:
        scope.cancel()
    else:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return finished


STREAM: Script = (SSE_HEAD, event("a"), event("b"), LAST_CHUNK)


@pytest.mark.parametrize("scoped", [True, False], ids=["a scope", "the task"])
@pytest.mark.parametrize("is_reused", [True, False], ids=["reused", "new"])
@pytest.mark.parametrize(
    ("reply", "body"),
    [
        pytest.param(STREAM, b"{}", id="a stream"),
        pytest.param((End.SILENCE,), b"{}", id="silence"),
        pytest.param((SSE_HEAD, event("a"), End.SILENCE), b"{}", id="a stream without end"),
        pytest.param(STREAM, b" " * 3_000_000, id="a long request"),
    ],
)
async def test_called_off_at_any_moment(
    reply: Script, body: bytes, is_reused: bool, scoped: bool
) -> None:
    """However many turns of the loop it has run: both sides have closed, and nothing is in use."""
    async with serve() as upstream, transport.build(target.parse(upstream.url)) as made:
        assert isinstance(made, Transport)

        async def work() -> None:
            await ask(made, body)

        for steps in range(60):
            if is_reused:
                upstream.reply = [response(b"{}")]
                await ask(made)
            upstream.reply = reply
            finished = await cancelled_after(steps, work, scoped=scoped)
            assert made.pool.busy == []
            if not finished:
                assert all(line.is_quiet() for line in made.pool.idle)
        await made.aclose()
        await upstream.all_closed()


async def test_called_off_while_encrypting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake that is called off leaves no socket."""
    async with serve(tls=True) as upstream:
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        async with transport.build(target.parse(upstream.url)) as made:
            assert isinstance(made, Transport)

            async def work() -> None:
                await ask(made)

            for steps in range(40):
                await cancelled_after(steps, work, scoped=bool(steps % 2))
                assert made.pool.busy == []
                made.pool.take(float("inf"))  # closes those that wait
            await upstream.all_closed()


async def test_closing_it_ends_what_is_in_use(asked: Transport, upstream: Upstream) -> None:
    """And nothing is connected afterwards."""
    upstream.reply = [SSE_HEAD, event("a"), End.SILENCE]
    answer = await asked.handle_async_request(question())
    await asked.aclose()
    with pytest.raises(httpx.ReadError):
        await answer.aread()
    await upstream.all_closed()
    with pytest.raises(httpx.ConnectError):
        await ask(asked)
    assert asked.pool.busy == []


async def test_an_answer_that_is_not_wanted_is_closed_at_once(
    asked: Transport, upstream: Upstream
) -> None:
    """The engine stops within 50 ms."""
    upstream.reply = [SSE_HEAD, event("a"), End.SILENCE]
    answer = await asked.handle_async_request(question())
    await answer.aclose()
    await upstream.connection_closed(0, within=0.05)


async def test_a_slow_client_does_not_keep_the_connection(
    asked: Transport, upstream: Upstream
) -> None:
    """It is the next request's as soon as the answer is complete, and the answer is whole."""
    upstream.reply = STREAM
    slow = await asked.handle_async_request(question())
    await until(lambda: bool(asked.pool.idle))
    upstream.reply = [response(b"2")]
    assert await ask(asked) == b"2"
    assert await slow.aread() == b"data: a\n\ndata: b\n\n"
    assert [each.connection for each in upstream.requests] == [0, 0]


async def test_who_hears_of_sending(asked: Transport, upstream: Upstream) -> None:
    """Once for each socket that the request is handed to; not where there is none."""
    sent: list[int] = []

    def on_sent() -> None:
        sent.append(len(upstream.connections))

    extension: dict[str, Any] = {"bulwark.on_sent": on_sent}
    upstream.script.extend([[response(b"1")], [End.FIN], [response(b"2")]])
    await ask(asked, b"{}", **extension)
    await ask(asked, b"{}", **extension)
    assert len(sent) == 3
    async with transport.build(target.parse("unix:///none/none.sock")) as nowhere:
        assert isinstance(nowhere, Transport)
        with pytest.raises(httpx.ConnectError):
            await ask(nowhere, b"{}", **extension)
    assert len(sent) == 3


async def test_idle_connections_are_closed_in_time(asked: Transport, upstream: Upstream) -> None:
    """All of them, by one timer; the one that was used last goes last."""
    gate = asyncio.Event()
    upstream.reply = [gate, response(b"{}")]
    tasks = [asyncio.create_task(ask(asked)) for _ in range(5)]
    await upstream.request(4)
    gate.set()
    await asyncio.gather(*tasks)
    assert len(asked.pool.idle) == 5
    now = asyncio.get_running_loop().time()
    late = now + transport.KEEPALIVE_EXPIRY_SECONDS
    assert asked.pool.take(late + 1) is None
    await upstream.all_closed()


async def test_time_runs_out_for_the_request_that_it_is_of(
    asked: Transport, upstream: Upstream
) -> None:
    """Connections keep their timer: what an earlier request has set ends no later one, nor delays it."""
    upstream.script.extend([[response(b"1")], [response(b"2")], [End.SILENCE]])
    assert await ask(asked, timeout={"first_byte": 60.0}) == b"1"
    assert await ask(asked, timeout={"first_byte": 0.05, "idle": 0.05}) == b"2"
    gate = asyncio.Event()
    upstream.script[0] = [SSE_HEAD, gate, event("a"), LAST_CHUNK]
    task = asyncio.create_task(ask(asked, timeout={"first_byte": 60.0, "idle": 60.0}))
    await upstream.request(2)
    loop = asyncio.get_running_loop()
    fired = loop.create_future()
    loop.call_later(0.1, fired.set_result, None)
    await fired
    gate.set()
    assert await task == b"data: a\n\n"
    upstream.script.append([End.SILENCE])
    with pytest.raises(httpx.ReadTimeout):
        await ask(asked, timeout={"first_byte": 0.05})
    assert [each.connection for each in upstream.requests] == [0] * 4
