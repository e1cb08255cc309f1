"""Over TLS, the end of a connection counts as one only where it was said within TLS.

Anybody on the way can end a TCP connection; only the engine itself can say ``close_notify``. A body
that ends with its connection is complete after the one, and cut after the other.
"""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from proxy.upstream import target, transport
from proxy.upstream.transport.connection import READ_BYTES, Connection
from proxy.upstream.transport.transport import Transport
from tests.harness.forwarding import until
from tests.harness.upstream import CERTIFICATE

CLOSES = b"HTTP/1.1 200 OK\r\n\r\n"
SMALL, LARGE = b"a body without a length", bytes(range(256)) * 800
"""The large one is more than one call reads, and goes into the buffers of two kernels at once."""


class Server:
    """Answers the one request of each connection over TLS, from a thread, and closes."""

    def __init__(self, listening: socket.socket) -> None:
        self.answer = b""
        self.says_so = True
        self.stays = False
        self.asked, self.goes, self.sent, self.done = (threading.Event() for _ in range(4))
        self.goes.set()
        self.closed = 0
        self._listening = listening
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(CERTIFICATE, CERTIFICATE.with_suffix(".key"))

    def run(self) -> None:
        """Until the listening socket is closed."""
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):
                self._serve(accepted)
            self.closed += 1

    def _serve(self, accepted: socket.socket) -> None:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(LARGE))
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._tls.wrap_socket(accepted, server_side=True) as made:
            received = b""
            while not received.endswith(b"\r\n\r\n{}"):
                received += made.recv(65536)
            self.asked.set()
            self.goes.wait(10)
            made.sendall(self.answer)
            self.sent.set()
            if self.stays:
                self.done.wait(10)
            if self.says_so:
                made.setblocking(False)
                with contextlib.suppress(ssl.SSLWantReadError):
                    made.unwrap()  # sends its own and would wait for ours


@pytest.fixture
def server() -> Iterator[tuple[Server, int]]:
    """A server and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        made = Server(listening)
        thread = threading.Thread(target=made.run)
        thread.start()
        yield made, listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
async def asked(
    server: tuple[Server, int], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncBaseTransport]:
    """A transport to it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    async with transport.build(target.parse(f"https://localhost:{server[1]}")) as made:
        yield made


async def ask(asked: httpx.AsyncBaseTransport) -> httpx.Response:
    """The answer to one request, without its body."""
    return await asked.handle_async_request(
        httpx.Request(
            "POST",
            "http://localhost",
            headers=[(b"host", b"x")],
            stream=httpx.ByteStream(b"{}"),
            extensions={"target": b"/v1/chat/completions", "timeout": {"total": 10.0}},
        )
    )


async def body(asked: httpx.AsyncBaseTransport, server: Server, *, late: bool) -> bytes:
    """The body of an answer, taken at once or when the connection is long closed."""
    answer = await ask(asked)
    if late:
        await until(lambda: server.closed == 1)
        for _ in range(20):
            await asyncio.sleep(0)
    return await answer.aread()


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n", id="until its end"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n", id="of known length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n", id="close"),
    ],
)
async def test_a_body_whose_end_was_said(
    server: tuple[Server, int],
    asked: httpx.AsyncBaseTransport,
    head: bytes,
    content: bytes,
    late: bool,
) -> None:
    """It is whole, also where its end came in one piece with it."""
    server[0].answer = head.replace(b"%d", b"%d" % len(content)) + b"\r\n" + content
    assert await body(asked, server[0], late=late) == content


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
async def test_a_body_that_was_cut(
    server: tuple[Server, int], asked: httpx.AsyncBaseTransport, content: bytes, late: bool
) -> None:
    """Whoever cuts the connection does not make an answer that looks whole."""
    server[0].answer, server[0].says_so = CLOSES + content, False
    with pytest.raises(httpx.RemoteProtocolError):
        await body(asked, server[0], late=late)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
async def test_a_body_of_known_length_needs_no_end(
    server: tuple[Server, int], asked: httpx.AsyncBaseTransport, late: bool
) -> None:
    """Who has all that was announced has all."""
    server[0].says_so = False
    server[0].answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LARGE) + LARGE
    assert await body(asked, server[0], late=late) == LARGE


async def test_a_body_of_known_length_that_was_cut(
    server: tuple[Server, int], asked: httpx.AsyncBaseTransport
) -> None:
    """Nor has it all if the end was said."""
    server[0].answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(LARGE) + 1) + LARGE
    with pytest.raises(httpx.RemoteProtocolError):
        await body(asked, server[0], late=False)


@pytest.mark.parametrize("more", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"])
async def test_what_waits_within_tls_is_not_the_next_answer(
    server: tuple[Server, int],
    asked: httpx.AsyncBaseTransport,
    monkeypatch: pytest.MonkeyPatch,
    more: bytes,
) -> None:
    """The loop has read it and decrypts it in its next turn: the system knows nothing of it."""
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
    length = READ_BYTES - len(head % READ_BYTES)
    server[0].answer, server[0].stays = head % length + b"x" * length + more, True
    assert isinstance(asked, Transport)
    quiet: list[bool] = []
    rest = asked.pool.rest

    def resting(connection: Connection, now: float) -> None:
        rest(connection, now)
        quiet.append(connection.is_quiet())

    monkeypatch.setattr(asked.pool, "rest", resting)
    server[0].goes.clear()
    task = asyncio.create_task(body(asked, server[0], late=False))
    await until(server[0].asked.is_set)
    server[0].goes.set()
    server[0].sent.wait(10)  # the loop stands still, so that it finds all of it at once
    assert await task == b"x" * length
    server[0].done.set()
    assert quiet == [not more]
