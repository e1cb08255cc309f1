"""What an answer is pushed through, and how whoever pushes learns that its client left."""

import asyncio
from collections.abc import Callable

import pytest

from proxy.errors import Reason, Refusal
from proxy.pipe import Client, Flow
from tests.harness.client import BrokenOff, RawClient, request_bytes
from tests.harness.served import Receive, Scope, Send, Serve, answer, piece, start

REQUEST = request_bytes("POST", "/", body=b"{}")
BEGUN = request_bytes("POST", "/", {"Transfer-Encoding": "chunked"}) + b"2\r\n{}\r\n"
HEAD = request_bytes("HEAD", "/")
CHUNKED = ((b"transfer-encoding", b"chunked"),)


def client_of(scope: Scope) -> Client:
    """The extension."""
    client: Client = scope["extensions"]["bulwark.relay"]
    return client


class Source:
    """Notes when it is to stop and to go on."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.paused = asyncio.Event()
        self.resumed = asyncio.Event()

    def pause(self) -> None:
        """No room."""
        self.told.append("pause")
        self.paused.set()

    def resume(self) -> None:
        """Room again."""
        self.told.append("resume")
        self.resumed.set()


class Pushes:
    """An application that pushes three chunks, with a ``send`` before and behind."""

    def __init__(self, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self.headers = headers
        self.opened: list[bool] = []
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        client = client_of(scope)
        self.opened.append(client.open(Flow()) is not None)
        await start(send, self.headers)
        sink = client.open(Flow())
        self.opened.append(sink is not None)
        if sink is None:
            await piece(send, b"before123")
        else:
            await piece(send, b"before")
            for number in (b"1", b"2", b"3"):
                sink(number)
            client.done()
        await piece(send, b"behind", more=False)
        self.opened.append(client.open(Flow()) is not None)
        self.ended.set()


@pytest.mark.parametrize(
    ("request_", "headers", "opens"),
    [
        pytest.param(REQUEST, (), True, id="chunked by HTTP/1.1"),
        pytest.param(REQUEST, CHUNKED, True, id="chunked, and so announced"),
        pytest.param(REQUEST, ((b"content-length", b"15"),), False, id="a length was announced"),
        pytest.param(REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"), (), False, id="HTTP/1.0"),
        pytest.param(HEAD, (), False, id="HEAD"),
        pytest.param(HEAD, CHUNKED, False, id="HEAD, announced as chunked"),
    ],
)
async def test_the_body_is_pushed_where_pieces_are_chunks(
    serve: Serve, request_: bytes, headers: tuple[tuple[bytes, bytes], ...], *, opens: bool
) -> None:
    """And the client reads the same in any case; never before the head nor after the end."""
    app = Pushes(headers)
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(request_)
        method = request_.split(b" ")[0].decode()
        response = await client.read_response(method=method)
        assert response.body == (b"" if method == "HEAD" else b"before123behind")
        assert response.complete
        await app.ended.wait()
    assert app.opened == [False, opens, False]


async def test_each_push_is_one_chunk_and_the_connection_goes_on(serve: Serve) -> None:
    """What is pushed arrives as it was cut, and the next request is served."""
    served = await serve(Pushes())
    async with await served.connect() as client:
        for _ in range(3):
            await client.send(REQUEST)
            await client.read_head()
            chunks = [await client.read_chunk() for _ in range(6)]
            assert chunks == [b"before", b"1", b"2", b"3", b"behind", b""]


async def test_what_is_pushed_after_the_end_goes_nowhere(serve: Serve) -> None:
    """Also where nobody has said that nothing more would be: the next answer begins behind it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        sink = client_of(scope).open(Flow())
        assert sink is not None
        sink(b"pushed")
        await piece(send, b"", more=False)
        sink(b"late")

    served = await serve(app)
    async with await served.connect() as client:
        for _ in range(2):
            await client.send(REQUEST)
            response = await client.read_response()
            assert (response.status, response.body) == (200, b"pushed")


# The client leaves


class Pending:
    """An application that waits for its client to leave: before its answer, or in it."""

    def __init__(self, *, streams: bool) -> None:
        self.begun = asyncio.Event()
        self.gone = asyncio.Event()
        self.ended = asyncio.Event()
        self.told: list[Refusal | None] = []
        self.received: list[object] = []
        self.late: list[Refusal | None] = []
        self.abort = asyncio.Event()
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        await receive()
        client = client_of(scope)
        client.on_disconnect(self._leave)
        sink = None
        if self._streams:
            await start(send)
            sink = client.open(Flow())
            assert sink is not None
            sink(b"one")
        self.begun.set()
        waits = {asyncio.create_task(event.wait()) for event in (self.gone, self.abort)}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        if self.abort.is_set():
            scope["extensions"]["bulwark.abort"]["abort"]()
        if sink is not None:
            for _ in range(20):
                sink(b"dropped")
            client.done()
        try:
            self.received.append((await receive())["type"])
        except Refusal as refusal:
            self.received.append(refusal)
        client.on_disconnect(self.late.append)
        self.ended.set()

    def _leave(self, refusal: Refusal | None) -> None:
        self.told.append(refusal)
        self.gone.set()


@pytest.mark.parametrize("streams", [False, True], ids=["before the answer", "while piped"])
@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(RawClient.half_close, id="half a FIN"),
        pytest.param(RawClient.close, id="a FIN"),
        pytest.param(RawClient.reset, id="a reset"),
    ],
)
async def test_a_client_that_leaves_is_told_of_once(
    serve: Serve, leave: Callable[[RawClient], None], *, streams: bool
) -> None:
    """As ``receive`` tells it; whoever asks later hears it at once."""
    app = Pending(streams=streams)
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(REQUEST)
        await app.begun.wait()
        if streams:
            await client.read_head()
            assert await client.read_chunk() == b"one"
        leave(client)
        await app.ended.wait()
        await served.has_closed()
    assert app.told == [None]
    assert app.received == ["http.disconnect"]
    assert app.late == [None]


@pytest.mark.parametrize("streams", [False, True], ids=["before the answer", "while piped"])
async def test_what_is_broken_off_is_told_of(serve: Serve, *, streams: bool) -> None:
    """The pushed pieces arrive, and no end."""
    app = Pending(streams=streams)
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(REQUEST)
        await app.begun.wait()
        app.abort.set()
        answered = await client.read_until_closed()
        await app.ended.wait()
    assert answered.endswith(b"\r\n3\r\none\r\n" if streams else b"")
    assert (app.told, app.received) == ([None], ["http.disconnect"])


@pytest.mark.parametrize("streams", [False, True], ids=["before the answer", "while piped"])
async def test_too_much_behind_a_request_is_a_client_that_left(
    serve: Serve, *, streams: bool
) -> None:
    """The connection is cut."""
    app = Pending(streams=streams)
    served = await serve(app, pending_bytes=1000)
    async with await served.connect() as client:
        await client.send(REQUEST)
        await app.begun.wait()
        await client.send(b"x" * 1001)
        await app.gone.wait()
    assert app.told == [None]


@pytest.mark.parametrize("streams", [False, True], ids=["before the answer", "while piped"])
async def test_a_body_that_cannot_be_read_is_told_with_its_reason(
    serve: Serve, *, streams: bool
) -> None:
    """Which ``receive`` raises, too."""
    app = Pending(streams=streams)
    served = await serve(app)
    async with await served.connect() as client:
        await client.send(BEGUN)
        await app.begun.wait()
        await client.send(b"nonsense\r\n")
        await app.ended.wait()
        await client.read_until_closed()
    assert [refusal.reason for refusal in app.told if refusal] == [Reason.INVALID_HTTP]
    assert app.received == app.told == app.late


async def test_nothing_is_told_after_the_end(serve: Serve) -> None:
    """Nor of the requests before the one that the client leaves."""
    told: list[Refusal | None] = []
    clients: list[Client] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        clients.append(client_of(scope))
        clients[-1].on_disconnect(told.append)
        await answer(send, 200, b"ok")

    served = await serve(app)
    async with await served.connect() as client:
        for _ in range(2):
            await client.send(REQUEST)
            await client.read_response()
    await served.has_closed()
    for each in clients:
        each.on_disconnect(told.append)
    assert told == []


async def test_nothing_is_told_after_an_end_that_closes(serve: Serve) -> None:
    """The connection lingers, because of what came behind the request; then its client leaves."""
    told: list[Refusal | None] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        client_of(scope).on_disconnect(told.append)
        begun.set()
        await go_on.wait()
        await answer(send, 200, b"ok")

    served = await serve(app)
    async with await served.connect() as client:
        await client.send(REQUEST)
        await begun.wait()
        await client.send(REQUEST)
        await served.has_read(2 * len(REQUEST))
        go_on.set()
        assert (await client.read_response()).complete
    await served.has_closed()
    assert told == []


# Room


class Floods:
    """An application that pushes until there is no room, and when there is, ends."""

    def __init__(self) -> None:
        self.source = Source()
        self.again = Source()
        self.pushed = 0
        self.gone = asyncio.Event()
        self.told: list[Refusal | None] = []
        self.behind: list[bool] = []
        self._client: Client | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        self._client = client = client_of(scope)
        client.on_disconnect(self._leave)
        await start(send)
        flow = Flow()
        flow.attach(self.source)
        sink = client.open(flow)
        assert sink is not None
        while not flow.paused:
            sink(b"x" * 65_000)
            self.pushed += 65_000
        # Whoever comes later finds the same.
        later = Flow()
        later.attach(self.again)
        client.open(later)
        await self.again.resumed.wait()
        client.done()
        await piece(send, b"end", more=False)
        self.behind.append(client.behind)

    def _leave(self, refusal: Refusal | None) -> None:
        assert self._client is not None
        self.behind.append(self._client.behind)
        self.told.append(refusal)
        self.gone.set()


async def test_a_client_that_does_not_keep_up_stops_the_flow(serve: Serve) -> None:
    """And starts it again when it does; a flow that is opened meanwhile is stopped at once."""
    app = Floods()
    served = await serve(app)
    async with await served.connect(receive_buffer_bytes=4096) as client:
        await client.send(REQUEST)
        await app.again.paused.wait()
        response = await client.read_response()
    assert response.body == b"x" * app.pushed + b"end"
    assert app.source.told == ["pause"]
    assert app.again.told[:2] == ["pause", "resume"]
    assert app.told == []
    assert app.behind == [False]


@pytest.mark.parametrize("leaves", [True, False], ids=["that leaves", "that takes nothing"])
async def test_a_client_that_does_not_read(serve: Serve, *, leaves: bool) -> None:
    """It is told of like any other, and nothing waits for room that it would have made."""
    app = Floods()
    served = await serve(app, write_timeout_seconds=60 if leaves else 0.2)
    async with await served.connect(receive_buffer_bytes=4096) as client:
        await client.send(REQUEST)
        await app.again.paused.wait()
        if leaves:
            client.reset()
        await app.gone.wait()
        await app.again.resumed.wait()
    assert app.told == [None]
    assert app.behind[0]


async def test_what_raises_breaks_the_answer_off(serve: Serve) -> None:
    """As on the plain path: no end is written."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        sink = client_of(scope).open(Flow())
        assert sink is not None
        sink(b"one")
        raise RuntimeError

    served = await serve(app)
    async with await served.connect() as client:
        await client.send(REQUEST)
        await client.read_head()
        assert await client.read_chunk() == b"one"
        with pytest.raises(BrokenOff):
            await client.read_chunk()
