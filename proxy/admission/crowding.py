"""What the engine says of itself, once a second: whether more may be sent to it now. Pure.

The budget adds up what requests may need; this looks at what they do need. An engine that runs four
sequences at once keeps the rest in a queue of its own, in order of arrival, where nobody is fair to
anybody: whoever waits had better wait here. So while it has a queue, what we have there is brought
down to what it runs and one more, and it is let up again step by step. Simply holding everything back
while there is a queue, and nothing while there is none, would fill that queue again at every turn.

What waits in an engine does not always wait for room: for a grammar to be compiled, for a cache to
be fetched, or it is somebody else's. However few we send, that stays; whoever went on sending fewer
would end with nothing. So a step down has to show in the queue before there is another, and what it
leaves there counts no more. So it is with a cache that stays full with one of ours in it: there are
engines that count as taken what they keep of prompts that have gone.
"""

from dataclasses import dataclass

STALE_SECONDS = 5.0

MAX_USAGE = 0.95

FULL_SECONDS = 10.0
"""How long a cache may be full with one of ours in it and no queue, before that counts no more."""

_RISE = 4  # by a quarter a reading, and by one at least
_NO_QUEUE = 1  # one in line keeps the engine busy
_TRY_EVERY = 4  # readings with one in line: whether a second one would be


@dataclass(frozen=True, slots=True)
class _Step:
    """A step down, and how things stood then: its proof is what becomes of the queue."""

    in_flight: int
    queue: int
    ceiling: int | None


class Crowding:
    """How many requests the engine can do with at once, out of its own readings.

    Its queue counts only when two readings in a row show it: prompts that came in one burst are in
    it for a moment even where there is room for all. A full cache counts at once.
    """

    def __init__(self) -> None:
        self._at: float | None = None
        self._full = False
        self._alone_since: float | None = None
        self._full_counts = True
        self._idle = False
        self._runs: int | None = None
        self._ceiling: int | None = None
        self._step: _Step | None = None
        self._left: int | None = None
        self._unmoved = 0
        self._tight = 0

    @property
    def ceiling(self) -> int | None:
        """How many may be there at once; None while it has shown no limit."""
        return self._ceiling

    def note(
        self,
        waiting: float,
        usage_fraction: float,
        at: float,
        in_flight: int,
        running: int | None = None,
    ) -> None:
        """One reading.

        Args:
            waiting: Requests in the engine's own queue.
            usage_fraction: The part of its cache that is taken, 0 to 1.
            at: When it was read.
            in_flight: How many of ours it had then.
            running: How many it runs, ours or not; None where it does not say.
        """
        if self._is_stale(at):
            self._runs = self._ceiling = self._step = None
            self._unmoved = 0
            self._alone_since = None
        self._at = at
        self._idle = running == 0
        queue = round(waiting)
        self._unmoved = min(self._unmoved, queue)
        self._note_usage(usage_fraction, alone=in_flight == 1 and queue == self._unmoved, at=at)
        if not in_flight:
            # An idle engine goes on showing the numbers of its last step.
            self._runs = None
        elif queue - self._unmoved > _NO_QUEUE:
            self._note_queue(queue, in_flight, running or 0)
        else:
            self._note_room(in_flight, queue - self._unmoved)

    def has_room(self, in_flight: int, now: float) -> bool:
        """Whether one more may be sent to it. With nothing of ours there, always."""
        at = self._at
        if not in_flight or at is None or now - at >= STALE_SECONDS:
            return True
        if self._full:
            return False
        return self._idle or self._ceiling is None or in_flight < self._ceiling

    def stale_from(self, now: float) -> float | None:
        """When what was read will count no longer; None if nothing counts now."""
        if self._at is None or self._is_stale(now):
            return None
        return self._at + STALE_SECONDS if self._full or self._ceiling is not None else None

    def _note_usage(self, usage_fraction: float, *, alone: bool, at: float) -> None:
        full = usage_fraction > MAX_USAGE
        if not full:
            self._full_counts = True
        if not full or not alone:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = at
        elif at - self._alone_since >= FULL_SECONDS:
            self._full_counts = False
        self._full = full and self._full_counts

    def _note_queue(self, queue: int, in_flight: int, running: int) -> None:
        before, self._runs = self._runs, max(1, running, in_flight - (queue - self._unmoved))
        if before is None:
            return
        step = self._step
        if step is not None and self._ceiling is not None:
            if in_flight <= self._ceiling:
                self._prove(step, queue, in_flight)
                return
            if queue >= step.queue:
                return
        # The higher of the two: one may have ended between the reading and now.
        ceiling = max(before, self._runs) + _NO_QUEUE
        if self._ceiling is None or ceiling < self._ceiling:
            was = self._ceiling if step is None else step.ceiling
            self._step = _Step(in_flight, queue, was)
            self._left = None
        self._ceiling = ceiling

    def _prove(self, step: _Step, queue: int, in_flight: int) -> None:
        """As many are there as the step was to leave: what of the queue has gone with the others?"""
        ours = max(self._unmoved, step.queue - (step.in_flight - in_flight))
        left, self._left = self._left, max(0, queue - ours)
        if left is None:
            return  # the other reading may be of a moment in which one had just ended
        self._step = None
        left = min(left, self._left)
        if left:
            self._unmoved += left
            self._ceiling = step.ceiling

    def _note_room(self, in_flight: int, queue: int) -> None:
        self._runs = self._step = None
        if self._ceiling is None or in_flight < self._ceiling:
            self._tight = 0
            return
        self._tight += 1
        if not queue:
            self._ceiling += max(1, self._ceiling // _RISE)
        elif self._tight >= _TRY_EVERY:
            self._tight = 0
            self._ceiling += 1

    def _is_stale(self, now: float) -> bool:
        return self._at is None or now - self._at >= STALE_SECONDS
