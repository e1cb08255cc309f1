"""Whose turn it is: between accounts in turns, within one in order of arrival. Pure: no loop, no clock.

An account is whoever shares one turn: a key, or the address of an anonymous client. Those that hold
fewer slots come before those that hold more, and take turns among themselves. Turns alone would give
everybody as many requests, and so the engine to whoever's are long: of four keys' short requests
beside one key's long ones at four slots, a twelfth waited in vain that way, and next to none do now.
Who holds more than others waits as long as they keep coming, but not empty-handed.

Four rules go beyond turns:

* An account holds at most its share of the slots. What it asks beyond waits and is in nobody's way.
* When the queue is full, the youngest of the account that waits with the most gives way, to an
  account that waits with fewer even with the newcomer counted: otherwise the two would take turns in
  throwing each other out.
* A key that waits no more without having been served keeps its place for half a minute, as it would
  if it had others waiting: otherwise those with several got ahead of those with one at every time-out.
* What does not fit into the free part of the engine's cache is passed over by what does, its own
  account's younger requests too, but only for so long. After that it has a *claim*: whatever comes
  free is kept for it until it fits. Two claims are met in the order in which their turn had come.

A claim would keep everybody waiting for as long as the longest answer takes, so that it has limits:

* What fits beside it may pass. When all who were there before it have gone, there is room for the
  claim and for whatever has passed it since: nobody who passes puts it off.
* For the rest it is closed for five seconds at a time, and open for as many. Meanwhile whoever holds
  nothing may have what is free; whoever holds something, what fits beside. So nobody with little is
  shut out for longer, by however many who claim in turns. What is large pays for that: beside one
  account that holds much it has its turn; beside many who hold little, only while their answers are
  short. Above about ten seconds it has no bound within the queue's deadline of 30 s. Half of the
  cache was had every time beside answers of 6 s, every second time at 12 s and one in ten at 20 s;
  nine tenths of it every time at 4 s, two of three at 8 s, and next to never at 12 s.
* While its account holds more than an equal part of the cache, it keeps only its own account waiting.
  It is not starved by the rest either, because its own younger requests wait, until it holds little.
* It comes in its account's turn: when that has just had all of the cache and asks for it again, those
  who hold nothing and have waited meanwhile go first.

Strangers, of whom one can have any number of addresses, have turns among themselves, and count as
one account beside those with keys: by how many they hold together when it is about whose turn it is,
by how many of them wait when it is about giving way, and of equals they are the ones.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from proxy.admission.closing import Closing
from proxy.admission.lineup import ABSENT, Lineup
from proxy.admission.parties import Account, Entry, Side, Standing
from proxy.admission.strangers import is_stranger

T = TypeVar("T")

PATIENCE_SECONDS = 5.0
"""How long what does not fit is passed over, and for how long in a row it may keep others out."""

REMEMBERED_SECONDS = 30.0
"""For how long a key that waits no more keeps its place among those that hold nothing."""

_RING_PLACES = 64


class FairQueue(Generic[T]):
    """Everybody who waits, and everybody who holds.

    How many may hold at once is the caller's business, as is the size of the cache.

    Args:
        size: How many may wait; the caller asks ``give_way`` after each ``join``.
        share: How many slots one account may hold.
        patience_seconds: How long what does not fit is passed over, and for how long in a row it
            may keep others out.

    Attributes:
        waiting: All that wait, in order of arrival.
    """

    def __init__(
        self, *, size: int, share: int, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._size = size
        self._share = share
        self._patience_seconds = patience_seconds
        self._accounts: dict[str, Account[T]] = {}
        # Those that keep a place without waiting, and since when; they are none of the accounts.
        self._absent: OrderedDict[str, tuple[Account[T], float]] = OrderedDict()
        self._keys: Side[T] = Side()
        self._strangers: Side[T] = Side()
        self._turns = 0
        # Ordered, not plain: a dict that is emptied from its front is searched from its front.
        self._waiting: OrderedDict[Entry[T], None] = OrderedDict()
        self.waiting: Collection[Entry[T]] = self._waiting
        self._passed_over: OrderedDict[Entry[T], None] = OrderedDict()
        self._claims: OrderedDict[Entry[T], None] = OrderedDict()
        # The claim that comes first, the number of such so far, and what has passed it.
        self._kept_for: Entry[T] | None = None
        self._kept = 0
        self._passed_tokens = 0
        self._closing = Closing(patience_seconds)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def accounts(self) -> int:
        """How many accounts wait or hold."""
        return len(self._accounts)

    @property
    def oldest(self) -> Entry[T] | None:
        """Who has waited longest."""
        return next(iter(self._waiting), None)

    @property
    def closed_until(self) -> float | None:
        """Until when a claim keeps others out at the most, so that somebody is to look then."""
        return self._closing.until

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

    def enter_at_once(self, name: str, tokens: int, now: float) -> Entry[T] | None:
        """A request that need not wait; None while anybody does, and for an account at its share."""
        account = self._accounts.get(name)
        if self._waiting or (account is not None and account.held >= self._share):
            return None
        return self.enter(name, tokens, now)

    def enter(self, name: str, tokens: int, now: float) -> Entry[T]:
        """A request that need not wait. Only while nobody does, and not for an account at its share."""
        account = self._accounts.get(name) or self._account(name)
        account.held += 1
        account.held_tokens += tokens
        account.side.held += 1
        return Entry(account, tokens, now, Standing.HOLDS)

    def join(self, name: str, tokens: int, now: float) -> Entry[T]:
        """A request that waits, at the end of its account's."""
        self._forget_absent(now)
        account = self._account(name)
        if account.waiting is None:
            account.waiting = Lineup()
        entry = Entry(account, tokens, now, Standing.WAITS)
        account.waiting.append(entry, tokens)
        self._waiting[entry] = None
        side, waits = account.side, account.waits
        if not side.tally.total:
            side.turn = self._next_turn()
        side.tally.count(account, waits - 1, waits)
        self._line_up(account)
        return entry

    def give_way(self) -> Entry[T] | None:
        """Who has to go because somebody has just joined, if anybody has to: by ``leave``.

        It is the newcomer itself where no account waits with more than its own.
        """
        if len(self._waiting) <= self._size:
            return None
        strangers = self._strangers.tally.total >= self._keys.tally.most
        # Of several with the most, the last to have come to so many: the newcomer's, if it is one.
        account = (self._strangers if strangers else self._keys).tally.first()
        return None if account.waiting is None else account.waiting.last()

    def leave(self, entry: Entry[T], now: float) -> None:
        """A request that no longer waits."""
        account = entry.account
        self._take_out(entry)
        entry.standing = Standing.GONE
        if entry.passed_over is not None:
            # Its account's turn had come, and is now the next one's.
            self._pass_over(account, now)
        if account.waits or account.held or account.rank is None or account.side is not self._keys:
            self._line_up(account)
        else:
            # Whoever has several waiting keeps its place when one gives up; so whoever has one.
            account.side.rings[account.rank].change(account, ABSENT)
            self._absent[account.name] = account, now
        self._forget(account)
        self._forget_absent(now)

    def next(self, free_tokens: int, limit_tokens: int, now: float) -> Entry[T] | None:
        """Gives a free slot to whoever is to have it; None leaves it free.

        Args:
            free_tokens: What is left of the cache.
            limit_tokens: What there is of it when nobody holds any.
            now: The time.
        """
        self._forget_absent(now)
        self._let_claim(now)
        claim = self._claim(limit_tokens) if self._claims else None
        self._keep_for(claim)
        closed = self._closing.closes(claim is not None, now)
        if claim is None:
            entry = self._in_turn(free_tokens, free_tokens, now)
        elif (early := self._before(claim, free_tokens, now)) is not None:
            entry = early
        elif closed and claim.tokens <= free_tokens:
            entry = claim
        else:
            beside = max(limit_tokens - claim.tokens - self._passed_tokens, 0)
            beside = min(beside, free_tokens)
            entry = self._in_turn(beside if closed else free_tokens, beside, now)
            if entry is None and claim.tokens <= free_tokens:
                # Its account holds something, and nobody is there who is to go before it.
                entry = claim
        if entry is not None:
            self._serve(entry)
            self._forget_absent(now)
        return entry

    def done(self, entry: Entry[T]) -> None:
        """A request gives back what it held."""
        account = entry.account
        entry.standing = Standing.GONE
        account.held -= 1
        account.held_tokens -= entry.tokens
        side = account.side
        side.held -= 1
        if side.tally.total:
            side.turn = self._next_turn()
        if entry.passed == self._kept:
            self._passed_tokens -= entry.tokens
        if account.waiting is not None:
            self._line_up(account)
        self._forget(account)

    def _account(self, name: str) -> Account[T]:
        account = self._accounts.get(name)
        if account is None:
            if name in self._absent:
                account, _ = self._absent.pop(name)
                if account.rank is not None:
                    account.side.rings[account.rank].name_again(account)
            else:
                account = Account(name, self._strangers if is_stranger(name) else self._keys)
            self._accounts[name] = account
        return account

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns

    def _in_turn(self, first_tokens: int, more_tokens: int, now: float) -> Entry[T] | None:
        """Whoever is next of those that need at most so much, for their first slot or for another."""
        for first, ring in self._rings():
            free_tokens = first_tokens if first else more_tokens
            account = ring.first(free_tokens)
            if account is not ring.front():
                for passed in ring.newly_before(account):
                    self._pass_over(passed, now)
            if account is not None:
                return self._fitting(account, free_tokens, now)
        return None

    def _before(self, claim: Entry[T], free_tokens: int, now: float) -> Entry[T] | None:
        """Who holds nothing and has waited for its turn since before the claim's account had one."""
        for first, ring in self._rings():
            account = ring.first(free_tokens) if first else None
            if account is not None and account.turn < claim.account.turn:
                return self._fitting(account, free_tokens, now)
        return None

    def _rings(self) -> Iterator[tuple[bool, Lineup[Account[T]]]]:
        """All rings in order, and whether those in it hold nothing."""
        keys, strangers = self._keys, self._strangers
        to_come = bool(strangers.rings)
        for rank in sorted(keys.rings):
            ring = keys.rings[rank]
            if to_come and self._strangers_before(rank, ring):
                to_come = False
                yield from self._strangers_rings()
            yield not rank, ring
        if to_come:
            yield from self._strangers_rings()

    def _strangers_before(self, rank: int, ring: Lineup[Account[T]]) -> bool:
        held, front = self._strangers.held, ring.front()
        if held != rank or front is None:
            return held < rank
        return self._strangers.turn < front.turn

    def _strangers_rings(self) -> Iterator[tuple[bool, Lineup[Account[T]]]]:
        kept_for, strangers = self._kept_for, self._strangers
        # Against a key they are one, and hold what any of them holds.
        as_one = kept_for is not None and kept_for.account.side is not strangers
        for rank in sorted(strangers.rings):
            yield not (strangers.held if as_one else rank), strangers.rings[rank]

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

    def _keep_for(self, claim: Entry[T] | None) -> None:
        if claim is not self._kept_for:
            self._kept_for = claim
            self._kept += 1
            self._passed_tokens = 0

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
        account.side.held += 1
        account.side.turn = self._next_turn()
        if self._kept_for is not None and entry is not self._kept_for:
            entry.passed = self._kept
            self._passed_tokens += entry.tokens
        self._line_up(account)

    def _take_out(self, entry: Entry[T]) -> None:
        account = entry.account
        if account.waiting is not None:
            account.waiting.remove(entry)
        del self._waiting[entry]
        if entry.passed_over is not None:
            del (self._claims if entry.claims else self._passed_over)[entry]
        account.side.tally.count(account, account.waits + 1, account.waits)

    def _line_up(self, account: Account[T]) -> None:
        """Sees to it that the account stands in its ring, if it may, and with the right need.

        Whenever it holds more or fewer than it did, it stands at the end: it has had its turn.
        """
        head, rings = account.head, account.side.rings
        rank = None if head is None or account.held >= self._share else account.held
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
                account.turn = self._next_turn()
        account.rank = rank

    def _forget(self, account: Account[T]) -> None:
        if not account.held and (account.waiting is None or not account.waiting.count):
            del self._accounts[account.name]

    def _forget_absent(self, now: float) -> None:
        """Where nobody waits, a place is worth nothing."""
        while self._absent:
            name, (account, since) = next(iter(self._absent.items()))
            if self._waiting and now - since < REMEMBERED_SECONDS:
                return
            del self._absent[name]
            self._line_up(account)
