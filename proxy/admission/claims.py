"""What does not fit into the free part of the engine's cache, and cannot be passed over for ever.

It is passed over by what does, its own account's younger requests too, but only for so long. After
that it has a *claim*: whatever comes free is kept for it until it fits. Two claims are met in the order
in which their turn had come.

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
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from proxy.admission.closing import Closing
from proxy.admission.parties import Entry

T = TypeVar("T")


class Claims(Generic[T]):
    """Who has been passed over, and who for long enough.

    Args:
        patience_seconds: How long what does not fit is passed over, and for how long in a row it
            may keep others out.

    Attributes:
        kept_for: The claim that comes first, and that others pass.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._passed_over: OrderedDict[Entry[T], None] = OrderedDict()
        self._claims: OrderedDict[Entry[T], None] = OrderedDict()
        self.kept_for: Entry[T] | None = None
        # The number of such so far, and what has passed the last of them.
        self._kept = 0
        self._passed_tokens = 0
        self._closing = Closing(patience_seconds)

    @property
    def closed_until(self) -> float | None:
        """Until when others are kept out at the most."""
        return self._closing.until

    def pass_over(self, entry: Entry[T], now: float) -> None:
        """The turn of its account has come, and it does not fit."""
        if entry.passed_over is None:
            entry.passed_over = now
            self._passed_over[entry] = None

    def ripen(self, now: float) -> Iterator[Entry[T]]:
        """Gives a claim to whoever has been passed over for long enough, and names them.

        Only when somebody is to be served: a claim lets nobody in, it keeps others out.
        """
        while self._passed_over:
            entry = next(iter(self._passed_over))
            if entry.passed_over is None or now - entry.passed_over < self._patience_seconds:
                return
            del self._passed_over[entry]
            entry.claims = True
            self._claims[entry] = None
            yield entry

    def first(self, limit_tokens: int, accounts: int) -> Entry[T] | None:
        """Whose claim is to be met first, if anybody has one that counts; what is free is kept for it.

        Those that do not count are of accounts that hold something, so that few are looked at.
        """
        claim = None
        for entry in self._claims:
            account = entry.account
            if account.rank is not None and account.held_tokens * accounts <= limit_tokens:
                claim = entry
                break
        if claim is not self.kept_for:
            self.kept_for = claim
            self._kept += 1
            self._passed_tokens = 0
        return claim

    def closes(self, now: float) -> bool:
        """Whether others are kept out from now on; to be asked after each ``first``."""
        return self._closing.closes(self.kept_for is not None, now)

    def beside(self, claim: Entry[T], limit_tokens: int) -> int:
        """What may pass, so that there is room for it when those are gone who were there before."""
        return max(limit_tokens - claim.tokens - self._passed_tokens, 0)

    def served(self, entry: Entry[T]) -> None:
        """It holds from now on, and has perhaps passed a claim."""
        if self.kept_for is not None and entry is not self.kept_for:
            entry.passed = self._kept
            self._passed_tokens += entry.tokens

    def done(self, entry: Entry[T]) -> None:
        """What has passed a claim gives back what it held."""
        if entry.passed == self._kept:
            self._passed_tokens -= entry.tokens

    def take_out(self, entry: Entry[T]) -> None:
        """What was passed over waits no more."""
        del (self._claims if entry.claims else self._passed_over)[entry]
