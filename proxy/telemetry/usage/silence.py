"""What may have been generated while nothing of it could be seen.

Engines hold tokens back: vLLM for `stream_interval` of them, for a stop string that may be
beginning, or while its parser takes what comes for a tool call; an event without a text may be all
that is seen of fifty. And a client that does not read keeps everybody from seeing anything. Whoever
leaves then has had the engine's time all the same.
"""

from collections.abc import Callable

# More than a sequence gets of an engine that several people share: the smallest model brought 360.
# Who leaves between two events of an engine's usual pace is charged some ten tokens for it.
TOKENS_PER_SECOND = 500

# Between two events; a shorter pause is a slow engine's pace.
PATIENCE_SECONDS = 2.0


class Silence:
    """The silences of one stream, from where it generates: before that, the engine may be at others.

    Args:
        clock: Seconds, monotonic.
    """

    __slots__ = ("_characters", "_clock", "_ended", "_first", "_last", "_past_seconds")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._characters = -1
        self._first: float | None = None
        self._last: float | None = None
        self._past_seconds = 0.0
        self._ended: float | None = None

    def heard(self, characters: int) -> None:
        """An event has come, and with it so much text in all. What brings none breaks no silence."""
        if characters == self._characters:
            return
        self._characters = characters
        last = self._last
        if last is None or self._ended is not None:
            self.broken()
            return
        # As ``broken``, without a call: this is done for each event.
        self._last = now = self._clock()
        if now - last > PATIENCE_SECONDS:
            self._past_seconds += now - last

    def broken(self) -> None:
        """Something has come now; what is left when the stream is over came before."""
        if self._ended is not None:
            return
        now = self._clock()
        if self._first is None:
            self._first = now
        if self._last is not None and now - self._last > PATIENCE_SECONDS:
            self._past_seconds += now - self._last
        self._last = now

    def end(self) -> None:
        """The stream is over."""
        self._ended = self._clock() if self._ended is None else self._ended

    def tokens(self, sequences: int) -> int:
        """The most that so many sequences can have brought in the silences, and in the last one."""
        if self._last is None:
            return 0
        last = self._now() - self._last
        return int((self._past_seconds + last) * TOKENS_PER_SECOND) * sequences

    def tokens_since(self, then: float | None) -> int:
        """The most that one sequence can have brought since; None is since the stream's beginning."""
        then = self._first if then is None else then
        return 0 if then is None else max(0, int((self._now() - then) * TOKENS_PER_SECOND))

    def _now(self) -> float:
        return self._clock() if self._ended is None else self._ended
