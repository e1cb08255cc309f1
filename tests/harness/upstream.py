"""An upstream that misbehaves on cue and remembers every byte that it was sent.

A real server on a real socket, written by hand so that it may break any rule of HTTP. What it
answers is a *script*: a sequence of steps, each of them bytes to write as they are, an
`asyncio.Event` to wait for, or an `End`. Tests state the order of things with events, never with
sleeps::

    gate = asyncio.Event()
    async with serve() as upstream:
        upstream.reply = [SSE_HEAD, event("a"), gate, event("b"), LAST_CHUNK]
        ...
        assert upstream.requests[0].body == sent
        await upstream.connection_closed(0, within=1.0)
"""

import asyncio
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import cast

from tests.harness import awake


class End(Enum):
    """How a script may end otherwise than by its last byte, after which the connection is kept."""

    FIN = auto()  # a clean close
    RESET = auto()  # RST instead of FIN
    SILENCE = auto()  # nothing more, until the other side closes


Step = bytes | asyncio.Event | End
Script = Iterable[Step]


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request as it came in.

    Attributes:
        head: The raw bytes up to and including the empty line.
        headers: Names lowercased, values as sent, order and repeats kept.
        body: The body without its framing.
        raw_body: The body with its framing (chunk sizes, trailers).
        connection: The index of the connection that it came on.
    """

    head: bytes
    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    raw_body: bytes
    connection: int

    def header(self, name: bytes) -> bytes | None:
        """The value of a field that came once; None where it did not come."""
        values = [value for field_name, value in self.headers if field_name == name]
        assert len(values) <= 1, f"{name!r} came {len(values)} times"
        return values[0] if values else None

    def json(self) -> object:
        """The body, parsed."""
        return json.loads(self.body)


Reply = Script | Callable[[ReceivedRequest], Script]

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def response(
    body: bytes,
    status: int = 200,
    headers: Iterable[tuple[bytes, bytes]] = ((b"Content-Type", b"application/json"),),
    content_length: int | None = None,
) -> bytes:
    """A whole response with a Content-Length, the true one unless told otherwise."""
    length = len(body) if content_length is None else content_length
    fields = [*headers, (b"Content-Length", b"%d" % length)]
    head = b"HTTP/1.1 %d Scripted\r\n" % status
    return head + b"".join(b"%b: %b\r\n" % item for item in fields) + b"\r\n" + body


def chunk(content: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def event(text: str) -> bytes:
    """One server-sent event as one chunk of a chunked body."""
    return chunk(sse(text))


def sse(text: str) -> bytes:
    """One server-sent event, unframed: what the client must receive."""
    return b"data: " + text.encode() + b"\n\n"


COMPLETION = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
).encode()
MODELS = json.dumps(
    {
        "object": "list",
        "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x", "root": "/srv/m"}],
    }
).encode()


def completion_chunk(delta: dict[str, object], finish_reason: str | None = None) -> str:
    """The JSON of one chat.completion.chunk."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    shape = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return json.dumps({**shape, "choices": [choice]})


STREAMED_COMPLETION: Script = (
    SSE_HEAD,
    event(completion_chunk({"role": "assistant", "content": ""})),
    event(completion_chunk({"content": "Hel"})),
    event(completion_chunk({"content": "lo."})),
    event(completion_chunk({}, "stop")),
    chunk(DONE),
    LAST_CHUNK,
)


def plausible(request: ReceivedRequest) -> Script:
    """What a well-behaved model server answers, for want of a script."""
    if request.method == b"GET":
        return [response(MODELS)]
    asked = json.loads(request.body)
    return STREAMED_COMPLETION if asked.get("stream") is True else [response(COMPLETION)]


_MONITORS = frozenset({b"/health", b"/ready", b"/metrics"})


class Connection(asyncio.Protocol):
    """One accepted connection: parses requests as they come, answers them in turn.

    Attributes:
        received: Every byte, in order, as it came.
        closed: Set once the other side has closed or reset (or we have).
        write_blocked: Set once the other side does not read what is written any more.
    """

    def __init__(self, upstream: "Upstream") -> None:
        self._upstream = upstream
        self.index = -1  # until it is made: several may be accepted in one turn of the loop
        self.received = bytearray()
        self.closed = asyncio.Event()
        self.write_blocked = asyncio.Event()
        self.transport: asyncio.Transport
        self._unparsed = bytearray()
        self._needed = 0  # bytes of `_unparsed` below which looking again is in vain
        self._waiting: asyncio.Queue[ReceivedRequest] = asyncio.Queue()
        self._writable = asyncio.Event()
        self._writable.set()
        self._answering: asyncio.Task[None] | None = None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted."""
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self.index = len(self._upstream.connections)
        self._upstream.connections.append(self)
        if not self._upstream.reads:
            # Not at once: uvloop begins to read only after this, and would undo it.
            asyncio.get_running_loop().call_soon(self.transport.pause_reading)
        self._answering = asyncio.get_running_loop().create_task(self._answer())
        self._upstream.notify()

    def data_received(self, data: bytes) -> None:
        """Remembers, and takes every request that is now whole."""
        self.received += data
        self._unparsed += data
        while (request := self._take_request()) is not None:
            self._upstream.requests.append(request)
            self._waiting.put_nowait(request)
        self._upstream.notify()

    def eof_received(self) -> bool | None:
        """The other side has closed; returning None closes this side too."""
        self._gone()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Over, one way or the other."""
        self._gone()
        self._writable.set()
        if self._answering is not None:
            self._answering.cancel()

    def pause_writing(self) -> None:
        """The other side does not read fast enough: the script pauses."""
        self._writable.clear()
        self.write_blocked.set()

    def resume_writing(self) -> None:
        """The script goes on."""
        self._writable.set()

    # What a test may do out of turn.

    def close(self) -> None:
        """Closes cleanly, in whatever state: an idle server connection that times out."""
        self.transport.close()

    def reset(self) -> None:
        """Closes with RST instead of FIN."""
        sock = self.transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    # Reading.

    def _take_request(self) -> ReceivedRequest | None:
        if len(self._unparsed) < self._needed:
            return None
        end = self._unparsed.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self._unparsed[: end + 4])
        line, *lines = head[:-4].split(b"\r\n")
        method, target, _version = line.split(b" ")
        pairs = [item.split(b":", 1) for item in lines]
        headers = tuple((name.lower(), value.strip(b" \t")) for name, value in pairs)
        self._needed = len(head) + int(dict(headers).get(b"content-length", b"0"))
        if len(self._unparsed) < self._needed:
            return None
        framed = _unframe(dict(headers), bytes(self._unparsed[end + 4 :]))
        if framed is None:
            return None
        self._needed = 0
        body, raw_body = framed
        del self._unparsed[: len(head) + len(raw_body)]
        return ReceivedRequest(head, method, target, headers, body, raw_body, self.index)

    # Answering.

    async def _answer(self) -> None:
        while True:
            request = await self._waiting.get()
            reply = self._upstream.next_reply()
            try:
                for step in reply(request) if callable(reply) else reply:
                    await self._take_step(step)
            except Exception:
                self.reset()  # a mistake in a test shall end it, not hang it
                raise

    async def _take_step(self, step: Step) -> None:
        match step:
            case bytes():
                await self._writable.wait()
                if self.transport.is_closing():
                    # A script without end would never let the loop say that it is over.
                    await self.closed.wait()
                self.transport.write(step)
            case asyncio.Event():
                await step.wait()
            case End.FIN:
                self.close()
            case End.RESET:
                self.reset()
            case End.SILENCE:
                await self.closed.wait()

    def _gone(self) -> None:
        self.closed.set()
        self._upstream.notify()


def _unframe(headers: dict[bytes, bytes], rest: bytes) -> tuple[bytes, bytes] | None:
    """The body at the start of `rest`, without and with framing; None while it is incomplete."""
    if headers.get(b"transfer-encoding") == b"chunked":
        return _unchunk(rest)
    length = int(headers.get(b"content-length", b"0"))
    return (rest[:length], rest[:length]) if len(rest) >= length else None


def _unchunk(rest: bytes) -> tuple[bytes, bytes] | None:
    body, at = b"", 0
    while (line_end := rest.find(b"\r\n", at)) >= 0:
        size = int(rest[at:line_end], 16)
        at = line_end + 2 + size + 2
        if len(rest) < at:
            return None
        if size == 0:
            return body, rest[:at]
        body += rest[line_end + 2 : at - 2]
    return None


@dataclass(slots=True)
class Upstream:
    """The server and what it saw.

    Attributes:
        url: What `PROXY_UPSTREAM_URL` is to be.
        reply: The answer to every request for which `script` has none.
        script: Answers for the next requests, one each.
        reads: False: connections are accepted, and not one byte is read from them.
    """

    url: str = ""
    port: int = 0
    reply: Reply = plausible
    script: deque[Reply] = field(default_factory=deque)
    reads: bool = True
    connections: list[Connection] = field(default_factory=list)
    requests: list[ReceivedRequest] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def asked(self) -> list[ReceivedRequest]:
        """The requests without the monitor's own, which a whole proxy sends once a second."""
        return [each for each in self.requests if each.target not in _MONITORS]

    @property
    def open_connections(self) -> int:
        """How many connections the other side has not closed yet."""
        return sum(not connection.closed.is_set() for connection in self.connections)

    def next_reply(self) -> Reply:
        """The next scripted answer, or the usual one."""
        return self.script.popleft() if self.script else self.reply

    async def request(self, index: int, within: float = 5.0) -> ReceivedRequest:
        """The request with this index, once it has come in whole."""
        await self._until(lambda: len(self.requests) > index, within)
        return self.requests[index]

    async def connection(self, index: int, within: float = 5.0) -> Connection:
        """The connection with this index, once it is accepted."""
        await self._until(lambda: len(self.connections) > index, within)
        return self.connections[index]

    async def connection_closed(self, index: int, within: float = 5.0) -> None:
        """Returns once the other side has closed this connection; raises TimeoutError if not."""
        connection = await self.connection(index)
        async with awake.timeout(within):
            await connection.closed.wait()

    async def all_closed(self, within: float = 5.0) -> None:
        """Returns once the other side has closed every connection; raises TimeoutError if not."""
        await self._until(lambda: self.open_connections == 0, within)

    def notify(self) -> None:
        """Something happened; whoever waits should look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, holds: Callable[[], bool], within: float) -> None:
        async with awake.timeout(within):
            while not holds():
                await self._changed.wait()


CERTIFICATE = Path(__file__).parent / "tls" / "localhost.pem"


def _server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, CERTIFICATE.with_suffix(".key"))
    return context


@asynccontextmanager
async def serve(
    path: Path | None = None, *, reads: bool = True, tls: bool = False
) -> AsyncIterator[Upstream]:
    """An upstream on a free port of the loopback, or on a Unix socket at `path`.

    Over TLS it is `localhost` and proves it with `CERTIFICATE`, which nobody trusts by default.
    """
    loop = asyncio.get_running_loop()
    upstream = Upstream(reads=reads)
    server: asyncio.Server
    if path is None:
        server = await loop.create_server(
            lambda: Connection(upstream), "127.0.0.1", 0, ssl=_server_tls() if tls else None
        )
        upstream.port = server.sockets[0].getsockname()[1]
        origin = "https://localhost" if tls else "http://127.0.0.1"
        upstream.url = f"{origin}:{upstream.port}"
    else:
        server = await loop.create_unix_server(lambda: Connection(upstream), path)
        upstream.url = f"unix://{path}"
    try:
        yield upstream
    finally:
        server.close()
        for connection in upstream.connections:
            connection.transport.abort()
        await upstream.all_closed()
