"""The end of a connection whose request was not read to its end.

To close a socket with unread bytes in it sends a reset, and a reset can destroy the answer that
the client has not read yet: it then sees a network error, and tries again, where a 413 was said.
So the answer is followed by a FIN, a little more is swallowed, and the rest of the second the
client may spend reading.
"""

import asyncio


class Linger:
    """Half-closes the transport at once, and closes it when the client does or time is up."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        seconds: float,
        max_bytes: int,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = seconds
        self._left_bytes = max_bytes
        # After the buffer is flushed. The FIN goes first: a client that is still sending when the
        # reset comes then gets EPIPE, after which HTTP libraries read the answer, and not
        # ECONNRESET, after which they do not.
        transport.write_eof()
        self._timer = loop.call_later(seconds, self._expire)

    def swallow(self, data: bytes) -> None:
        """Drops what the client still sends."""
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            # Nothing is closed yet: a reset now would come before the client has read. The
            # kernel's buffers fill, which costs nobody anything but the client.
            self._transport.pause_reading()

    def cancel(self) -> None:
        """The connection is gone already."""
        self._timer.cancel()

    def _expire(self) -> None:
        # The second counts from when the answer is out. A client that does not take it is ended
        # by the write time-out.
        if self._transport.get_write_buffer_size():
            self._timer = self._loop.call_later(self._seconds, self._expire)
        else:
            self._transport.abort()
