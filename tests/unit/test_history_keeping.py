"""What is added to the file of what keys have used, when, and what becomes of it when it cannot be."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.history import History, HistoryFile, seeds
from proxy.admission.rates.ledger import Ask, Charge, charged
from proxy.admission.rates.limits import RateLimits
from proxy.admission.rates.memory import MemoryBooks
from proxy.admission.rates.window import DAILY_TOKENS, REQUESTS, TOKENS, Counter
from proxy.errors import RateLimitExceeded
from proxy.principal import Allowance

DAY = 86_400.0
TODAY = 20_000
NOON = TODAY * DAY + DAY / 2


@dataclass
class Clock:
    """A clock that the test moves."""

    now: float = NOON

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self.now


@dataclass
class Bench:
    """A file, and what adds to it."""

    path: Path
    clock: Clock = field(default_factory=Clock)
    told: list[str | None] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    history: History = field(init=False)

    def __post_init__(self) -> None:
        """Makes both."""
        file = HistoryFile(self.path, busy_seconds=0)
        file.begin(TODAY)
        self.history = History(
            file,
            self.clock,
            on_change=self.told.append,
            on_lost=self.lost.append,
            write_seconds=0.001,
        )

    def use(
        self, tokens: int, output: int = 0, *, reserved: int | None = None, key: str = "a"
    ) -> None:
        """A request that has ended; with what was reserved of a limit for a day, today at noon."""
        charge = Charge(key, (DAILY_TOKENS,), reserved, [TODAY]) if reserved is not None else None
        self.history.used(key, charge, tokens, output)

    def rows(self) -> list[tuple[object, ...]]:
        """All that is in the file."""
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return connection.execute("SELECT * FROM usage ORDER BY day, key_id").fetchall()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """While somebody else has the lock."""
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """One at noon."""
    return Bench(tmp_path / "usage.db")


@pytest.mark.parametrize(
    ("reserved", "used", "days_later", "rows"),
    [
        pytest.param(None, 7, 0, [(TODAY, 0)], id="no limit for a day"),
        pytest.param(10, 7, 0, [(TODAY, 7)], id="less than reserved"),
        pytest.param(10, 10, 0, [(TODAY, 10)], id="as much as reserved"),
        pytest.param(10, 13, 0, [(TODAY, 13)], id="more than reserved"),
        pytest.param(10, 7, 1, [(TODAY, 7), (TODAY + 1, 0)], id="less, by tomorrow"),
        pytest.param(10, 13, 1, [(TODAY, 10), (TODAY + 1, 3)], id="more, by tomorrow"),
        pytest.param(10, 0, 0, [], id="nothing"),
    ],
)
async def test_what_is_charged_to_which_day(
    bench: Bench, reserved: int | None, used: int, days_later: int, rows: list[tuple[int, int]]
) -> None:
    """As the books of rates settle it: what was reserved to its day, the rest to that of its end."""
    bench.clock.now += days_later * DAY
    bench.use(used, reserved=reserved)
    await bench.history.flush()
    assert [row[:3:2] for row in bench.rows()] == rows


async def test_what_else_is_kept(bench: Bench) -> None:
    """Requests, and their tokens of both kinds; of strangers, whose accounts are addresses, nothing."""
    bench.use(10, 4)
    bench.use(5, 5, reserved=9)
    bench.use(3, 1, key="env-1")
    bench.use(0, key="refused")
    bench.use(7, key="anonymous 192.0.2.7")
    await bench.history.flush()
    assert bench.rows() == [(TODAY, "a", 5, 2, 6, 9), (TODAY, "env-1", 0, 1, 2, 1)]


async def test_only_the_limit_for_a_day_is_charged(bench: Bench) -> None:
    """Whatever else was reserved, and in whichever window."""
    for meters, windows in (
        ((TOKENS,), [9]),
        ((TOKENS, DAILY_TOKENS), [9, TODAY]),
        ((REQUESTS,), [9]),
        ((), []),
    ):
        bench.history.used("a", Charge("a", meters, 10, windows), 4, 0)
    await bench.history.flush()
    assert bench.rows() == [(TODAY, "a", 4, 4, 16, 0)]


async def test_it_is_written_time_and_again(bench: Bench) -> None:
    """Without anybody asking for it, and added to what is there."""
    running = asyncio.create_task(bench.history.run())
    for count in (1, 2):
        bench.use(5, 2)
        async with asyncio.timeout(20):
            while [row[3] for row in bench.rows()] != [count]:  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert bench.rows() == [(TODAY, "a", 0, 2, 6, 4)]


async def test_who_is_called_off_in_the_middle_neither_loses_nor_doubles(bench: Bench) -> None:
    """The transaction goes on in its thread, and the last one waits for it."""
    for turn in range(20):
        bench.use(5)
        writing = asyncio.create_task(bench.history.flush())
        for _ in range(turn % 4):
            await asyncio.sleep(0)
        writing.cancel()
        bench.use(5)
    await bench.history.aclose()
    assert bench.rows() == [(TODAY, "a", 0, 40, 200, 0)]
    assert bench.lost == []


async def test_what_cannot_be_written_is_kept(bench: Bench) -> None:
    """It is told once, and once when it can be again; all of it is there then, once."""
    with bench.locked():
        for _ in range(3):
            bench.use(5)
            await bench.history.flush()
        assert "locked" in (bench.history.problem or "")
        # Nothing new, and what is owed is tried all the same.
        await bench.history.flush()
    assert bench.rows() == []
    bench.use(5, key="b")
    await bench.history.flush()
    await bench.history.flush()
    assert [row[1:4] for row in bench.rows()] == [("a", 0, 3), ("b", 0, 1)]
    assert [said is None for said in bench.told] == [False, True]
    assert bench.history.problem is None


async def test_what_is_kept_is_no_more_than_a_row_a_day_and_key(bench: Bench) -> None:
    """However many requests there were meanwhile."""
    with bench.locked():
        for number in range(300):
            bench.use(5, key=f"k{number % 3}")
            if not number % 100:
                await bench.history.flush()
        await bench.history.aclose()
    assert bench.lost == [3]


async def test_a_thread_that_is_not_to_be_had(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends nothing: it is told, and what it should have written is written by the next, or at the end."""

    async def none(*_args: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "to_thread", none)
        for _ in range(3):
            bench.use(5)
            await bench.history.flush()
        assert bench.history.problem == "cannot be written: RuntimeError"
        running = asyncio.create_task(bench.history.run())
        await asyncio.sleep(0.01)
        assert not running.done()
        running.cancel()
    await bench.history.aclose()
    assert [row[1:4] for row in bench.rows()] == [("a", 0, 3)]
    assert [said is None for said in bench.told] == [False, True]
    assert bench.lost == []


async def test_what_was_owed_is_written_at_the_end(bench: Bench) -> None:
    """Also if nothing was used since."""
    with bench.locked():
        bench.use(5)
        await bench.history.flush()
    await bench.history.aclose()
    assert [row[3] for row in bench.rows()] == [1]
    assert bench.lost == []


async def test_the_loop_does_not_wait_for_the_file(bench: Bench) -> None:
    """Requests go on while somebody else has the lock."""
    slow = HistoryFile(bench.path, busy_seconds=60)
    history = History(slow, bench.clock)
    history.used("a", None, 5, 0)
    with bench.locked():
        writing = asyncio.create_task(history.flush())
        for _ in range(100):
            history.used("a", None, 5, 0)
            await asyncio.sleep(0)
        assert not writing.done()
    await writing
    await history.aclose()
    assert [row[3] for row in bench.rows()] == [101]


# What the books begin with


def remaining(books: MemoryBooks, key: str = "a", limit: int = 100) -> int:
    """What is left of a limit."""
    return books.take(key, Ask((DAILY_TOKENS,), (limit,), 0)).readings[0].remaining


@pytest.mark.parametrize(
    ("days", "left"),
    [
        pytest.param({TODAY: 30}, 70, id="today's"),
        pytest.param({TODAY - 1: 30}, 85, id="yesterday's, of which half a day is left"),
        pytest.param({TODAY - 1: 30, TODAY: 30}, 55, id="both"),
        pytest.param({TODAY: 130}, 0, id="more than the limit"),
        pytest.param({TODAY + 1: 30}, 70, id="tomorrow's: the clock stands still"),
        pytest.param({TODAY: 20, TODAY + 1: 30}, 50, id="tomorrow's, and all of today's"),
        pytest.param({TODAY + 1: 0, TODAY: 20}, 80, id="tomorrow's, where it is none"),
        pytest.param({}, 100, id="none"),
    ],
)
def test_what_the_books_begin_with(days: dict[int, int], left: int) -> None:
    """As if they had counted it themselves."""
    books = MemoryBooks(Clock(), seeds=seeds({"a": days}, TODAY))
    assert remaining(books) == left
    assert remaining(books, "b") == 100


@pytest.mark.parametrize(
    ("later", "left"),
    [
        pytest.param(0.0, 70, id="at once"),
        pytest.param(DAY / 2 - 1, 70, id="in the last second of the day"),
        pytest.param(DAY, 85, id="at noon tomorrow"),
        pytest.param(2 * DAY, 100, id="the day after"),
    ],
)
def test_a_key_that_comes_later(later: float, left: int) -> None:
    """By a key file that is read again: what it had counts by then as it would have."""
    clock = Clock()
    books = MemoryBooks(clock, seeds=seeds({"a": {TODAY: 30}}, TODAY))
    for _ in range(5):
        remaining(books, "b")
    clock.now += later
    assert remaining(books) == left
    assert remaining(books) == left


def test_only_once() -> None:
    """An account that was forgotten, for it says nothing any more, does not begin with it again."""
    clock = Clock()
    books = MemoryBooks(clock, seeds={"a": Counter(TODAY, 30, 0)})
    assert remaining(books) == 70
    clock.now += 3 * DAY
    for number in range(9):
        remaining(books, f"b{number}")
    clock.now -= 3 * DAY
    assert remaining(books) == 100


steps = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(0, 40),
        st.integers(0, 60),
        st.sampled_from([0.0, 0.1, DAY / 3, DAY, 2 * DAY]),
    ),
    max_size=30,
)


@given(steps=steps)
def test_a_restart_changes_nothing(steps: list[tuple[str, int, int, float]]) -> None:
    """Whatever was asked and settled before: books of a new process say what the old ones would."""
    clock = Clock()
    books, kept = MemoryBooks(clock), History(HistoryFile(Path("never")), clock)
    for account, amount, used, later in steps:
        ask = Ask((DAILY_TOKENS,), (10**6,), amount)
        charge = charged(account, ask, books.take(account, ask), "")
        clock.now += later
        kept.used(account, charge, used, 0)
        books.settle(charge, used)
    charged_by: dict[str, dict[int, int]] = {}
    for (day, account), row in kept._fresh.items():
        charged_by.setdefault(account, {})[day] = row[0]
    new = MemoryBooks(clock, seeds=seeds(charged_by, kept.today()))
    for account in ("a", "b"):
        assert remaining(new, account, 10**6) == remaining(books, account, 10**6)


async def test_each_request_is_told_once() -> None:
    """By whom it was, what was reserved, and what it has used, however often it is settled."""
    told: list[tuple[object, ...]] = []
    rates = RateLimits(MemoryBooks(Clock()), on_used=lambda *used: told.append(used))
    for allowance in (Allowance(), Allowance(tokens_per_day=100, tokens_per_minute=90)):
        grant = await rates.reserve("a", allowance, 50)
        rates.settle(grant, 30, 10)
        rates.settle(grant, 30, 10)
    with pytest.raises(RateLimitExceeded):
        await rates.reserve("a", Allowance(tokens_per_day=60), 50)
    # More than any engine can have done is not believed.
    rates.settle(await rates.reserve("b", Allowance(), 50), 10**12, 10**12)
    assert told.pop()[2:] == (10**10, 10**10)
    (_, nothing, *used), (name, charge, *_) = told
    assert (nothing, used) == (None, [30, 10])
    assert name == "a"
    assert isinstance(charge, Charge)
    assert (charge.meters, charge.amount, charge.windows[1]) == ((TOKENS, DAILY_TOKENS), 50, TODAY)
