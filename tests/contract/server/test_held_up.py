"""A process that was held up past a deadline: what its clients sent meanwhile was in time.

Held up in a callback, uvloop calls its timers first, asyncio's own loop does not; stopped from outside
while they wait, both do.
"""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from proxy.admission.buffers import BufferBudget
from proxy.context import RequestContext
from proxy.errors import Refusal, RequestTimeout, UpstreamTimeout
from proxy.intake import Intake
from proxy.lifeline import Deadline, Lifelines
from tests.harness.heldup import hold_up
from tests.harness.served import Echo, Receive, Scope, Send, Serve, answer

HEAD = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n"
REQUEST = HEAD + b"{}"
SECONDS = 0.1
HELD_UP_SECONDS = 0.2


@pytest.fixture
async def client() -> AsyncIterator[socket.socket]:
    """A client past the loop, not connected yet."""
    with socket.socket() as made:
        made.setblocking(False)
        yield made


async def answer_to(client: socket.socket) -> bytes:
    """What comes until the server ends it; the status line of it, or what there is in its place."""
    loop, said = asyncio.get_running_loop(), b""
    try:
        async with asyncio.timeout(5):
            while piece := await loop.sock_recv(client, 65536):
                said += piece
    except ConnectionResetError:
        return b"reset"
    return said.partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("before", "meanwhile", "expected"),
    [
        pytest.param(b"", REQUEST, b"HTTP/1.1 200 OK", id="the whole of it"),
        pytest.param(HEAD[:9], REQUEST[9:], b"HTTP/1.1 200 OK", id="its rest"),
        pytest.param(HEAD[:9], HEAD[9:12], b"HTTP/1.1 408 Request Timeout", id="a part of it"),
        pytest.param(HEAD[:9], b"", b"HTTP/1.1 408 Request Timeout", id="nothing of it"),
        pytest.param(b"", HEAD[:9], b"HTTP/1.1 408 Request Timeout", id="its begin"),
        pytest.param(b"", b"\r\n", b"", id="an empty line"),
        pytest.param(b"", b"", b"", id="nothing"),
    ],
)
async def test_a_head_that_came_while_we_were_held_up(
    serve: Serve, client: socket.socket, before: bytes, meanwhile: bytes, expected: bytes
) -> None:
    """It is read before it is called late; one that is not whole then has no excuse."""
    served = await serve(Echo(), head_seconds=SECONDS, keep_alive_seconds=0, linger_seconds=SECONDS)
    client.connect_ex(("127.0.0.1", served.port))
    await served.has_made(1)
    client.sendall(before)
    await served.has_read(len(before))
    await hold_up(HELD_UP_SECONDS, lambda: client.sendall(meanwhile))
    assert await answer_to(client) == expected


@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [
        pytest.param(REQUEST, b"HTTP/1.1 200 OK", id="a request"),
        pytest.param(b"\r\n", b"", id="an empty line"),
        pytest.param(b"", b"", id="nothing"),
    ],
)
async def test_what_came_on_a_connection_that_was_kept(
    serve: Serve, client: socket.socket, meanwhile: bytes, expected: bytes
) -> None:
    """A request is answered, and not by a reset; the connection of who asks nothing is closed."""
    served = await serve(Echo(), keep_alive_seconds=1)
    client.connect_ex(("127.0.0.1", served.port))
    await served.has_made(1)
    [connection] = served.state.connections
    connection.timeout_keep_alive = SECONDS  # type: ignore[union-attr] # uvicorn takes whole seconds
    client.sendall(REQUEST)
    loop = asyncio.get_running_loop()
    assert (await loop.sock_recv(client, 65536)).startswith(b"HTTP/1.1 200 OK")
    await hold_up(HELD_UP_SECONDS, lambda: client.sendall(meanwhile))
    assert await answer_to(client) == expected


@pytest.mark.parametrize(
    "first", [b"", REQUEST], ids=["the first head", "a connection that was kept"]
)
async def test_what_stays_unread_is_no_excuse(
    serve: Serve, client: socket.socket, first: bytes
) -> None:
    """It is looked for in a few turns and not for ever; else a client that goes on would never end."""
    served = await serve(Echo(), head_seconds=SECONDS, keep_alive_seconds=1)
    client.connect_ex(("127.0.0.1", served.port))
    await served.has_made(1)
    [connection] = served.state.connections
    connection.timeout_keep_alive = SECONDS  # type: ignore[union-attr] # uvicorn takes whole seconds
    if first:
        client.sendall(first)
        await asyncio.get_running_loop().sock_recv(client, 65536)
    connection.transport.pause_reading()  # so that nothing is read at all
    client.sendall(REQUEST)
    await served.has_closed()


class Reads:
    """An application that reads a body in time, or says why not."""

    def __init__(self, seconds: float, total_seconds: float = 60.0) -> None:
        self._intake = Intake(10**6, Deadline(seconds, lambda: RequestTimeout("slow")))
        self._total = Deadline(total_seconds, lambda: UpstreamTimeout("total"))
        self._lives, self._budget = Lifelines(), BufferBudget(10**6)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        context = RequestContext(
            request_id="r", method="POST", client="x", headers=scope["headers"], started=0.0
        )
        try:
            with self._lives.hold(self._total) as life, self._budget.lease("a") as lease:
                await self._intake.read(context, receive, life, lease)
            await answer(send, 200, b"ok")
        except (Refusal, UpstreamTimeout) as error:
            await answer(send, error.status, b"late")


BODY = (
    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b"
)
SMALL, LARGE = (BODY % (size, b" " * size) for size in (1000, 200_000))


@pytest.mark.parametrize(
    ("request_bytes", "left_bytes", "total_seconds", "expected"),
    [
        pytest.param(SMALL, 0, 60.0, b"HTTP/1.1 200 OK", id="all of it"),
        pytest.param(LARGE, 0, 60.0, b"HTTP/1.1 200 OK", id="all of a large one"),
        pytest.param(LARGE, 1, 60.0, b"HTTP/1.1 408 Request Timeout", id="all but a byte"),
        pytest.param(SMALL, 500, 60.0, b"HTTP/1.1 408 Request Timeout", id="a half"),
        pytest.param(SMALL, 999, 60.0, b"HTTP/1.1 408 Request Timeout", id="nothing more"),
        pytest.param(
            SMALL, 0, SECONDS, b"HTTP/1.1 504 Gateway Timeout", id="everything has its time"
        ),
    ],
)
async def test_a_body_that_came_while_we_were_held_up(
    serve: Serve,
    client: socket.socket,
    request_bytes: bytes,
    *,
    left_bytes: int,
    total_seconds: float,
    expected: bytes,
) -> None:
    """It is read before it is called late; nothing excuses who takes longer for the whole."""
    served = await serve(Reads(SECONDS, total_seconds), linger_seconds=SECONDS)
    client.connect_ex(("127.0.0.1", served.port))
    await served.has_made(1)
    begun = request_bytes.index(b"\r\n\r\n") + 5
    client.sendall(request_bytes[:begun])
    await served.has_read(begun)
    rest = request_bytes[begun : len(request_bytes) - left_bytes]
    await hold_up(HELD_UP_SECONDS, lambda: client.sendall(rest))
    assert await answer_to(client) == expected
