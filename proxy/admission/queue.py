"""Whose turn it is: between accounts in turns, within one in order of arrival. Pure: no loop, no clock.

An account is whoever shares one turn: a key, or the address of an anonymous client. Those that hold
fewer slots come before those that hold more, and take turns among themselves. Turns alone would give
everybody as many requests, and so the engine to whoever's are long: of four keys' short requests
beside one key's long ones at four slots, a twelfth waited in vain that way, and next to none do now.
Who holds more than others waits as long as they keep coming, but not empty-handed.

Three rules go beyond turns:

* An account holds at most its share of the slots. What it asks beyond waits and is in nobody's way.
* When the queue is full, the youngest of the account that waits with the most gives way, to an
  account that waits with fewer even with the newcomer counted: otherwise the two would take turns in
  throwing each other out.
* What does not fit into the free part of the engine's cache is passed over by what does, its own
  account's younger requests too, but only for so long. After that it has a *claim*: whatever comes
  free is kept for it until it fits. Two claims are met in the order in which their turn had come.

A claim keeps everybody waiting, so that it has a limit of its own: while its account already holds
more than an equal part of the cache, it keeps only its own account waiting. Somebody who fills the
engine with one large request and asks for another must not close it to the rest meanwhile; and is
not starved by them either, because its own younger requests wait, until it holds little or nothing.
"""

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum
from typing import Generic, TypeVar

from proxy.admission.lineup import Lineup

T = TypeVar("T")

PATIENCE_SECONDS = 5.0

_RING_PLACES = 64


class Standing(Enum):
    """Where a request stands with the queue."""

    WAITS = "waits"
    HOLDS = "holds"
    GONE = "gone"


class Account(Generic[T]):
    """What one account has here. It exists while it waits or holds, and not longer.

    Attributes:
        held: How many slots it holds.
        held_tokens: What these need together.
        rank: In which ring it stands, by how many slots it holds; None while it stands in none,
            because nothing of it waits or because it holds its share.
        place: Of the ring; the lineup's.
    """

    __slots__ = ("held", "held_tokens", "name", "place", "rank", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = 0
        self.held_tokens = 0
        self.rank: int | None = None
        self.place = 0
        # Most come and go without ever waiting: made when the first has to.
        self.waiting: Lineup[Entry[T]] | None = None

    @property
    def waits(self) -> int:
        """How many requests of it wait."""
        return 0 if self.waiting is None else self.waiting.count

    @property
    def head(self) -> "Entry[T] | None":
        """Its oldest waiting request."""
        return None if self.waiting is None else self.waiting.front()


class Entry(Generic[T]):
    """One request, from its arrival until it has given back what it held.

    Attributes:
        tokens: What it needs of the engine's cache.
        since: When it came.
        item: What to tell when its turn comes; the caller's.
        passed_over: When its turn first came without its fitting; None while that has not been.
        claims: Whether that was so long ago that nothing may pass it any more.
        place: Among those of its account; the lineup's.
    """

    __slots__ = ("account", "claims", "item", "passed_over", "place", "since", "standing", "tokens")

    def __init__(self, account: Account[T], tokens: int, since: float, standing: Standing) -> None:
        self.account = account
        self.tokens = tokens
        self.since = since
        self.standing = standing
        self.item: T | None = None
        self.passed_over: float | None = None
        self.claims = False
        self.place = 0


class FairQueue(Generic[T]):
    """Everybody who waits, and everybody who holds.

    How many may hold at once is the caller's business, as is the size of the cache.

    Args:
        size: How many may wait; the caller asks ``give_way`` after each ``join``.
        share: How many slots one account may hold.
        patience_seconds: How long what does not fit is passed over.
    """

    def __init__(
        self, *, size: int, share: int, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._size = size
        self._share = share
        self._patience_seconds = patience_seconds
        self._accounts: dict[str, Account[T]] = {}
        self._rings: dict[int, Lineup[Account[T]]] = {}
        # Ordered, not plain: a dict that is emptied from its front is searched from its front.
        self._waiting: OrderedDict[Entry[T], None] = OrderedDict()
        self._passed_over: OrderedDict[Entry[T], None] = OrderedDict()
        self._claims: OrderedDict[Entry[T], None] = OrderedDict()
        self._by_waits: dict[int, OrderedDict[Account[T], None]] = {}
        self._most = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def accounts(self) -> int:
        """How many accounts wait or hold."""
        return len(self._accounts)

    @property
    def waiting(self) -> Iterable[Entry[T]]:
        """All that wait, in order of arrival."""
        return self._waiting

    @property
    def oldest(self) -> Entry[T] | None:
        """Who has waited longest."""
        return next(iter(self._waiting), None)

    def share_out(self, share: int) -> None:
        """One account may hold as many from now on; whoever holds more keeps them."""
        self._share = share
        for account in self._accounts.values():
            if account.waits:
                self._line_up(account)

    def at_share(self, name: str) -> bool:
        """Whether this account holds as many as it may."""
        account = self._accounts.get(name)
        return account is not None and account.held >= self._share

    def enter(self, name: str, tokens: int, now: float) -> Entry[T]:
        """A request that need not wait. Only while nobody does, and not for an account at its share."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(name)
        account.held += 1
        account.held_tokens += tokens
        return Entry(account, tokens, now, Standing.HOLDS)

    def join(self, name: str, tokens: int, now: float) -> Entry[T]:
        """A request that waits, at the end of its account's."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(name)
        if account.waiting is None:
            account.waiting = Lineup()
        entry = Entry(account, tokens, now, Standing.WAITS)
        account.waiting.append(entry, tokens)
        self._waiting[entry] = None
        self._count(account, account.waits - 1)
        self._line_up(account)
        return entry

    def give_way(self) -> Entry[T] | None:
        """Who has to go because somebody has just joined, if anybody has to: by ``leave``.

        It is the newcomer itself where no account waits with more than its own.
        """
        if len(self._waiting) <= self._size:
            return None
        # Of several with the most, the last to have come to so many: the newcomer's, if it is one.
        account = next(reversed(self._by_waits[self._most]))
        return None if account.waiting is None else account.waiting.last()

    def leave(self, entry: Entry[T], now: float) -> None:
        """A request that no longer waits."""
        account = entry.account
        self._take_out(entry)
        entry.standing = Standing.GONE
        if entry.passed_over is not None:
            # Its account's turn had come, and is now the next one's.
            self._pass_over(account, now)
        self._line_up(account)
        self._forget(account)

    def next(self, free_tokens: int, limit_tokens: int, now: float) -> Entry[T] | None:
        """Gives a free slot to whoever is to have it; None leaves it free.

        Args:
            free_tokens: What is left of the cache.
            limit_tokens: What there is of it when nobody holds any.
            now: The time.
        """
        self._let_claim(now)
        entry = self._claim(limit_tokens) if self._claims else None
        if entry is None:
            entry = self._in_turn(free_tokens, now)
        elif entry.tokens > free_tokens:
            return None
        if entry is not None:
            self._serve(entry)
        return entry

    def done(self, entry: Entry[T]) -> None:
        """A request gives back what it held."""
        account = entry.account
        entry.standing = Standing.GONE
        account.held -= 1
        account.held_tokens -= entry.tokens
        if account.waiting is not None:
            self._line_up(account)
        self._forget(account)

    def _in_turn(self, free_tokens: int, now: float) -> Entry[T] | None:
        for rank in sorted(self._rings):
            ring = self._rings[rank]
            account = ring.first(free_tokens)
            if account is not ring.front():
                for passed in ring.newly_before(account):
                    self._pass_over(passed, now)
            if account is not None:
                return self._fitting(account, free_tokens, now)
        return None

    def _fitting(self, account: Account[T], free_tokens: int, now: float) -> Entry[T] | None:
        head = account.head
        if head is None or account.waiting is None or head.tokens <= free_tokens:
            return head
        self._pass_over(account, now)
        return account.waiting.first(free_tokens)

    def _pass_over(self, account: Account[T], now: float) -> None:
        """Its turn has come, and its oldest request does not fit."""
        head = account.head
        if head is not None and head.passed_over is None:
            head.passed_over = now
            self._passed_over[head] = None

    def _let_claim(self, now: float) -> None:
        """Gives a claim to whoever has been passed over for long enough.

        Only when somebody is to be served: a claim lets nobody in, it keeps others out.
        """
        while self._passed_over:
            entry = next(iter(self._passed_over))
            if entry.passed_over is None or now - entry.passed_over < self._patience_seconds:
                return
            del self._passed_over[entry]
            entry.claims = True
            self._claims[entry] = None
            self._line_up(entry.account)

    def _claim(self, limit_tokens: int) -> Entry[T] | None:
        """Whose claim is to be met first, if anybody has one that counts.

        Those that do not count are of accounts that hold something, so that few are looked at.
        """
        for entry in self._claims:
            account = entry.account
            if (
                account.rank is not None
                and account.held_tokens * len(self._accounts) <= limit_tokens
            ):
                return entry
        return None

    def _serve(self, entry: Entry[T]) -> None:
        account = entry.account
        self._take_out(entry)
        entry.standing = Standing.HOLDS
        account.held += 1
        account.held_tokens += entry.tokens
        self._line_up(account)

    def _take_out(self, entry: Entry[T]) -> None:
        account = entry.account
        if account.waiting is not None:
            account.waiting.remove(entry)
        del self._waiting[entry]
        if entry.passed_over is not None:
            del (self._claims if entry.claims else self._passed_over)[entry]
        self._count(account, account.waits + 1)

    def _line_up(self, account: Account[T]) -> None:
        """Sees to it that the account stands in its ring, if it may, and with the right need.

        Whenever it holds more or fewer than it did, it stands at the end: it has had its turn.
        """
        head = account.head
        rank = None if head is None or account.held >= self._share else account.held
        if account.rank is not None and account.rank != rank:
            ring = self._rings[account.rank]
            ring.remove(account)
            if not ring.count:
                del self._rings[account.rank]
        if rank is not None and head is not None and account.waiting is not None:
            # Nothing of its own passes one that has a claim.
            need = head.tokens if head.claims else account.waiting.least
            if account.rank == rank:
                self._rings[rank].change(account, need)
            else:
                if rank not in self._rings:
                    self._rings[rank] = Lineup(_RING_PLACES)
                self._rings[rank].append(account, need)
        account.rank = rank

    def _count(self, account: Account[T], before: int) -> None:
        """Keeps the accounts apart by how many of each wait."""
        if before:
            rank = self._by_waits[before]
            del rank[account]
            if not rank:
                del self._by_waits[before]
        after = account.waits
        if after:
            self._by_waits.setdefault(after, OrderedDict())[account] = None
        if after > self._most or self._most not in self._by_waits:
            self._most = after

    def _forget(self, account: Account[T]) -> None:
        if not account.held and not account.waits:
            del self._accounts[account.name]
