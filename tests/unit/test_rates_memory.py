"""What the books of this process work out for themselves is what their counters say."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.rates.ledger import CONCURRENCY_WAIT, Ask, Charge, Decision, charged
from proxy.admission.rates.memory import MemoryBooks
from proxy.admission.rates.window import Counter, Meter, ticks

METERS = (Meter("short", 10), Meter("long", 35))


class Plain:
    """One account, kept by nothing but the counters' own methods."""

    def __init__(self) -> None:
        self.counters = {meter: Counter() for meter in METERS}
        self.running = 0

    def take(self, now: float, ask: Ask, *, test: bool) -> Decision:
        """As ``MemoryBooks.take``."""
        refused_by, longest = None, 0
        turned = []
        for at, (meter, limit) in enumerate(zip(ask.meters, ask.limits, strict=True)):
            counter = self.counters[meter]
            left = counter.turn(ticks(now), meter.length)
            wait = counter.wait(limit, ask.amount, left, meter.length) if test else 0
            if wait > longest:
                refused_by, longest = at, wait
            turned.append((counter, limit, left, meter.length))
        if ask.concurrency is not None:
            if test and self.running >= ask.concurrency and longest < CONCURRENCY_WAIT:
                refused_by, longest = len(turned), CONCURRENCY_WAIT
            self.running += refused_by is None
        for counter, *_ in turned:
            counter.current += ask.amount if refused_by is None else 0
        readings = [counter.reading(*how) for counter, *how in turned]
        return Decision(refused_by, longest, readings)

    def settle(self, now: float, charge: Charge, used: int) -> None:
        """As ``MemoryBooks.settle``."""
        self.running -= bool(charge.lease)
        for meter, window in zip(charge.meters, charge.windows, strict=True):
            self.counters[meter].turn(ticks(now), meter.length)
            self.counters[meter].settle(window, used - charge.amount)


asks = st.builds(
    Ask,
    st.sampled_from([METERS, METERS[:1], METERS[1:], ()]),
    st.just((60, 90)),
    st.integers(0, 60),
    st.sampled_from([None, 1, 3]),
).map(lambda ask: ask._replace(limits=ask.limits[: len(ask.meters)]))
steps = st.tuples(
    st.sampled_from([0.0, 0.1, 0.3, 0.9, 1.0, 3.5, -0.2, -1.0, 20.0]),
    st.one_of(asks, asks, st.tuples(st.integers(0, 5), st.integers(0, 90))),
    st.sampled_from([True, True, True, False]),
)


@given(steps=st.lists(steps, max_size=30))
def test_both_say_the_same(steps: list[tuple[float, Ask | tuple[int, int], bool]]) -> None:
    """Whatever is asked and settled, and whatever the clock does."""
    now = 1_000.0
    books, plain = MemoryBooks(lambda: now), Plain()
    open_charges: list[Charge] = []
    for seconds, step, test in steps:
        now += seconds
        if isinstance(step, Ask):
            decision = books.take("k", step, test=test)
            assert decision == plain.take(now, step, test=test)
            if decision.refused_by is None:
                open_charges.append(charged("k", step, decision, "local"))
        elif open_charges:
            charge = open_charges.pop(step[0] % len(open_charges))
            books.settle(charge, step[1])
            plain.settle(now, charge, step[1])
