"""Accounts by how many of their requests wait: who has the most, without looking at all of them."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Tally(Generic[T]):
    """How many each has; whoever has none is not here."""

    def __init__(self) -> None:
        self._by_count: dict[int, OrderedDict[T, None]] = {}
        self.most = 0
        self.total = 0

    def count(self, item: T, before: int, after: int) -> None:
        """One more or one fewer of an item's."""
        self.total += after - before
        if before:
            peers = self._by_count[before]
            del peers[item]
            if not peers:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, OrderedDict())[item] = None
        if after > self.most or self.most not in self._by_count:
            self.most = after

    def first(self) -> T:
        """Who has the most; of several, the last to have come to so many. There must be one."""
        return next(reversed(self._by_count[self.most]))
