"""How many keys may be used now, which changes by itself when one expires."""

import bisect
from collections.abc import Iterable
from datetime import datetime


class KeyLives:
    """The ends of keys, in order: to count takes as many steps for 10,000 of them as for a dozen.

    Args:
        ends: Of each key that is not disabled, the moment from which it is refused; None is never.
    """

    def __init__(self, ends: Iterable[datetime | None] = ()) -> None:
        all_ends = list(ends)
        self._ends = sorted(end for end in all_ends if end is not None)
        self._endless = len(all_ends) - len(self._ends)

    def count(self, now: datetime) -> int:
        """How many may be used at this moment."""
        return self._endless + len(self._ends) - bisect.bisect_right(self._ends, now)
