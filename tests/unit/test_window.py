"""The sliding window: what passes, when it would, and what is left, to the tick."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.rates.window import Counter, ticks, whole_seconds

LENGTH = 600  # ticks: a minute


def passes_at(counter: Counter, tick: int, limit: int, cost: int) -> bool:
    """Whether it would pass then, if nothing else came."""
    later = Counter(counter.window, counter.current, counter.previous)
    left = later.turn(tick, LENGTH)
    return later.wait(limit, cost, left, LENGTH) == 0


@pytest.mark.parametrize(
    ("current", "previous", "tick", "cost", "wait"),
    [
        pytest.param(0, 0, 600, 10, 0, id="the whole limit passes when nothing is used"),
        pytest.param(9, 0, 600, 1, 0, id="the last one passes"),
        pytest.param(10, 0, 600, 1, 601, id="one too many waits for the turn"),
        pytest.param(10, 0, 1199, 1, 2, id="the same at the end of the window"),
        pytest.param(10, 0, 600, 2, 661, id="two too many until a tenth of it is past"),
        pytest.param(10, 0, 600, 10, 1141, id="the whole limit until hardly one counts"),
        pytest.param(0, 10, 600, 1, 1, id="a full window counts in full at the turn"),
        pytest.param(0, 10, 601, 1, 0, id="and a little less after it"),
        pytest.param(0, 10, 660, 2, 1, id="one tick before less than nine count"),
        pytest.param(0, 10, 661, 2, 0, id="when less than nine count"),
        pytest.param(5, 5, 600, 1, 1, id="both windows count"),
        pytest.param(5, 5, 600, 2, 121, id="both, for two"),
        pytest.param(5, 5, 720, 2, 1, id="both, a tick too early"),
        pytest.param(5, 5, 721, 2, 0, id="both, in time"),
        pytest.param(10, 10, 900, 1, 301, id="a full window waits for its own turn"),
        pytest.param(3, 7, 600, 0, 0, id="what costs nothing passes at the limit"),
        pytest.param(4, 7, 600, 0, 1, id="what costs nothing waits beyond it"),
        pytest.param(100, 0, 600, 10, 1195, id="far beyond it, two turns are enough"),
        pytest.param(100, 0, 600, 1, 1141, id="far beyond it, for the first place of ten"),
    ],
)
def test_what_passes_and_when(current: int, previous: int, tick: int, cost: int, wait: int) -> None:
    """A limit of ten a minute: at the moment that is named it passes, and one tick before not."""
    counter = Counter(1, current, previous)
    left = counter.turn(tick, LENGTH)
    assert counter.wait(10, cost, left, LENGTH) == wait
    assert passes_at(counter, tick + wait, 10, cost)
    if wait:
        assert not passes_at(counter, tick + wait - 1, 10, cost)


counts = st.integers(0, 10**10)


@given(
    current=counts,
    previous=counts,
    tick=st.integers(LENGTH, 3 * LENGTH),
    limit=st.integers(1, 10**10),
    cost=st.integers(0, 10**10),
)
def test_the_wait_is_exact(current: int, previous: int, tick: int, limit: int, cost: int) -> None:
    """Whatever is used: it passes after the wait, not a tick sooner, and in two windows at most."""
    cost = min(cost, limit)
    counter = Counter(1, current, previous)
    left = counter.turn(tick, LENGTH)
    wait = counter.wait(limit, cost, left, LENGTH)
    assert 0 <= wait <= 2 * LENGTH
    assert passes_at(counter, tick + wait, limit, cost)
    assert not wait or not passes_at(counter, tick + wait - 1, limit, cost)
    # And in the seconds that a client is told.
    seconds = whole_seconds(wait)
    assert passes_at(counter, tick + 10 * seconds, limit, cost)
    assert wait == 0 or not passes_at(counter, tick + 10 * (seconds - 1), limit, cost)


@given(current=counts, previous=counts, tick=st.integers(LENGTH, 3 * LENGTH))
def test_what_remains_passes_and_no_more(current: int, previous: int, tick: int) -> None:
    """Exactly as much passes now as is said to remain."""
    limit = 10**10
    counter = Counter(1, current, previous)
    left = counter.turn(tick, LENGTH)
    remaining = counter.reading(limit, left, LENGTH).remaining
    if remaining:
        assert counter.wait(limit, remaining, left, LENGTH) == 0
    if remaining < limit:
        assert counter.wait(limit, remaining + 1, left, LENGTH) > 0


@pytest.mark.parametrize(
    ("current", "previous", "tick", "remaining", "reset"),
    [
        pytest.param(0, 0, 600, 10, 0, id="nothing is used"),
        pytest.param(3, 0, 600, 7, 1200, id="what is used now counts until the next turn but one"),
        pytest.param(3, 0, 900, 7, 900, id="half of the window is past"),
        pytest.param(0, 3, 600, 7, 600, id="what was used before counts until the next turn"),
        pytest.param(0, 3, 601, 8, 599, id="a part of it is rounded down"),
        pytest.param(0, 3, 800, 8, 400, id="exactly two"),
        pytest.param(0, 3, 801, 9, 399, id="less than two"),
        pytest.param(9, 9, 600, 0, 1200, id="more than the limit leaves nothing, and no debt"),
    ],
)
def test_what_is_left(current: int, previous: int, tick: int, remaining: int, reset: int) -> None:
    """Of a limit of ten."""
    counter = Counter(1, current, previous)
    left = counter.turn(tick, LENGTH)
    assert counter.reading(10, left, LENGTH) == (1, remaining, reset)
    counter.turn(tick + reset, LENGTH)
    assert (counter.current, counter.previous) == (0, 0)


@pytest.mark.parametrize(
    ("tick", "expected", "left"),
    [
        pytest.param(4200, (7, 5, 3), 600, id="the same window"),
        pytest.param(4799, (7, 5, 3), 1, id="its last tick"),
        pytest.param(4800, (8, 0, 5), 600, id="the next one: what was current is previous"),
        pytest.param(5400, (9, 0, 0), 600, id="the next but one: nothing counts"),
        pytest.param(99_999, (166, 0, 0), 201, id="much later"),
        pytest.param(4199, (7, 5, 3), 600, id="a clock put back over a turn stands still"),
        pytest.param(3599, (5, 0, 0), 1, id="a clock put back by more begins anew"),
    ],
)
def test_the_turn_of_a_window(tick: int, expected: tuple[int, int, int], left: int) -> None:
    """What the two counters are when the time is another."""
    counter = Counter(7, 5, 3)
    assert counter.turn(tick, LENGTH) == left
    assert (counter.window, counter.current, counter.previous) == expected


@pytest.mark.parametrize(
    ("charged", "difference", "expected"),
    [
        pytest.param(7, -4, (96, 50), id="given back to the current window"),
        pytest.param(7, 4, (104, 50), id="more than reserved, in the current window"),
        pytest.param(6, -4, (100, 46), id="given back to the previous window, which was charged"),
        pytest.param(6, 4, (104, 50), id="more than reserved counts now, when it was used"),
        pytest.param(5, -4, (100, 50), id="what no longer counts is not given back to others"),
        pytest.param(5, 4, (104, 50), id="more than was reserved long ago still counts now"),
        pytest.param(7, -101, (0, 50), id="never below zero"),
        pytest.param(6, -51, (100, 0), id="never below zero, of the previous window either"),
        pytest.param(7, 0, (100, 50), id="exactly what was reserved"),
    ],
)
def test_settling(charged: int, difference: int, expected: tuple[int, int]) -> None:
    """What a correction does to the counters, whenever it comes."""
    counter = Counter(7, 100, 50)
    counter.settle(charged, difference)
    assert (counter.current, counter.previous) == expected


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        pytest.param(0, 1, id="never 0"),
        pytest.param(1, 1, id="a tick"),
        pytest.param(10, 1, id="a second"),
        pytest.param(11, 2, id="a tick more"),
        pytest.param(1_728_000, 172_800, id="two days"),
    ],
)
def test_whole_seconds(wait: int, seconds: int) -> None:
    """As Retry-After has them."""
    assert whole_seconds(wait) == seconds


@pytest.mark.parametrize(("seconds", "tick"), [(0.0, 0), (0.0999, 0), (0.1, 1), (12.5, 125)])
def test_ticks(seconds: float, tick: int) -> None:
    """A tick is a tenth of a second, and has begun when it has begun."""
    assert ticks(seconds) == tick
