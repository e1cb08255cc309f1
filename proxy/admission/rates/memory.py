"""The books of rates in this process. Nothing here waits, so that nothing can come in between."""

from collections.abc import Callable, Mapping
from itertools import islice

from proxy.admission.rates.ledger import CONCURRENCY_WAIT, Ask, Charge, Decision
from proxy.admission.rates.window import DAILY_TOKENS, TICKS_PER_SECOND, Counter, Meter, Reading
from proxy.principal import ANONYMOUS

MAX_STRANGERS = 10_000

# Of named tuples, without a call of the function that takes their members by name.
_new = tuple.__new__


class _Counters(dict[Meter, Counter]):
    """By kinds of limits; each is made when it is first asked for."""

    __slots__ = ()

    def __missing__(self, meter: Meter) -> Counter:
        counter = self[meter] = Counter()
        return counter


class _Account:
    """What one account has used, and how many of its requests run."""

    __slots__ = ("counters", "running")

    def __init__(self) -> None:
        self.counters = _Counters()
        self.running = 0

    def is_spent(self, tick: int) -> bool:
        """Whether forgetting it changes nothing."""
        return not self.running and all(
            counter.is_spent(tick, meter.length) for meter, counter in self.counters.items()
        )


class MemoryBooks:
    """The accounts of this process.

    Keys are as many as the operator has made. Strangers, who have none and count by their
    addresses, are as many as the internet has: of those the last `max_strangers` are remembered.

    Args:
        clock: Seconds, by which windows are counted.
        max_strangers: How many; those whose requests run are remembered beyond it.
        seeds: What keys have used of their tokens a day before, by the windows of this clock. Each
            is looked for when its key first comes, which may be in a key file of later.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        max_strangers: int = MAX_STRANGERS,
        seeds: Mapping[str, Counter] | None = None,
    ) -> None:
        self._clock = clock
        self._seeds = dict(seeds or {})
        self._max_strangers = max_strangers
        self._keys: dict[str, _Account] = {}
        # In the order of last use.
        self._strangers: dict[str, _Account] = {}

    def __len__(self) -> int:
        return len(self._keys) + len(self._strangers)

    def take(self, account: str, ask: Ask, *, test: bool = True) -> Decision:
        """Charges all that is asked, if every limit has room for it.

        Args:
            account: Whose limits they are.
            ask: What is asked. No cost may be over its whole limit.
            test: False charges it in any case: somebody else has granted it.
        """
        tick = int(self._clock() * TICKS_PER_SECOND)
        books = self._keys.get(account) or self._open(account, tick)
        counters = books.counters
        meters, limits, amount, running = ask
        refused_by, longest = None, 0
        turned: list[tuple[Counter, int, int, int]] = []
        # What `Counter.turn`, `wait` and `reading` say of most requests is worked out without a call of
        # theirs: three for each limit were most of this.
        for meter, limit in zip(meters, limits, strict=True):
            counter, length = counters[meter], meter.length
            if tick // length == counter.window:
                left = length - tick % length
            else:
                left = counter.turn(tick, length)
            if test:
                room = limit - amount - counter.current
                if room < 0 or counter.previous * left >= (room + 1) * length:
                    wait = counter.wait(limit, amount, left, length)
                    if wait > longest:
                        refused_by, longest = len(turned), wait
            turned.append((counter, limit, left, length))
        if running is not None:
            if test and books.running >= running and longest < CONCURRENCY_WAIT:
                refused_by, longest = len(turned), CONCURRENCY_WAIT
            if refused_by is None:
                books.running += 1
        readings = []
        charged = amount if refused_by is None else 0
        for counter, limit, left, length in turned:
            counter.current = current = counter.current + charged
            previous = counter.previous
            rest = limit - current - previous * left // length
            reset = left + length if current else left if previous else 0
            remaining = rest if rest > 0 else 0  # noqa: FURB136 - a call takes longer
            readings.append(_new(Reading, (counter.window, remaining, reset)))
        return _new(Decision, (refused_by, longest, readings))

    def settle(self, charge: Charge, used: int) -> None:
        """Corrects a charge of tokens by what was really used, and ends its lease."""
        tick = int(self._clock() * TICKS_PER_SECOND)
        difference = used - charge.amount
        books = self._keys.get(charge.account) or self._strangers.get(charge.account)
        if books is None:
            # Forgotten since: what is to be given back is gone, and what is to be charged is not.
            if difference <= 0:
                return
            books = self._open(charge.account, tick)
        if charge.lease:
            books.running -= 1
        for meter, window in zip(charge.meters, charge.windows, strict=True):
            counter = books.counters[meter]
            if tick // meter.length != counter.window:
                counter.turn(tick, meter.length)
            if difference <= 0 and window == counter.window:
                # As `Counter.settle`: most are settled in the window in which they were charged.
                current = counter.current + difference
                counter.current = current if current > 0 else 0  # noqa: FURB136 - as above
            else:
                counter.settle(window, difference)

    def _table(self, account: str) -> dict[str, _Account]:
        return self._strangers if account.startswith(ANONYMOUS) else self._keys

    def _open(self, account: str, tick: int) -> _Account:
        """The account; of strangers the one that was used last."""
        table = self._table(account)
        books = table.get(account)
        if books is None:
            books = _Account()
            if self._seeds and (seed := self._seeds.pop(account, None)) is not None:
                books.counters[DAILY_TOKENS] = seed
            self._make_room(table, tick)
            table[account] = books
        elif table is self._strangers:
            del table[account]
            table[account] = books
        return books

    def _make_room(self, table: dict[str, _Account], tick: int) -> None:
        if table is self._keys:
            # For each that is new two others are looked at, in turn, and dropped if nothing would
            # be lost: keys come and go, too.
            for name in list(islice(table, 2)):
                books = table.pop(name)
                if not books.is_spent(tick):
                    table[name] = books
        elif len(table) >= self._max_strangers:
            # Never one whose requests run: they would no longer count.
            idle = (name for name, books in table.items() if not books.running)
            if (longest_idle := next(idle, None)) is not None:
                del table[longest_idle]
