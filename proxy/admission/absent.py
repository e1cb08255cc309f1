"""Keys that wait no more without having been served, and keep their place. Pure: no clock.

For half a minute, as they would if they had others waiting: otherwise those with several got ahead of
those with one at every time-out.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from proxy.admission.lineup import ABSENT
from proxy.admission.parties import Account

T = TypeVar("T")

REMEMBERED_SECONDS = 30.0
"""For how long a key that waits no more keeps its place among those that hold nothing."""


class Absent(Generic[T]):
    """Their accounts, which stand in their rings all the while, where nobody finds them."""

    def __init__(self) -> None:
        self._since: OrderedDict[str, tuple[Account[T], float]] = OrderedDict()

    def keep(self, account: Account[T], now: float) -> None:
        """The last request of an account that stands in a ring has given up."""
        if account.rank is not None:
            account.side.rings[account.rank].change(account, ABSENT)
            self._since[account.name] = account, now

    def back(self, name: str) -> Account[T] | None:
        """The account of somebody who comes again; None of one who is not absent."""
        if name not in self._since:
            return None
        account, _ = self._since.pop(name)
        if account.rank is not None:
            account.side.rings[account.rank].name_again(account)
        return account

    def forget(self, now: float, *, matters: bool) -> Iterator[Account[T]]:
        """Whose place is given up, because it was kept for long enough.

        Args:
            now: The time.
            matters: Whether anybody waits; where nobody does, a place is worth nothing.
        """
        while self._since:
            name, (account, since) = next(iter(self._since.items()))
            if matters and now - since < REMEMBERED_SECONDS:
                return
            del self._since[name]
            yield account
