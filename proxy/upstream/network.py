"""The sockets under httpx's transport, with a bound on what they read ahead.

httpcore's own are anyio's. On uvloop those read up to 32 times 256,000 bytes before the reader can
say stop (libuv reads on while the socket has data, anyio stops it from a task): measured, a client
that did not read made the proxy hold 3 MB. These stop from within the callback.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterable, Iterator
from typing import Any, cast

import anyio
import httpcore

from proxy.names import Names

_HEAD_BYTES = 1024
"""How much of a head is read at once, where it is bounded: other tasks have their turn in between."""

READ_BYTES = 32 * 1024
"""How much one call may read, and how much may wait before reading stops: together the bound."""


@contextlib.contextmanager
def _within(seconds: float | None, late: type[httpcore.TimeoutException]) -> Iterator[None]:
    """Bounds what only waits, and says in httpcore's words how it failed."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as exc:
        raise late from exc
    except OSError as exc:
        raise httpcore.ConnectError from exc


class Network(httpcore.AsyncNetworkBackend):
    """Opens the sockets of one connection of the pool.

    Args:
        scratch: What is read into. One for all connections: it is filled and emptied within one
            callback.
        names: Who knows the addresses of names.

    Attributes:
        heard_bytes: How much the other side has said so far.
        head_bytes_left: How much more of a head is read; None for any number. An engine may send
            interim answers for ever, each of which httpcore reads and drops.
    """

    def __init__(self, scratch: bytearray, names: Names) -> None:
        self._scratch = memoryview(scratch)
        self._names = names
        self.heard_bytes = 0
        self.head_bytes_left: int | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,  # noqa: ARG002 - never set
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002 - never set
    ) -> httpcore.AsyncNetworkStream:
        """A stream over TCP, to one of the name's addresses."""
        loop = asyncio.get_running_loop()

        async def connect(address: str) -> Stream:
            return (await loop.create_connection(self._stream, address, port))[1]

        with _within(timeout, httpcore.ConnectTimeout):
            return await self._names.reach(host, connect, timeout)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002 - never set
    ) -> httpcore.AsyncNetworkStream:
        """A stream over a Unix socket."""
        loop = asyncio.get_running_loop()
        with _within(timeout, httpcore.ConnectTimeout):
            _, stream = await loop.create_unix_connection(self._stream, path)
        return stream

    def _stream(self) -> "Stream":
        return Stream(self, self._scratch)


class Stream(asyncio.BufferedProtocol, httpcore.AsyncNetworkStream):
    """One socket: a protocol to the loop, a stream to httpcore."""

    def __init__(self, network: Network, scratch: memoryview) -> None:
        self._network = network
        self._scratch = scratch
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._reading_paused = False
        self._ended = False
        self._failure: Exception | None = None
        self._wake_reader: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected, or encrypted from now on."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's interface
        """Where to read into."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """So much was read."""
        self._network.heard_bytes += nbytes
        self._received += self._scratch[:nbytes]
        if len(self._received) >= READ_BYTES and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """The other side says no more; then neither do we (the loop closes the socket)."""
        self._ended = True
        self._wake()
        self._writable.set()  # it may have answered early, and not read the rest

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._ended = True
        self._failure = exc
        self._wake()
        self._writable.set()

    def pause_writing(self) -> None:
        """The other side does not keep up."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writable.set()

    # What httpcore calls

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """What has come; nothing (``b""``) when no more will."""
        if not self._received and not self._ended:
            with _within(timeout, httpcore.ReadTimeout):
                await self._something()
        if not self._received:
            if self._failure is not None:
                raise httpcore.ReadError from self._failure
            return b""
        if self._network.head_bytes_left is not None:
            max_bytes = await self._next_of_head(self._network.head_bytes_left)
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        if self._reading_paused and len(self._received) < READ_BYTES and not self._ended:
            self._reading_paused = False
            self._transport.resume_reading()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Returns when the kernel has taken most of it."""
        if buffer and not self._ended:
            self._transport.write(buffer)
        with _within(timeout, httpcore.WriteTimeout):
            await self._writable.wait()
        if self._ended:
            raise httpcore.WriteError from self._failure

    async def aclose(self) -> None:
        """Closes at once, whatever is still on the way."""
        self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
    ) -> httpcore.AsyncNetworkStream:
        """Encrypts from now on."""
        loop = asyncio.get_running_loop()
        try:
            with _within(timeout, httpcore.ConnectTimeout):  # an ssl.SSLError is an OSError
                transport = await loop.start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
                )
        except BaseException:
            self._transport.abort()
            raise
        self._transport = cast("asyncio.Transport", transport)
        return self

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks about a socket."""
        if info == "is_readable":
            # Asked of idle connections only: whatever is there to read means that it is stale.
            return self._ended or bool(self._received)
        return self._transport.get_extra_info({"server_addr": "peername"}.get(info, info))

    async def _next_of_head(self, left: int) -> int:
        """How much of a bounded head is read next."""
        if left <= 0:
            raise httpcore.RemoteProtocolError("the head is too long")
        await asyncio.sleep(0)
        size = min(_HEAD_BYTES, len(self._received))
        self._network.head_bytes_left = left - size
        return size

    async def _something(self) -> None:
        """Returns once something was received or nothing more will be."""
        self._wake_reader = asyncio.get_running_loop().create_future()
        try:
            await self._wake_reader
        finally:
            self._wake_reader = None

    def _wake(self) -> None:
        if self._wake_reader is not None and not self._wake_reader.done():
            self._wake_reader.set_result(None)
