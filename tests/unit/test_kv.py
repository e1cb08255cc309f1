"""The token budget's sums, and what the engine's own account of itself adds to them."""

from dataclasses import dataclass, field
from random import Random

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
ONE_IN_LINE: Reading = (1, 0.5, 5)


@pytest.mark.parametrize(
    ("readings", "ceiling"),
    [
        pytest.param([], None, id="nothing is known"),
        pytest.param([(0, 0.5, 4)], None, id="it has no queue"),
        pytest.param([(28, 0.5, 32)], None, id="a queue for one reading may be a burst"),
        pytest.param(QUEUE_OF_28, 5, id="two in a row: it runs four, and one may wait"),
        pytest.param([(5, 0.5, 32), (0, 0.5, 32), (5, 0.5, 32)], None, id="not in a row"),
        pytest.param([(28, 0.5, 32), (28, 0.5, 30)], 5, id="the higher of two"),
        pytest.param([(1, 0.5, 32)] * 9, None, id="one in line is no queue"),
        pytest.param([(2, 0.5, 32)] * 2, 31, id="two in line are"),
        pytest.param([(9, 0.5, 5), (9, 0.5, 5)], 2, id="others' requests: two at least"),
        pytest.param([(9, 0.5, 0), (9, 0.5, 0)], None, id="an idle engine's old numbers"),
        pytest.param([(9, 0.5, 5), (9, 0.5, 0), (9, 0.5, 5)], None, id="idle in between"),
        pytest.param([*QUEUE_OF_28, (0, 0.5, 5)], 6, id="no queue, all used: one more"),
        pytest.param([*QUEUE_OF_28, (0, 0.5, 4)], 5, id="no queue, not all used: as before"),
        pytest.param([*QUEUE_OF_28, (0, 0.5, 0)], 5, id="idle: as before"),
        pytest.param([*QUEUE_OF_28, *[ONE_IN_LINE] * 3], 5, id="one in line: as before"),
        pytest.param([*QUEUE_OF_28, *[ONE_IN_LINE] * 4], 6, id="for long: perhaps it could run it"),
        pytest.param([(12, 0, 32), (12, 0, 32), (0, 0, 21)], 26, id="up by a quarter"),
    ],
)
def test_the_ceiling(readings: list[Reading], ceiling: int | None) -> None:
    """Down to what it runs as soon as its queue stays, and up step by step when it has none."""
    crowding = Crowding()
    for second, (waiting, usage, in_flight) in enumerate(readings):
        crowding.note(waiting, usage, second, in_flight)
    assert crowding.ceiling == ceiling


@pytest.mark.parametrize(
    ("readings", "ceiling"),
    [
        pytest.param([(3, 9, 6)] * 2, 7, id="three wait while it runs six"),
        pytest.param([(3, 9, 6)] * 5, 7, id="nobody has gone yet: nothing is proved"),
        pytest.param(
            [(3, 9, 6)] * 2 + [(3, 8, 5)] * 3, 7, id="one has gone, the queue not: no lower"
        ),
        pytest.param([(9, 15, 6)] * 2 + [(8, 11, 3)], 7, id="a full engine that runs fewer"),
        pytest.param(
            [(9, 15, 6)] * 2 + [(8, 11, 3)] * 2, 4, id="its queue fell: lower, when it stays"
        ),
        pytest.param([(3, 9, 6)] * 2 + [(3, 7, 4)], 7, id="there, once: may be of a moment"),
        pytest.param([(3, 9, 6)] * 2 + [(3, 7, 4)] * 2, None, id="there: the queue was never ours"),
        pytest.param(
            [(4, 9, 6)] * 2 + [(4, 7, 3), (2, 7, 5)], 7, id="there, once, and then gone: it is ours"
        ),
        pytest.param(
            [(3, 9, 6)] * 2 + [(3, 7, 4)] * 2 + [(3, 9, 6)] * 9, None, id="and is not taken for it"
        ),
        pytest.param(
            [(3, 9, 6)] * 2 + [(3, 7, 4)] * 2 + [(5, 20, 15)] * 2, 18, id="more than that is"
        ),
        pytest.param(
            [(3, 9, 6)] * 2 + [(3, 7, 4)] * 2 + [(0, 9, 9), (3, 9, 6), (3, 9, 6)],
            7,
            id="once it has gone, another is",
        ),
        pytest.param([(9, 5, 8)] * 2, 9, id="never fewer than it runs, whoever else's wait"),
    ],
)
def test_what_waits_for_something_else(
    readings: list[tuple[float, int, int]], ceiling: int | None
) -> None:
    """A queue that a step down does not shorten is not ours: no other step, and back to before."""
    crowding = Crowding()
    for second, (waiting, in_flight, running) in enumerate(readings):
        crowding.note(waiting, 0.5, second, in_flight, running)
    assert crowding.ceiling == ceiling


@pytest.mark.parametrize(
    ("running", "room"),
    [
        pytest.param(0, True, id="it runs nothing: what waits there keeps nobody out"),
        pytest.param(1, False, id="it runs one"),
        pytest.param(None, False, id="it does not say"),
    ],
)
def test_an_engine_that_runs_nothing_has_room(running: int | None, room: bool) -> None:
    """Whatever its queue is."""
    crowding = Crowding()
    for second in range(2):
        crowding.note(9, 0.5, second, 9, running)
    assert crowding.has_room(9, 2) is room


@dataclass
class Engine:
    """Runs `sequences` at once; `deferred` of ours wait in it for something else, from the 20th s."""

    sequences: int
    deferred: int
    told: bool = True
    running: list[float] = field(default_factory=list)
    queue: int = 0

    def minute(self, demand: int) -> tuple[float, float]:
        """How many it runs and queues on average in the third minute, while so many are wanted."""
        crowding = Crowding()
        luck = Random(1)  # noqa: S311 - nobody is to be kept from guessing it
        page, there = (0, 0), 0
        seen: list[tuple[int, int]] = []
        for second in range(180):
            deferred = self.deferred if second > 20 else 0
            for part in range(20):
                self.running = [end for end in self.running if end > second + part / 20]
                page = (len(self.running), self.queue + deferred)
                there = sum(page)
                while there < demand + deferred and crowding.has_room(there, second):
                    self.queue, there = self.queue + 1, there + 1
                while self.queue and len(self.running) < self.sequences:
                    self.queue -= 1
                    self.running.append(second + part / 20 + luck.uniform(1, 5))
            crowding.note(page[1], 0.5, second + 1, there, page[0] if self.told else None)
            seen.append((len(self.running), self.queue))
        last = seen[-60:]
        return sum(r for r, _ in last) / 60, sum(q for _, q in last) / 60


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("sequences", "deferred", "demand", "runs"),
    [
        pytest.param(4, 0, 32, 4, id="four at once"),
        pytest.param(4, 3, 32, 4, id="four, and three that are put off"),
        pytest.param(99, 0, 16, 16, id="room for all"),
        pytest.param(99, 1, 16, 16, id="one is put off"),
        pytest.param(99, 2, 16, 16, id="two are"),
        pytest.param(99, 8, 16, 16, id="half as many as are wanted"),
    ],
)
def test_an_engine_is_kept_busy_and_its_queue_short(
    sequences: int, deferred: int, demand: int, runs: int, told: bool
) -> None:
    """All that it can run, and beside that not two, whatever else waits there."""
    ran, queued = Engine(sequences, deferred, told=told).minute(demand)
    assert ran > 0.97 * runs
    assert queued < 2


@pytest.mark.parametrize(
    ("readings", "in_flight", "room"),
    [
        pytest.param([], 100, True, id="nothing is known"),
        pytest.param(QUEUE_OF_28, 4, True, id="as many as it runs"),
        pytest.param(QUEUE_OF_28, 5, False, id="and one more"),
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
    assert budget.ceiling == 3
    assert not budget.has_room(2)
    assert budget.stale_from(2) == 1 + STALE_SECONDS
    for _ in range(7):
        budget.give_back(0)
    assert budget.has_room(2)


@pytest.mark.parametrize(
    ("seconds", "waiting", "in_flight", "usage", "room"),
    [
        pytest.param(9, 0, 1, 0.97, False, id="not yet ten seconds"),
        pytest.param(10, 0, 1, 0.97, True, id="ten"),
        pytest.param(60, 0, 2, 0.97, False, id="two of ours may well fill it"),
        pytest.param(60, 2, 1, 0.97, False, id="somebody waits for room in it"),
        pytest.param(60, 0, 1, 0.95, True, id="it is not full"),
    ],
)
def test_a_cache_that_stays_full(
    seconds: int, waiting: int, in_flight: int, usage: float, room: bool
) -> None:
    """What one of ours alone does not bring down keeps nobody out, until it has been down."""
    crowding = Crowding()
    for at in range(seconds + 1):
        crowding.note(waiting, usage, at, in_flight, 1)
    assert crowding.has_room(in_flight, seconds) is room
    crowding.note(0, 0.97, seconds + 1, 3, 3)
    assert crowding.has_room(3, seconds + 1) is (room and usage > 0.95)
    crowding.note(0, 0.5, seconds + 2, 3, 3)
    crowding.note(0, 0.97, seconds + 3, 3, 3)
    assert crowding.has_room(3, seconds + 3) is False
