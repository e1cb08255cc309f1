"""Who waits and who holds: requests, the accounts that they are of, and the two sides of these."""

from enum import Enum
from typing import Generic, TypeVar

import msgspec

from proxy.admission.lineup import Lineup
from proxy.admission.tally import Tally

T = TypeVar("T")


class Standing(Enum):
    """Where a request stands with the queue."""

    WAITS = "waits"
    HOLDS = "holds"
    GONE = "gone"


class Account(msgspec.Struct, Generic[T], eq=False):
    """What one account has here, for as long as it waits or holds.

    Of a key that left unserved the queue remembers its place for a while.

    Attributes:
        held: How many slots it holds.
        held_tokens: What these need together.
        rank: In which ring it stands, by how many slots it holds; None while it stands in none,
            because nothing of it waits or because it holds its share.
        side: Of keys or of strangers.
        turn: When it came to stand there, of all who came to stand somewhere.
        place: Of the ring; the lineup's.
    """

    name: str
    side: "Side[T]"
    turn: int = 0
    held: int = 0
    held_tokens: int = 0
    rank: int | None = None
    place: int = 0
    # Most come and go without ever waiting: made when the first has to.
    waiting: "Lineup[Entry[T]] | None" = None

    @property
    def waits(self) -> int:
        """How many requests of it wait."""
        return 0 if self.waiting is None else self.waiting.count

    @property
    def head(self) -> "Entry[T] | None":
        """Its oldest waiting request."""
        return None if self.waiting is None else self.waiting.front()


class Entry(msgspec.Struct, Generic[T], eq=False):
    """One request, from its arrival until it has given back what it held.

    A struct of msgspec, made in C: there is one for each request. Each is equal to itself alone.

    Attributes:
        tokens: What it needs of the engine's cache.
        since: When it came.
        item: What to tell when its turn comes; the caller's.
        passed_over: When its turn first came without its fitting; None while that has not been.
        claims: Whether that was so long ago that what comes free is kept for it.
        passed: Which claim it passed when it was served, as the queue numbers them;
            None: none.
        place: Among those of its account; the lineup's.
    """

    account: Account[T]
    tokens: int
    since: float
    standing: Standing
    item: T | None = None
    passed_over: float | None = None
    claims: bool = False
    passed: int | None = None
    place: int = 0


class Side(Generic[T]):
    """Those with keys, or those without.

    Attributes:
        rings: Whoever waits and may be served, by how many slots they hold.
        tally: How many wait, of which account.
        held: How many slots they hold together.
        turn: When one of them last had a turn, as in ``Account``.
    """

    __slots__ = ("held", "rings", "tally", "turn")

    def __init__(self) -> None:
        self.rings: dict[int, Lineup[Account[T]]] = {}
        self.tally: Tally[Account[T]] = Tally()
        self.held = 0
        self.turn = 0
