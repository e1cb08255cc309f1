"""One socket to the upstream: what is said on it, and to which request that belongs.

Everything happens within the loop's callbacks. What is read is parsed, and its body handed on,
before the callback returns; what comes when nobody has asked ends the connection.
"""

import asyncio
import select
import ssl
from math import inf
from typing import Protocol, cast

import httpx

from proxy.upstream.transport import endings
from proxy.upstream.transport.exchange import Exchange
from proxy.upstream.wire import ResponseReader, WireError

READ_BYTES = 32 * 1024
"""How much one call may read. uvloop would read 256,000 bytes into objects of their own, which costs no
less (measured: the same within 5 %); with what may wait (see ``body``) this bounds what a client that
does not read makes us hold."""


class Home(Protocol):
    """Who keeps the connections: ``pool.Pool``."""

    def opened(self, connection: "Connection") -> None:
        """It has a socket from now on."""

    def rest(self, connection: "Connection", now: float) -> None:
        """It can be used again."""

    def lost(self, connection: "Connection") -> None:
        """It is closed, or about to be."""

    def gone(self, connection: "Connection") -> None:
        """Its socket is closed."""


class Connection(asyncio.BufferedProtocol):
    """A protocol to the loop; to an exchange, what it writes to and may pause.

    Args:
        home: Who keeps it.
        loop: That of its socket.
        scratch: What is read into; filled and emptied within one callback.

    Attributes:
        reader: Takes the answers apart, one after the other.
        transport: The loop's side.
        used: How many requests it was used for.
        closed: Whether it is not open, yet or any more.
        cause: What the loop said about its end, if it said anything.
        read_paused: Whether we do not read, so that the other side cannot be heard.
        write_blocked: Whether the other side does not read fast enough.
    """

    __slots__ = (
        "_due",
        "_exchange",
        "_home",
        "_loop",
        "_poll",
        "_scratch",
        "_time",
        "_timer",
        "_tls",
        "cause",
        "closed",
        "read_paused",
        "reader",
        "transport",
        "used",
        "write_blocked",
    )

    def __init__(self, home: Home, loop: asyncio.AbstractEventLoop, scratch: memoryview) -> None:
        self._home = home
        self._loop = loop
        self._time = loop.time
        # Stays from one exchange to the next, of which most are over long before it fires.
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        self._scratch = scratch
        self._exchange: Exchange | None = None
        self._poll = select.poll()
        self._tls: ssl.SSLObject | None = None
        self.reader = ResponseReader()
        self.transport: asyncio.Transport
        self.used = 0
        self.closed = True
        self.cause: Exception | None = None
        self.read_paused = self.write_blocked = False

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self.closed = False
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._home.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's interface
        """Where to read into."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """So much was read."""
        exchange = self._exchange
        if exchange is None:
            # Nobody has asked. It must not be taken for the next request's answer.
            self.abort()
            return
        exchange.heard_at = self._time()
        reader = self.reader
        try:
            reader.feed(self._scratch[:nbytes])
        except WireError as exc:
            exchange.fail(endings.not_valid(exc))
            return
        except BaseException as exc:  # noqa: BLE001 - what a sink raises is its pipe's to raise
            exchange.fail(exc)
            return
        if reader.complete or not exchange.is_pushed:
            exchange.heard(self)

    def eof_received(self) -> None:
        """The other side says no more; then neither do we (the loop closes the socket)."""
        if self._exchange is not None:
            self._end(None)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self.closed = True
        self.cause = self.cause or exc
        if self._exchange is not None:
            # Over TLS, uvloop calls this and nothing else where only the connection has ended.
            self._end(endings.broken(exc, writing=not self._exchange.sent) if exc else None)
        self._watch_no_more()
        self._home.gone(self)

    def pause_writing(self) -> None:
        """The other side does not keep up."""
        self.write_blocked = True
        if self._exchange is not None:
            self._exchange.blocked(self, self._time())

    def resume_writing(self) -> None:
        """It has caught up."""
        self.write_blocked = False
        if self._exchange is not None:
            self._exchange.unblocked()

    def _end(self, error: httpx.TransportError | None) -> None:
        """Nothing more comes in: because of the error, or because that was all."""
        if error is not None and self._tls is None and not self.reader.heard:
            self._read_socket()
        is_whole = error is None if self._tls is None else self._read_rest(self._tls)
        exchange = self._exchange
        if exchange is None:
            return  # what was left has completed the answer, or was none
        if not is_whole:
            is_all_read = error is None or self._tls is None
            exchange.broken(self, error or endings.cut(), is_all_read=is_all_read)
            return
        try:
            self.reader.feed_eof()
        except WireError as exc:
            exchange.broken(self, endings.not_valid(exc), is_all_read=True)
        else:
            exchange.heard(self)

    def _read_rest(self, tls: ssl.SSLObject) -> bool:
        """Takes what the loop leaves behind, bounded by what it holds encrypted.

        Returns:
            Whether the other side has said that this is all. Anybody can end a TCP connection, and one
            of the loops does not tell the two apart.
        """
        while self._exchange is not None:
            size = endings.left_in(tls, self._scratch)
            if not size:
                return size is not None
            self.buffer_updated(size)
        return True

    def _read_socket(self) -> None:
        """Takes what had come when a write found that the other side has closed, and reads no more.

        The loop closes the socket when it has told us, so that it is still ours here; the one under TLS
        is closed by then.
        """
        while self._exchange is not None:
            size = endings.left_at(self.transport, self._scratch)
            if not size:
                return
            self.buffer_updated(size)

    def _look(self) -> None:
        self._timer, self._due = None, inf
        if self._exchange is not None:
            self._exchange.look(self, self._time())

    def _watch_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._due = None, inf

    # What an exchange calls

    def begin(self, exchange: Exchange) -> None:
        """From now on what is heard is this exchange's."""
        self.used += 1
        self._exchange = exchange

    def has_unread(self) -> bool:
        """Whether something has come that the loop has not read."""
        return not self.closed and bool(self._poll.poll(0))

    def watch(self, due: float) -> None:
        """Has the exchange look at the time then, or earlier."""
        if due < self._due and not self.closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._due = self._loop.call_at(due, self._look), due

    def release(self) -> None:
        """The answer is complete: the next request may have the connection, if it is in order."""
        exchange, self._exchange = self._exchange, None
        is_sent = exchange is not None and exchange.sent
        if self.closed:
            return
        if is_sent and self.reader.reusable and not self.transport.get_write_buffer_size():
            if self.read_paused:
                self.resume()
            self._home.rest(self, self._time())
        else:
            self.abort()

    def abort(self) -> None:
        """Closes at once, whatever is still on the way. A second time does nothing."""
        exchange, self._exchange = self._exchange, None
        if not self.closed:
            self.closed = True
            self._watch_no_more()
            self._home.lost(self)
            self.transport.abort()
        if exchange is not None:
            exchange.fail(httpx.ReadError("the connection was closed"))

    def pause(self) -> None:
        """Reads no more until ``resume``."""
        if not (self.read_paused or self.closed):
            self.read_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Reads again."""
        if self.read_paused and not self.closed:
            self.read_paused = False
            self.transport.resume_reading()
            if self._exchange is not None:
                self._exchange.resumed(self, self._time())

    # What the pool and who connects call

    def is_quiet(self) -> bool:
        """Whether the other side has said nothing, as far as the system and TLS know.

        If not, this cannot be used: some of what was said may be lost.
        """
        if self.closed or self._poll.poll(0):
            return False
        return self._tls is None or endings.is_drained(self._tls)

    def encrypted(self, transport: asyncio.Transport) -> None:
        """This is the transport from now on; the one that it had is under it."""
        self.transport = transport
        self._tls = transport.get_extra_info("ssl_object")
