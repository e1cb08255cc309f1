"""One connection: its place, its deadlines, and its ends.

What its bytes mean is the business of ``proxy.server.protocol``, which builds on this.
"""

import asyncio
import secrets
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from proxy.errors import RawHeaders, Refusal, RequestTimeout
from proxy.server import answers
from proxy.server.connections import Connections
from proxy.server.crash import crash_log
from proxy.server.cycle import Cycle
from proxy.server.head import HeadMeter
from proxy.server.limits import ProtocolLimits
from proxy.server.linger import Linger
from proxy.server.progress import WriteProgress
from proxy.server.unread import TURNS_TO_READ, has_unread
from proxy.server.vanished import notice_vanished_client, reset

RefusalFields = Callable[[RawHeaders], RawHeaders]
"""Says what a refusal carries besides, by the fields of the request that have come (names in any case)."""

OnRefusal = Callable[[Refusal, str, str], None]
"""Called with every refusal said here, the client's address (``unknown`` where there is none) and the
request id that it was told."""

# Timers run by milliseconds.
_SOON_SECONDS = 0.002


class Phase(Enum):
    """What the next byte from the client belongs to."""

    HEAD = auto()  # a head; no answer is pending
    BODY = auto()  # the body of the request that is being answered
    BEHIND = auto()  # nothing that is wanted: the request is in, its answer is pending


class Connection(HttpToolsProtocol):
    """The part of the protocol that begins and ends connections; a ``cycle.Carrier``."""

    cycle: Cycle  # type: ignore[assignment] # ours, in place of uvicorn's
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
        connections: Connections,
        refusal_fields: RefusalFields,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # Of the request that has begun; uvicorn has neither before the first.
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._limits = limits
        self._on_refusal = on_refusal
        self._refusal_fields = refusal_fields
        self._places = connections
        self._crash_log = crash_log()
        self._phase = Phase.HEAD
        self._linger: Linger | None = None
        self._head_timer: asyncio.Handle | None = None
        self._keep_alive_due = 0.0
        self._meter = HeadMeter()
        self._dropped = False  # something that the client has sent
        self._denial: Refusal | None = None  # what is said as soon as the head is in, or late

    # It begins and ends

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Starts the deadline of the first head, or says that there is no place."""
        super().connection_made(transport)
        self._progress = WriteProgress(
            self.loop, transport, self._limits.write_timeout_seconds, self._reset
        )
        notice_vanished_client(transport, self._limits)
        refusal = self._places.opened(self, self._peer())
        if refusal is None:
            self._arm_head_timer()
        else:
            self._turn_away(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells the application, whatever phase it is in."""
        self._places.closed(self)
        self._disarm_head_timer()
        self._unset_keepalive_if_required()
        self._progress.stop()
        if self._linger is not None:
            self._linger.cancel()
        if self._phase is not Phase.HEAD:
            self.cycle.disconnect()
        # uvicorn's would look for what its own cycle has.
        self.cycle = cast("Cycle", None)
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Half a FIN is a hang-up; the transport then flushes and closes.

        The application must not wait for that: it may take for as long as the client reads.
        """
        if self._phase is not Phase.HEAD:
            self.cycle.disconnect()

    def shutdown(self) -> None:
        """The server drains: an idle connection ends now, a busy one after its answer."""
        if self._linger is None:
            super().shutdown()

    def is_taking(self) -> bool:
        """Whether a part of what was said is still here."""
        return bool(self.transport.get_write_buffer_size())

    def known(self) -> None:
        """The client has shown a valid key."""
        self._places.known(self)

    def give_way(self) -> None:
        """Its place is needed for another: it has waited for its client for the longest."""
        if self.is_taking():
            # All that are idle are taking their last answer, and this one has taken the longest.
            self.transport.abort()
        elif self._meter.size and self._linger is None:
            self._turn_away(
                self._denial
                or RequestTimeout(
                    "The head of this request did not arrive in time, and the connection is "
                    "needed for another."
                )
            )
        else:
            # Nothing was asked, so nothing is refused; or all is said.
            self.transport.close()

    def _turn_away(self, refusal: Refusal) -> None:
        """Says why there is no place, as far as there is room even for that."""
        if self._places.may_be_told(self, self._peer()):
            self._refuse(refusal)
        else:
            self._disarm_head_timer()
            self.transport.abort()

    def _peer(self) -> str | None:
        return self.client[0] if self.client is not None else None

    # The client keeps up, or does not

    def pause_writing(self) -> None:
        """The client does not keep up: watch whether it goes on at all."""
        super().pause_writing()
        self._progress.start()
        if self._phase is not Phase.HEAD and self.cycle.piped is not None:
            self.cycle.piped.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        self._progress.stop()
        if self._phase is not Phase.HEAD and self.cycle.piped is not None:
            self.cycle.piped.resume()

    # Answers end

    def answered(self, cycle: Cycle) -> None:
        """The answer is out: the next byte begins another request, or there is none."""
        self.server_state.total_requests += 1
        if not cycle.keep_alive:
            self.give_up(cycle)
        if self._linger is not None:
            return
        self._phase = Phase.HEAD
        # A thousand strangers that wait would hold for minutes what each has sent: a head, and a body
        # that nobody has read.
        self.url, self.headers, cycle.body = b"", [], b""
        if self._meter.size:
            self._meter = HeadMeter()
        # One that closes keeps its place until its client has read the rest.
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._arm_keep_alive()
            self._places.rests(self)

    def give_up(self, cycle: Cycle) -> None:
        """The cycle wants the connection closed: after its answer, or because it cannot answer."""
        if cycle is not self.cycle or self._linger is not None:
            return  # an application that failed after its answer; the connection has moved on
        if not cycle.response_complete:
            self.break_off(cycle)
        elif cycle.more_body or self._dropped:
            self._begin_linger()
        else:
            self.transport.close()

    def break_off(self, cycle: Cycle) -> None:
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
        more = [*self.server_state.default_headers, *self._refusal_fields(self.headers)]
        self.transport.write(
            answers.render(refusal, request_id, more, head_only=self._is_head_only())
        )
        refusal.__traceback__ = None  # its frames have what was refused, and would keep it
        self._begin_linger()

    def _is_head_only(self) -> bool:
        # The parser keeps the method of the last request until it has read another; the target is
        # begun anew with each.
        return bool(self.url) and self.parser.get_method() == b"HEAD"

    def _begin_linger(self) -> None:
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self._linger = Linger(
            self.loop, self.transport, self._limits.linger_seconds, self._limits.linger_bytes
        )
        self._forget_request()
        self._places.rests(self)

    def _forget_request(self) -> None:
        """Drops what has come of it, up to 256 KiB, which nobody reads any more.

        It would stay for as long as the client takes to read why: a thousand of them, in a flood.
        """
        self.url, self.headers, self._denial = b"", [], None
        self.parser = cast("httptools.HttpRequestParser", None)
        if self._phase is not Phase.HEAD:
            self.cycle.body = b""

    def _cut(self) -> None:
        """Ends the connection without regard for what is still to be written."""
        if self._phase is not Phase.HEAD:
            self.cycle.disconnect()
        self.transport.abort()

    def _reset(self) -> None:
        """The same, and with a reset."""
        if self._phase is not Phase.HEAD:
            self.cycle.disconnect()
        reset(self.transport)

    # Deadlines

    def _arm_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.head_seconds, self._head_late)

    def _disarm_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self, turns: int = TURNS_TO_READ) -> None:
        self._head_timer = None
        if turns and has_unread(self.transport):
            self._head_timer = self.loop.call_soon(self._head_late, turns - 1)
        elif self._meter.size and not self.transport.is_closing():
            self._refuse(
                self._denial
                or RequestTimeout(
                    "The head of this request did not arrive within "
                    f"{self._limits.head_seconds:g} seconds."
                )
            )
        else:
            # Nothing was asked, so nothing is refused: an answer out of the blue would be taken
            # for the one to a request that is on its way.
            self.transport.close()

    def _arm_keep_alive(self) -> None:
        # The timer is not moved with each answer: it looks when it fires.
        self._keep_alive_due = self.loop.time() + self.timeout_keep_alive
        if self.timeout_keep_alive_task is None:
            self._look_at_keep_alive_in(self.timeout_keep_alive)

    def _look_at_keep_alive_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._keep_alive_late)

    def _keep_alive_late(self, turns: int = TURNS_TO_READ) -> None:
        self.timeout_keep_alive_task = None
        if self._phase is not Phase.HEAD or self._meter.size:
            return  # a request has begun; its answer arms it again
        left_seconds = self._keep_alive_due - self.loop.time()
        if left_seconds > _SOON_SECONDS:
            self._look_at_keep_alive_in(left_seconds)
        elif turns and has_unread(self.transport):
            self.timeout_keep_alive_task = cast(
                "asyncio.TimerHandle", self.loop.call_soon(self._keep_alive_late, turns - 1)
            )
        else:
            self.transport.close()
