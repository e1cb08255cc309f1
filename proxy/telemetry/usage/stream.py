"""The body of one stream: each event is heard, and passed on to the byte, or taken out."""

from collections.abc import Callable

from proxy.endpoints import BodyKind
from proxy.telemetry.usage.ends import last_objects
from proxy.telemetry.usage.frames import Frames, Piece, payload
from proxy.telemetry.usage.hearing import Mark, hearing, waits
from proxy.telemetry.usage.said import Said
from proxy.telemetry.usage.silence import Silence
from proxy.telemetry.usage.taking import Taking

CHARACTERS_PER_TOKEN = 4

TAIL_BYTES = 16 * 1024

# Of an event that cannot be read, for each character of text in it. What makes one too long is the
# log probabilities, and they are more.
_BYTES_PER_CHARACTER = 16

_DATA = b"data: {"

# How a chunk ends that ends with an event; behind a third line feed another one begins.
_WHOLE = (b"}\n\n", b"]\n\n")


class Stream:
    """One stream as it comes.

    Args:
        take_out: Whether the event that has nothing but usage is not for the client.
        clock: Seconds, monotonic.
    """

    __slots__ = (
        "_frames",
        "_hearing",
        "_in_part",
        "_said",
        "_silence",
        "_tail",
        "_take_out",
        "_taking",
        "_unread_bytes",
        "_unread_events",
        "_waits",
    )

    def __init__(
        self, kind: BodyKind, said: Said, *, take_out: bool, clock: Callable[[], float]
    ) -> None:
        self._said = said
        self._silence = Silence(clock)
        self._hearing = hearing(kind, said)
        self._frames = Frames()
        self._take_out = take_out
        self._taking = Taking()
        self._tail = bytearray()
        self._in_part = False
        self._waits = False
        self._unread_bytes = 0
        self._unread_events = 0

    def note(self, chunk: bytes) -> bytes:
        """What to pass on of this chunk."""
        if not self._frames.idle or not chunk.endswith(_WHOLE):
            return self._note_pieces(chunk)
        # Nearly every chunk is one event. Two of them are no JSON together.
        start = 6 if chunk.startswith(_DATA) else _data_start(chunk)
        if start:
            hearing = self._hearing
            try:
                mark = hearing.hear(chunk[start:-2])
            except (ValueError, RecursionError):
                pass
            else:
                if hearing.begun:
                    self._silence.heard(hearing.characters)
                return self._taking.pass_on(chunk, mark) if self._take_out else chunk
        if b"\r" in chunk:
            return self._note_pieces(chunk)
        # Engines under load send several at once.
        events = chunk[:-2].split(b"\n\n")
        if not self._take_out:
            for event in events:
                self._hear(event)
            return chunk
        passed = [self._taking.pass_on(event + b"\n\n", self._hear(event)) for event in events]
        return b"".join(passed)

    def _note_pieces(self, chunk: bytes) -> bytes:
        passed = [self._piece(piece, part) for piece, part in self._frames.feed(chunk)]
        return b"".join(passed) if self._take_out else chunk

    def end(self) -> bytes:
        """No more will come; what is left to pass on."""
        self._silence.end()
        piece, part = self._frames.rest()
        seen = self._unread_events, self._unread_bytes
        passed = self._piece(piece, part) if part else b""
        # It was cut: nobody could have read it.
        self._unread_events, self._unread_bytes = seen
        return passed + self._taking.release() if self._take_out else b""

    def tokens(self) -> int:
        """Of output, as far as they could be seen."""
        characters = self._hearing.characters + self._unread_bytes // _BYTES_PER_CHARACTER
        events = self._hearing.events + self._unread_events
        return max(-(-characters // CHARACTERS_PER_TOKEN), events)

    def unseen_tokens(self) -> int:
        """The most that may have been generated besides, while nothing came."""
        return self._silence.tokens(self._said.sequences)

    def tokens_since(self, then: float | None) -> int:
        """The same of one choice, since its figure was stated; None is never."""
        return self._silence.tokens_since(then)

    def _piece(self, piece: Piece, part: bytes) -> bytes:
        if piece is Piece.LINE_FEED:
            return self._taking.line_feed()
        mark = Mark.PLAIN
        if piece is Piece.EVENT:
            mark = self._hear(part)
        else:
            self._note_part(part, last=piece is Piece.LAST_PART)
        return self._taking.pass_on(part, mark)

    def _hear(self, event: bytes) -> Mark:
        start = 6 if event.startswith(_DATA) else _data_start(event)
        if start:
            try:
                return self._heard(event[start:])
            except (ValueError, RecursionError):
                pass  # it has several lines of data, perhaps
        data = payload(event)
        if not data.startswith(b"{"):  # a comment, or the end
            if data.startswith(b"[DONE]"):
                self._said.done()
            return Mark.PLAIN
        try:
            return self._heard(data)
        except (ValueError, RecursionError):
            self._silence.broken()
            self._unread_events += 1
            self._unread_bytes += len(event)
            return Mark.PLAIN

    def _heard(self, data: bytes) -> Mark:
        mark = self._hearing.hear(data)
        if self._hearing.begun:
            self._silence.heard(self._hearing.characters)
        return mark

    def _note_part(self, part: bytes, *, last: bool) -> None:
        if not self._in_part:
            # vLLM's first of a response has all instructions and tools in it.
            self._waits = waits(part)
        self._in_part = not last
        self._tail += part
        del self._tail[:-TAIL_BYTES]
        if not self._waits:
            self._unread_bytes += len(part)
            self._silence.broken()
        if last:
            members = last_objects(bytes(self._tail), self._hearing.depth)
            if b"usage" in members:
                self._said.part(members[b"usage"], final=not self._waits)
            self._tail.clear()


def _data_start(event: bytes) -> int:
    """Where the JSON of an event is that has one line of data, after its name at most; else 0."""
    if event.startswith(_DATA):
        return len(_DATA) - 1
    if event.startswith(b"event:"):
        line_end = event.find(b"\n")
        if event.startswith(_DATA, line_end + 1):
            return line_end + len(_DATA)
    return 0
