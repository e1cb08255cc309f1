"""What the engine says of itself, once a second: whether more may be sent to it now. Pure.

The budget adds up what requests may need; this looks at what they do need. An engine that runs four
sequences at once keeps the rest in a queue of its own, in order of arrival, where nobody is fair to
anybody: whoever waits had better wait here. So while it has a queue, what we have there is brought
down to what it runs, and it is let up again step by step. Simply holding everything back while
there is a queue, and nothing while there is none, would fill that queue again at every turn.
"""

STALE_SECONDS = 5.0

MAX_USAGE = 0.95

_RISE = 4  # by a quarter a reading, and by one at least


class Crowding:
    """How many requests the engine can do with at once, out of its own readings.

    Its queue counts only when two readings in a row show it: prompts that came in one burst are in
    it for a moment even where there is room for all. A full cache counts at once.
    """

    def __init__(self) -> None:
        self._at: float | None = None
        self._full = False
        self._runs: int | None = None
        self._ceiling: int | None = None

    @property
    def ceiling(self) -> int | None:
        """How many may be there at once; None while it has shown no limit."""
        return self._ceiling

    def note(self, waiting: float, usage_fraction: float, at: float, in_flight: int) -> None:
        """One reading.

        Args:
            waiting: Requests in the engine's own queue.
            usage_fraction: The part of its cache that is taken, 0 to 1.
            at: When it was read.
            in_flight: How many of ours it had then.
        """
        if self._is_stale(at):
            self._runs = self._ceiling = None
        self._at = at
        self._full = usage_fraction > MAX_USAGE
        if not in_flight:
            # An idle engine goes on showing the numbers of its last step.
            self._runs = None
        elif waiting > 0:
            self._note_queue(max(1, in_flight - round(waiting)))
        else:
            self._note_room(in_flight)

    def has_room(self, in_flight: int, now: float) -> bool:
        """Whether one more may be sent to it. With nothing of ours there, always."""
        if not in_flight or self._is_stale(now):
            return True
        return not self._full and (self._ceiling is None or in_flight < self._ceiling)

    def stale_from(self, now: float) -> float | None:
        """When what was read will count no longer; None if nothing counts now."""
        if self._at is None or self._is_stale(now):
            return None
        return self._at + STALE_SECONDS if self._full or self._ceiling is not None else None

    def _note_queue(self, runs: int) -> None:
        if self._runs is not None:
            # The higher of the two: one may have ended between the reading and now.
            self._ceiling = max(self._runs, runs)
        self._runs = runs

    def _note_room(self, in_flight: int) -> None:
        self._runs = None
        if self._ceiling is not None and in_flight >= self._ceiling:
            self._ceiling += max(1, self._ceiling // _RISE)

    def _is_stale(self, now: float) -> bool:
        return self._at is None or now - self._at >= STALE_SECONDS
