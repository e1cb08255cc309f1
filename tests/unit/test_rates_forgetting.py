"""What the books of this process forget of keys, and when: nothing that still counts."""

from dataclasses import dataclass

import pytest

from proxy.admission.rates import RateLimits
from proxy.admission.rates.memory import MemoryBooks
from proxy.errors import RateLimitExceeded
from proxy.principal import Allowance


@dataclass
class Clock:
    """A clock that the test moves. It begins at a turn of minutes."""

    now: float = 864_000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@pytest.mark.parametrize(
    ("seconds", "remembered"),
    [
        pytest.param(59.9, True, id="in the minute itself"),
        pytest.param(60.0, True, id="in the one after it, where nearly all of it counts"),
        pytest.param(119.9, True, id="at its end"),
        pytest.param(120.0, False, id="in the one after that"),
    ],
)
async def test_what_others_push_out_counts_no_longer(seconds: float, remembered: bool) -> None:
    """Keys that come make room by those whose minute is over for good, and by no other."""
    clock = Clock()
    books = MemoryBooks(clock)
    rates = RateLimits(books)
    await rates.admit("k", Allowance(requests_per_minute=1))
    clock.now += seconds
    for number in range(10):
        await rates.admit(f"other-{number}", Allowance(requests_per_minute=1))
    assert len(books) == 10 + remembered


async def test_a_key_that_is_at_its_limit_gains_nothing_by_others() -> None:
    """However many come between, in the minute after the one that it used up."""
    clock = Clock()
    rates = RateLimits(MemoryBooks(clock))
    allowance = Allowance(tokens_per_minute=100)
    await rates.reserve("k", allowance, 100)
    clock.now += 60.0
    for number in range(100):
        await rates.reserve(f"other-{number}", allowance, 1)
    with pytest.raises(RateLimitExceeded):
        await rates.reserve("k", allowance, 1)


async def test_a_thousand_that_are_gone_are_forgotten_as_new_ones_come() -> None:
    """Two for each that comes: one would keep the table as large as it ever was."""
    clock = Clock()
    books = MemoryBooks(clock)
    rates = RateLimits(books)
    allowance = Allowance(requests_per_minute=1)
    for number in range(1_000):
        await rates.admit(f"gone-{number}", allowance)
    clock.now += 120.0
    for number in range(500):
        await rates.admit(f"new-{number}", allowance)
    assert len(books) == 500


async def test_a_figure_beyond_belief_costs_no_more_than_the_most_that_may_be() -> None:
    """Or a key with a generous limit would be shut out for all of the next minute, too."""
    clock = Clock()
    rates = RateLimits(MemoryBooks(clock))
    allowance = Allowance(tokens_per_minute=10**10)
    rates.settle(await rates.reserve("k", allowance, 1), 10**15)
    clock.now += 90.0
    await rates.reserve("k", allowance, 10**10 // 2)
    with pytest.raises(RateLimitExceeded):
        await rates.reserve("k", allowance, 1)
