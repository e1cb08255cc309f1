"""The events of a stream, out of chunks that are cut anywhere (WHATWG HTML, "Server-sent events")."""

import re
from collections.abc import Iterator
from enum import Enum, auto

# Longer ones are passed on in pieces. No event of usage comes near; the last of a response may.
MAX_EVENT_BYTES = 32 * 1024

_LINE_END = re.compile(rb"\r\n|\n|\r")
# Atomic: half of a CRLF is no line end.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LONGEST_END = 4


class Piece(Enum):
    """What a few bytes of a stream are."""

    EVENT = auto()
    """A whole one."""
    PART = auto()
    """A piece of one that is too long, and not its end."""
    LAST_PART = auto()
    """The end of one that is too long."""
    LINE_FEED = auto()
    """Belongs to the piece before it, whose CRLF was cut."""


class Frames:
    """Puts events together.

    Attributes:
        idle: Whether the next chunk begins with the first byte of an event.
    """

    __slots__ = ("_after_cr", "_long", "_pending", "idle")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._long = False
        self._after_cr = False
        self.idle = True

    def feed(self, chunk: bytes) -> Iterator[tuple[Piece, bytes]]:
        """What can be passed on with this chunk, in order and to the byte."""
        if self._after_cr and chunk[:1] == b"\n":
            yield Piece.LINE_FEED, b"\n"
            chunk = chunk[1:]
            self._after_cr = False
        self._after_cr = self._after_cr and not chunk
        pending, start = self._pending, 0
        position = max(0, len(pending) - _LONGEST_END + 1)
        pending += chunk
        while end := _EVENT_END.search(pending, position):
            yield (
                (Piece.LAST_PART if self._long else Piece.EVENT),
                bytes(pending[start : end.end()]),
            )
            self._long = False
            start = position = end.end()
            self._after_cr = start == len(pending) and pending.endswith(b"\r")
        del pending[:start]
        if self._long or len(pending) > MAX_EVENT_BYTES:
            self._long = True
            # Its end may have begun already.
            if piece := bytes(pending[: -_LONGEST_END + 1]):
                yield Piece.PART, piece
            del pending[: -_LONGEST_END + 1]
        self.idle = not (pending or self._long or self._after_cr)

    def rest(self) -> tuple[Piece, bytes]:
        """What no empty line has followed."""
        rest = bytes(self._pending)
        self._pending.clear()
        return (Piece.LAST_PART if self._long else Piece.EVENT), rest


def payload(event: bytes) -> bytes:
    """The data of one event: its lines, without their names."""
    lines = [line[5:] for line in _LINE_END.split(event) if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in lines)
