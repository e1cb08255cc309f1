"""A client and an upstream in the process of what they test, as little of each as will do.

One request at a time, and one event at a time: the upstream sends the next when the client has the one
before. So every event goes its way alone, and every run takes the same steps.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

_END = b"0\r\n\r\n"
_EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"m","choices":[{"index":0,"delta":{"content":" 01234567890123456789"},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
_ANSWER = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"'
    + b"An answer of moderate length. "
    * 7
    + b'","tool_calls":[]},"finish_reason":"stop"}],"usage":{"prompt_tokens":612,"total_tokens":642,'
    b'"completion_tokens":30}}'
)
_HEAD = b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
PLAIN = (
    _HEAD + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_ANSWER) + _ANSWER
)
_STREAM = (
    _HEAD + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
CHUNK = b"%x\r\n%s\r\n" % (len(_EVENT), _EVENT)


@dataclass(slots=True)
class Plan:
    """What the upstream answers with.

    Attributes:
        events: Of a stream; 0 answers with a body of a known length.
        more: Makes the upstream send the next piece of the stream that runs.
    """

    events: int = 0
    more: Callable[[], None] = field(default=lambda: None)


class Upstream(asyncio.Protocol):
    """An engine that answers whatever is asked. A request that comes in two parts is waited for."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A proxy has connected."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """More of a request."""
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if not separator or len(body) < length:
            return
        self._received = b""
        if not self._plan.events:
            self._transport.write(PLAIN)
            return
        pieces = self._pieces(self._plan.events)
        self._plan.more = lambda: self._transport.write(next(pieces, b""))
        self._transport.write(_STREAM + next(pieces))

    @staticmethod
    def _pieces(events: int) -> Iterator[bytes]:
        for _ in range(events):
            yield CHUNK
        yield _END


class Client(asyncio.Protocol):
    """Asks one thing again and again over one connection."""

    def __init__(self, plan: Plan, request: bytes) -> None:
        self._plan = plan
        self._request = request
        self._left = 0
        self._tail = b""
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is connected."""
        self._transport = cast("asyncio.Transport", transport)

    async def ask(self, times: int) -> None:
        """So many requests, one after the other.

        Raises:
            ConnectionError: An answer is not a 200, or does not come.
        """
        self._left = times
        self._done = asyncio.get_running_loop().create_future()
        self._next()
        await self._done

    def _next(self) -> None:
        self._tail = b""
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """More of an answer."""
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            self._fail(data[:300].decode(errors="replace"))
            return
        self._tail = (self._tail + data)[-16:]
        if not self._tail.endswith((_END, b"}}")):
            self._plan.more()
            return
        self._left -= 1
        if self._left:
            self._next()
        elif self._done is not None:
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody may hang up on it."""
        self._fail(f"hung up: {exc}")

    def _fail(self, why: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(why))
