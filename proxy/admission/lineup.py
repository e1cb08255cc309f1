"""Items in order of arrival, and the first of them that needs at most so much.

Without a budget everybody needs nothing and this is a plain queue. With one, those at the front may
be too large for what is free, and looking past them one by one would take, with thousands waiting,
milliseconds a request. So the needs are the leaves of a tree in which each node knows the least of
those below it: to append, to remove and to find take log2(n) steps.
"""

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

UNBOUNDED = 2**62
"""More than anybody needs: what is free where nothing is limited."""

ABSENT = 2**63
"""The need of one that keeps its place but is not to be found there."""


class Placed(Protocol):
    """What can stand in a lineup.

    Attributes:
        place: Where; the lineup's own, and an item may stand in one lineup only.
    """

    place: int


T = TypeVar("T", bound=Placed)


class Lineup(Generic[T]):
    """A line of items, each with a need: a whole number below ``UNBOUNDED``.

    A place left is not taken by another while somebody stands behind it, so that the order is that
    of arrival; when the places are used up, whoever is still there moves up.

    Args:
        places: How many it has at least. Few take less memory, and are used up sooner.
    """

    __slots__ = ("_end", "_front", "_items", "_least", "_places", "_seen", "_size", "count")

    def __init__(self, places: int = 1) -> None:
        self.count = 0
        self._places = places
        self._seen = 0
        self._front = 0
        self._make_room([])

    @property
    def least(self) -> int:
        """The smallest need in the line, which must not be empty."""
        return self._least[1]

    def append(self, item: T, need: int) -> None:
        """Puts an item at the end."""
        if self._end == self._size:
            self._move_up()
        item.place = self._end
        self._items.append(item)
        self._end += 1
        self.count += 1
        self._set(item.place, need)

    def remove(self, item: T) -> None:
        """Takes an item out, wherever it stands."""
        self._items[item.place] = None
        self.count -= 1
        self._set(item.place, ABSENT)

    def change(self, item: T, need: int) -> None:
        """Gives an item another need in its old place."""
        self._set(item.place, need)

    def name_again(self, item: T) -> None:
        """Has ``newly_before`` name this one once more, and whoever stands behind it."""
        self._seen = min(self._seen, item.place)

    def front(self) -> T | None:
        """Whoever came first of all."""
        items, at = self._items, self._front
        while at < self._end and items[at] is None:
            at += 1
        self._front = at
        return items[at] if at < self._end else None

    def first(self, at_most: int) -> T | None:
        """Whoever came first of those who need at most that much."""
        least = self._least
        if least[1] > at_most:
            return None
        node = 1
        while node < self._size:
            node *= 2
            if least[node] > at_most:
                node += 1
        return self._items[node - self._size]

    def last(self) -> T | None:
        """Whoever came last."""
        while self._items and self._items[-1] is None:
            self._items.pop()
        self._end = len(self._items)
        self._seen = min(self._seen, self._end)
        self._front = min(self._front, self._end)
        return self._items[-1] if self._items else None

    def newly_before(self, end: T | None) -> Iterator[T]:
        """All who stand before `end` (None: all) and have not been named by this before."""
        stop = self._end if end is None else end.place
        while self._seen < stop:
            item = self._items[self._seen]
            self._seen += 1
            if item is not None:
                yield item

    def _set(self, place: int, need: int) -> None:
        least = self._least
        node = self._size + place
        least[node] = need
        while node > 1:
            other = least[node ^ 1]
            node >>= 1
            need = min(need, other)
            if least[node] == need:
                return
            least[node] = need

    def _move_up(self) -> None:
        needs = self._least[self._size :]
        there = [
            (item, need) for item, need in zip(self._items, needs, strict=False) if item is not None
        ]
        self._seen = sum(item is not None for item in self._items[: self._seen])
        self._make_room(there)

    def _make_room(self, there: list[tuple[T, int]]) -> None:
        """Lines them up from the first place on, with as many places free as taken, and one more."""
        self._size = 1 << max(2 * len(there), self._places - 1).bit_length()
        self._end = len(there)
        self._front = 0
        self._items: list[T | None] = [item for item, _ in there]
        self._least = [ABSENT] * (2 * self._size)
        for place, (item, need) in enumerate(there):
            item.place = place
            self._set(place, need)
