"""How answers are framed, broken off, and followed by the end of the connection."""

import asyncio
import contextlib
import http.client
import logging
import os
import time
from collections.abc import Callable

import pytest

from tests.harness.client import BrokenOff, request_bytes
from tests.harness.served import Echo, Message, Receive, Scope, Send, Serve, answer, piece, start

LENGTH = ((b"content-length", b"6"),)


async def in_two_pieces(scope: Scope, receive: Receive, send: Send) -> None:
    """An answer without a length."""
    await start(send)
    await piece(send, b"one")
    await piece(send, b"two", more=False)


async def with_length(scope: Scope, receive: Receive, send: Send) -> None:
    """The same with one."""
    await start(send, LENGTH)
    await piece(send, b"one")
    await piece(send, b"two", more=False)


def request(version: str, method: str = "GET") -> bytes:
    """A request without a body; it asks to keep the connection, as old clients do."""
    return f"{method} / HTTP/{version}\r\nHost: h\r\nConnection: keep-alive\r\n\r\n".encode()


async def test_an_answer_without_a_length_is_chunked(serve: Serve) -> None:
    """By HTTP/1.1, and the connection stays."""
    served = await serve(in_two_pieces)
    async with await served.connect() as client:
        for _ in range(2):
            await client.send(request("1.1"))
            response = await client.read_response()
            assert response.values(b"transfer-encoding") == [b"chunked"]
            assert (response.body, response.complete) == (b"onetwo", True)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("fields", [LENGTH, ()], ids=["with a length", "without a length"])
async def test_a_head_does_not_wait_for_its_body(
    serve: Serve, fields: tuple[tuple[bytes, bytes], ...], version: str
) -> None:
    """The application has the one and not the other: its client shall not think that it is gone."""
    has_head = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, fields)
        await has_head.wait()
        await piece(send, b"onetwo", more=False)

    served = await serve(app)
    async with await served.connect() as client:
        await client.send(request(version))
        assert (await client.read_head()).status == 200
        has_head.set()
        response = await client.read_rest()
    assert (response.body, response.complete) == (b"onetwo", True)


async def test_http_1_0_is_never_answered_in_chunks(serve: Serve) -> None:
    """The end of the connection is the end of the answer."""
    served = await serve(in_two_pieces)
    answered = await served.ask(request("1.0"))
    head, _, body = answered.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert body == b"onetwo"


async def test_http_1_0_is_answered_with_a_length_where_there_is_one(serve: Serve) -> None:
    """Then a cut shows."""
    served = await serve(with_length)
    async with await served.connect() as client:
        await client.send(request("1.0"))
        response = await client.read_response()
        assert response.header(b"content-length") == b"6"
        assert (response.body, response.complete) == (b"onetwo", True)
        assert await client.read_until_closed() == b""


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_head_has_no_body(serve: Serve, version: str) -> None:
    """Whatever the application sends."""
    for app in (in_two_pieces, with_length):
        served = await serve(app)
        async with await served.connect() as client:
            await client.send(request(version, "HEAD").replace(b"keep-alive", b"close"))
            answered = await client.read_until_closed()
        assert answered.endswith(b"\r\n\r\n")
        assert answered.count(b"\r\n\r\n") == 1


# Broken off


class BreaksOff:
    """An application whose answer is broken off half-way, by the scope's extension or a bug."""

    def __init__(self, headers: tuple[tuple[bytes, bytes], ...], how: str) -> None:
        self.headers = headers
        self.how = how
        self.go_on = asyncio.Event()
        self.after: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        await start(send, self.headers)
        await piece(send, b"one")
        await self.go_on.wait()
        if self.how == "raises":
            raise RuntimeError("secret")
        if self.how == "returns":
            return
        scope["extensions"]["bulwark.abort"]["abort"]()
        # Nothing that it does now goes out, and it learns that nobody is there.
        await piece(send, b"two", more=False)
        self.after.append(await receive())


@pytest.mark.parametrize("how", ["aborts", "raises", "returns"])
@pytest.mark.parametrize(
    ("version", "headers", "reset"),
    [
        pytest.param("1.1", (), False, id="chunked: no last chunk"),
        pytest.param("1.1", LENGTH, False, id="a length: short of it"),
        pytest.param("1.0", LENGTH, False, id="a length by HTTP/1.0: short of it"),
        pytest.param("1.0", (), True, id="neither: a reset, as a FIN would be a good end"),
    ],
)
async def test_an_answer_is_broken_off(
    serve: Serve, version: str, headers: tuple[tuple[bytes, bytes], ...], how: str, *, reset: bool
) -> None:
    """No client can take it for complete, and what was sent before arrives."""
    app = BreaksOff(headers, how)
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(request(version))
        await client.read_head()
        assert await client.read_chunk() == b"one"
        app.go_on.set()
        with pytest.raises(BrokenOff):
            await client.read_chunk()
        assert client.was_reset == reset
    assert app.after == ([{"type": "http.disconnect"}] if how == "aborts" else [])


async def test_what_is_complete_is_not_broken_off(serve: Serve) -> None:
    """An abort after the end of an answer, or a second one, does nothing."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, b"ok")
        scope["extensions"]["bulwark.abort"]["abort"]()
        scope["extensions"]["bulwark.abort"]["abort"]()

    served = await serve(app)
    async with await served.connect() as client:
        for _ in range(3):
            response = await client.request("GET", "/")
            assert (response.body, response.complete) == (b"ok", True)


async def test_an_answer_that_never_began_is_broken_off(serve: Serve) -> None:
    """The connection ends without a byte."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"]["bulwark.abort"]["abort"]()
        await answer(send, 200, b"ok")

    served = await serve(app)
    assert await served.ask(request("1.1")) == b""


# Logs


@pytest.mark.parametrize("how", ["aborts", "leaves"])
async def test_an_ordinary_end_is_not_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Neither an abort nor a client that leaves while it is written to."""
    caplog.set_level(logging.INFO)
    left = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await piece(send, b"one")
        if how == "aborts":
            scope["extensions"]["bulwark.abort"]["abort"]()
        else:
            await receive()
            assert await receive() == {"type": "http.disconnect"}
        for _ in range(20):
            await piece(send, b"x" * 10_000)
        left.set()

    served = await serve(app)
    client = await served.connect()
    await client.send(request("1.1"))
    await client.read_head()
    if how == "leaves":
        client.reset()
    await left.wait()
    client.close()
    assert caplog.records == []


async def test_a_crash_is_logged_without_what_the_client_sent(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Type and place of the exception, not its text; the client gets a 500 in our shape."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError((await receive())["body"].decode())

    served = await serve(app)
    async with await served.connect() as client:
        response = await client.request("POST", "/", body=b"my prompt")
        assert response.status == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert response.header(b"connection") == b"close"
        assert len(response.header(b"x-request-id") or b"") == 32
        assert await client.read_until_closed() == b""
    [record] = caplog.records
    text = logging.Formatter().format(record)
    assert "Exception in ASGI application: ValueError" in text
    assert __file__ in text
    assert "my prompt" not in text


async def test_a_crash_after_the_answer_does_not_touch_the_next(serve: Serve) -> None:
    """The connection has moved on to another request by then."""
    crash, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/first":
            await answer(send, 200, b"first")
            await crash.wait()
            raise RuntimeError
        await start(send)
        await piece(send, b"one")
        await go_on.wait()
        await piece(send, b"two", more=False)

    served = await serve(app)
    async with await served.connect() as client:
        assert (await client.request("GET", "/first")).body == b"first"
        await client.send(request("1.1"))
        await client.read_head()
        [first] = [task for task in served.state.tasks if not task.done()][:1]
        crash.set()
        await asyncio.sleep(0)
        go_on.set()
        assert await client.read_chunk() == b"one"
        assert await client.read_chunk() == b"two"
        assert await client.read_chunk() == b""
        await asyncio.wait([first])


# The end of a connection whose request was not read


def refuses(status: int) -> Callable[[Scope, Receive, Send], object]:
    """An application that answers before it reads."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, status, b"refused")

    return app


async def test_a_refused_client_that_drips_is_gone_in_2_s(serve: Serve) -> None:
    """It may go on for a second, not for as long as it announced."""
    served = await serve(refuses(401))  # type: ignore[arg-type]
    async with await served.connect() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n")
        response = await client.read_response()
        assert (response.status, response.body) == (401, b"refused")
        assert response.header(b"connection") == b"close"
        began = time.monotonic()
        assert await client.read_until_closed() == b""  # the FIN is there at once
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 5:
                await client.send(b"x")
                await asyncio.sleep(0.05)
        assert time.monotonic() - began < 2
    assert served.state.connections == set()


async def test_a_refused_client_that_leaves_is_not_waited_for(serve: Serve) -> None:
    """Its own end is the end."""
    served = await serve(refuses(401), linger_seconds=60)  # type: ignore[arg-type]
    async with await served.connect() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n")
        assert (await client.read_response()).status == 401
        client.close()
        await served.has_closed()


async def test_a_drain_does_not_cut_a_refusal_short(serve: Serve) -> None:
    """A connection that lingers ends soon enough by itself."""
    served = await serve(refuses(401), linger_seconds=0.3)  # type: ignore[arg-type]
    async with await served.connect() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n")
        assert (await client.read_response()).status == 401
        [connection] = served.state.connections
        connection.shutdown()
        assert not connection.transport.is_closing()
        await served.has_closed()


async def test_a_request_that_was_read_by_the_server_alone_keeps_the_connection(
    serve: Serve,
) -> None:
    """An application need not read a body that has come in already."""
    served = await serve(refuses(401))  # type: ignore[arg-type]
    async with await served.connect() as client:
        for _ in range(3):
            response = await client.request("POST", "/", body=b"x" * 1000)
            assert (response.status, response.header(b"connection")) == (401, None)


CLIENTS = 30
PUSHED = 3_000_000


async def test_raw_clients_that_push_3_mb_read_their_413(serve: Serve) -> None:
    """All of them, although nobody reads what they send."""
    served = await serve(refuses(413))  # type: ignore[arg-type]
    request = request_bytes("POST", "/", body=b"x" * PUSHED)

    async def ask() -> tuple[int, bytes]:
        async with await served.connect() as client:
            with contextlib.suppress(ConnectionError):
                await client.send(request)
            response = await client.read_response()
            return response.status, response.body

    answers = await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    assert answers == [(413, b"refused")] * CLIENTS


async def test_plain_clients_that_push_3_mb_read_their_413(serve: Serve) -> None:
    """Python's http.client sends everything before it reads, and gives up at an error."""
    served = await serve(refuses(413))  # type: ignore[arg-type]

    def ask() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=5)
        try:
            connection.request("POST", "/", body=b"x" * PUSHED)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    answers = await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(CLIENTS)))
    assert answers == [(413, b"refused")] * CLIENTS


async def test_clients_that_push_as_they_read_get_their_413_whatever_they_push(
    serve: Serve,
) -> None:
    """What is not swallowed stays in the kernel, and no reset comes before the second is over."""
    served = await serve(refuses(413))  # type: ignore[arg-type]
    async with await served.connect() as client:
        began = time.monotonic()
        pushing = asyncio.create_task(client.send(request_bytes("POST", "/", body=bytes(50 << 20))))
        response = await client.read_response()
        assert (response.status, response.body, response.complete) == (413, b"refused", True)
        with pytest.raises(BrokenPipeError):
            await pushing
        assert time.monotonic() - began < 3
    assert served.bytes_read < 1_000_000


async def test_a_slow_reader_gets_all_of_its_last_answer(serve: Serve) -> None:
    """The second counts from when the answer is out, however long that takes."""
    size = 8_000_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, os.urandom(1) * size)

    served = await serve(app, linger_seconds=0.05)
    async with await served.connect(receive_buffer_bytes=65536) as client:
        await client.send(request_bytes("POST", "/", {"Content-Length": "5"}))
        response = await client.read_head()
        assert response.header(b"connection") == b"close"
        await asyncio.sleep(0.3)  # six times the linger
        received = 0
        while data := await client.read_chunk():
            received += len(data)
        assert received == size


async def test_every_answer_before_the_body_says_that_it_is_the_last(serve: Serve) -> None:
    """Unless the application says so itself."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    served = await serve(app, linger_seconds=0.1)
    async with await served.connect() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n")
        assert (await client.read_response()).values(b"connection") == [b"close"]


async def test_connection_close_is_honoured_at_once(serve: Serve) -> None:
    """A request that was read to its end needs no lingering."""
    served = await serve(Echo(), linger_seconds=60)
    async with await served.connect() as client:
        response = await client.request("POST", "/", {"Connection": "close"}, b"{}")
        assert (response.body, response.header(b"connection")) == (b"ok", b"close")
        assert await client.read_until_closed() == b""
