"""One contract for both books, in memory and in Redis: the same figures, to the tick."""

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admission.rates.ledger import AnsweredError, Ask, Charge, Decision, charged
from proxy.admission.rates.link import Link
from proxy.admission.rates.memory import MemoryBooks
from proxy.admission.rates.opening import connector
from proxy.admission.rates.shared import SharedBooks
from proxy.admission.rates.window import DAILY_TOKENS, REQUESTS, TOKENS, Meter
from tests.harness.redis import Server, free_port, serving

START = 20_000 * 86_400.0
"""A turn of minutes and of days."""

_names = itertools.count()


@dataclass
class Clock:
    """A clock that the test moves."""

    now: float = START

    def __call__(self) -> float:
        """Seconds."""
        return self.now


class Books(Protocol):
    """Both of them."""

    async def take(self, account: str, ask: Ask, lease: str) -> Decision:
        """Charges all or nothing."""
        ...

    async def settle(self, charge: Charge, used: int) -> None:
        """Corrects a charge."""
        ...


class InMemory:
    """Those in memory, which nobody waits for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._books = MemoryBooks(clock)

    async def take(self, account: str, ask: Ask, lease: str) -> Decision:
        """At once."""
        return self._books.take(account, ask)

    async def settle(self, charge: Charge, used: int) -> None:
        """At once."""
        self._books.settle(charge, used)


@pytest.fixture
def clock() -> Clock:
    """What time it is for both."""
    return Clock()


@pytest.fixture
def account() -> str:
    """One that no other test has."""
    return f"k{next(_names)}"


@pytest.fixture(params=["memory", "redis"])
async def books(
    request: pytest.FixtureRequest, server: Server, clock: Clock
) -> AsyncIterator[Books]:
    """Either of them."""
    if request.param == "memory":
        yield InMemory(clock)
    else:
        shared = SharedBooks(Link(connector(server.url), 5.0), clock=clock)
        yield shared
        await shared.aclose()


@pytest.fixture
async def in_redis(server: Server, clock: Clock) -> AsyncIterator[SharedBooks]:
    """Those in Redis."""
    shared = SharedBooks(Link(connector(server.url), 5.0), clock=clock)
    yield shared
    await shared.aclose()


def ask_for(*limits: tuple[Meter, int], amount: int = 0, concurrency: int | None = None) -> Ask:
    """All that is asked."""
    return Ask(
        tuple(meter for meter, _ in limits),
        tuple(limit for _, limit in limits),
        amount,
        concurrency,
    )


WINDOWS = [
    pytest.param(REQUESTS, 60.0, id="requests a minute"),
    pytest.param(TOKENS, 60.0, id="tokens a minute"),
    pytest.param(DAILY_TOKENS, 86_400.0, id="tokens a day"),
]


@pytest.mark.parametrize(("meter", "window"), WINDOWS)
async def test_a_limit(
    books: Books, clock: Clock, account: str, meter: Meter, window: float
) -> None:
    """As much as it is passes, no more, and more after the turn of the window, to the tick."""
    ten, one = ask_for((meter, 10), amount=10), ask_for((meter, 10), amount=1)
    granted = await books.take(account, ten, "")
    assert granted.refused_by is None
    assert granted.readings[0][1:] == (0, 2 * window * 10)
    refused = await books.take(account, one, "")
    assert (refused.refused_by, refused.wait) == (0, window * 10 + 1)
    clock.now += window
    assert (await books.take(account, one, "")).wait == 1
    clock.now += 0.1
    assert (await books.take(account, one, "")).refused_by is None
    assert (await books.take(account, one, "")).refused_by == 0


async def test_all_or_nothing(books: Books, account: str) -> None:
    """The second limit refuses, and the first has not been charged; the longest wait is told."""
    both = ask_for((TOKENS, 100), (DAILY_TOKENS, 100), amount=60, concurrency=1)
    assert (await books.take(account, both, "a")).refused_by is None
    refused = await books.take(account, both, "b")
    assert refused.refused_by == 1
    assert [reading.remaining for reading in refused.readings] == [40, 40]
    larger = ask_for((TOKENS, 1000), (DAILY_TOKENS, 1000), amount=60, concurrency=1)
    assert (await books.take(account, larger, "c")).refused_by == 2
    larger = ask_for((TOKENS, 1000), (DAILY_TOKENS, 1000), amount=60, concurrency=2)
    granted = await books.take(account, larger, "d")
    assert granted.refused_by is None
    assert [reading.remaining for reading in granted.readings] == [880, 880]


async def test_concurrency(books: Books, account: str) -> None:
    """Two run, the third waits for one of them to end."""
    ask = ask_for(concurrency=2)
    first = charged(account, ask, await books.take(account, ask, "a"), "a")
    assert (await books.take(account, ask, "b")).refused_by is None
    assert (await books.take(account, ask, "c"))[:2] == (0, 10)
    await books.settle(first, 0)
    assert (await books.take(account, ask, "d")).refused_by is None
    assert (await books.take(account, ask, "e")).refused_by == 0


async def test_of_two_equal_waits_that_of_the_window_is_told(
    books: Books, clock: Clock, account: str
) -> None:
    """A second for the one and for the other: the one that is certain."""
    ask = ask_for((REQUESTS, 1), amount=1, concurrency=1)
    await books.take(account, ask_for((REQUESTS, 1), amount=1), "")
    clock.now += 59
    await books.take(account, ask_for(concurrency=1), "a")
    assert (await books.take(account, ask, "b"))[:2] == (0, 11)
    clock.now += 0.1
    assert (await books.take(account, ask, "b"))[:2] == (0, 10)
    clock.now += 0.1
    assert (await books.take(account, ask, "b"))[:2] == (1, 10)


async def test_of_two_windows_with_equal_waits_the_first_is_told(
    books: Books, account: str
) -> None:
    """The same one here and there, for a message names it."""
    ask = ask_for((REQUESTS, 1), (TOKENS, 1), amount=1)
    await books.take(account, ask, "")
    assert (await books.take(account, ask, ""))[:2] == (0, 601)


@pytest.mark.parametrize(
    ("later", "used", "remaining"),
    [
        pytest.param(0.0, 10, 90, id="less than reserved"),
        pytest.param(0.0, 100, 0, id="as much as reserved"),
        pytest.param(0.0, 250, 0, id="more than the limit"),
        pytest.param(60.0, 10, 90, id="less, given back to the window before"),
        pytest.param(60.0, 130, 0, id="more, in the next window"),
        pytest.param(150.0, 10, 100, id="less, long after"),
        pytest.param(150.0, 130, 70, id="more, long after"),
    ],
)
async def test_settling(
    books: Books, clock: Clock, account: str, *, later: float, used: int, remaining: int
) -> None:
    """What is left of a limit of a hundred once all of it was reserved and some of it used."""
    ask = ask_for((TOKENS, 100), amount=100)
    charge = charged(account, ask, await books.take(account, ask, ""), "")
    clock.now += later
    await books.settle(charge, used)
    assert (await books.take(account, ask_for((TOKENS, 100)), "")).readings[0][1] == remaining


async def test_a_clock_that_is_put_back(books: Books, clock: Clock, account: str) -> None:
    """A second back over a turn gives nobody a new window; a year back locks nobody out."""
    ask = ask_for((TOKENS, 100), amount=100)
    assert (await books.take(account, ask, "")).refused_by is None
    clock.now -= 1
    assert (await books.take(account, ask, "")).refused_by == 0
    clock.now -= 365 * 86_400
    assert (await books.take(account, ask, "")).refused_by is None


class _Both:
    """Does the same to both and compares all that they say."""

    def __init__(self, shared: SharedBooks, clock: Clock) -> None:
        self.clock = clock
        self.books: tuple[Books, Books] = (InMemory(clock), shared)
        self.open: list[tuple[Charge, Charge]] = []
        self.names = itertools.count()
        self.prefix = next(_names)

    async def take(self, which: int, ask: Ask) -> None:
        """Charges all or nothing."""
        account = f"b{self.prefix}-{which}"
        lease = f"l{next(self.names)}" if ask.concurrency is not None else ""
        here, there = [await books.take(account, ask, lease) for books in self.books]
        assert here == there
        if here.refused_by is None:
            charges = [charged(account, ask, decision, lease) for decision in (here, there)]
            self.open.append((charges[0], charges[1]))

    async def settle(self, which: int, used: int) -> None:
        """Corrects one of the charges."""
        if self.open:
            charges = self.open.pop(which % len(self.open))
            for books, charge in zip(self.books, charges, strict=True):
                await books.settle(charge, used)

    async def wait(self, seconds: float) -> None:
        """Time goes. Leases end after 30 s, which those in memory never do: all end before."""
        while self.open and any(charge.lease for charge, _ in self.open):
            await self.settle(0, 1)
        self.clock.now += seconds


_limits = st.sampled_from([1, 2, 7, 60, 1_000, 10**6, 10**10])


@st.composite
def _asks(draw: st.DrawFn) -> Ask:
    meters = tuple(draw(st.sets(st.sampled_from([REQUESTS, TOKENS, DAILY_TOKENS]))))
    limits = tuple(draw(_limits) for _ in meters)
    amount = draw(st.integers(0, min(limits, default=0)))
    return Ask(meters, limits, amount, draw(st.sampled_from([None, 1, 3])))


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 1), _asks()),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 10**10)),
        st.tuples(
            st.just("wait"), st.sampled_from([0.1, 1.7, 31.0, 60.0, 61.3, 3_600.0, 86_400.0, 2e5])
        ),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=100)
@given(steps=_steps)
def test_both_say_the_same(server: Server, steps: list[tuple[Any, ...]]) -> None:
    """Whatever is asked, settled and waited for, in whatever order: the same words of both."""

    async def play() -> None:
        clock = Clock()
        shared = SharedBooks(Link(connector(server.url), 5.0), clock=clock)
        both = _Both(shared, clock)
        for verb, *rest in steps:
            await getattr(both, verb)(*rest)
        await shared.aclose()

    asyncio.run(play())


async def test_a_lease_ends_by_itself(in_redis: SharedBooks, clock: Clock, account: str) -> None:
    """A request of a proxy that was killed runs for 30 s more, unless it is renewed."""
    ask = ask_for(concurrency=1)
    await in_redis.take(account, ask, "a")
    clock.now += 29.9
    assert (await in_redis.take(account, ask, "b")).refused_by == 0
    await in_redis.renew(account, ["a"])
    clock.now += 29.9
    assert (await in_redis.take(account, ask, "b")).refused_by == 0
    clock.now += 0.1
    assert (await in_redis.take(account, ask, "b")).refused_by is None


async def test_by_the_servers_own_time(server: Server, account: str) -> None:
    """Without a clock of a test's the server's time counts, for all proxies alike."""
    one, other = (SharedBooks(Link(connector(server.url), 5.0)) for _ in range(2))
    ask = ask_for((DAILY_TOKENS, 100), amount=60)
    first = await one.take(account, ask, "")
    second = await other.take(account, ask, "")
    assert (first.refused_by, second.refused_by) == (None, 0)
    assert first.readings[0].window == second.readings[0].window
    async with server.client() as client:
        seconds, _ = await client.time()
        assert first.readings[0].window in (seconds // 86_400, (seconds - 5) // 86_400)
    await one.aclose()
    await other.aclose()


async def test_redis_holds_counters_under_names_that_expire(
    in_redis: SharedBooks, server: Server, account: str
) -> None:
    """Nothing but numbers, nothing for ever, and nothing of what is back at zero."""
    ask = ask_for((REQUESTS, 9), (TOKENS, 9), (DAILY_TOKENS, 9), amount=1, concurrency=1)
    charge = charged(account, ask, await in_redis.take(account, ask, "x"), "x")
    async with server.client() as client:
        names = {f"bulwark:{{{account}}}:{name}" for name in ("leases", *_fields(ask))}
        found = set(await client.keys(f"*{account}}}*"))
        assert found == names
        for name, seconds in (
            ("requests_per_minute", 120),
            ("tokens_per_minute", 120),
            ("tokens_per_day", 172_800),
            ("leases", 30),
        ):
            left = await client.ttl(f"bulwark:{{{account}}}:{name}")
            assert seconds - 10 < left <= seconds
        counter = await client.get(f"bulwark:{{{account}}}:tokens_per_day")
        assert counter == f"{int(START) // 86_400} 1 0"
        await in_redis.settle(charge, 0)
        assert await client.keys(f"*{account}}}*") == []


def _fields(ask: Ask) -> list[str]:
    return [meter.name for meter in ask.meters]


GARBAGE = (
    *(b"", b"x", b"7 9", b"7 9 ", b"7 9 1 1", b"-7 9 1", b"7 9.5 1", b"7 nan 1", b"7 9 1\n"),
    *(b"\x00", b"9" * 400 + b" 9 1", b"7 " + b"9" * 400 + b" 1", b"x" * 1_000_000),
)


@pytest.mark.parametrize("what", ["counters", "leases"])
@pytest.mark.parametrize("garbage", [*GARBAGE, ["a list"]], ids=lambda it: repr(it)[:20])
async def test_what_cannot_be_read_counts_as_nothing(
    in_redis: SharedBooks, server: Server, account: str, what: str, garbage: bytes | list[str]
) -> None:
    """And is overwritten: by whatever comes first, a take, a settlement or a renewal."""
    ask = ask_for((TOKENS, 10), (DAILY_TOKENS, 10), amount=6, concurrency=1)
    counters = [f"bulwark:{{{account}}}:{name}" for name in ("tokens_per_minute", "tokens_per_day")]
    keys = counters if what == "counters" else [f"bulwark:{{{account}}}:leases"]

    async def spoil() -> None:
        async with server.client() as client:
            for key in keys:
                await client.delete(key)
                if isinstance(garbage, bytes):
                    await client.set(key, garbage)
                else:
                    await client.rpush(key, *garbage)

    await spoil()
    granted = await in_redis.take(account, ask, "x")
    assert granted.refused_by is None
    assert [reading.remaining for reading in granted.readings] == [4, 4]
    assert (await in_redis.take(account, ask, "y")).refused_by is not None
    await spoil()
    await in_redis.settle(charged(account, ask, granted, "x"), 0)
    await spoil()
    await in_redis.renew(account, ["x"])
    assert (await in_redis.take(account, ask, "y")).refused_by == 2  # x runs


async def test_a_script_that_redis_has_forgotten(
    in_redis: SharedBooks, server: Server, account: str
) -> None:
    """After a flush, a failover or a restart it is told again."""
    ask = ask_for((TOKENS, 3), amount=1)
    async with server.client() as client:
        for remaining in (2, 1, 0):
            await client.script_flush()
            assert (await in_redis.take(account, ask, "")).readings[0].remaining == remaining


async def test_many_at_once_get_exactly_the_limit(server: Server, account: str) -> None:
    """Two proxies, two hundred requests in one moment, a limit of fifty: fifty."""
    await server.early_in_a_minute()
    two = [SharedBooks(Link(connector(server.url), 5.0)) for _ in range(2)]
    ask = ask_for((REQUESTS, 50), amount=1)
    decisions = await asyncio.gather(
        *(two[number % 2].take(account, ask, "") for number in range(200))
    )
    assert sum(decision.refused_by is None for decision in decisions) == 50
    for books in two:
        await books.aclose()


async def test_a_cluster_keeps_an_account_in_one_place(clock: Clock, account: str) -> None:
    """All keys of a script are in one slot, or a cluster would not run it."""
    with tempfile.TemporaryDirectory() as folder:
        bus = ("--cluster-port", str(free_port()))
        async with serving(Path(folder), "--cluster-enabled", "yes", *bus) as cluster:
            link = Link(connector(cluster.url), 5.0)
            await link.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            async with asyncio.timeout(10):
                while b"cluster_state:ok" not in await link.ask("CLUSTER", "INFO"):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            books = SharedBooks(link, clock=clock)
            ask = ask_for((REQUESTS, 9), (TOKENS, 9), (DAILY_TOKENS, 9), amount=1, concurrency=1)
            charge = charged(account, ask, await books.take(account, ask, "x"), "x")
            await books.renew(account, ["x"])
            await books.settle(charge, 0)
            await books.probe()
            await books.aclose()


RIGHTS = (
    *("~bulwark:*", "-@all", "+eval", "+evalsha", "+time", "+get", "+set", "+del", "+expire"),
    *("+zadd", "+zcard", "+zrem", "+zremrangebyscore"),
)


async def test_the_few_rights_that_it_needs(clock: Clock, account: str) -> None:
    """A user who may touch nothing but these keys, with these commands."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), "--user", "b", "on", ">pw", *RIGHTS) as guarded:
            link = Link(connector(f"redis://b:pw@127.0.0.1:{guarded.port}"), 5.0)
            books = SharedBooks(link, clock=clock)
            ask = ask_for((REQUESTS, 9), (TOKENS, 9), (DAILY_TOKENS, 9), amount=1, concurrency=1)
            charge = charged(account, ask, await books.take(account, ask, "x"), "x")
            await books.renew(account, ["x"])
            await books.settle(charge, 0)
            await books.probe()
            with pytest.raises(AnsweredError, match="NOPERM"):
                await link.ask("KEYS", "*")
            await books.aclose()


@pytest.mark.parametrize(
    "missing", [right for right in RIGHTS if right[0] == "+" and right != "+eval"]
)
async def test_a_right_that_is_missing_is_noticed_at_once(server: Server, missing: str) -> None:
    """Not only when the first request needs it, of which nobody would be told."""
    user = f"without-{missing[1:]}"
    async with server.client() as client:
        acl: Any = client  # without types
        await acl.execute_command("ACL", "SETUSER", user, "on", ">pw", *RIGHTS)
        books = SharedBooks(Link(connector(f"redis://{user}:pw@127.0.0.1:{server.port}"), 5.0))
        await books.probe()
        await acl.execute_command("ACL", "SETUSER", user, f"-{missing[1:]}")
        with pytest.raises(AnsweredError):
            await books.probe()
        await books.aclose()
