"""When to come again, by how fast places have been coming free. Pure."""

from collections import deque
from math import ceil

UNKNOWN_SECONDS = 5
MAX_SECONDS = 60

_REMEMBERED = 32
_TELLING = 4


class Pace:
    """The last few times at which somebody was done."""

    def __init__(self) -> None:
        self._done: deque[float] = deque(maxlen=_REMEMBERED)

    def note(self, now: float) -> None:
        """Somebody is done."""
        self._done.append(now)

    def retry_after_seconds(self, waiting: int, now: float) -> int:
        """In how many seconds those who wait now will have had their turn: 1 to 60.

        Five where too few have been done to tell. A minute at most, which is also the longest that
        the OpenAI SDKs wait when told to.
        """
        if len(self._done) < _TELLING:
            return UNKNOWN_SECONDS
        seconds_each = (now - self._done[0]) / len(self._done)
        return min(max(ceil((waiting + 1) * seconds_each), 1), MAX_SECONDS)
