"""One request and its answer: ASGI's ``receive`` and ``send``, and what is pushed past ``send``.

In place of uvicorn's cycle, whose checks it keeps. That one closes connections on its own, cannot
say why the rest of a body is unreadable, and spends a third of the time of a small request on an
event that nobody waits for, copies of the body, and a regular expression for each field.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from logging import Logger
from typing import Any, Protocol

from uvicorn._types import ASGI3Application, ASGIReceiveEvent, HTTPScope
from uvicorn.protocols.http.flow_control import FlowControl

from proxy.errors import Dialect, InternalError, RawHeaders, Refusal
from proxy.pipe import Flow, Sink
from proxy.server import answers
from proxy.server.response import head_of


class Carrier(Protocol):
    """The connection, as one request on it sees it.

    Attributes:
        transport: Where the answer goes.
        flow: Whether there is room in it, and whether it is read.
    """

    transport: asyncio.Transport
    flow: FlowControl

    def answered(self, cycle: "Cycle") -> None:
        """The answer is out."""

    def give_up(self, cycle: "Cycle") -> None:
        """The application is done with, and the connection must not be used again."""

    def break_off(self, cycle: "Cycle") -> None:
        """The answer must not be taken for complete."""


class Cycle:
    """A request whose body may turn out unreadable and whose answer may have to be broken off.

    It is the ``pipe.Client`` of its request, too.

    Attributes:
        keep_alive: Whether the connection may carry another request.
        awaits_continue: Whether the client waits for a 100 before it sends its body.
        refusal: Why the rest of the body cannot be read. ``receive`` raises it, so that it is
            answered, logged and counted where every other refusal is, and never written into an
            answer that has begun.
        close_delimited: Whether the end of the connection is the end of the answer.
        piped: Stops and starts what is pushed into the answer, while something is.
        more_body: Whether the request has not come whole.
        body: What has come of it and was not received yet.
        behind: Whether the client had left more unread than there is room for when it left.
    """

    __slots__ = (
        "_carrier", "_chunked", "_defaults", "_event", "_flow", "_head", "_head_only", "_http_1_0", "_leave",
        "_left_bytes", "_log", "_news", "_transport", "awaits_continue", "behind", "body", "close_delimited",
        "disconnected", "keep_alive", "more_body", "piped", "refusal", "response_complete",
        "response_started",
    )  # fmt: skip

    def __init__(
        self,
        carrier: Carrier,
        log: Logger,
        defaults: RawHeaders,
        *,
        method: bytes,
        http_1_0: bool,
        keep_alive: bool,
        awaits_continue: bool,
    ) -> None:
        self._carrier = carrier
        self._transport = carrier.transport
        self._flow = carrier.flow
        self._log = log
        self._defaults = defaults
        self._head_only = method == b"HEAD"
        self._http_1_0 = http_1_0
        self.keep_alive = keep_alive
        self.awaits_continue = awaits_continue
        self.body: bytes | bytearray = b""
        self.more_body = True
        self.refusal: Refusal | None = None
        self.disconnected = False
        self.behind = False
        self.response_started = False
        self.response_complete = False
        self.close_delimited = False
        self.piped: Flow | None = None
        self._chunked = False
        self._left_bytes = 0
        self._head = b""
        # Whether there is something that `receive` has not told. The event is only made for whoever
        # has to wait: a request in one packet has come before it is asked for.
        self._news = False
        self._event: asyncio.Event | None = None
        self._leave: Callable[[Refusal | None], None] | None = None

    # The application

    async def run(self, app: ASGI3Application, scope: HTTPScope) -> None:
        """Runs the application, and sees to it that its answer has an end."""
        try:
            result: object = await app(scope, self.receive, self.send)  # type: ignore[func-returns-value]
        except BaseException as exc:  # noqa: BLE001 - also a cancelled one owes its client an end
            self._log.error("Exception in ASGI application", exc_info=exc)
        else:
            if result is not None:
                self._log.error("ASGI callable should return None, but returned something.")
            elif self.disconnected or self.response_complete:
                return
            else:
                self._log.error("ASGI callable returned without completing response.")
        if self.response_started:
            self._flush()
            self._carrier.give_up(self)
        else:
            await self._send_500()

    async def receive(self) -> ASGIReceiveEvent:
        """The next piece of the request.

        Raises:
            Refusal: The rest of the body cannot be read.
        """
        if self.refusal is not None:
            raise self.refusal
        if self.awaits_continue and not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.awaits_continue = False
        if not self.disconnected and not self.response_complete:
            self._flow.resume_reading()
            if not self._news:
                await self._wait()
        self._news = False
        if self.refusal is not None:  # it may have come meanwhile
            raise self.refusal
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = self.body, b""
        return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}

    async def _wait(self) -> None:
        if self._event is None:
            self._event = asyncio.Event()
        self._event.clear()
        await self._event.wait()

    async def send(self, message: Any) -> None:
        """Writes the next piece of the answer."""
        # Whoever answers before the body was read does not read it any more: say so in time.
        if self.more_body and not self.response_started:
            self.keep_alive = False
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if not self.response_started:
            if kind != "http.response.start":
                raise RuntimeError(f"Expected 'http.response.start', but got '{kind}'.")
            self._begin(message["status"], message.get("headers", ()))
        elif self.response_complete:
            raise RuntimeError(f"Unexpected ASGI message '{kind}' after the response.")
        elif kind != "http.response.body":
            raise RuntimeError(f"Expected 'http.response.body', but got '{kind}'.")
        else:
            self._go_on(message.get("body", b""), more=message.get("more_body", False))

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        head, length, chunked, self.keep_alive = head_of(
            status,
            [*self._defaults, *headers],
            keep_alive=self.keep_alive,
            http_1_0=self._http_1_0,
            head_only=self._head_only,
        )
        self.close_delimited = self._http_1_0 and length is None
        self._chunked = chunked
        self._left_bytes = 0 if chunked or length is None else length
        self.response_started = True
        self.awaits_continue = False
        # Most answers have their body at once, and each write is a call of the system, which is dearer
        # than all that is done here. So the head waits for the body, but for this turn of the loop only.
        self._head = head
        asyncio.get_running_loop().call_soon(self._flush)

    def _go_on(self, body: bytes, *, more: bool) -> None:
        if self._head_only:
            self._left_bytes = 0
            body = b""
        elif self._chunked:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            if not more:
                body += b"0\r\n\r\n"
        elif not self.close_delimited:
            if len(body) > self._left_bytes:
                raise RuntimeError("Response content longer than Content-Length")
            self._left_bytes -= len(body)
        self._write(body)
        if not more:
            if self._left_bytes:
                raise RuntimeError("Response content shorter than Content-Length")
            self.response_complete = True
            self.piped = self._leave = None
            self._tell_receive()
            self._carrier.answered(self)

    def _write(self, body: bytes) -> None:
        """Writes this behind the head, if that is not out yet."""
        if self._head:
            body, self._head = self._head + body, b""
        if body:
            self._transport.write(body)

    def _flush(self) -> None:
        if self._head and not self.disconnected:
            self._write(b"")

    async def _send_500(self) -> None:
        """Answers for an application that failed without an answer."""
        request_id = secrets.token_hex(16)
        error = InternalError("The server failed to answer this request. Its owner has the reason.")
        body = error.body(Dialect.OPENAI, request_id)
        headers = answers.fields(error, body, request_id)
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    # The connection

    def feed(self, data: bytes) -> None:
        """A piece of the body has come."""
        if not self.body:
            self.body = data
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += data
        self._tell_receive()

    def end_of_body(self) -> None:
        """The request has come whole."""
        self.more_body = False
        # RFC 9110 §10.1.1: no 100 where the body has come already.
        self.awaits_continue = False
        self._tell_receive()

    def fail(self, refusal: Refusal) -> None:
        """Makes ``receive`` raise from now on."""
        self.refusal = refusal
        self.keep_alive = False
        self._tell_receive()
        self._tell_leave(refusal)

    def disconnect(self) -> None:
        """Makes ``receive`` tell of a disconnect and ``send`` do nothing, from now on and at once."""
        self.behind = self.behind or self._flow.write_paused
        self.disconnected = True
        self._tell_receive()
        self._flow.resume_writing()
        piped, self.piped = self.piped, None
        if piped is not None and piped.paused:
            piped.resume()  # or it would wait for room that nobody makes any more
        self._tell_leave(None)

    def abort(self) -> None:
        """Breaks the answer off; nothing where it is complete or the client has left."""
        self._flush()
        self._carrier.break_off(self)

    def _tell_receive(self) -> None:
        self._news = True
        if self._event is not None:
            self._event.set()

    # What is pushed

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
            or not self._chunked
            or self._head_only
        ):
            return None
        self._flush()
        write = self._transport.write

        def sink(chunk: bytes) -> None:
            # Whoever pushes after the client has left, or after the end, pushes into nothing: by
            # then the connection may carry another answer.
            if self.piped is flow:
                write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

        if not self.disconnected:
            self.piped = flow
            if self._flow.write_paused:
                flow.pause()
        return sink

    def done(self) -> None:
        """Nothing more is pushed."""
        self.piped = None

    def _tell_leave(self, refusal: Refusal | None) -> None:
        leave, self._leave = self._leave, None
        if leave is not None and not self.response_complete:
            leave(refusal)
