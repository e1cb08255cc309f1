"""A body that cannot be read: the application is told, and it is the one that says so."""

import asyncio
import contextlib

import pytest

from proxy.errors import Refusal
from proxy.server.framing import STEP_BYTES
from tests.harness.served import Echo, Receive, Scope, Send, Serve, answer, piece, start

HEAD = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
FREE = 32 * 1024


class Says:
    """An application that reads its request and answers what reading it raised."""

    def __init__(self) -> None:
        self.body = b""
        self.read = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        try:
            more = True
            while more:
                message = await receive()
                self.body += message["body"]
                more = message["more_body"]
                self.read.set()
        except Refusal as refusal:
            await answer(send, refusal.status, refusal.reason.encode())
        else:
            await answer(send, 200, b"ok")


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(b"2\n{}\r\n0\r\n\r\n", id="bare LF after the size"),
        pytest.param(b"2\r\n{}\n0\r\n\r\n", id="bare LF after the data"),
        pytest.param(b"2\r\n{}0\r\n\r\n", id="no line end after the data"),
        pytest.param(b"2;x\n{}\r\n0\r\n\r\n", id="bare LF after an extension"),
        pytest.param(b"2 \r\n{}\r\n0\r\n\r\n", id="a space after the size"),
        pytest.param(b"0x2\r\n{}\r\n0\r\n\r\n", id="a size with 0x"),
        pytest.param(b"-1\r\n{}\r\n0\r\n\r\n", id="a negative size"),
        pytest.param(b"\r\n{}\r\n0\r\n\r\n", id="no size"),
        pytest.param(b"f" * 17 + b"\r\n{}", id="a size over 64 bits"),
        pytest.param(b"1\r\n{}\r\n0\r\n\r\n", id="more data than the size"),
        pytest.param(b"2\r\n{}\r\n0\r\nX : 1\r\n\r\n", id="a malformed trailer"),
        pytest.param(b"2\r\n{}\r\n0\r\nX: 1\r\n y\r\n\r\n", id="a folded trailer"),
        pytest.param(b"2\r\n{}\r\n0\r\nContent-Length: 2\r\n\r\n", id="a length as a trailer"),
        pytest.param(b"2\r\n{}\r\n0\r\nTransfer-Encoding: x\r\n\r\n", id="a coding as a trailer"),
    ],
)
@pytest.mark.parametrize("packet_bytes", [0, 1], ids=["in one packet", "byte by byte"])
async def test_a_malformed_body_is_answered_once(
    serve: Serve, chunks: bytes, packet_bytes: int
) -> None:
    """``receive`` raises; the answer is the application's own, and then the connection closes."""
    app = Says()
    served = await serve(app, linger_seconds=0.1)
    async with await served.connect() as client:
        data = HEAD + chunks
        for at in range(0, len(data), packet_bytes or len(data)):
            await client.send(data[at : at + (packet_bytes or len(data))])
        response = await client.read_response()
        assert (response.status, response.body) == (400, b"invalid_http")
        assert response.header(b"connection") == b"close"
        assert await client.read_until_closed() == b""
    assert served.refusals == []


async def test_a_refusal_comes_to_who_waits_for_the_body(serve: Serve) -> None:
    """And stays, however often the application asks."""
    raised = []
    first = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == {"type": "http.request", "body": b"{}", "more_body": True}
        first.set()
        for _ in range(2):
            with pytest.raises(Refusal) as info:
                await receive()
            raised.append(info.value.reason)
        await answer(send, 400, b"")

    served = await serve(app, linger_seconds=0.1)
    async with await served.connect() as client:
        await client.send(HEAD + b"2\r\n{}\r\n")
        await first.wait()
        await client.send(b"xyz")
        assert (await client.read_response()).status == 400
    assert raised == ["invalid_http", "invalid_http"]


async def test_an_error_is_never_written_into_an_answer(serve: Serve) -> None:
    """An answer that has begun goes on to its end when the rest of the request is malformed."""
    seen, went_wrong = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await start(send)
        await piece(send, b"one")
        seen.set()
        with pytest.raises(Refusal):
            await receive()
        went_wrong.set()
        await piece(send, b"two", more=False)

    served = await serve(app, linger_seconds=0.1)
    async with await served.connect() as client:
        await client.send(HEAD + b"2\r\n{}\r\n")
        await seen.wait()
        await client.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await went_wrong.wait()
        response = await client.read_response()
        assert (response.body, response.complete) == (b"onetwo", True)
        assert await client.read_until_closed() == b""


@pytest.mark.parametrize(
    ("trailers", "status"),
    [
        pytest.param(b"X: 1\r\n" * 98, 200, id="two fields and 98 trailers"),
        pytest.param(b"X: 1\r\n" * 99, 431, id="two fields and 99 trailers"),
    ],
)
@pytest.mark.parametrize("together", [True, False], ids=["in one packet", "in two packets"])
async def test_trailers_count(
    serve: Serve, trailers: bytes, status: int, *, together: bool
) -> None:
    """Fields of head and trailer section are counted together."""
    served = await serve(Says(), linger_seconds=0.1)
    async with await served.connect() as client:
        await client.send(HEAD + (b"0\r\n" if together else b""))
        await client.send((b"" if together else b"0\r\n") + trailers + b"\r\n")
        assert (await client.read_response()).status == status


ENDLESS = [
    pytest.param(b"0\r\nX: " + b"a" * 1000, b"a", id="a trailer that does not end"),
    pytest.param(b"0\r\n" + b"a" * 1000, b"a", id="a trailer's name that does not end"),
    pytest.param(b"1;" + b"a" * 1000, b"a", id="an extension that does not end"),
    pytest.param(b"0" * 1000, b"0", id="a size that does not end"),
]


@pytest.mark.parametrize(("begins", "goes_on"), ENDLESS)
async def test_framing_has_an_end(serve: Serve, begins: bytes, goes_on: bytes) -> None:
    """32 KiB of framing are free, the next step is refused, with no body in sight of a cap."""
    app = Says()
    served = await serve(app, linger_seconds=0.1)
    async with await served.connect() as client:
        begins = b"1\r\nx\r\n" + begins
        await client.send(HEAD + begins)
        await app.read.wait()
        free = FREE + STEP_BYTES - 1
        await client.send(goes_on * (free - len(begins)))
        await served.has_read(len(HEAD) + free)
        [connection] = served.state.connections
        assert connection.cycle.refusal is None  # type: ignore[union-attr]
        await client.send(goes_on)
        response = await client.read_response()
    assert (response.status, response.body) == (400, b"invalid_http")
    assert served.refusals == []


@pytest.mark.parametrize(
    ("chunk", "status"),
    [
        pytest.param(b"1\r\nx\r\n", 400, id="of one byte"),
        pytest.param(b"1;" + b"e" * 500 + b"\r\nx\r\n", 400, id="of one byte and an extension"),
        pytest.param(b"5\r\nxxxxx\r\n", 200, id="of five bytes"),
        pytest.param(b"64\r\n" + b"x" * 100 + b"\r\n", 200, id="of a hundred bytes"),
    ],
)
async def test_a_body_of_many_chunks(serve: Serve, chunk: bytes, status: int) -> None:
    """Framing may weigh as much as the body and 32 KiB more: a chunk costs a callback."""
    app = Says()
    served = await serve(app, linger_seconds=0.1)
    async with await served.connect() as client:
        # In packets of their own, so that the limit is met before the end.
        with contextlib.suppress(ConnectionError):
            await client.send(HEAD)
            for _ in range(20):
                await client.send(chunk * 5000)
            await client.send(b"0\r\n\r\n")
        response = await client.read_response()
    assert response.status == status


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"Content-Length: 3000000\r\n\r\n" + b"x" * 3_000_000, id="by length"),
        pytest.param(
            b"Transfer-Encoding: chunked\r\n\r\n2dc6c0\r\n" + b"x" * 3_000_000 + b"\r\n0\r\n\r\n",
            id="chunked",
        ),
    ],
)
async def test_a_large_body_arrives_whole(serve: Serve, data: bytes) -> None:
    """The protocol itself has no cap on bodies: that is the application's."""
    app = Echo()
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\n" + data)
        assert (await client.read_response()).status == 200
    assert [len(body) for body in app.bodies] == [3_000_000]


async def test_a_body_waits_for_who_reads_it(serve: Serve) -> None:
    """What the application does not take is not taken from the client beyond some 64 KiB."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    sizes = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await go_on.wait()
        more = True
        while more:
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]
        await answer(send, 200, b"ok")

    served = await serve(app)
    async with await served.connect() as client:
        head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 20000000\r\n\r\n"
        sending = asyncio.create_task(client.send(head + b"x" * 20_000_000))
        await begun.wait()
        await served.has_read(64 * 1024)
        await asyncio.sleep(0.1)  # to give it the time to do wrong
        assert served.bytes_read < 1_000_000
        go_on.set()
        await sending
        assert (await client.read_response()).status == 200
    assert sum(sizes) == 20_000_000


@pytest.mark.parametrize(
    ("head", "interim"),
    [
        pytest.param(b"Expect: 100-continue\r\n", [100], id="asked for"),
        pytest.param(b"EXPECT: 100-Continue\r\n", [100], id="asked for in capitals"),
        pytest.param(b"Expect: something-else\r\n", [], id="another expectation"),
        pytest.param(b"", [], id="not asked for"),
    ],
)
async def test_100_continue_is_sent_when_the_body_is_wanted(
    serve: Serve, head: bytes, interim: list[int]
) -> None:
    """Once the application reads, and not before."""
    app = Says()
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n" + head + b"\r\n")
        if interim:
            assert (await client.read_interim()).status == 100
        await client.send(b"{}")
        response = await client.read_response()
        assert (response.status, response.interim) == (200, [])
    assert app.body == b"{}"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
            id="the body is there",
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n", id="there is no body"
        ),
        pytest.param(
            b"POST / HTTP/1.0\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
            id="HTTP/1.0",
        ),
    ],
)
async def test_100_continue_is_not_sent_for_nothing(serve: Serve, data: bytes) -> None:
    """Where it would tell the client nothing, the answer comes at once."""
    served = await serve(Echo())
    async with await served.connect() as client:
        await client.send(data)
        response = await client.read_response()
    assert (response.status, response.interim) == (200, [])


async def test_no_100_continue_before_a_refusal(serve: Serve) -> None:
    """A client that waits for the 100 gets the refusal instead, and keeps its body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 413, b"too large")

    served = await serve(app, linger_seconds=0.1)
    async with await served.connect() as client:
        await client.send(
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\nExpect: 100-continue\r\n\r\n"
        )
        response = await client.read_response()
        assert (response.status, response.interim) == (413, [])
        assert response.header(b"connection") == b"close"
        assert await client.read_until_closed() == b""
