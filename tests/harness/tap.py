"""A recording relay between the proxy and a real engine.

Every byte goes through as it comes, both ways, and so do half-closes and resets; what the proxy
sent is taken apart as `tests.harness.upstream` does it, so that the assertions of the scripted
upstream hold for a real engine too::

    async with tap.relay(engine.port) as upstream:
        ...
        assert upstream.requests[0].body == sent
        assert upstream.answers[0] == b"HTTP/1.1 200 OK..."
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.harness.running import Running
from tests.harness.upstream import Connection, Upstream


@dataclass(slots=True)
class Tap(Upstream):
    """The relay and what it saw.

    Attributes:
        engine_port: Where it relays to, on the loopback.
        answers: Every byte that the engine sent, by the index of the connection.
    """

    engine_port: int = 0
    answers: list[bytearray] = field(default_factory=list)

    @property
    def heard_nothing(self) -> bool:
        """Whether not one byte came from the proxy."""
        return not any(connection.received for connection in self.connections)


class _FromProxy(Connection):
    """The side that the proxy connects to."""

    def __init__(self, tap: Tap) -> None:
        super().__init__(tap)
        self._tap = tap
        self.answer = bytearray()
        self._engine: asyncio.Transport | None = None
        self._unsent = bytearray()
        self._ended = False
        self.engine_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Its answers have the index that it has."""
        super().connection_made(transport)
        self._tap.answers.append(self.answer)

    async def _answer(self) -> None:
        """Connects, and hands over what has come meanwhile."""
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_connection(
                lambda: _FromEngine(self), "127.0.0.1", self._tap.engine_port
            )
        except OSError:
            self.reset()
            return
        self._engine = transport
        if self._unsent:
            transport.write(bytes(self._unsent))
        if self._ended:
            transport.write_eof()

    def data_received(self, data: bytes) -> None:
        """Remembers it, and hands it over."""
        super().data_received(data)
        if self._engine is None:
            self._unsent += data
        else:
            self._engine.write(data)

    def eof_received(self) -> bool:
        """Passes it on; the other way may go on."""
        super().eof_received()
        self._ended = True
        if self._engine is not None and not self._engine.is_closing():
            self._engine.write_eof()
        return not self.engine_ended

    def connection_lost(self, exc: Exception | None) -> None:
        """Passes it on, as what it was."""
        super().connection_lost(exc)
        if self._engine is not None:
            reset_or_close(self._engine, exc)

    def lose(self, exc: Exception | None) -> None:
        """The engine's side is over."""
        reset_or_close(self.transport, exc)

    def end(self) -> bool:
        """The engine says no more; whether the proxy still may."""
        self.engine_ended = True
        if not self.transport.is_closing():
            self.transport.write_eof()
        return not self._ended

    def pause_writing(self) -> None:
        """Nor does the engine's side read then."""
        super().pause_writing()
        if self._engine is not None:
            self._engine.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self._engine is not None:
            self._engine.resume_reading()


class _FromEngine(asyncio.Protocol):
    """The side that connects to the engine."""

    def __init__(self, proxy: _FromProxy) -> None:
        self._proxy = proxy

    def data_received(self, data: bytes) -> None:
        """Remembers it, and hands it over."""
        self._proxy.answer += data
        self._proxy.transport.write(data)

    def eof_received(self) -> bool:
        """Passes it on."""
        return self._proxy.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Passes it on, as what it was."""
        self._proxy.lose(exc)

    def pause_writing(self) -> None:
        """The engine does not read: nor does the proxy's side."""
        self._proxy.transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        self._proxy.transport.resume_reading()


def reset_or_close(transport: asyncio.Transport, exc: Exception | None) -> None:
    """Ends the one side as the other has ended."""
    if exc is None:
        transport.close()
        return
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


@asynccontextmanager
async def relay(engine_port: int) -> AsyncIterator[Tap]:
    """A relay to this port, on a free port of its own."""
    tap = Tap(engine_port=engine_port)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _FromProxy(tap), "127.0.0.1", 0)
    tap.port = server.sockets[0].getsockname()[1]
    tap.url = f"http://127.0.0.1:{tap.port}"
    try:
        yield tap
    finally:
        server.close()
        for connection in tap.connections:
            connection.transport.abort()
        await tap.all_closed()


def tap_of(running: Running) -> Tap:
    """The tap behind a proxy."""
    assert isinstance(running.upstream, Tap)
    return running.upstream
