"""The real protocol on a real socket, and small ASGI applications to put behind it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import uvicorn
from uvicorn.server import ServerState

from proxy.errors import Refusal
from proxy.server.connections import Connections
from proxy.server.protocol import ProtocolLimits, protocol
from tests.harness.client import TIMEOUT_SECONDS, RawClient

Scope = Mapping[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass
class Echo:
    """An application that reads a request whole, keeps it, and answers ``ok``."""

    scopes: list[Scope] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        self.scopes.append(scope)
        self.bodies.append(body)
        await answer(send, 200, b"ok")


async def answer(send: Send, status: int, body: bytes) -> None:
    """A whole answer with a length."""
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def start(send: Send, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """The head of an answer without a length."""
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})


async def piece(send: Send, body: bytes, *, more: bool = True) -> None:
    """A piece of its body."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


@dataclass
class Served:
    """A protocol that listens.

    Attributes:
        refusals: What it said itself, with the client's address.
        bytes_read: What its connections have read, all together.
        made: How many connections it has accepted.
        connection: Makes the protocol of one connection.
    """

    port: int = 0
    state: ServerState = field(default_factory=ServerState)
    refusals: list[tuple[Refusal, str]] = field(default_factory=list)
    bytes_read: int = 0
    made: int = 0
    connection: Callable[[], asyncio.BaseProtocol] = asyncio.Protocol
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, data: bytes = b"") -> None:
        """A connection has read something, or ended."""
        self.bytes_read += len(data)
        self._changed.set()

    async def has_read(self, size: int) -> None:
        """Returns once the connections have read so many bytes, all together."""
        await self._until(lambda: self.bytes_read >= size)

    def note_made(self) -> None:
        """One more was accepted."""
        self.made += 1
        self._changed.set()

    async def has_made(self, count: int) -> None:
        """Returns once so many connections were accepted, all together."""
        await self._until(lambda: self.made >= count)

    async def has_closed(self, left: int = 0) -> None:
        """Returns once no connection is left, or no more than so many."""
        await self._until(lambda: len(self.state.connections) <= left)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def connect(self, **options: Any) -> RawClient:
        """A new client."""
        return await RawClient.open("127.0.0.1", self.port, **options)

    async def ask(self, data: bytes) -> bytes:
        """Sends bytes on a connection of their own and reads until the server ends it."""
        async with await self.connect() as client:
            await client.send(data)
            return await client.read_until_closed()


class Serve(Protocol):
    """What the fixture ``serve`` is."""

    async def __call__(self, app: App, *, keep_alive_seconds: int = 120, **limits: float) -> Served:
        """Serves an application under limits that differ from the default where given."""
        ...


@contextlib.asynccontextmanager
async def serving(
    app: App,
    keep_alive_seconds: int,
    limits: ProtocolLimits,
    connections: Connections | None = None,
) -> AsyncIterator[Served]:
    """Serves an application as ``uvicorn.Server`` does, without its loops that poll."""
    served = Served()

    def on_refusal(refusal: Refusal, client: str, _: str) -> None:
        served.refusals.append((refusal, client))

    base = protocol(limits, on_refusal, connections)

    class Observed(base):  # type: ignore[valid-type,misc] # a class made for these limits
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            served.note_made()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            served.note(data)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            served.note()

    config = uvicorn.Config(
        app,
        http=Observed,
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=keep_alive_seconds,
    )
    config.load()
    state = served.state
    state.default_headers = [(b"date", b"Thu, 01 Jan 2026 00:00:00 GMT")]

    def connection() -> asyncio.BaseProtocol:
        made: asyncio.BaseProtocol = Observed(config=config, server_state=state, app_state={})
        return made

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    try:
        served.connection = connection
        served.port = server.sockets[0].getsockname()[1]
        yield served
    finally:
        server.close()
        for left in list(state.connections):
            left.transport.abort()
        for task in list(state.tasks):
            task.cancel()
        if state.tasks:
            await asyncio.wait(state.tasks)
