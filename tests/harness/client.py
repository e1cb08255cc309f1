"""A client that sends exactly the bytes it is told to and says exactly what came back.

No library stands between a test and the socket: what is malformed stays malformed, what is cut off
is reported as cut off, and a reset is told apart from an orderly end.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

TIMEOUT_SECONDS = 5.0
"""How long a read may wait. Generous: a test that needs it has failed already."""

_READ_BYTES = 65536


class BrokenOff(Exception):  # noqa: N818 - an observation of a test, not an error of the client
    """The connection ended before the response did.

    Attributes:
        received: What had arrived of the piece that was being read.
    """

    def __init__(self, received: bytes) -> None:
        super().__init__(f"the connection ended after {received!r}")
        self.received = received


@dataclass(slots=True)
class RawResponse:
    """One response as it came over the wire.

    Attributes:
        headers: Fields in order, names lowercase, repeats kept.
        body: The payload, without chunk framing.
        complete: Whether the body ended as its framing says; False when it was cut.
        interim: The statuses of the 1xx responses before this one.
    """

    status: int
    reason: str
    headers: list[tuple[bytes, bytes]]
    version: str = "HTTP/1.1"
    body: bytes = b""
    complete: bool = False
    interim: list[int] = field(default_factory=list)

    def values(self, name: bytes) -> list[bytes]:
        """Every value of a field, by its lowercase name."""
        return [value for key, value in self.headers if key == name]

    def header(self, name: bytes) -> bytes | None:
        """The value of a field that occurs at most once."""
        values = self.values(name)
        assert len(values) <= 1, f"{name!r} occurs {len(values)} times"
        return values[0] if values else None

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


def request_bytes(
    method: str,
    target: str,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    body: bytes = b"",
) -> bytes:
    """A well-formed request; Host, and Content-Length where there is a body, unless given."""
    fields = list(headers.items() if isinstance(headers, Mapping) else headers)
    names = {name.lower() for name, _ in fields}
    if "host" not in names:
        fields.insert(0, ("Host", "bulwark.test"))
    if body and not names & {"content-length", "transfer-encoding"}:
        fields.append(("Content-Length", str(len(body))))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class RawClient:
    """One connection. Every read gives up after ``timeout`` seconds with a TimeoutError.

    Attributes:
        was_reset: Whether the peer ended the connection with a reset instead of a FIN.
    """

    def __init__(self, sock: socket.socket, timeout: float = TIMEOUT_SECONDS) -> None:
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._buffer = bytearray()
        self._ended = False
        self._response: RawResponse | None = None
        self._remaining: int | None = 0  # bytes of body still to come; None: not known
        self._chunked = False
        self.was_reset = False

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - of every read, not of this call
        receive_buffer_bytes: int | None = None,
    ) -> Self:
        """Connects. A small receive buffer makes a client whose window fills soon."""
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            if receive_buffer_bytes is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except BaseException:
            sock.close()
            raise
        return cls(sock, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def local_port(self) -> int:
        """The port that the server sees as the client's."""
        port: int = self._socket.getsockname()[1]
        return port

    async def send(self, data: bytes) -> None:
        """Sends all of it, as one write as far as the kernel takes it."""
        async with asyncio.timeout(self._timeout):
            await self._loop.sock_sendall(self._socket, data)

    async def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> RawResponse:
        """Sends a well-formed request and reads the whole answer to it."""
        await self.send(request_bytes(method, target, headers, body))
        return await self.read_response(method=method)

    async def read_response(self, *, method: str = "GET") -> RawResponse:
        """The next response, to its end or to where it was cut. ``method`` is that of the request.

        Raises:
            BrokenOff: The connection ended before the head of a response did.
        """
        await self.read_head(method=method)
        return await self.read_rest()

    async def read_rest(self) -> RawResponse:
        """The response whose head was read, with what is left of its body."""
        response = self._response
        assert response is not None, "read_head first"
        pieces = []
        try:
            while piece := await self.read_chunk():
                pieces.append(piece)
        except BrokenOff as cut:
            pieces.append(cut.received)
        response.body = b"".join(pieces)
        return response

    async def read_head(self, *, method: str = "GET") -> RawResponse:
        """The head of the next final response; ``read_chunk`` then gives its body piece by piece.

        Raises:
            BrokenOff: The connection ended before the head did.
        """
        interim: list[int] = []
        while True:
            response = _parse_head(await self._read_until(b"\r\n\r\n"))
            if response.status >= 200:
                break
            interim.append(response.status)
        response.interim = interim
        self._response = response
        self._chunked = response.values(b"transfer-encoding") == [b"chunked"]
        length = response.header(b"content-length")
        self._remaining = None if length is None else int(length)
        if method == "HEAD" or response.status in (204, 304):
            self._chunked, self._remaining = False, 0
        return response

    async def read_chunk(self) -> bytes:
        """The next piece of body as soon as it is there; nothing (``b""``) when the body is over.

        Under chunked framing a piece is one chunk, otherwise whatever arrived.

        Raises:
            BrokenOff: The connection ended before the body did.
        """
        assert self._response is not None, "read_head first"
        if self._response.complete:
            return b""
        piece = await (self._read_one_chunk() if self._chunked else self._read_some())
        if not piece:
            self._response.complete = True
        return piece

    async def read_interim(self) -> RawResponse:
        """The head of the next response, which may be an interim one (``100 Continue``)."""
        return _parse_head(await self._read_until(b"\r\n\r\n"))

    async def read_until_closed(self) -> bytes:
        """Every byte until the peer ends the connection; ``was_reset`` tells how it did."""
        while await self._receive():
            pass
        return self._take(len(self._buffer))

    async def read_available(self) -> bytes:
        """What has arrived; waits for at least one byte, or for the end (``b""``)."""
        if not self._buffer:
            await self._receive()
        return self._take(len(self._buffer))

    def half_close(self) -> None:
        """Sends a FIN and stays readable."""
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Ends the connection with a RST, as a client that crashed does."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        """Ends the connection; a second time does nothing."""
        self._socket.close()

    async def _read_one_chunk(self) -> bytes:
        try:
            line = await self._read_until(b"\r\n")
        except BrokenOff:
            raise BrokenOff(b"") from None  # half a chunk header is no body
        size = int(line[:-2].partition(b";")[0], 16)
        try:
            data = await self._read_exactly(size + 2)
        except BrokenOff as cut:
            raise BrokenOff(cut.received[:size]) from None
        assert data.endswith(b"\r\n"), f"malformed chunk: {line!r} {data!r}"
        return data[:size]

    async def _read_some(self) -> bytes:
        if self._remaining == 0:
            return b""
        if not self._buffer and not await self._receive():
            # Without a length the end of the connection is the end of the body, if it is orderly.
            if self._remaining is None and not self.was_reset:
                return b""
            raise BrokenOff(b"")
        size = len(self._buffer)
        if self._remaining is not None:
            size = min(size, self._remaining)
            self._remaining -= size
        return self._take(size)

    async def _read_until(self, mark: bytes) -> bytes:
        while (end := self._buffer.find(mark)) < 0:
            if not await self._receive():
                raise BrokenOff(self._take(len(self._buffer)))
        return self._take(end + len(mark))

    async def _read_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not await self._receive():
                raise BrokenOff(self._take(len(self._buffer)))
        return self._take(size)

    async def _receive(self) -> bool:
        """Reads once more into the buffer; False when the peer has ended the connection."""
        if self._ended:
            return False
        try:
            async with asyncio.timeout(self._timeout):
                data = await self._loop.sock_recv(self._socket, _READ_BYTES)
        except (ConnectionResetError, BrokenPipeError):
            self.was_reset, data = True, b""
        self._buffer += data
        self._ended = not data
        return bool(data)

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data


def _parse_head(head: bytes) -> RawResponse:
    status_line, *lines = head[:-4].split(b"\r\n")
    version, status, reason = status_line.decode("latin-1").split(" ", 2)
    fields = []
    for line in lines:
        name, _, value = line.partition(b":")
        fields.append((name.lower(), value.strip()))
    return RawResponse(int(status), reason, fields, version)
