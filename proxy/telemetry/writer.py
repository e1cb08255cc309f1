"""Writes lines without ever making the event loop wait for whoever reads them.

A pipe whose reader sleeps, a terminal that is stopped, a disk that is full: a plain ``write`` would
hold every request of the process until it is taken. Here lines wait in a bounded buffer; what does
not fit is lost, counted, and said where it is missing. No thread; how a stream is written to without
waiting is ``proxy.telemetry.outlet``'s business.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

from proxy.telemetry.outlet import PIECE_BYTES, Outlet

MAX_BYTES = 1024 * 1024
"""What may wait: 1,500 lines, a second or two of a busy server."""

RETRY_SECONDS = 0.02
CLOSE_SECONDS = 1.0


class LineWriter:
    """Writes lines to a stream, in order and whole. Of one thread.

    On a running loop all lines of one turn go out together, after it. Without one, before the server
    runs and when it has ended, each is written at once.

    Args:
        stream: Where to. One without a file descriptor is written directly: it is memory.
        lost: Makes the line that stands in place of so many.
        on_lost: Called with how many lines are lost, whenever some are.
        max_bytes: How much may wait.
        clock: Monotonic seconds, for the end.
    """

    def __init__(
        self,
        stream: BinaryIO,
        *,
        lost: Callable[[int], bytes],
        on_lost: Callable[[int], None] = lambda _: None,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._lost_line = lost
        self._on_lost = on_lost
        self._max_bytes = max_bytes
        self._clock = clock
        # A line that was begun is there without its beginning, and first.
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outlet: Outlet | None = None
        descriptor = _descriptor_of(stream)
        if descriptor is not None:
            stream.flush()  # what others have written before comes before
            self._outlet = Outlet(descriptor)

    def write(self, line: bytes) -> None:
        """Takes a line, with its end. Does not wait, and raises nothing where it cannot be written."""
        if self._outlet is None:
            self._stream.write(line)
            self._stream.flush()
            return
        if self._lost or self._bytes + len(line) > self._max_bytes:
            self._lose(1)
        else:
            self._waiting.append(line)
            self._bytes += len(line)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush(CLOSE_SECONDS)
            return
        # The loop itself, not a flag: one that has ended will not call what it was asked to.
        if self._loop is not loop:
            self._loop = loop
            loop.call_soon(self._turn)

    def flush(self, seconds: float) -> bool:
        """Writes what waits, for so long at most, and holds the loop meanwhile; whether all went."""
        if self._outlet is None:
            return True
        until = self._clock() + seconds
        while not self._push():
            left = until - self._clock()
            if left <= 0:
                return False
            # Also where it is writable and yet does not take anything, as a full disk.
            time.sleep(min(RETRY_SECONDS, left))
        return True

    def close(self) -> None:
        """Writes what waits, within a second; what cannot be written by then is lost."""
        if not self.flush(CLOSE_SECONDS):
            self._on_lost(sum(piece.count(b"\n") for piece in self._waiting))
            self._waiting.clear()
            self._bytes = 0
        if self._outlet is not None:
            self._outlet.close()

    def _turn(self) -> None:
        """Called by the loop, at the end of a turn in which lines came, or once more after a while."""
        loop, self._loop = self._loop, None
        if not self._push() and loop is not None:
            self._loop = loop
            loop.call_later(RETRY_SECONDS, self._turn)

    def _lose(self, lines: int) -> None:
        self._lost += lines
        self._on_lost(lines)

    def _push(self) -> bool:
        """Writes as much as is taken without waiting; whether nothing is left."""
        outlet = self._outlet
        assert outlet is not None  # noqa: S101 - for mypy
        while self._waiting and self._put(outlet):
            pass
        # Not at once when there is room for a single line: each would be followed by such a note.
        if self._lost and self._bytes <= self._max_bytes // 2:
            note, self._lost = self._lost_line(self._lost), 0
            self._waiting.append(note)
            self._bytes += len(note)
            return self._push()
        return not self._waiting

    def _put(self, outlet: Outlet) -> bool:
        """Writes the next piece; whether it was taken, if only a part of it."""
        taken = outlet.write(self._next_piece())
        if not taken:
            return False
        self._bytes -= taken
        first = self._waiting.popleft()
        if taken < len(first):
            self._waiting.appendleft(first[taken:])
        return True

    def _next_piece(self) -> bytes:
        """The next lines, as many as are taken together, or the next part of a longer one."""
        waiting = self._waiting
        pieces = [waiting.popleft()]
        size = len(pieces[0])
        while waiting and (size := size + len(waiting[0])) <= PIECE_BYTES:
            pieces.append(waiting.popleft())
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        waiting.appendleft(piece)
        return piece[:PIECE_BYTES]


def _descriptor_of(stream: BinaryIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, AttributeError):
        return None  # io.UnsupportedOperation is an OSError
