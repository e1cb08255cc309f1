"""The HTTP protocol of the listeners: from bytes to an ASGI scope, or to a refusal.

Stage 0 of every request, and the only one that a stranger always reaches. It gives every message
one meaning or none, bounds what a connection may hold and for how long, and never stops reading
while an answer is pending, because a socket that is not read does not tell that its client left.

It builds on uvicorn's protocol over httptools and on internals of it, which
``tests/unit/test_uvicorn_internals.py`` asserts; uvicorn is pinned exactly.
"""

import asyncio
from typing import Any, NoReturn
from urllib.parse import unquote

import httptools
from uvicorn._types import HTTPScope
from uvicorn.config import Config
from uvicorn.server import ServerState

from proxy.errors import InvalidHttp, RawHeaders, Refusal, TargetTooLong
from proxy.extensions import ABORT, KNOWN
from proxy.pipe import CLIENT
from proxy.server import head
from proxy.server.connection import Connection, OnRefusal, Phase, RefusalFields
from proxy.server.connections import ConnectionLimits, Connections
from proxy.server.cycle import Cycle
from proxy.server.framing import FramingCredit, too_much_framing
from proxy.server.limits import ProtocolLimits

__all__ = ["BulwarkProtocol", "OnRefusal", "ProtocolLimits", "protocol"]

# The most of a request's body that waits for the application before reading stops.
_BODY_BYTES = 64 * 1024
_TLS_HANDSHAKE = b"\x16"


class _Denied(Exception):  # noqa: N818 - never leaves the parser
    """Stops the parser. The reason is kept aside: httptools wraps what a callback raises."""


def _none(_: RawHeaders) -> RawHeaders:
    return ()


def protocol(
    limits: ProtocolLimits,
    on_refusal: OnRefusal,
    connections: Connections | None = None,
    *,
    refusal_fields: RefusalFields = _none,
) -> type[asyncio.Protocol]:
    """The protocol with its limits, in the form that ``uvicorn.Config(http=…)`` takes.

    Args:
        limits: Of each connection.
        on_refusal: Hears of what is refused.
        connections: How many there may be; each listener has its own.
        refusal_fields: What a refusal said here carries besides, as the application's own do.
    """
    places = connections if connections is not None else Connections(ConnectionLimits())

    class Bound(BulwarkProtocol):
        def __init__(
            self,
            config: Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None:
            super().__init__(
                config,
                server_state,
                app_state,
                _loop,
                limits=limits,
                on_refusal=on_refusal,
                connections=places,
                refusal_fields=refusal_fields,
            )

    return Bound


class BulwarkProtocol(Connection):
    """What the bytes of one connection mean."""

    _is_http = True
    _framing: FramingCredit | None = None  # of a body that comes in chunks
    _body_bytes = 0
    _behind_bytes = 0
    _blank_bytes = 0

    # Bytes come in

    def data_received(self, data: bytes) -> None:
        """Hands the bytes to whatever they belong to."""
        if self._linger is not None:
            self._linger.swallow(data)
        elif self._phase is Phase.HEAD:
            self._receive_head(data)
        elif self._phase is Phase.BODY:
            self._receive_body(data)
        else:
            self._receive_behind(data)

    def _receive_head(self, data: bytes) -> None:
        if self._meter.size:
            end = self._meter.feed(data)
        else:
            # RFC 9112 §2.2: empty lines before a request are skipped; old clients end a body so.
            blank, data = data, data.lstrip(b"\r\n")
            if not data:
                self._receive_blank(blank)
                return
            self._disarm_head_timer()
            end = head.end_of(data)
            if 0 < end <= self._limits.max_head_bytes:
                # The usual head comes whole in one packet, and need not be measured.
                self._is_http = head.is_http(data)
            else:
                end = self._meter.feed(data)
        if not end:
            self._parse(data)
            if self._phase is Phase.HEAD and self._linger is None:
                self._await_head()
            return
        # Not with what is behind it: that means the same wherever the packets were cut.
        self._parse(data[:end])
        if end < len(data):
            self._receive_rest(data[end:])

    def _receive_rest(self, data: bytes) -> None:
        """What is in one packet with what came before it in a message."""
        if self._linger is not None:
            self._linger.swallow(data)
        elif self._phase is Phase.BODY:
            self._receive_body(data)
        else:
            self._receive_behind(data)

    def _await_head(self) -> None:
        """A part of the head has come: that must be bounded, too."""
        if self._meter.size > self._limits.max_head_bytes:
            self._refuse(self._denial or head.head_too_large(self._limits))
        else:
            # Only now: the usual head costs no timer.
            self._arm_head_timer()

    def _receive_blank(self, data: bytes) -> None:
        # Nothing is asked, so that nothing else bounds them: twenty connections full of empty lines
        # kept everybody else waiting for seconds.
        self._blank_bytes += len(data)
        if self._blank_bytes > self._limits.pending_bytes:
            self._cut()

    def _receive_body(self, data: bytes) -> None:
        framing, at = self._framing, 0
        if framing is None:
            self._parse(data)
            return
        while at < len(data) and self._phase is Phase.BODY:
            piece = data[at : at + framing.room_bytes]
            at += len(piece)
            before = self._body_bytes
            self._parse(piece)
            in_body = self._phase is Phase.BODY
            if in_body and not framing.spend(len(piece), self._body_bytes - before):
                self._fail_body(too_much_framing())
        if at < len(data) and not self._dropped:
            self._receive_rest(data[at:])

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
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % field for field in self.headers if field[0].lower() != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join([*lines, b"", rest]))

    def _stopped(self, refusal: Refusal) -> None:
        """The parser will read nothing more on this connection."""
        if self._linger is not None:
            return
        if self._phase is Phase.HEAD:
            self._refuse(refusal)
        elif self._phase is Phase.BODY:
            self._fail_body(refusal)
        else:
            # What follows a whole request in the same packet. No error is written for it: the
            # next thing on this connection is the answer that is pending.
            self._expect_nothing_more()

    # The parser's callbacks, in the order in which it makes them

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._phase is not Phase.HEAD:
            raise _Denied
        self.url = b""
        self.headers = []

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self.url += url
        try:
            head.check_target(self.url, self._limits)
        except TargetTooLong as refusal:
            # Said once the head is in, which is bounded too: by its Origin, a page may read it.
            self._denial = refusal
        except Refusal as refusal:
            self._deny(refusal)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or of the trailer section, which is counted and dropped."""
        headers = self.headers
        headers.append((name, value))
        if len(headers) > self._limits.max_head_fields:
            self._deny(head.too_many_fields(self._limits))

    def on_headers_complete(self) -> None:
        """The head is in: judge it, and start the application."""
        if self.transport.get_write_buffer_size():
            self._drop_head()
        if self._denial is not None:
            raise _Denied
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if self._meter.size > self._limits.max_head_bytes:
            self._deny(head.head_too_large(self._limits))
        try:
            # A list of its own: a trailer in it could become a credential.
            fields, chunked, awaits_continue = head.read(method, version, self.headers)
        except Refusal as refusal:
            self._deny(refusal)
        if not (self._is_http and self._meter.is_http):
            self._deny(head.other_protocol())
        if self.parser.should_upgrade():
            return  # it comes again, without the Upgrade field
        self._disarm_head_timer()
        self._phase = Phase.BODY
        self._places.answers(self)
        self._body_bytes = self._behind_bytes = self._blank_bytes = 0
        self._framing = FramingCredit(self._limits.max_head_bytes) if chunked else None
        http_1_0 = version == "1.0"
        self.cycle = cycle = Cycle(
            self,
            self._crash_log,
            self.server_state.default_headers,
            method=method,
            http_1_0=http_1_0,
            keep_alive=not http_1_0 and self.parser.should_keep_alive(),
            awaits_continue=awaits_continue,
        )
        scope = self._scope(method, version, fields)
        scope["extensions"] = {ABORT: {"abort": cycle.abort}, CLIENT: cycle, KNOWN: self.known}  # type: ignore[dict-item]
        task = self.loop.create_task(cycle.run(self.app, scope))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.feed(body)
            if len(cycle.body) > _BODY_BYTES:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """The request is in: from here on nothing is wanted but to see the client leave."""
        if self._phase is Phase.HEAD:
            return  # a request to upgrade, of which only the head was read so far
        self._phase = Phase.BEHIND
        if not self.cycle.response_complete:
            self.cycle.end_of_body()
        # A large body pauses reading until the application takes it; nobody would resume it.
        self.flow.resume_reading()

    def _scope(self, method: bytes, version: str, fields: list[tuple[bytes, bytes]]) -> HTTPScope:
        raw_path, _, query = self.url.partition(b"?")
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "root_path": self.root_path,
            "headers": fields,
            "state": self.app_state.copy(),
            "method": method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
        }

    def _deny(self, refusal: Refusal) -> NoReturn:
        self._denial = self._denial or refusal
        raise _Denied

    def _drop_head(self) -> NoReturn:
        """Ends a connection whose client asks again and has not read its last answer.

        It cannot have: a part of it is still here. So this is pipelining, if a slow one. To answer
        it would take a place that nobody can be made to give back, for as long as nobody reads.
        """
        self._disarm_head_timer()
        self._dropped = True
        self._begin_linger()
        raise _Denied

    def _fail_body(self, refusal: Refusal) -> None:
        """Leaves it to the application to say that the body cannot be read."""
        self.cycle.fail(refusal)
        self._expect_nothing_more()
        # The one pause while an answer is pending: it is pending for a moment only, and what the
        # client still pushes must not run into the limit before it is out.
        self.flow.pause_reading()

    def _expect_nothing_more(self) -> None:
        self._phase = Phase.BEHIND
        self._dropped = True
        self.cycle.keep_alive = False


def _invalid(exc: httptools.HttpParserError, data: bytes) -> InvalidHttp:
    """What the parser found. Its reasons are constants of its own and quote no request."""
    if data.startswith(_TLS_HANDSHAKE):
        return InvalidHttp("This port speaks HTTP without TLS; the client began with TLS.")
    return InvalidHttp(f"This is not valid HTTP/1.1: {exc}.")
