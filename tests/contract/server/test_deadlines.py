"""How long a connection may take over its head, over nothing, and over reading its answer."""

import asyncio
import socket
import time
from typing import Any

import pytest

from tests.harness.client import RawClient, request_bytes
from tests.harness.served import Echo, Receive, Scope, Send, Serve, piece, start

HEAD = b"POST /v1/x HTTP/1.1\r\nHost: h\r\n"
REQUEST = HEAD + b"Content-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"", id="the first head of a connection"),
        pytest.param(REQUEST, id="the second head of a connection"),
    ],
)
@pytest.mark.parametrize(
    ("sent", "dripped"),
    [
        pytest.param(b"P", b"", id="one byte"),
        pytest.param(b"GET /", b"x", id="a target that drips"),
        pytest.param(HEAD + b"X: ", b"x", id="a field that drips"),
        pytest.param(HEAD, b"X: 1\r\n", id="fields that drip"),
        pytest.param(HEAD + b"X: 1\r\n\r", b"", id="all but the last byte"),
    ],
)
async def test_a_head_that_does_not_end_is_refused(
    serve: Serve, first: bytes, sent: bytes, dripped: bytes
) -> None:
    """With a 408 at the deadline, however the client drips."""
    app = Echo()
    served = await serve(app, head_seconds=0.3, linger_seconds=0.1)
    async with await served.connect() as client:
        if first:
            await client.send(first)
            assert (await client.read_response()).status == 200
        began = time.monotonic()
        await client.send(sent)
        dripping = asyncio.create_task(drip(client, dripped))
        response = await client.read_response()
        dripping.cancel()
        assert time.monotonic() - began >= 0.29
        assert (response.status, response.json()["error"]["code"]) == (408, "request_timeout")
        assert await client.read_until_closed() == b""
    assert [str(refusal.reason) for refusal, _ in served.refusals] == ["request_timeout"]
    assert len(app.scopes) == (1 if first else 0)


async def test_what_is_wrong_with_a_head_is_told_at_its_deadline(serve: Serve) -> None:
    """A target that is too long is refused with its whole head, but waits for it no longer."""
    served = await serve(Echo(), head_seconds=0.05, linger_seconds=0.1)
    answered = await served.ask(b"GET /" + b"x" * 9_000)
    assert answered.startswith(b"HTTP/1.1 414 ")
    assert [str(refusal.reason) for refusal, _ in served.refusals] == ["target_too_long"]


async def drip(client: RawClient, dripped: bytes) -> None:
    """A little every now and then."""
    while True:
        await asyncio.sleep(0.05)
        await client.send(dripped)


async def test_a_connection_that_says_nothing_is_closed(serve: Serve) -> None:
    """Without an answer: it would be taken for that to a request that is on its way."""
    served = await serve(Echo(), head_seconds=0.1)
    assert await served.ask(b"") == b""
    assert await served.ask(b"\r\n") == b""
    assert served.refusals == []


async def test_a_head_that_does_not_end_in_a_drain_is_not_refused(serve: Serve) -> None:
    """The connection closes already, and only waits for its last answer to be taken."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await piece(send, bytes(20_000_000), more=False)

    served = await serve(app, head_seconds=0.2)
    async with await served.connect(receive_buffer_bytes=8192) as client:
        await client.send(request_bytes("GET", "/"))
        await client.read_head()
        await client.send(b"GET")
        await served.has_read(len(request_bytes("GET", "/")) + 3)
        [connection] = served.state.connections
        connection.shutdown()
        await asyncio.sleep(0.3)
        assert len(await client.read_until_closed()) > 20_000_000
    assert served.refusals == []


async def test_a_head_in_time_is_served_and_its_body_may_take_longer(serve: Serve) -> None:
    """The deadline is the head's. Bodies and answers have their own, above."""
    served = await serve(Echo(), head_seconds=0.2)
    async with await served.connect() as client:
        for _ in range(2):
            await client.send(REQUEST[:5])
            await asyncio.sleep(0.1)
            await client.send(REQUEST[5:-2])
            await asyncio.sleep(0.3)
            await client.send(b"{}")
            assert (await client.read_response()).status == 200
    assert served.refusals == []


async def test_an_idle_connection_is_kept_and_then_closed(serve: Serve) -> None:
    """For as long as the server is told (120 s in the product), whatever a head may take."""
    served = await serve(Echo(), keep_alive_seconds=1, head_seconds=0.1)
    async with await served.connect() as client:
        await client.send(REQUEST)
        assert (await client.read_response()).header(b"connection") is None
        await asyncio.sleep(0.5)
        await client.send(REQUEST)
        assert (await client.read_response()).status == 200
        began = time.monotonic()
        await client.send(b"\r\n")  # no request, so it buys no time
        assert await client.read_until_closed() == b""
        assert 0.9 <= time.monotonic() - began < 3
        assert not client.was_reset


async def flood(scope: Scope, receive: Receive, send: Send) -> None:
    """An answer that does not end before its client does; says how that was noticed."""
    await receive()
    await start(send)
    watch = asyncio.ensure_future(receive())
    while not watch.done():
        await piece(send, b"x" * 65536)
    scope["state"]["noticed"].set_result(await watch)


def noticing(future: asyncio.Future[Any]) -> Any:
    """``flood``, with a place to put what it noticed."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await flood({**scope, "state": {"noticed": future}}, receive, send)

    return app


@pytest.mark.parametrize("timeout_seconds", [0.6, 1.2])
async def test_a_client_that_stops_reading_is_cut_off(serve: Serve, timeout_seconds: float) -> None:
    """After the write time-out without progress, as a disconnect and with a reset."""
    noticed = asyncio.get_running_loop().create_future()
    served = await serve(noticing(noticed), write_timeout_seconds=timeout_seconds)
    async with await served.connect(receive_buffer_bytes=8192) as client:
        began = time.monotonic()
        await client.send(request_bytes("GET", "/"))
        assert await asyncio.wait_for(noticed, 10) == {"type": "http.disconnect"}
        assert timeout_seconds <= time.monotonic() - began < timeout_seconds + 3
        await served.has_closed()
        await client.read_until_closed()
        assert client.was_reset


async def test_a_client_that_does_not_take_its_last_bytes_is_cut_off(serve: Serve) -> None:
    """Also when the answer is complete and nobody writes any more."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, ((b"connection", b"close"),))
        await piece(send, bytes(20_000_000), more=False)

    served = await serve(app, write_timeout_seconds=0.6)
    async with await served.connect(receive_buffer_bytes=8192) as client:
        await client.send(request_bytes("GET", "/"))
        await client.read_head()
        await served.has_closed()
        await client.read_until_closed()
        assert client.was_reset


async def test_a_client_that_neither_reads_nor_writes_on_has_left(serve: Serve) -> None:
    """A FIN is seen at once although what waits for the client holds up the end."""
    noticed = asyncio.get_running_loop().create_future()
    served = await serve(noticing(noticed))
    async with await served.connect(receive_buffer_bytes=8192) as client:
        await client.send(request_bytes("GET", "/"))
        await client.read_head()
        client.half_close()
        assert await asyncio.wait_for(noticed, 1) == {"type": "http.disconnect"}


async def test_a_client_that_reads_slowly_is_not_cut_off(serve: Serve) -> None:
    """A little now and then is progress, also while the kernel has no room for more of ours."""
    noticed = asyncio.get_running_loop().create_future()
    served = await serve(noticing(noticed), write_timeout_seconds=2.0)
    async with await served.connect(receive_buffer_bytes=262144) as client:
        await client.send(request_bytes("GET", "/"))
        received = 0
        for _ in range(16):
            await asyncio.sleep(0.2)
            received += len(await client.read_available())
        assert not noticed.done()
    assert 0 < received < 3_000_000
    assert await asyncio.wait_for(noticed, 5) == {"type": "http.disconnect"}


async def test_a_client_that_catches_up_is_not_cut_off(serve: Serve) -> None:
    """The watch ends with the pause."""
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        for _ in range(200):
            await piece(send, b"x" * 65536)
        await go_on.wait()
        await piece(send, b"end", more=False)

    served = await serve(app, write_timeout_seconds=0.3)
    async with await served.connect() as client:
        await client.send(request_bytes("GET", "/"))
        await client.read_head()
        for _ in range(200):
            assert len(await client.read_chunk()) == 65536
        await asyncio.sleep(0.5)
        go_on.set()
        assert await client.read_chunk() == b"end"


@pytest.mark.parametrize(
    ("write", "user", "expected"),
    [
        pytest.param(60, 30, 60_000, id="never shorter than the write time-out"),
        pytest.param(10, 30, 30_000, id="its own where that is longer"),
    ],
)
async def test_the_kernel_notices_who_vanished(
    serve: Serve, write: float, user: float, expected: int
) -> None:
    """By the user time-out while something is unacknowledged, by probes while nothing is."""
    served = await serve(Echo(), write_timeout_seconds=write, user_timeout_seconds=user)
    async with await served.connect() as client:
        await client.request("GET", "/")
        [connection] = served.state.connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == expected
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
