"""In which order accounts have their turns. Pure: no loop, no clock.

Those that hold fewer slots come before those that hold more, and take turns among themselves.
Strangers, of whom one can have any number of addresses, have turns among themselves, and come as one
account would that holds what all of them hold together.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from proxy.admission.lineup import Lineup
from proxy.admission.parties import Account, Side

T = TypeVar("T")

_RING_PLACES = 64


class Turns(Generic[T]):
    """The rings of both sides: whoever waits and may be served, by how many slots they hold.

    Args:
        keys: Of those with keys.
        strangers: Of those without.
        share: How many slots one account may hold.

    Attributes:
        share: Whoever holds as many stands in no ring.
    """

    def __init__(self, keys: Side[T], strangers: Side[T], share: int) -> None:
        self._keys = keys
        self._strangers = strangers
        self.share = share
        self._count = 0

    def number(self) -> int:
        """The next turn's: whoever has a lower one came before."""
        self._count += 1
        return self._count

    def line_up(self, account: Account[T]) -> None:
        """Sees to it that the account stands in its ring, if it may, and with the right need.

        Whenever it holds more or fewer than it did, it stands at the end: it has had its turn.
        """
        head, rings = account.head, account.side.rings
        rank = None if head is None or account.held >= self.share else account.held
        if account.rank is not None and account.rank != rank:
            ring = rings[account.rank]
            ring.remove(account)
            if not ring.count:
                del rings[account.rank]
        if rank is not None and head is not None and account.waiting is not None:
            # Nothing of its own passes one that has a claim.
            need = head.tokens if head.claims else account.waiting.least
            if account.rank == rank:
                rings[rank].change(account, need)
            else:
                if rank not in rings:
                    rings[rank] = Lineup(_RING_PLACES)
                rings[rank].append(account, need)
                account.turn = self.number()
        account.rank = rank

    def rings(self, *, as_one: bool) -> Iterator[tuple[bool, Lineup[Account[T]]]]:
        """All rings in order, and whether those in it hold nothing.

        Args:
            as_one: Whether each stranger holds what any of them holds: against a key they are one.
        """
        keys, strangers = self._keys, self._strangers
        to_come = bool(strangers.rings)
        for rank in sorted(keys.rings):
            ring = keys.rings[rank]
            if to_come and self._strangers_before(rank, ring):
                to_come = False
                yield from self._strangers_rings(as_one=as_one)
            yield not rank, ring
        if to_come:
            yield from self._strangers_rings(as_one=as_one)

    def _strangers_before(self, rank: int, ring: Lineup[Account[T]]) -> bool:
        held, front = self._strangers.held, ring.front()
        if held != rank or front is None:
            return held < rank
        return self._strangers.turn < front.turn

    def _strangers_rings(self, *, as_one: bool) -> Iterator[tuple[bool, Lineup[Account[T]]]]:
        strangers = self._strangers
        for rank in sorted(strangers.rings):
            yield not (strangers.held if as_one else rank), strangers.rings[rank]
