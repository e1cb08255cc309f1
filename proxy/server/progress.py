"""A client that takes nothing of what waits for it is a client that left without saying so."""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable

# How often to look, as a fraction of the time-out: an end is noticed that much late at most.
_LOOKS = 6


class WriteProgress:
    """Calls ``on_stall`` when what waits for the client has not become less for the time-out.

    Runs from ``start`` to ``stop``, that is while the transport is paused. What counts is what the
    client's kernel has not acknowledged: ours takes more only when a third of its own buffer is
    free, so that to judge by the transport's buffer alone would cut off who reads slowly.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.WriteTransport,
        timeout_seconds: float,
        on_stall: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._timeout_seconds = timeout_seconds
        self._on_stall = on_stall
        self._timer: asyncio.TimerHandle | None = None
        self._least = 0
        self._since = 0.0

    def start(self) -> None:
        """Begins to watch."""
        self.stop()
        self._least = outstanding_bytes(self._transport)
        self._since = self._loop.time()
        self._look_later()

    def stop(self) -> None:
        """Ends the watch; a second time does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._timeout_seconds / _LOOKS, self._look)

    def _look(self) -> None:
        outstanding, now = outstanding_bytes(self._transport), self._loop.time()
        if outstanding < self._least:
            self._least, self._since = outstanding, now
        elif now - self._since >= self._timeout_seconds:
            self._timer = None
            self._on_stall()
            return
        self._look_later()


def outstanding_bytes(transport: asyncio.WriteTransport) -> int:
    """What was written and not acknowledged: in the transport's buffer and in the kernel's."""
    # Linux' SIOCOUTQ (tcp(7)) has the number of the terminal call of the same meaning.
    answer = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    unacknowledged: int = struct.unpack("i", answer)[0]
    return transport.get_write_buffer_size() + unacknowledged
