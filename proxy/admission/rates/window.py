"""How much of a limit is used: a sliding window of two counters, in whole numbers.

What counts is what was charged in the current window, and of the previous one as large a part as
still lies within one length of the window from now, rounded down: rounded up, a limit of one a
minute would be one in two. So none of the windows, which stand one after the other, ever holds more
than the limit; a stretch of the same length that lies across two of them may hold nearly twice that,
if all was used late in the one and early in the other. Two numbers are all that is kept; a list of
what was charged when would be exact there too, and grow with each request.

Time is counted in ticks of a tenth of a second. A day has 864,000 of them, so that a tick times
10,000,000,000 tokens is still exact in Lua, whose only numbers are doubles: ``rates.lua`` is the
same arithmetic, and one suite of tests holds both to it.
"""

from dataclasses import dataclass
from typing import NamedTuple

TICKS_PER_SECOND = 10


def ticks(seconds: float) -> int:
    """The tick that a moment lies in."""
    return int(seconds * TICKS_PER_SECOND)


def whole_seconds(wait_ticks: int) -> int:
    """A wait in seconds as ``Retry-After`` has it: rounded up, and never 0."""
    return max(1, -(-wait_ticks // TICKS_PER_SECOND))


@dataclass(frozen=True, slots=True, eq=False)
class Meter:
    """A kind of limit over time. Its name is that of its field in ``Allowance``."""

    name: str
    length: int


REQUESTS = Meter("requests_per_minute", 60 * TICKS_PER_SECOND)
TOKENS = Meter("tokens_per_minute", 60 * TICKS_PER_SECOND)
DAILY_TOKENS = Meter("tokens_per_day", 86_400 * TICKS_PER_SECOND)


class Reading(NamedTuple):
    """How a limit stands.

    Attributes:
        window: The number of its current window, by the clock of whoever keeps the books.
        remaining: How much of it is left.
        reset: The ticks until all of it is, if nothing else comes.
    """

    window: int
    remaining: int
    reset: int


class Counter:
    """What one account has used of one limit.

    Attributes:
        window: The number of the current window.
        current: What was charged in it.
        previous: What was charged in the one before.
    """

    __slots__ = ("current", "previous", "window")

    def __init__(self, window: int = 0, current: int = 0, previous: int = 0) -> None:
        self.window = window
        self.current = current
        self.previous = previous

    def turn(self, tick: int, length: int) -> int:
        """Makes the window of this tick the current one; gives the ticks that are left of it."""
        window = tick // length
        if window == self.window - 1:
            # A clock that was put back, at a turn: as if it stood still until it has caught up.
            return length
        if window != self.window:
            self.previous = self.current if window == self.window + 1 else 0
            self.current = 0
            self.window = window
        return length - tick % length

    def wait(self, limit: int, cost: int, left: int, length: int) -> int:
        """The ticks after which this cost would pass if nothing else came: 0 if it passes now.

        Args:
            limit: At least the cost, or it never would.
            cost: What is to be charged.
            left: As ``turn`` has given it.
            length: Of the window, in ticks.
        """
        room = limit - cost - self.current
        if room < 0:
            # Only once the current window is the previous one, and enough of it is past.
            return left + length - ((limit - cost + 1) * length - 1) // self.current
        if self.previous * left < (room + 1) * length:
            return 0
        return left - ((room + 1) * length - 1) // self.previous

    def reading(self, limit: int, left: int, length: int) -> Reading:
        """How this limit stands."""
        rest = limit - self.current - self.previous * left // length
        reset = left + length if self.current else left if self.previous else 0
        return Reading(self.window, max(0, rest), reset)

    def settle(self, charged: int, difference: int) -> None:
        """Corrects what was charged in the window `charged` by what was really used.

        More than was charged counts now, when it was used. Less is given back to the window that
        was charged, as long as that one counts. Given back to the current one, what was reserved
        in windows long past would pay for what is asked now: whoever lets large requests go late
        would have several times the limit.
        """
        if difference > 0:
            self.current += difference
        elif charged == self.window:
            self.current = max(0, self.current + difference)
        elif charged == self.window - 1:
            self.previous = max(0, self.previous + difference)

    def is_spent(self, tick: int, length: int) -> bool:
        """Whether it says nothing any more."""
        return tick // length > self.window + 1 or not (self.current or self.previous)
