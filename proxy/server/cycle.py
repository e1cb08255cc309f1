"""One request and its answer: uvicorn's cycle, with the ends of it that we need otherwise."""

import asyncio
import logging
import secrets
import traceback
from collections.abc import Callable, MutableMapping
from typing import Any, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent, HTTPScope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from proxy.errors import Dialect, InternalError, RawHeaders, Refusal
from proxy.pipe import Flow, Sink
from proxy.server import answers


class Cycle(RequestResponseCycle):
    """A request whose body may turn out unreadable and whose answer may have to be broken off.

    It is the ``pipe.Client`` of its request, too.

    Attributes:
        refusal: Why the rest of the body cannot be read. ``receive`` raises it, so that it is
            answered, logged and counted where every other refusal is, and never written into an
            answer that has begun.
        close_delimited: Whether the end of the connection is the end of the answer.
        piped: Stops and starts what is pushed into the answer, while something is.
    """

    def __init__(
        self,
        *,
        scope: HTTPScope,
        transport: asyncio.Transport,
        flow: FlowControl,
        logger: logging.Logger,
        default_headers: RawHeaders,
        keep_alive: bool,
        expect_100_continue: bool,
        on_response: Callable[[], None],
        on_close: Callable[["Cycle"], None],
    ) -> None:
        super().__init__(
            scope=scope,
            transport=transport,
            flow=flow,
            logger=logger,
            access_logger=logger,
            access_log=False,
            default_headers=list(default_headers),
            message_event=asyncio.Event(),
            expect_100_continue=expect_100_continue,
            keep_alive=keep_alive,
            on_response=on_response,
        )
        # uvicorn's cycle closes the transport itself; how to close is the protocol's business.
        self.transport = cast("asyncio.Transport", Wire(transport, lambda: on_close(self)))
        self.refusal: Refusal | None = None
        self.close_delimited = False
        self.piped: Flow | None = None
        self._leave: Callable[[Refusal | None], None] | None = None

    async def receive(self) -> ASGIReceiveEvent:
        """The next piece of the request.

        Raises:
            Refusal: The rest of the body cannot be read.
        """
        if self.refusal is None:
            message = await super().receive()
            if self.refusal is None:  # it may have come meanwhile
                return message
        raise self.refusal

    async def send(self, message: ASGISendEvent) -> None:
        """Writes the next piece of the answer."""
        # Whoever answers before the body was read does not read it any more: say so in time.
        if not self.response_started and self.more_body:
            self.keep_alive = False
        await super().send(message)
        if self.response_complete:
            self.piped = None

    async def send_500_response(self) -> None:
        """Answers for an application that failed without an answer."""
        request_id = secrets.token_hex(16)
        error = InternalError("The server failed to answer this request. Its owner has the reason.")
        body = error.body(Dialect.OPENAI, request_id)
        headers = answers.fields(error, body, request_id)
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def fail(self, refusal: Refusal) -> None:
        """Makes ``receive`` raise from now on."""
        self.refusal = refusal
        self.keep_alive = False
        self.message_event.set()
        self._tell(refusal)

    def disconnect(self) -> None:
        """Makes ``receive`` tell of a disconnect and ``send`` do nothing, from now on and at once."""
        self.disconnected = True
        self.message_event.set()
        self.flow.resume_writing()
        piped, self.piped = self.piped, None
        if piped is not None and piped.paused:
            piped.resume()  # or it would wait for room that nobody makes any more
        self._tell(None)

    def on_disconnect(self, leave: Callable[[Refusal | None], None]) -> None:
        """Calls this once in place of what ``receive`` would tell; never once the answer is out."""
        if self.response_complete:
            return
        if self.refusal is not None:
            leave(self.refusal)
        elif self.disconnected:
            leave(None)
        else:
            self._leave = leave

    def open(self, flow: Flow) -> Sink | None:
        """Where to push the body; None where a piece of it is not a chunk."""
        if (
            not self.response_started
            or self.response_complete
            or not self.chunked_encoding
            or self.scope["method"] == "HEAD"
        ):
            return None
        write = self.transport.write

        def sink(chunk: bytes) -> None:
            # Whoever pushes after the client has left, or after the end, pushes into nothing: by
            # then the connection may carry another answer.
            if self.piped is flow:
                write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

        if not self.disconnected:
            self.piped = flow
            if self.flow.write_paused:
                flow.pause()
        return sink

    def done(self) -> None:
        """Nothing more is pushed."""
        self.piped = None

    def _tell(self, refusal: Refusal | None) -> None:
        leave, self._leave = self._leave, None
        if leave is not None and not self.response_complete:
            leave(refusal)


class Http10Cycle(Cycle):
    """A request by HTTP/1.0, to which no answer may be chunked (RFC 9112 §6.1)."""

    async def send(self, message: ASGISendEvent) -> None:
        """Writes the next piece of the answer; without a length, the connection's end is its end."""
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            if b"content-length" not in names:
                self.close_delimited = True
                self.chunked_encoding = False
        elif message["type"] == "http.response.body" and self.close_delimited:
            # uvicorn counts down to zero; here every piece may be the last.
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)

    def open(self, flow: Flow) -> Sink | None:
        """Nothing can be pushed: an answer by HTTP/1.0 has no chunks."""
        del flow
        return None


class Wire:
    """A transport whose ``close`` is somebody else's. The hot methods are the transport's own."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


def crash_log() -> logging.Logger:
    """What a cycle logs to, where its application fails."""
    return cast("logging.Logger", CrashLog(logging.getLogger("proxy.server")))


class CrashLog(logging.LoggerAdapter[logging.Logger]):
    """Says where an application failed and with what type, and nothing that a client sent.

    The text of an exception may quote a request, so it is left out; a traceback's source lines
    cannot.
    """

    def process(
        self, msg: str, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        """Replaces the exception by its type and the places it went through."""
        exception = kwargs.pop("exc_info", None)
        if exception is None:
            return msg, kwargs
        places = "".join(traceback.format_tb(exception.__traceback__)).rstrip()
        return f"{msg.rstrip()}: {type(exception).__qualname__}\n{places}", kwargs
