"""One timer for the deadlines of many."""

import asyncio
from collections.abc import Collection
from math import inf
from typing import Protocol

_LEAST_SECONDS = 0.01


class Watched(Protocol):
    """Who has deadlines."""

    def look(self, now: float) -> float:
        """Does what is to be done when one is over; says when the next one is, or ``inf``."""


class Alarm:
    """Looks at all of them as soon as the earliest of their deadlines is over.

    One timer for all of them: hardly any deadline is ever reached, and each request would set two
    timers of its own and cancel them again.

    Args:
        live: Who is looked at; the caller's, and different each time.
    """

    __slots__ = ("_due", "_live", "_loop", "_timer")

    def __init__(self, live: Collection[Watched]) -> None:
        self._live = live
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf

    def set(self, due: float, loop: asyncio.AbstractEventLoop) -> None:
        """Has it look at `due`, if it does not look earlier anyway."""
        if due >= self._due and loop is self._loop:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop, self._due = loop, due
        self._timer = loop.call_at(due, self._look)

    def _look(self) -> None:
        loop, self._timer, self._due = self._loop, None, inf
        if loop is None:
            return
        now = loop.time()
        due = min((each.look(now) for each in tuple(self._live)), default=inf)
        if due < inf:
            # However many deadlines lie close together, not all requests are looked at for each.
            self.set(max(due, now + _LEAST_SECONDS), loop)
