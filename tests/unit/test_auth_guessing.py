"""Who has sent too many wrong keys, on a clock of the test's own."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from proxy.auth.guessing import Guessing

HERE = "192.0.2.7"


@dataclass
class Clock:
    """A clock that stands still until it is told the time."""

    now: float = 1_000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def fail(guessing: Guessing, address: str, times: int) -> None:
    """Sends so many wrong keys, as far as they are counted."""
    for _ in range(times):
        if guessing.retry_after(address) is None:
            guessing.failed(address)


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [
        pytest.param(0, None, id="none"),
        pytest.param(1, None, id="one"),
        pytest.param(9, None, id="nine, so that the tenth may be"),
        pytest.param(10, 60, id="ten, so that the next is too many"),
        pytest.param(11, 60, id="one too many, which does not count"),
        pytest.param(1_000, 60, id="many too many"),
    ],
)
def test_ten_failures_may_be(failures: int, seconds: int | None) -> None:
    """And no eleventh."""
    guessing = Guessing(clock=Clock())
    fail(guessing, HERE, failures)
    assert guessing.retry_after(HERE) == seconds


@pytest.mark.parametrize(
    ("later", "seconds"),
    [
        pytest.param(0.0, 60, id="at once"),
        pytest.param(0.1, 60, id="a part of a second is a whole one"),
        pytest.param(1.0, 59, id="a second later"),
        pytest.param(59.0, 1, id="a second before the end"),
        pytest.param(59.999, 1, id="just before the end"),
        pytest.param(60.0, None, id="at the end"),
        pytest.param(86_400.0, None, id="a day later"),
    ],
)
def test_the_first_of_the_ten_says_when_one_may_be_again(later: float, seconds: int | None) -> None:
    """In whole seconds, so that whoever waits so long is not too early."""
    clock = Clock()
    guessing = Guessing(clock=clock)
    fail(guessing, HERE, 10)
    clock.now += later
    assert guessing.retry_after(HERE) == seconds


def test_the_window_slides() -> None:
    """In no 60 seconds are there more than ten, wherever they begin: no double share at a seam."""
    clock = Clock()
    guessing = Guessing(clock=clock)
    counted = []
    for tick in range(6_000):
        clock.now = 1_000.0 + tick / 10
        if guessing.retry_after(HERE) is None:
            guessing.failed(HERE)
            counted.append(clock.now)
    assert len(counted) == 100
    assert all(later - earlier >= 60 for earlier, later in zip(counted, counted[10:], strict=False))


def test_who_waits_as_told_is_heard_again() -> None:
    """And may then fail once for each of his ten that is old enough."""
    clock = Clock()
    guessing = Guessing(clock=clock)
    fail(guessing, HERE, 9)
    clock.now += 30
    fail(guessing, HERE, 1)
    assert guessing.retry_after(HERE) == 30
    clock.now += 30
    fail(guessing, HERE, 100)
    # One of the first nine gave way to each of nine new ones.
    assert guessing.retry_after(HERE) == 30


def test_who_comes_back_too_early_does_not_wait_longer_for_it() -> None:
    """A client that retries every second is told once in a while what is wrong with its key."""
    clock = Clock()
    guessing = Guessing(clock=clock)
    heard = []
    for second in range(180):
        clock.now = 1_000.0 + second
        if guessing.retry_after(HERE) is None:
            guessing.failed(HERE)
            heard.append(second)
    assert heard == [*range(10), *range(60, 70), *range(120, 130)]


def test_one_address_is_not_another() -> None:
    """What one does is not counted for its neighbour."""
    guessing = Guessing(clock=Clock())
    fail(guessing, HERE, 10)
    assert guessing.retry_after("192.0.2.8") is None
    assert guessing.retry_after(HERE) == 60


@pytest.mark.parametrize(
    ("others", "forgotten"),
    [
        pytest.param(3, False, id="as many as there are rows besides"),
        pytest.param(4, True, id="one more"),
    ],
)
def test_the_least_recent_gives_way(others: int, *, forgotten: bool) -> None:
    """The table has a size, whatever comes."""
    guessing = Guessing(clock=Clock(), max_addresses=4)
    fail(guessing, HERE, 10)
    for number in range(others):
        guessing.failed(f"198.51.100.{number}")
    assert len(guessing) == 4
    assert (guessing.retry_after(HERE) is None) is forgotten


def test_a_failure_makes_an_address_recent() -> None:
    """Not when it was first seen counts, but when last."""
    guessing = Guessing(clock=Clock(), max_addresses=2, max_failures=2)
    for address in (HERE, "198.51.100.1", HERE, "198.51.100.2"):
        guessing.failed(address)
    assert guessing.retry_after(HERE) == 60
    assert len(guessing) == 2


def test_asking_changes_nothing() -> None:
    """An address that never failed takes no row."""
    guessing = Guessing(clock=Clock())
    assert guessing.retry_after(HERE) is None
    assert len(guessing) == 0


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(lambda n: f"10.{n >> 8 & 255}.{n & 255}.1", id="of fresh addresses"),
        pytest.param(lambda _: HERE, id="from one address"),
    ],
)
def test_a_flood_does_not_grow_the_table(flood: Callable[[int], str]) -> None:
    """Neither in rows nor within one."""
    guessing = Guessing(clock=Clock(), max_addresses=100)
    for number in range(50_000):
        guessing.failed(flood(number))
    assert len(guessing) <= 100
    assert all(len(times) <= 10 for times in guessing._failures.values())
