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
  if it had others waiting (``absent``).
* What does not fit into the free part of the engine's cache is passed over by what does, but only for
  so long. After that whatever comes free is kept for it until it fits (``claims``).

Strangers, of whom one can have any number of addresses, have turns among themselves, and count as
one account beside those with keys: by how many they hold together when it is about whose turn it is,
by how many of them wait when it is about giving way, and of equals they are the ones.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from proxy.admission.absent import Absent
from proxy.admission.claims import Claims
from proxy.admission.lineup import Lineup
from proxy.admission.parties import Account, Entry, Side, Standing
from proxy.admission.strangers import is_stranger
from proxy.admission.turns import Turns

T = TypeVar("T")

PATIENCE_SECONDS = 5.0
"""How long what does not fit is passed over, and for how long in a row it may keep others out."""


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
        self._accounts: dict[str, Account[T]] = {}
        self._keys: Side[T] = Side()
        self._strangers: Side[T] = Side()
        self._turns = Turns(self._keys, self._strangers, share)
        self._claims: Claims[T] = Claims(patience_seconds)
        self._absent: Absent[T] = Absent()
        # Ordered, not plain: a dict that is emptied from its front is searched from its front.
        self._waiting: OrderedDict[Entry[T], None] = OrderedDict()
        self.waiting: Collection[Entry[T]] = self._waiting

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
        return self._claims.closed_until

    def share_out(self, share: int) -> None:
        """One account may hold as many from now on; whoever holds more keeps them."""
        self._turns.share = share
        for account in self._accounts.values():
            if account.waits:
                self._turns.line_up(account)

    def at_share(self, name: str) -> bool:
        """Whether this account holds as many as it may."""
        account = self._accounts.get(name)
        return account is not None and account.held >= self._turns.share

    def enter_at_once(self, name: str, tokens: int, now: float) -> Entry[T] | None:
        """A request that need not wait; None while anybody does, and for an account at its share."""
        account = self._accounts.get(name)
        if self._waiting or (account is not None and account.held >= self._turns.share):
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
            side.turn = self._turns.number()
        side.tally.count(account, waits - 1, waits)
        self._turns.line_up(account)
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
            self._turns.line_up(account)
        else:
            self._absent.keep(account, now)
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
        for ripe in self._claims.ripen(now):
            self._turns.line_up(ripe.account)
        claim = self._claims.first(limit_tokens, len(self._accounts))
        closed = self._claims.closes(now)
        if claim is None:
            entry = self._in_turn(free_tokens, free_tokens, now)
        elif (early := self._before(claim, free_tokens, now)) is not None:
            entry = early
        elif closed and claim.tokens <= free_tokens:
            entry = claim
        else:
            beside = min(self._claims.beside(claim, limit_tokens), free_tokens)
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
            side.turn = self._turns.number()
        if entry.passed is not None:
            self._claims.done(entry)
        if account.waiting is not None:
            self._turns.line_up(account)
        self._forget(account)

    def _account(self, name: str) -> Account[T]:
        account = self._accounts.get(name)
        if account is None:
            account = self._absent.back(name) or Account(
                name, self._strangers if is_stranger(name) else self._keys
            )
            self._accounts[name] = account
        return account

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
        kept_for = self._claims.kept_for
        return self._turns.rings(
            as_one=kept_for is not None and kept_for.account.side is self._keys
        )

    def _fitting(self, account: Account[T], free_tokens: int, now: float) -> Entry[T] | None:
        head = account.head
        if head is None or account.waiting is None or head.tokens <= free_tokens:
            return head
        self._pass_over(account, now)
        return account.waiting.first(free_tokens)

    def _pass_over(self, account: Account[T], now: float) -> None:
        """Its turn has come, and its oldest request does not fit."""
        if (head := account.head) is not None:
            self._claims.pass_over(head, now)

    def _serve(self, entry: Entry[T]) -> None:
        account = entry.account
        self._take_out(entry)
        entry.standing = Standing.HOLDS
        account.held += 1
        account.held_tokens += entry.tokens
        account.side.held += 1
        account.side.turn = self._turns.number()
        self._claims.served(entry)
        self._turns.line_up(account)

    def _take_out(self, entry: Entry[T]) -> None:
        account = entry.account
        if account.waiting is not None:
            account.waiting.remove(entry)
        del self._waiting[entry]
        if entry.passed_over is not None:
            self._claims.take_out(entry)
        account.side.tally.count(account, account.waits + 1, account.waits)

    def _forget(self, account: Account[T]) -> None:
        if not account.held and (account.waiting is None or not account.waiting.count):
            del self._accounts[account.name]

    def _forget_absent(self, now: float) -> None:
        for account in self._absent.forget(now, matters=bool(self._waiting)):
            self._turns.line_up(account)
