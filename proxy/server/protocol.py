"""The HTTP protocol of the listeners: from bytes to an ASGI scope, or to a refusal.

Stage 0 of every request, and the only one that a stranger always reaches. It gives every message
one meaning or none, bounds what a connection may hold and for how long, and never stops reading
while an answer is pending, because a socket that is not read does not tell that its client left.

It builds on uvicorn's protocol over httptools and on internals of it, which
``tests/unit/test_uvicorn_internals.py`` asserts; uvicorn is pinned exactly.
"""

import asyncio
import secrets
import socket
import struct
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any, NoReturn
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from proxy.errors import InvalidHttp, Refusal, RequestTimeout
from proxy.pipe import CLIENT
from proxy.server import answers, head
from proxy.server.cycle import Cycle, Http10Cycle, crash_log
from proxy.server.limits import ProtocolLimits
from proxy.server.linger import Linger
from proxy.server.progress import WriteProgress

__all__ = ["ABORT", "BulwarkProtocol", "OnRefusal", "ProtocolLimits", "protocol"]

ABORT = "bulwark.abort"
"""The scope extension whose ``abort()`` breaks a response off: nobody can take it for complete."""

OnRefusal = Callable[[Refusal, str, str], None]
"""Called with every refusal said here, the client's address (``unknown`` where there is none) and the
request id that it was told."""

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_TLS_HANDSHAKE = b"\x16"


class _Phase(Enum):
    """What the next byte from the client belongs to."""

    HEAD = auto()  # a head; no answer is pending
    BODY = auto()  # the body of the request that is being answered
    BEHIND = auto()  # nothing that is wanted: the request is in, its answer is pending


class _Denied(Exception):  # noqa: N818 - never leaves the parser
    """Stops the parser. The reason is kept aside: httptools wraps what a callback raises."""


def protocol(limits: ProtocolLimits, on_refusal: OnRefusal) -> type[asyncio.Protocol]:
    """The protocol with its limits, in the form that ``uvicorn.Config(http=…)`` takes."""

    class Bound(BulwarkProtocol):
        def __init__(
            self,
            config: Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None:
            super().__init__(
                config, server_state, app_state, _loop, limits=limits, on_refusal=on_refusal
            )

    return Bound


class BulwarkProtocol(HttpToolsProtocol):
    """One connection."""

    cycle: Cycle
    _progress: WriteProgress  # from connection_made on, like the transport

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ProtocolLimits,
        on_refusal: OnRefusal,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._on_refusal = on_refusal
        self._crash_log = crash_log()
        self._phase = _Phase.HEAD
        self._denial: Refusal | None = None
        self._linger: Linger | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._meter = head.HeadMeter()
        self._field_count = 0
        self._body_bytes = 0
        self._framing_credit = 0
        self._behind_bytes = 0
        self._dropped = False

    # The connection begins and ends

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Starts the deadline of the first head."""
        super().connection_made(transport)
        self._progress = WriteProgress(
            self.loop, transport, self._limits.write_timeout_seconds, self._reset
        )
        self._notice_vanished_clients()
        self._arm_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells the application, whatever phase it is in."""
        self._disarm_head_timer()
        self._unset_keepalive_if_required()
        self._progress.stop()
        if self._linger is not None:
            self._linger.cancel()
        if self._phase is not _Phase.HEAD:
            self.cycle.disconnect()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Half a FIN is a hang-up; the transport then flushes and closes.

        The application must not wait for that: it may take for as long as the client reads.
        """
        if self._phase is not _Phase.HEAD:
            self.cycle.disconnect()

    def shutdown(self) -> None:
        """The server drains: an idle connection ends now, a busy one after its answer."""
        if self._linger is None:
            super().shutdown()

    def pause_writing(self) -> None:
        """The client does not keep up: watch whether it goes on at all."""
        super().pause_writing()
        self._progress.start()
        if self._phase is not _Phase.HEAD and self.cycle.piped is not None:
            self.cycle.piped.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        self._progress.stop()
        if self._phase is not _Phase.HEAD and self.cycle.piped is not None:
            self.cycle.piped.resume()

    # Bytes come in

    def data_received(self, data: bytes) -> None:
        """Hands the bytes to whatever they belong to."""
        if self._linger is not None:
            self._linger.swallow(data)
        elif self._phase is _Phase.HEAD:
            self._receive_head(data)
        elif self._phase is _Phase.BODY:
            self._receive_body(data)
        else:
            self._receive_behind(data)

    def _receive_head(self, data: bytes) -> None:
        if not self._meter.size:
            # RFC 9112 §2.2: empty lines before a request are skipped; old clients end a body so.
            data = data.lstrip(b"\r\n")
            if not data:
                return
            self._unset_keepalive_if_required()
            self._disarm_head_timer()
        self._meter.feed(data)
        self._parse(data)
        if self._phase is not _Phase.HEAD or self._linger is not None:
            return
        if self._meter.size > self._limits.max_head_bytes:
            self._refuse(head.head_too_large(self._limits))
        else:
            # Only now: the usual head comes in one packet and costs no timer.
            self._arm_head_timer()

    def _receive_body(self, data: bytes) -> None:
        before = self._body_bytes
        self._parse(data)
        if self._phase is not _Phase.BODY:
            return
        # Chunk extensions and trailers never reach the application's cap on bodies, and chunks of
        # one byte cost a callback each. So framing is paid for: some is free, and every byte of
        # body earns one of framing, which cannot be saved up beyond what is free.
        body_bytes = self._body_bytes - before
        framing_bytes = len(data) - body_bytes
        self._framing_credit = min(
            self._framing_credit + body_bytes - framing_bytes, self._limits.max_head_bytes
        )
        if self._framing_credit < 0:
            self._fail_body(
                InvalidHttp(
                    "The chunks of this body are too small, or have extensions or trailers that "
                    "are too long: more framing than body. Send larger chunks, or a "
                    "Content-Length."
                )
            )

    def _receive_behind(self, data: bytes) -> None:
        """Drops what comes while an answer is pending: pipelining is not served.

        It is not parsed either. The answer is finished, then the connection closes, and the client
        asks again on a new one.
        """
        self._behind_bytes += len(data)
        if self._behind_bytes > self._limits.pending_bytes:
            self._cut()
        elif data.strip(b"\r\n"):
            self._expect_nothing_more()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as exc:
            self._stopped(self._denial or _invalid(exc, data))

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Reads the request as if it had not asked for another protocol (RFC 9110 §7.8 lets us).

        The parser takes everything behind such a head for the other protocol. Java's HttpClient
        and ``curl --http2`` ask for h2c with every POST, and would lose its body.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.scope["method"].encode(), self.url, version)]
        lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join([*lines, b"", rest]))

    def _stopped(self, refusal: Refusal) -> None:
        """The parser will read nothing more on this connection."""
        if self._phase is _Phase.HEAD:
            self._refuse(refusal)
        elif self._phase is _Phase.BODY:
            self._fail_body(refusal)
        else:
            # What follows a whole request in the same packet. No error is written for it: the
            # next thing on this connection is the answer that is pending.
            self._expect_nothing_more()

    # The parser's callbacks, in the order in which it makes them

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._phase is not _Phase.HEAD:
            raise _Denied
        self._field_count = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        super().on_url(url)
        try:
            head.check_target(self.url, self._limits)
        except Refusal as refusal:
            self._deny(refusal)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or of the trailer section, which is counted and dropped."""
        self._field_count += 1
        if self._field_count > self._limits.max_head_fields:
            self._deny(head.too_many_fields(self._limits))
        # The scope's headers are this very list: a trailer in it could become a credential.
        if self._phase is not _Phase.HEAD:
            return
        name = name.lower()
        # llhttp leaves white space behind a value (RFC 9112 §5.1). Transfer-Encoding keeps it:
        # what we are asked to overlook there, someone else may not.
        if name != b"transfer-encoding":
            value = value.rstrip(b" \t")
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is in: judge it, and start the application."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if self._meter.size > self._limits.max_head_bytes:
            self._deny(head.head_too_large(self._limits))
        try:
            head.check_head(method, version, self.headers)
        except Refusal as refusal:
            self._deny(refusal)
        self.scope["method"] = method.decode("ascii")
        if self.parser.should_upgrade():
            return  # it comes again, without the Upgrade field
        self._disarm_head_timer()
        self._complete_scope(version)
        self._phase = _Phase.BODY
        self._body_bytes = self._behind_bytes = 0
        self._framing_credit = self._limits.max_head_bytes
        self.cycle = (Http10Cycle if version == "1.0" else Cycle)(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self._crash_log,
            default_headers=self.server_state.default_headers,
            # RFC 9110 §10.1.1: an expectation in HTTP/1.0 is ignored.
            expect_100_continue=self.expect_100_continue and version != "1.0",
            keep_alive=self.parser.should_keep_alive() and version != "1.0",
            on_response=self.on_response_complete,
            on_close=self._close_after,
        )
        extensions: dict[str, Any] = {
            ABORT: {"abort": partial(self._break_off, self.cycle)},
            CLIENT: self.cycle,
        }
        self.scope["extensions"] = extensions
        self._start_asgi_task(self.cycle, self.app)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is in: from here on nothing is wanted but to see the client leave."""
        if self._phase is _Phase.HEAD:
            return  # a request to upgrade, of which only the head was read so far
        super().on_message_complete()
        self._phase = _Phase.BEHIND
        # RFC 9110 §10.1.1: no 100 where the body has come already.
        self.cycle.waiting_for_100_continue = False
        # A large body pauses reading until the application takes it; nobody would resume it.
        self.flow.resume_reading()

    def _complete_scope(self, version: str) -> None:
        raw_path, _, query = self.url.partition(b"?")
        self.scope["http_version"] = version
        self.scope["raw_path"] = raw_path
        self.scope["path"] = unquote(raw_path.decode("ascii"))
        self.scope["query_string"] = query

    def _deny(self, refusal: Refusal) -> NoReturn:
        self._denial = refusal
        raise _Denied

    # Answers end

    def on_response_complete(self) -> None:
        """The answer is out: the next byte begins another request, or there is none."""
        if self._linger is not None:
            self.server_state.total_requests += 1
            return
        super().on_response_complete()
        self._phase = _Phase.HEAD
        self._meter = head.HeadMeter()

    def _close_after(self, cycle: Cycle) -> None:
        """The cycle wants the connection closed: after its answer, or because it cannot answer."""
        if cycle is not self.cycle or self._linger is not None:
            return  # an application that failed after its answer; the connection has moved on
        if not cycle.response_complete:
            self._break_off(cycle)
        elif cycle.more_body or self._dropped:
            self._begin_linger()
        else:
            self.transport.close()

    def _break_off(self, cycle: Cycle) -> None:
        """Ends a response so that no client can take it for complete; nothing where it is."""
        if cycle.response_complete or cycle.disconnected:
            return
        cycle.disconnect()
        if cycle.close_delimited:
            # Its only end is the connection's, and a FIN would be a good one.
            self._reset()
        else:
            # What was sent shall arrive. A chunk or a length that is missing tells the rest.
            self.transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        """Says an error where no answer is pending, and ends the connection."""
        self._disarm_head_timer()
        request_id = secrets.token_hex(16)
        client = self.client[0] if self.client is not None else "unknown"
        self._on_refusal(refusal, client, request_id)
        self.transport.write(answers.render(refusal, request_id, self.server_state.default_headers))
        self._begin_linger()

    def _fail_body(self, refusal: Refusal) -> None:
        """Leaves it to the application to say that the body cannot be read."""
        self.cycle.fail(refusal)
        self._expect_nothing_more()
        # The one pause while an answer is pending: it is pending for a moment only, and what the
        # client still pushes must not run into the limit before it is out.
        self.flow.pause_reading()

    def _expect_nothing_more(self) -> None:
        self._phase = _Phase.BEHIND
        self._dropped = True
        self.cycle.keep_alive = False

    def _begin_linger(self) -> None:
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self._linger = Linger(
            self.loop, self.transport, self._limits.linger_seconds, self._limits.linger_bytes
        )

    def _cut(self) -> None:
        """Ends the connection without regard for what is still to be written."""
        if self._phase is not _Phase.HEAD:
            self.cycle.disconnect()
        self.transport.abort()

    def _reset(self) -> None:
        """The same, and with a reset, so that nobody takes the end for an orderly one."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._cut()

    # Deadlines

    def _arm_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.head_seconds, self._head_late)

    def _disarm_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self._meter.size and not self.transport.is_closing():
            self._refuse(
                RequestTimeout(
                    "The head of this request did not arrive within "
                    f"{self._limits.head_seconds:g} seconds."
                )
            )
        else:
            # Nothing was asked, so nothing is refused: an answer out of the blue would be taken
            # for the one to a request that is on its way.
            self.transport.close()

    def _notice_vanished_clients(self) -> None:
        """Lets the kernel end a connection whose other side neither reads nor says that it left."""
        sock = self.transport.get_extra_info("socket")
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return
        # Linux ends a connection by this time-out also where the client's kernel answers but its
        # window stays shut (tcp_write_timer; measured: 30.3 s with 30 s). A client that only
        # reads slowly has the write time-out, so this must not be shorter.
        seconds = max(self._limits.user_timeout_seconds, self._limits.write_timeout_seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
        # It only counts while something is unacknowledged. A client that vanishes while it waits
        # for its answer is found by probes.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _invalid(exc: httptools.HttpParserError, data: bytes) -> InvalidHttp:
    """What the parser found. Its reasons are constants of its own and quote no request."""
    if data.startswith(_TLS_HANDSHAKE):
        return InvalidHttp("This port speaks HTTP without TLS; the client began with TLS.")
    return InvalidHttp(f"This is not valid HTTP/1.1: {exc}.")
