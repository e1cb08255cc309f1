"""What a key was given over time and at once: charged before a request is served, settled after.

Each proxy keeps the books of what it has served itself. Where several share Redis, its books decide,
and ours go along, so that they can decide with the same figures while it is away.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec

from proxy.admission.rates import wording
from proxy.admission.rates.guarded import RETRY_SECONDS, GuardedBooks
from proxy.admission.rates.ledger import Ask, Charge, Decision, charged
from proxy.admission.rates.memory import MemoryBooks
from proxy.admission.rates.window import DAILY_TOKENS, REQUESTS, TOKENS, Counter, Meter
from proxy.admission.strangers import is_stranger
from proxy.errors import LimitsUnavailable
from proxy.principal import Allowance

# More than any answer has; an upstream that says more is not believed.
_MAX_TOKENS = 10**10

Used = Callable[[str, Charge | None, int, int], None]
"""Told what a request has used, once: its account, what was charged, all its tokens, its output."""

# The name of a lease that nobody else hears of.
_LOCAL = "local"


class Grant(msgspec.Struct):
    """What one request was given, to be settled once.

    Attributes:
        fields: How the limits on tokens stand, for the head of the answer.
    """

    fields: list[tuple[bytes, bytes]] = []
    _local: Charge | None = None
    _shared: Charge | None = None
    _account: str = ""


class RateLimits:
    """The limits of keys on requests, tokens and concurrency.

    Args:
        local: The books of this proxy.
        shared: Those of all of them; None where there is only one.
        closed: Whether a key with limits is refused while the shared books cannot be reached;
            otherwise this proxy counts alone.
        on_used: Told what each request has used; None where nobody keeps it.
    """

    def __init__(
        self,
        local: MemoryBooks,
        shared: GuardedBooks | None = None,
        *,
        closed: bool = False,
        on_used: Used | None = None,
    ) -> None:
        self._local = local
        self._shared = shared
        self._closed = closed
        self._on_used = on_used

    @property
    def redis_up(self) -> bool:
        """Whether the shared books are in use, not before they were; true where there are none."""
        return self._shared is None or (self._shared.up and self._shared.has_answered)

    @property
    def are_told(self) -> bool:
        """Whether somebody keeps what each request has used."""
        return self._on_used is not None

    @property
    def failures(self) -> int:
        """How often Redis did not answer."""
        return self._shared.failures if self._shared is not None else 0

    async def admit(self, account: str, allowance: Allowance) -> list[tuple[bytes, bytes]]:
        """Charges one request; gives the fields that tell how the limit on requests stands.

        Raises:
            RateLimitExceeded: There were as many as may be in a minute.
            LimitsUnavailable: Nobody can say, and nobody may guess.
        """
        limit = allowance.requests_per_minute
        if limit is None:
            return []
        ask = _one_request(limit)
        if self._shared is None or (books := self._books_of(account)) is None:
            decision = self._local.take(account, ask)
        else:
            decision, _, _ = await self._take(books, account, ask, "")
        if decision.refused_by is not None:
            raise wording.exceeded(ask, decision)
        return wording.fields(ask, decision)

    async def reserve(
        self, account: str, allowance: Allowance, tokens: int, output_tokens: int = 0
    ) -> Grant:
        """Charges what a request may use at most, and counts it among those that run.

        Everything is tested before anything is charged.

        Args:
            account: Whose limits count.
            allowance: What they are.
            tokens: All that it may use.
            output_tokens: How many of them it may generate.

        Raises:
            RateLimitExceeded: It must wait for one of its limits.
            RequestExceedsRateLimit: It would wait for ever: it is larger than a whole limit.
            LimitsUnavailable: Nobody can say, and nobody may guess.
        """
        meters, limits = _limited(allowance)
        if not meters and allowance.concurrency is None:
            return Grant(_account=account)
        if limits and tokens > min(limits):
            at = next(at for at, limit in enumerate(limits) if tokens > limit)
            raise wording.too_large(meters[at], limits[at], tokens)
        ask = Ask(meters, limits, tokens, allowance.concurrency)
        if self._shared is None:
            decision = self._local.take(account, ask)
            if decision.refused_by is not None:
                raise wording.exceeded(ask, decision, output_tokens)
            charge = charged(account, ask, decision, _LOCAL)
            return Grant(wording.fields(ask, decision), charge, None, account)
        books = self._books_of(account)
        lease = _lease(ask, books)
        decision, local, shared = (
            self._take_here(account, ask, lease)
            if books is None
            else await self._take(books, account, ask, lease)
        )
        if decision.refused_by is not None:
            raise wording.exceeded(ask, decision, output_tokens)
        if books is not None and lease:
            books.hold(account, lease)
            # Redis will hear of it also if it did not grant it, and must hear of its end.
            shared = shared or Charge(account, (), 0, [], lease)
        return Grant(wording.fields(ask, decision), local, shared, account)

    def settle(self, grant: Grant, tokens: int, output_tokens: int = 0) -> None:
        """Corrects a reservation by what was really used; the request runs no longer.

        Waits for nobody, raises nothing, and does it once, however often it is called.
        """
        local, shared = grant._local, grant._shared  # noqa: SLF001 - ours alone
        grant._local = grant._shared = None  # noqa: SLF001
        used = min(max(0, tokens), _MAX_TOKENS)
        if self._on_used is not None and grant._account:  # noqa: SLF001
            # Where Redis has charged it, by Redis's clock.
            charge = shared if shared is not None and shared.meters else local
            self._on_used(grant._account, charge, used, min(output_tokens, used))  # noqa: SLF001
            grant._account = ""  # noqa: SLF001
        if local is not None:
            self._local.settle(local, used)
        if shared is not None and self._shared is not None:
            self._shared.let_go(shared.lease)
            self._shared.settle(shared, used)

    async def run(self) -> None:
        """Keeps leases alive and looks for Redis when it is gone, until cancelled.

        Without it Redis, once gone, would not be asked again.
        """
        if self._shared is not None:
            await self._shared.run()

    async def aclose(self) -> None:
        """Settles what is on its way, and ends the connection."""
        if self._shared is not None:
            await self._shared.aclose()

    def _books_of(self, account: str) -> GuardedBooks | None:
        """Those that are shared, of a key; of whoever has none, none."""
        # Their names are addresses of people, as many as the internet has, which Redis would keep.
        return None if is_stranger(account) else self._shared

    async def _take(
        self, books: GuardedBooks, account: str, ask: Ask, lease: str
    ) -> tuple[Decision, Charge | None, Charge | None]:
        """What was decided, and what was charged here and there."""
        decision = await books.take(account, ask, lease)
        if decision is None:
            if self._closed:
                raise LimitsUnavailable(
                    "The limits of your key cannot be looked up. Try again soon.",
                    retry_after_seconds=int(RETRY_SECONDS),
                )
            return self._take_here(account, ask, lease)
        if decision.refused_by is not None:
            return decision, None, None
        local = self._local.take(account, ask, test=False)
        return (
            decision,
            charged(account, ask, local, lease),
            charged(account, ask, decision, lease),
        )

    def _take_here(
        self, account: str, ask: Ask, lease: str
    ) -> tuple[Decision, Charge | None, Charge | None]:
        decision = self._local.take(account, ask)
        return decision, charged(account, ask, decision, lease), None


@lru_cache(maxsize=256)
def _one_request(limit: int) -> Ask:
    """Keys are many, and their limits few."""
    return Ask((REQUESTS,), (limit,), 1)


_BOTH, _MINUTE, _DAY = (TOKENS, DAILY_TOKENS), (TOKENS,), (DAILY_TOKENS,)


def _limited(allowance: Allowance) -> tuple[tuple[Meter, ...], tuple[int, ...]]:
    """What of its tokens is limited, and by how much."""
    minute, day = allowance.tokens_per_minute, allowance.tokens_per_day
    if minute is not None and day is not None:
        return _BOTH, (minute, day)
    if minute is not None:
        return _MINUTE, (minute,)
    return (_DAY, (day,)) if day is not None else ((), ())


def _lease(ask: Ask, books: GuardedBooks | None) -> str:
    if ask.concurrency is None:
        return ""
    return books.lease() if books is not None else _LOCAL


def build(
    *,
    clock: Callable[[], float],
    redis_url: str | None = None,
    closed: bool = False,
    on_change: Callable[[bool, str], None] = lambda _up, _why: None,
    on_failure: Callable[[], None] = lambda: None,
    seeds: Mapping[str, Counter] | None = None,
    on_used: Used | None = None,
) -> RateLimits:
    """The limits as settings name them.

    Args:
        clock: Seconds, by which windows are counted.
        redis_url: Where the shared books are; None keeps them here.
        closed: As in ``RateLimits``.
        on_change: As in ``GuardedBooks``.
        on_failure: As in ``GuardedBooks``.
        seeds: As in ``MemoryBooks``; of no use where the books are Redis's.
        on_used: As in ``RateLimits``.

    Raises:
        ValueError: The URL is none.
    """
    if redis_url is None:
        return RateLimits(MemoryBooks(clock, seeds=seeds), on_used=on_used)
    # Here, because Redis's client is 6 MB, which most do not need.
    from proxy.admission.rates import shared  # noqa: PLC0415

    books = shared.connect(redis_url)
    guarded = GuardedBooks(books, on_change=on_change, on_failure=on_failure)
    return RateLimits(MemoryBooks(clock), guarded, closed=closed, on_used=on_used)
