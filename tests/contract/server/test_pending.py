"""While an answer is pending: what else the client may do, and that its leaving is seen."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.harness.client import RawClient, request_bytes
from tests.harness.served import Message, Receive, Scope, Send, Serve, piece, start

REQUEST = request_bytes("POST", "/", body=b"{}")
PENDING = 64 * 1024
LARGE = 8_000_000  # more than the kernel takes for a client that does not read


class Slow:
    """An application whose answer waits, and that notes how its client left."""

    def __init__(self, *, streams: bool = False) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.gone = asyncio.Event()
        self.requests = 0
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        self.requests += 1
        more = True
        while more:
            more = (await receive()).get("more_body", False)
        if self._streams:
            await start(send)
            await piece(send, b"one")
        watch = asyncio.create_task(self._watch(receive))
        self.begun.set()
        await self.go_on.wait()
        watch.cancel()
        if not self._streams:
            await start(send)
        await piece(send, b"end", more=False)

    async def _watch(self, receive: Callable[[], Awaitable[Message]]) -> None:
        assert await receive() == {"type": "http.disconnect"}
        self.gone.set()


@pytest.mark.parametrize("streams", [False, True], ids=["before the answer", "in the answer"])
@pytest.mark.parametrize("together", [True, False], ids=["in one packet", "in two packets"])
@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(REQUEST, id="a request"),
        pytest.param(REQUEST[:9], id="half a request"),
        pytest.param(REQUEST * 100, id="a hundred requests"),
        pytest.param(b"\x16\x03\x01", id="garbage"),
        pytest.param(b"GET http://h/ HTTP/1.1\r\n\r\n", id="a request that would be refused"),
    ],
)
async def test_pipelining_is_not_served(
    serve: Serve, behind: bytes, *, together: bool, streams: bool
) -> None:
    """The answer is finished, nothing is answered to what came behind, the connection closes."""
    app = Slow(streams=streams)
    served = await serve(app, linger_seconds=0.1)
    async with await served.connect() as client:
        await client.send(REQUEST + behind if together else REQUEST)
        await app.begun.wait()
        if not together:
            await client.send(behind)
            await served.has_read(len(REQUEST) + len(behind))
        app.go_on.set()
        response = await client.read_response()
        assert (response.status, response.complete) == (200, True)
        assert response.body == (b"oneend" if streams else b"end")
        assert response.values(b"connection") == ([] if streams and not together else [b"close"])
        assert await client.read_until_closed() == b""
        assert not client.was_reset
    assert app.requests == 1
    assert served.refusals == []


@pytest.mark.parametrize("close_by", [1, 2], ids=["in one packet", "in two packets"])
@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(REQUEST, id="a request"),
        pytest.param(REQUEST * 3, id="three requests"),
        pytest.param(request_bytes("GET", "/", {"Upgrade": "h2c"}), id="a request to upgrade"),
        pytest.param(b"\r\n" + REQUEST, id="an empty line and a request"),
    ],
)
async def test_a_request_before_the_last_answer_was_read_is_not_served(
    serve: Serve, behind: bytes, close_by: int
) -> None:
    """All of that answer is out at the application. Its client gets the rest of it, and the end."""
    requests = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal requests
        requests += 1
        await start(send)
        await piece(send, bytes(LARGE), more=False)

    served = await serve(app, linger_seconds=0.1)
    async with await served.connect(receive_buffer_bytes=8192) as client:
        await client.send(REQUEST)
        await client.read_head()
        half = len(behind) // close_by
        await client.send(behind[:half])
        await served.has_read(len(REQUEST) + half)
        await client.send(behind[half:])
        await served.has_read(len(REQUEST) + len(behind))
        response = await client.read_rest()
        assert (len(response.body), response.complete) == (LARGE, True)
        assert await client.read_until_closed() == b""
        assert not client.was_reset
    assert requests == 1
    assert served.refusals == []


async def test_a_request_after_the_last_answer_was_read_is_served(serve: Serve) -> None:
    """Large answers on one connection, each asked for when the last byte of the one before is in."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await piece(send, bytes(LARGE), more=False)

    served = await serve(app)
    async with await served.connect(receive_buffer_bytes=65_536) as client:
        for _ in range(5):
            response = await client.request("GET", "/")
            assert (len(response.body), response.complete) == (LARGE, True)


async def test_an_empty_line_behind_a_request_is_no_request(serve: Serve) -> None:
    """Old clients end a body so; the connection stays."""
    app = Slow()
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(REQUEST + b"\r\n")
        await app.begun.wait()
        await client.send(b"\r\n")
        app.go_on.set()
        assert (await client.read_response()).header(b"connection") is None
        await client.send(REQUEST)
        assert (await client.read_response()).body == b"end"
    assert app.requests == 2


async def test_empty_lines_behind_each_of_many_requests_do_not_add_up(serve: Serve) -> None:
    """Each request may have as many behind it as any other."""
    app = Slow()
    served = await serve(app, pending_bytes=100)
    async with await served.connect() as client:
        for _ in range(5):
            read = served.bytes_read
            await client.send(REQUEST)
            await app.begun.wait()
            await client.send(b"\r\n" * 40)
            await served.has_read(read + len(REQUEST) + 80)
            app.go_on.set()
            assert (await client.read_response()).body == b"end"
            app.begun.clear()
            app.go_on.clear()
    assert app.requests == 5


@pytest.mark.parametrize("byte", [b"x", b"\n"], ids=["garbage", "empty lines"])
async def test_what_is_discarded_has_a_limit(serve: Serve, byte: bytes) -> None:
    """64 KiB behind a request are dropped; with one byte more the connection is."""
    app = Slow()
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(REQUEST)
        await app.begun.wait()
        await client.send(byte * PENDING)
        await served.has_read(len(REQUEST) + PENDING)
        assert not app.gone.is_set()
        await client.send(byte)
        await asyncio.wait_for(app.gone.wait(), 1)
        assert await client.read_until_closed() == b""
    app.go_on.set()


async def test_what_is_discarded_within_the_limit_does_no_harm(serve: Serve) -> None:
    """The answer comes all the same."""
    app = Slow()
    served = await serve(app, linger_seconds=0.1)
    async with await served.connect() as client:
        await client.send(REQUEST)
        await app.begun.wait()
        await client.send(b"x" * PENDING)
        await served.has_read(len(REQUEST) + PENDING)
        app.go_on.set()
        response = await client.read_response()
    assert (response.body, response.complete) == (b"end", True)


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(RawClient.close, id="by a FIN"),
        pytest.param(RawClient.reset, id="by a reset"),
        pytest.param(RawClient.half_close, id="by half a FIN"),
    ],
)
@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(b"", id="nothing behind"),
        pytest.param(REQUEST, id="a request behind"),
        pytest.param(b"x" * PENDING, id="as much behind as is dropped"),
    ],
)
@pytest.mark.parametrize("streams", [False, True], ids=["before the answer", "in the answer"])
async def test_a_client_that_leaves_is_seen(
    serve: Serve, leave: Callable[[RawClient], None], behind: bytes, *, streams: bool
) -> None:
    """Reading never pauses while an answer is pending, so that its end is noticed."""
    app = Slow(streams=streams)
    served = await serve(app)
    client = await served.connect()
    await client.send(REQUEST)
    await app.begun.wait()
    await client.send(behind)
    leave(client)
    await asyncio.wait_for(app.gone.wait(), 1)
    app.go_on.set()
    client.close()


async def test_a_client_that_leaves_behind_a_large_body_is_seen(serve: Serve) -> None:
    """A body over 64 KiB pauses reading; its end resumes it."""
    app = Slow()
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(request_bytes("POST", "/", body=b"x" * 200_000))
        await app.begun.wait()
    await asyncio.wait_for(app.gone.wait(), 1)
    app.go_on.set()


async def test_a_client_that_leaves_in_its_body_is_seen(serve: Serve) -> None:
    """The application waits for more and learns that none will come."""
    told = asyncio.get_running_loop().create_future()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        told.set_result((await receive())["type"])

    served = await serve(app)
    async with await served.connect() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{}")
        await served.has_read(10)
    assert await asyncio.wait_for(told, 1) == "http.disconnect"


@pytest.mark.parametrize("asked", [False, True], ids=["before any request", "between two"])
async def test_empty_lines_end(serve: Serve, *, asked: bool) -> None:
    """64 KiB of them are dropped; with one more the connection is, and nobody is told."""
    app = Slow()
    app.go_on.set()
    served = await serve(app)
    async with await served.connect() as client:
        for _ in range(3 if asked else 0):
            before = served.bytes_read
            await client.send(b"\r\n" * 20_000)
            await served.has_read(before + 40_000)
            assert (await client.request("GET", "/")).status == 200
        before = served.bytes_read
        await client.send(b"\r\n" * (PENDING // 2))
        await served.has_read(before + PENDING)
        assert len(served.state.connections) == 1
        await client.send(b"\r\n")
        assert await client.read_until_closed() == b""
    assert served.refusals == []
    assert app.requests == (3 if asked else 0)
