"""Bytes into a stream that others may share, without waiting for whoever reads it.

``O_NONBLOCK`` belongs to the open description, which is every process's who shares the stream: set on
a shell's terminal, it stays there when we are gone. And poll(2) alone does not do: it calls a terminal
writable with room for a single byte, and ``write`` then returns only when all of it is taken; of two
processes that are told of the same room in a pipe, one waits. So a pipe and a terminal are opened
once more, which makes a description of our own. A file waits for nobody, and a socket cannot be
opened: these are asked by poll, and written to as they are.

Not all can be opened. Where a terminal or a pipe belongs to another user (``su``, a container whose
runtime did not hand it over), it is asked by poll too, and a terminal is given at once only what it
takes at once: some text, or the end of a line. What can still hold the process there is a terminal
that is stopped (Ctrl-S), or a stream that somebody else fills, between the question and the write.
"""

import contextlib
import os
import select
import stat
import weakref
from collections.abc import Callable

PIECE_BYTES = select.PIPE_BUF
"""How much to write at once, at most: what a pipe takes whole or not at all (pipe(7)), and has room for
when poll says that it has any; of a socket's buffer two thirds are free then."""

# Of a terminal's. Its kernel's buffers come by 256 bytes.
_TEXT_BYTES = 128


def reopened(descriptor: int) -> int:
    """The same pipe or terminal by a description of its own, which does not wait.

    Raises:
        OSError: It cannot be opened, or nobody reads the pipe.
    """
    # No controlling terminal: a service that has none must not get one, and its Ctrl-C, by its log.
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
    return os.open(f"/proc/self/fd/{descriptor}", flags)


class Outlet:
    """Where bytes go.

    Args:
        descriptor: Of the stream; it is left as it is, and open.
        reopen: Opens it once more.
    """

    def __init__(self, descriptor: int, reopen: Callable[[int], int] = reopened) -> None:
        self._shared = self._descriptor = descriptor
        self._terminal = os.isatty(descriptor)
        self._poll: select.poll | None = None
        self._close: Callable[[], object] = lambda: None
        if self._terminal or stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            with contextlib.suppress(OSError):
                self._descriptor = own = reopen(descriptor)
                # Also where nobody closes it: a reader waits for the end of all who write.
                self._close = weakref.finalize(self, os.close, own)
        if self._descriptor == descriptor:
            self._ask_first()

    def write(self, piece: bytes) -> int:
        """How much of it was taken: nothing where it would have to wait, or cannot be written.

        Nobody may read any more, or the disk may be full: perhaps somebody will, and it will not be.
        """
        if self._poll is not None:
            if not self._poll.poll(0):
                return 0
            if self._terminal:
                piece = _text_or_end(piece)
        try:
            return os.write(self._descriptor, piece)
        except OSError:
            return 0

    def close(self) -> None:
        """Gives up what was opened; what comes later is written to the stream itself."""
        if self._descriptor != self._shared:
            self._descriptor = self._shared
            self._ask_first()
            self._close()

    def _ask_first(self) -> None:
        self._poll = select.poll()
        self._poll.register(self._shared, select.POLLOUT)


def _text_or_end(piece: bytes) -> bytes:
    """What a terminal takes at once.

    Of what has a line's end in it, it may take the text and then have no room for the end.
    """
    text = piece[:_TEXT_BYTES].partition(b"\n")[0]
    return text or piece[:1]
