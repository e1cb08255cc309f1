"""An engine that answers before it has the whole request, and closes: the answer counts.

It closes with the rest unread, so that the system ends the connection with an error, and a write fails
before the loop has read what was said. The engine is a thread, and the loop stands still meanwhile, so
that the order of things is the same each time.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from proxy.upstream import target, transport
from proxy.upstream.transport.connection import Connection
from proxy.upstream.transport.transport import Transport
from tests.harness.upstream import CERTIFICATE, response

SMALL, LARGE = b"{}", b" " * 2_000_000
TOO_LONG = response(b"too long", 413)
AT_ONCE = struct.pack("ii", 1, 0)
"""Of SO_LINGER: closing is a reset."""


@dataclass
class Engine:
    """Serves some requests, resets the connection of the next, and serves any after that.

    Attributes:
        serves: How many it answers as it should.
        listens: Whether it reads the head of the next one, which it resets, before ``reset``.
        says: What it says before that.
        heads: How many requests it has seen the heads of.
    """

    listening: socket.socket
    tls: ssl.SSLContext | None
    serves: int = 0
    listens: bool = True
    says: bytes = b""
    heads: int = 0
    goes: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)

    def reset(self) -> None:
        """Returns when it has said what it says and the connection is over."""
        self.goes.set()
        assert self.gone.wait(10)

    def run(self) -> None:
        """Until the listening socket is closed."""
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self.listening.accept()
                with contextlib.suppress(OSError), self._secured(accepted) as made:
                    self._serve(made)

    def _secured(self, accepted: socket.socket) -> socket.socket:
        # Or its own system keeps back what is said until what was said before is confirmed.
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.tls.wrap_socket(accepted, server_side=True) if self.tls else accepted

    def _serve(self, made: socket.socket) -> None:
        while self.serves or self.gone.is_set():
            self._head(made)
            made.sendall(response(b"served"))
            self.serves -= 1
        if self.listens:
            self._head(made)
        self.goes.wait(10)
        made.sendall(self.says)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        made.close()
        self.gone.set()

    def _head(self, made: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            more = made.recv(1024)
            if not more:
                raise OSError
            received += more
        self.heads += 1
        if received.endswith(b"\r\n\r\n") and b"content-length: 2\r\n" in received.lower():
            made.recv(2)


@pytest.fixture(params=["plain", "tls"])
def engine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Engine, str]]:
    """An engine and its URL."""
    tls = None
    if request.param == "tls":
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(CERTIFICATE, CERTIFICATE.with_suffix(".key"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        made = Engine(listening, tls)
        thread = threading.Thread(target=made.run)
        thread.start()
        scheme = "https" if tls else "http"
        yield made, f"{scheme}://localhost:{listening.getsockname()[1]}"
        made.goes.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


async def ask(asked: httpx.AsyncBaseTransport, body: bytes, **extensions: object) -> int:
    """The status of the answer to one request."""
    answer = await asked.handle_async_request(
        httpx.Request(
            "POST",
            "http://localhost",
            headers=[(b"host", b"x")],
            stream=httpx.ByteStream(body),
            extensions={"target": b"/v1", "timeout": {"total": 10.0}, **extensions},
        )
    )
    await answer.aread()
    return answer.status_code


@pytest.mark.parametrize("served", [0, 1], ids=["new", "reused"])
async def test_an_answer_that_is_there_before_more_is_sent(
    engine: tuple[Engine, str], monkeypatch: pytest.MonkeyPatch, served: int
) -> None:
    """A write would find that the connection is over: what was said is read first."""
    engine[0].serves, engine[0].says = served, TOO_LONG
    has_unread = Connection.has_unread

    def later(self: Connection) -> bool:
        engine[0].reset()
        return has_unread(self)

    async with transport.build(target.parse(engine[1])) as asked:
        for _ in range(served):
            assert await ask(asked, SMALL) == 200
        monkeypatch.setattr(Connection, "has_unread", later)
        assert await ask(asked, LARGE) == 413
    assert engine[0].heads == served + 1


@pytest.mark.parametrize("engine", ["plain"], indirect=True)
@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["short", "long"])
@pytest.mark.parametrize("served", [0, 1], ids=["new", "reused"])
async def test_an_answer_that_a_write_came_before(
    engine: tuple[Engine, str], body: bytes, served: int
) -> None:
    """The socket still has it."""
    engine[0].serves, engine[0].says, engine[0].listens = served, TOO_LONG, False
    async with transport.build(target.parse(engine[1])) as asked:
        for _ in range(served):
            assert await ask(asked, SMALL) == 200
        extension = {"bulwark.on_sent": engine[0].reset}
        assert await ask(asked, body, **extension) == 413
    assert engine[0].heads == served


@pytest.mark.parametrize("engine", ["tls"], indirect=True)
async def test_an_answer_that_is_lost_within_tls_is_not_asked_for_twice(
    engine: tuple[Engine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell then whether there was one."""
    engine[0].serves, engine[0].says = 1, TOO_LONG
    has_unread = Connection.has_unread

    def before(self: Connection) -> bool:
        unread = has_unread(self)
        engine[0].reset()
        return unread

    async with transport.build(target.parse(engine[1])) as asked:
        assert await ask(asked, SMALL) == 200
        monkeypatch.setattr(Connection, "has_unread", before)
        with pytest.raises((httpx.ReadError, httpx.WriteError)):
            await ask(asked, LARGE)
        assert isinstance(asked, Transport)
        await asyncio.sleep(0)
        assert (asked.pool.busy, asked.pool.idle) == ([], {})
    assert engine[0].heads == 2


async def test_a_short_request_that_crosses_a_reset_is_asked_again(
    engine: tuple[Engine, str],
) -> None:
    """There is nothing that the engine could have looked at."""
    engine[0].serves, engine[0].listens = 1, False
    reset = engine[0].reset
    async with transport.build(target.parse(engine[1])) as asked:
        assert await ask(asked, SMALL) == 200
        assert await ask(asked, SMALL, **{"bulwark.on_sent": reset}) == 200
    assert engine[0].heads == 2
