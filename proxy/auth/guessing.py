"""How many wrong keys each address has sent of late.

This is not what makes guessing hopeless: that are the 256 bits of a key. It keeps the log readable,
and gives a client that was set up wrongly a reason to stop. Hence two rules. A key is looked up first
and always, so that nobody can lock out the owner of a right one by sending wrong ones from where he
is. And a flood costs the same small work for each failure, and a table of fixed size.

Whoever has more addresses than the table has rows is told 403 where others are told 429, and pushes
their rows out. That is all that he gains: no key is tested more, and none less, because of it.
"""

import math
from collections import OrderedDict
from collections.abc import Callable


class Guessing:
    """The failures of each address within a sliding window.

    Args:
        clock: Monotonic seconds.
        max_failures: How many an address may have; the next one is too many.
        window_seconds: How long each counts.
        max_addresses: Rows of the table; the address whose last failure is the oldest gives way.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        max_failures: int = 10,
        window_seconds: float = 60.0,
        max_addresses: int = 10_000,
    ) -> None:
        self._clock = clock
        self._max_failures = max_failures
        self._window_seconds = window_seconds
        self._max_addresses = max_addresses
        # When each failed, oldest first; the address that failed last is last. No plain
        # dict: finding its first entry takes longer the more were taken from its front.
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def retry_after(self, address: str) -> int | None:
        """Whole seconds until a failure of this address counts as one of few; None if it does now."""
        times = self._failures.get(address)
        if times is None or len(times) < self._max_failures:
            return None
        left = self._window_seconds - (self._clock() - times[0])
        return math.ceil(left) if left > 0 else None

    def failed(self, address: str) -> None:
        """Counts a failure that was not one too many.

        Those are not counted, or a client that only ever comes back too early would never be told
        what is wrong with its key.
        """
        now = self._clock()
        times = self._failures.get(address)
        if times is None:
            if len(self._failures) >= self._max_addresses:
                self._failures.popitem(last=False)
            self._failures[address] = [now]
            return
        self._failures.move_to_end(address)
        if len(times) >= self._max_failures:
            del times[0]
        times.append(now)
