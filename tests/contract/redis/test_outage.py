"""Limits while Redis is killed, frozen and started again: nobody waits, and nobody gets more."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import pytest

from proxy.admission.rates import Grant, RateLimits
from proxy.admission.rates.guarded import GuardedBooks
from proxy.admission.rates.link import BUDGET_SECONDS, Link
from proxy.admission.rates.memory import MemoryBooks
from proxy.admission.rates.opening import connector
from proxy.admission.rates.shared import SharedBooks
from proxy.errors import LimitsUnavailable, RateLimitExceeded
from proxy.principal import Allowance
from tests.harness.awake import counting
from tests.harness.forwarding import until
from tests.harness.redis import Server
from tests.harness.turns import after

RETRY_SECONDS = 0.2
PATIENT = 5.0
"""For servers that are well, on machines that are busy."""


@dataclass
class Proxy:
    """One of the proxies that share a server, as far as limits go.

    Attributes:
        told: What it has said of Redis, in order.
    """

    rates: RateLimits
    shared: GuardedBooks
    told: list[tuple[bool, str]] = field(default_factory=list)

    @property
    def said(self) -> list[bool]:
        """When Redis went, and when it was back."""
        return [up for up, _ in self.told]

    def is_back(self) -> bool:
        """Whether Redis had gone and is in use again; on a busy machine it may go once more."""
        return len(self.told) > 1 and self.rates.redis_up


class Make(Protocol):
    """What the fixture ``make`` is."""

    async def __call__(
        self,
        *,
        closed: bool = False,
        renew_seconds: float = 10.0,
        retry_seconds: float = ...,
        budget_seconds: float = ...,
    ) -> Proxy:
        """A proxy that shares the test's own server."""
        ...


@pytest.fixture
async def make(own_server: Server) -> AsyncIterator[Make]:
    """Makes proxies."""
    async with contextlib.AsyncExitStack() as stack:

        async def one(
            *,
            closed: bool = False,
            renew_seconds: float = 10.0,
            retry_seconds: float = RETRY_SECONDS,
            budget_seconds: float = BUDGET_SECONDS,
        ) -> Proxy:
            told: list[tuple[bool, str]] = []
            began = time.monotonic()
            local = MemoryBooks(lambda: 864_000 + time.monotonic() - began)
            shared = GuardedBooks(
                SharedBooks(Link(connector(own_server.url), budget_seconds)),
                on_change=lambda up, why: told.append((up, why)),
                retry_seconds=retry_seconds,
                renew_seconds=renew_seconds,
            )
            made = Proxy(RateLimits(local, shared, closed=closed), shared, told)
            running = asyncio.create_task(made.rates.run())

            async def end() -> None:
                running.cancel()
                await asyncio.wait([running])
                await made.rates.aclose()

            stack.push_async_callback(end)
            return made

        yield one


async def count(
    number: int, get: Callable[[int], "asyncio.Future[object] | asyncio.Task[object]"]
) -> int:
    """How many of so many at once were granted."""
    answers = await asyncio.gather(*(get(at) for at in range(number)), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(isinstance(answer, RateLimitExceeded) for answer in refused), refused
    return number - len(refused)


async def timed(rates: RateLimits, allowance: Allowance, account: str = "k") -> float:
    """The seconds that one request waits for its limits, from first to last."""
    async with counting() as awake:
        await rates.admit(account, allowance)
        grant = await rates.reserve(account, allowance, 1)
        rates.settle(grant, 1)
        return awake()


PLENTY = Allowance(
    requests_per_minute=10**6, tokens_per_minute=10**6, tokens_per_day=10**9, concurrency=1_000
)


async def test_two_proxies_never_give_more_together(own_server: Server, make: Make) -> None:
    """Requests, tokens and what runs at once: each limit is one for both."""
    await own_server.early_in_a_minute()
    two = [await make(budget_seconds=PATIENT) for _ in range(2)]

    def admit(at: int) -> "asyncio.Task[object]":
        return asyncio.create_task(two[at % 2].rates.admit("k", Allowance(requests_per_minute=25)))

    def reserve(allowance: Allowance) -> Callable[[int], "asyncio.Task[object]"]:
        return lambda at: asyncio.create_task(two[at % 2].rates.reserve("k", allowance, 3))

    assert await count(100, admit) == 25
    assert await count(100, reserve(Allowance(tokens_per_minute=100))) == 33
    assert await count(100, reserve(Allowance(tokens_per_day=100))) == 33
    assert await count(100, reserve(Allowance(concurrency=7))) == 7
    assert [proxy.told for proxy in two] == [[], []]


async def test_of_strangers_nothing_is_kept_there(own_server: Server, make: Make) -> None:
    """Their names are addresses. Each proxy counts them by itself, and so twice what one gives."""
    two = [await make(budget_seconds=PATIENT) for _ in range(2)]
    allowance = Allowance(requests_per_minute=5, tokens_per_minute=100, concurrency=3)
    stranger = "anonymous 192.0.2.7"

    def admit(at: int) -> "asyncio.Task[object]":
        return asyncio.create_task(two[at % 2].rates.admit(stranger, allowance))

    assert await count(40, admit) == 2 * 5
    grant = await two[0].rates.reserve(stranger, allowance, 10)
    async with own_server.client() as client:
        assert await client.keys("*192*") == []
    two[0].rates.settle(grant, 10)


async def test_of_a_key_that_is_called_like_one_it_is(own_server: Server, make: Make) -> None:
    """A name that only begins as theirs do."""
    proxy = await make(budget_seconds=PATIENT)
    await proxy.rates.admit("anonymous-batch", Allowance(requests_per_minute=5))
    async with own_server.client() as client:
        assert await client.keys("*anonymous-batch*") != []


async def test_what_one_settles_the_other_has(make: Make) -> None:
    """What was reserved here and not used is there for requests over there."""
    one, other = [await make(budget_seconds=PATIENT) for _ in range(2)]
    allowance = Allowance(tokens_per_minute=100, concurrency=1)
    grant = await one.rates.reserve("k", allowance, 100)
    with pytest.raises(RateLimitExceeded):
        await other.rates.reserve("k", allowance, 1)
    one.rates.settle(grant, 10)
    await one.shared.flush()
    await other.rates.reserve("k", allowance, 90)


async def test_killed_in_mid_load_and_started_again(own_server: Server, make: Make) -> None:
    """Everybody is served, nobody waits for long, it is said once, and then Redis is back."""
    proxy = await make()
    slowest = 0.0
    served = 0
    over = asyncio.Event()

    async def load(account: str) -> None:
        nonlocal slowest, served
        while not over.is_set():
            slowest = max(slowest, await timed(proxy.rates, PLENTY, account))
            served += 1
            await asyncio.sleep(0)

    loads = [asyncio.create_task(load(f"k{number}")) for number in range(20)]
    await until(lambda: served > 200)
    await own_server.kill()
    await until(lambda: proxy.said == [False])
    at_the_fall = served
    await until(lambda: served > at_the_fall + 200)
    assert not proxy.rates.redis_up
    await own_server.start()
    await until(proxy.is_back)
    at_the_return = served
    await until(lambda: served > at_the_return + 200)
    over.set()
    await asyncio.gather(*loads)
    assert proxy.rates.failures >= 1
    assert slowest < 2  # of 20 that share two busy cores
    async with own_server.client() as client:
        assert await client.keys("bulwark:{k0}*")


async def test_frozen_in_mid_load(own_server: Server, make: Make) -> None:
    """Those who ask just then wait a tenth of a second, once; all others nothing at all."""
    proxy = await make(retry_seconds=60)
    await timed(proxy.rates, PLENTY)
    own_server.freeze()
    waits = await asyncio.gather(
        *(timed(proxy.rates, PLENTY, f"k{number}") for number in range(50))
    )
    assert max(waits) < 0.25
    assert proxy.said == [False]
    failures = proxy.rates.failures
    later = [await timed(proxy.rates, PLENTY, f"k{number}") for number in range(50)]
    assert max(later) < 0.05
    assert proxy.rates.failures == failures
    own_server.thaw()


async def test_looking_for_it_holds_up_nobody(own_server: Server, make: Make) -> None:
    """While it stays frozen it is asked again and again, by nobody's request."""
    proxy = await make(retry_seconds=0.01)
    await timed(proxy.rates, PLENTY)
    own_server.freeze()
    await timed(proxy.rates, PLENTY)
    slowest = 0.0
    failures = proxy.rates.failures
    while proxy.rates.failures < failures + 3:
        slowest = max(slowest, await timed(proxy.rates, PLENTY))
        await asyncio.sleep(0)
    assert slowest < 0.05
    assert proxy.said == [False]
    own_server.thaw()
    await until(proxy.is_back)


async def test_settling_waits_for_nobody(own_server: Server, make: Make) -> None:
    """A frozen server does not hold up the end of a request."""
    proxy = await make()
    grants = [await proxy.rates.reserve("k", PLENTY, 5) for _ in range(20)]
    own_server.freeze()
    started = time.monotonic()
    for grant in grants:
        proxy.rates.settle(grant, 1)
    assert time.monotonic() - started < 0.05
    own_server.thaw()


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_here_the_same_figures_count_on(own_server: Server, make: Make, how: str) -> None:
    """An outage is no new minute, no new day, and no second set of requests at once."""
    await own_server.early_in_a_minute()
    proxy = await make(retry_seconds=60)
    requests = Allowance(requests_per_minute=10)
    tokens = Allowance(tokens_per_day=100, concurrency=3)
    for _ in range(6):
        await proxy.rates.admit("k", requests)
    runs = await proxy.rates.reserve("k", tokens, 40)
    await proxy.rates.reserve("k", tokens, 40)
    await (own_server.kill() if how == "killed" else asyncio.to_thread(own_server.freeze))
    for _ in range(4):
        await proxy.rates.admit("k", requests)
    with pytest.raises(RateLimitExceeded, match="requests_per_minute"):
        await proxy.rates.admit("k", requests)
    with pytest.raises(RateLimitExceeded, match="tokens_per_day"):
        await proxy.rates.reserve("k", tokens, 21)
    await proxy.rates.reserve("k", tokens, 20)
    with pytest.raises(RateLimitExceeded, match="concurrency"):
        await proxy.rates.reserve("k", tokens, 0)
    # What Redis has granted ends here as well.
    proxy.rates.settle(runs, 10)
    await proxy.rates.reserve("k", tokens, 30)
    assert proxy.said == [False]


async def test_what_redis_grants_is_counted_here_in_any_case(
    own_server: Server, make: Make
) -> None:
    """Redis has forgotten what runs and grants more than we would: all of it runs, and ends."""
    proxy = await make(retry_seconds=60)
    allowance = Allowance(concurrency=1, tokens_per_minute=10)
    first = await proxy.rates.reserve("k", allowance, 10)
    async with own_server.client() as client:
        await client.flushall()
    second = await proxy.rates.reserve("k", allowance, 10)
    for grant in (first, second):
        proxy.rates.settle(grant, 0)
    await own_server.kill()
    await proxy.rates.reserve("k", allowance, 10)
    with pytest.raises(RateLimitExceeded):
        await proxy.rates.reserve("k", allowance, 0)


async def test_closed(own_server: Server, make: Make) -> None:
    """Where nobody may guess: 503 for whom has limits, and nothing for whom has none."""
    proxy = await make(closed=True)
    tokens = Allowance(tokens_per_minute=100)
    grant = await proxy.rates.reserve("k", tokens, 10)
    await own_server.kill()
    for ask in (
        proxy.rates.admit("k", Allowance(requests_per_minute=5)),
        proxy.rates.reserve("k", tokens, 1),
        proxy.rates.reserve("k", Allowance(concurrency=1), 1),
    ):
        with pytest.raises(LimitsUnavailable) as refused:
            await ask
        assert (refused.value.status, refused.value.retry_after_seconds) == (503, 5)
    assert await proxy.rates.admit("k", Allowance()) == []
    assert await proxy.rates.reserve("k", Allowance(), 5) == Grant(_account="k")
    proxy.rates.settle(grant, 3)
    await own_server.start()
    await until(proxy.is_back)
    await proxy.rates.reserve("k", tokens, 1)


async def leases(server: Server, account: str = "k") -> dict[str, float]:
    """What runs, as far as Redis knows, and until when in ticks."""
    async with server.client() as client:
        name = f"bulwark:{{{account}}}:leases"
        names = await client.zrange(name, 0, -1)
        return {str(lease): await client.zscore(name, str(lease)) or 0 for lease in names}


async def test_what_runs_is_renewed(own_server: Server, make: Make) -> None:
    """The leases of all requests that run are kept up by one task, and of no other."""
    proxy = await make(renew_seconds=0.15, budget_seconds=PATIENT)
    allowance = Allowance(concurrency=3)
    ends = await proxy.rates.reserve("k", allowance, 0)
    await proxy.rates.reserve("k", allowance, 0)
    proxy.rates.settle(ends, 0)
    await proxy.shared.flush()
    before = await leases(own_server)
    assert len(before) == 1
    async with asyncio.timeout(5):
        while (later := await leases(own_server)) == before:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    assert later.keys() == before.keys()


async def test_what_runs_still_counts_once_redis_is_back(own_server: Server, make: Make) -> None:
    """Redis has forgotten all and is told what runs, of before and of its absence alike."""
    one, other = await make(), await make()
    allowance = Allowance(concurrency=3)
    before = await one.rates.reserve("k", allowance, 0)
    await own_server.kill()
    meanwhile = await one.rates.reserve("k", allowance, 0)
    await own_server.start()
    await until(one.is_back)
    async with asyncio.timeout(5):
        while len(await leases(own_server)) < 2:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    await other.rates.reserve("k", allowance, 0)
    with pytest.raises(RateLimitExceeded):
        await other.rates.reserve("k", allowance, 0)
    one.rates.settle(before, 0)
    one.rates.settle(meanwhile, 0)
    await one.shared.flush()
    assert len(await leases(own_server)) == 1


async def test_what_ended_in_its_absence_is_settled_on_its_return(
    own_server: Server, make: Make
) -> None:
    """Redis granted it, was away when it ended, and is told when it is back."""
    one, other = await make(), await make()
    allowance = Allowance(tokens_per_day=100, concurrency=1)
    grant = await one.rates.reserve("k", allowance, 100)
    own_server.freeze()
    await one.rates.admit("k", PLENTY)  # notices
    assert one.said == [False]
    one.rates.settle(grant, 10)
    own_server.thaw()
    await until(one.is_back)
    await one.shared.flush()
    await until(lambda: other.rates.redis_up)
    await other.rates.reserve("k", allowance, 90)


async def test_who_leaves_while_it_is_asked_has_asked_for_nothing(
    own_server: Server, make: Make
) -> None:
    """Called off at any point, no charge stays behind and no lease."""
    proxy = await make(budget_seconds=PATIENT)
    allowance = Allowance(tokens_per_minute=1_000, tokens_per_day=1_000, concurrency=40)
    dice = random.Random(5)  # noqa: S311 - for the order of things
    granted: list[Grant] = []
    left = 0

    async def ask() -> None:
        nonlocal left
        with anyio.CancelScope() as scope:
            after(dice.randrange(12), scope.cancel)
            granted.append(await proxy.rates.reserve("k", allowance, 10))
        left += scope.cancelled_caught

    for _ in range(20):
        await asyncio.gather(*(ask() for _ in range(30)))
        for grant in granted:
            proxy.rates.settle(grant, 0)
        granted.clear()
        await proxy.shared.flush()
        assert await leases(own_server) == {}
    assert left > 20
    async with own_server.client() as client:
        assert await client.keys("bulwark:{*") == []
    # Nor here.
    await own_server.kill()
    await proxy.rates.reserve("k", allowance, 1_000)


async def test_the_reason_tells_nobody_where_it_is(own_server: Server, make: Make) -> None:
    """It goes to the log, which others read."""
    proxy = await make()
    await own_server.kill()
    await proxy.rates.admit("k", PLENTY)
    ((up, why),) = proxy.told
    assert not up
    assert why
    for secret in (own_server.url.removeprefix("unix://"), "redis.sock"):
        assert secret not in why


async def test_a_server_that_takes_nothing_is_gone(own_server: Server, make: Make) -> None:
    """One that answers, but with errors, such as a replica or a full one; and it is not back."""
    proxy = await make()
    await proxy.rates.admit("k", PLENTY)
    async with own_server.client() as client:
        await client.replicaof("127.0.0.1", "1")
        await proxy.rates.admit("k", PLENTY)
        assert proxy.told == [(False, "it answered READONLY")]
        failures = proxy.rates.failures
        await until(lambda: proxy.rates.failures > failures + 1)
        assert proxy.said == [False]
        await client.replicaof("NO", "ONE")
    await until(proxy.is_back)
