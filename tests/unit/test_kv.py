"""The token budget's sums, and what the engine's own account of itself adds to them."""

import pytest

from proxy.admission.crowding import STALE_SECONDS, Crowding
from proxy.admission.kv import TokenBudget
from proxy.admission.lineup import UNBOUNDED


@pytest.mark.parametrize(
    ("pool", "limit"),
    [
        pytest.param(186_624, 167_961, id="rounded down to whole tokens"),
        pytest.param(1_024, 921, id="the smallest"),
        pytest.param(1_000, 900, id="exactly nine tenths"),
    ],
)
def test_nine_tenths_of_the_pool(pool: int, limit: int) -> None:
    """The limit goes by the pool, and names it to whom it hits."""
    budget = TokenBudget()
    budget.set_pool(pool)
    assert (budget.pool, budget.limit, budget.free) == (pool, limit, limit)
    assert f"{pool:,}" in budget.setting
    assert "PROXY_KV_BUDGET_TOKENS" in budget.setting


def test_no_pool_no_limit() -> None:
    """Until one was read, nothing is held back; what is reserved meanwhile counts afterwards."""
    budget = TokenBudget()
    budget.take(5_000)
    assert (budget.pool, budget.limit, budget.free) == (None, None, UNBOUNDED)
    budget.set_pool(10_000)
    assert (budget.reserved, budget.free) == (5_000, 4_000)
    budget.give_back(5_000)
    assert budget.free == 9_000


def test_a_smaller_pool_takes_nothing_away() -> None:
    """What is reserved stays so; there is less than nothing free until it is given back."""
    budget = TokenBudget()
    budget.set_pool(10_000)
    budget.take(8_000)
    budget.set_pool(5_000)
    assert (budget.reserved, budget.free) == (8_000, -3_500)
    budget.give_back(8_000)
    assert budget.free == 4_500


def test_a_number_is_the_limit_itself() -> None:
    """Whatever the engine shows: the operator knows better."""
    budget = TokenBudget(50_000)
    assert (budget.pool, budget.limit) == (None, 50_000)
    budget.set_pool(10_000)
    assert (budget.pool, budget.limit, budget.free) == (10_000, 50_000, 50_000)
    assert budget.setting == "50,000 tokens (PROXY_KV_BUDGET_TOKENS)"


Reading = tuple[float, float, int]
"""What the engine says (its queue, its cache) and how many of ours it had; one a second."""

QUEUE_OF_28: list[Reading] = [(28, 0.5, 32), (28, 0.5, 32)]


@pytest.mark.parametrize(
    ("readings", "ceiling"),
    [
        pytest.param([], None, id="nothing is known"),
        pytest.param([(0, 0.5, 4)], None, id="it has no queue"),
        pytest.param([(28, 0.5, 32)], None, id="a queue for one reading may be a burst"),
        pytest.param(QUEUE_OF_28, 4, id="two in a row: it runs four"),
        pytest.param([(5, 0.5, 32), (0, 0.5, 32), (5, 0.5, 32)], None, id="not in a row"),
        pytest.param([(28, 0.5, 32), (28, 0.5, 30)], 4, id="the higher of two"),
        pytest.param([*QUEUE_OF_28, (1, 0.5, 6)], 5, id="later it runs five"),
        pytest.param([(9, 0.5, 5), (9, 0.5, 5)], 1, id="others' requests: one at least"),
        pytest.param([(9, 0.5, 0), (9, 0.5, 0)], None, id="an idle engine's old numbers"),
        pytest.param([(9, 0.5, 5), (9, 0.5, 0), (9, 0.5, 5)], None, id="idle in between"),
        pytest.param([*QUEUE_OF_28, (0, 0.5, 4)], 5, id="no queue, all used: one more"),
        pytest.param([*QUEUE_OF_28, (0, 0.5, 3)], 4, id="no queue, not all used: as before"),
        pytest.param([*QUEUE_OF_28, (0, 0.5, 0)], 4, id="idle: as before"),
        pytest.param([*QUEUE_OF_28, (0, 0, 4), (1, 0, 5)], 5, id="a queue of one, once"),
        pytest.param([(12, 0, 32), (12, 0, 32), (0, 0, 20)], 25, id="up by a quarter"),
    ],
)
def test_the_ceiling(readings: list[Reading], ceiling: int | None) -> None:
    """Down to what it runs as soon as its queue stays, and up step by step when it has none."""
    crowding = Crowding()
    for second, (waiting, usage, in_flight) in enumerate(readings):
        crowding.note(waiting, usage, second, in_flight)
    assert crowding.ceiling == ceiling


@pytest.mark.parametrize(
    ("readings", "in_flight", "room"),
    [
        pytest.param([], 100, True, id="nothing is known"),
        pytest.param(QUEUE_OF_28, 3, True, id="below what it runs"),
        pytest.param(QUEUE_OF_28, 4, False, id="as many as it runs"),
        pytest.param(QUEUE_OF_28, 0, True, id="nothing of ours is there"),
        pytest.param([(0, 0.95, 4)], 4, True, id="the cache is nearly full"),
        pytest.param([(0, 0.951, 4)], 4, False, id="the cache is full"),
        pytest.param([(0, 1.0, 4)], 0, True, id="full, and nothing of ours is there"),
        pytest.param([(0, 1.0, 0)], 1, False, id="full of somebody else's"),
        pytest.param([(0, 1.0, 4), (0, 0.5, 4)], 4, True, id="full no longer"),
    ],
)
def test_room(readings: list[Reading], in_flight: int, room: bool) -> None:
    """Whether the engine can do with one more."""
    crowding = Crowding()
    for second, reading in enumerate(readings):
        crowding.note(reading[0], reading[1], second, reading[2])
    assert crowding.has_room(in_flight, len(readings)) is room


@pytest.mark.parametrize("readings", [QUEUE_OF_28, [(0, 1.0, 32)]])
def test_old_readings_count_for_nothing(readings: list[Reading]) -> None:
    """After five seconds without another; and what was learnt is not taken up again."""
    crowding = Crowding()
    for waiting, usage, in_flight in readings:
        crowding.note(waiting, usage, 10, in_flight)
    assert crowding.stale_from(10) == 10 + STALE_SECONDS
    assert not crowding.has_room(32, 14.9)
    assert crowding.has_room(32, 15)
    assert crowding.stale_from(15) is None
    crowding.note(0, 0.5, 16, 32)
    assert crowding.has_room(32, 16)
    assert crowding.stale_from(16) is None


def test_the_budget_counts_who_is_there() -> None:
    """What is in flight, for the engine's queue to be held against, is whoever has a reservation."""
    budget = TokenBudget()
    for second in range(2):
        for _ in range(4):
            budget.take(0)
        budget.note_load(waiting=6 * second + 2, usage_fraction=0.5, at=second)
    assert budget.ceiling == 2
    assert not budget.has_room(2)
    assert budget.stale_from(2) == 1 + STALE_SECONDS
    for _ in range(7):
        budget.give_back(0)
    assert budget.has_room(2)
