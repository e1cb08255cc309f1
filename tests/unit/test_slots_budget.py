"""Slots in front of an engine whose cache is small, and which says how it fares."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from proxy.admission.kv import TokenBudget
from proxy.admission.slots import Slots
from proxy.errors import Overloaded, ProxyError, RequestExceedsCapacity
from tests.harness import warp


class House:
    """Slots with a budget of 900 tokens, unless told otherwise."""

    def __init__(self, budget: TokenBudget | None = None, max_inflight: int = 8) -> None:
        self.budget = budget or TokenBudget()
        if budget is None:
            self.budget.set_pool(1_000)
        self.slots = Slots(
            max_inflight=max_inflight,
            queue_size=64,
            queue_timeout_seconds=30,
            clock=warp.now,
            budget=self.budget,
        )
        self.inside: list[str] = []
        self.refused: dict[str, ProxyError] = {}
        self._leave: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, *names: str, tokens: int = 0, at_least: int | None = None) -> None:
        """Requests; ``a1`` is account ``a``'s first."""
        for name in names:
            self._leave[name] = asyncio.Event()
            self._tasks.append(asyncio.create_task(self._run(name, tokens, at_least)))
            await asyncio.sleep(0)

    async def go(self, *names: str) -> None:
        """Some are done; gives those who wait time to come in."""
        for name in names:
            self._leave[name].set()
        for _ in range(5):
            await asyncio.sleep(0)

    async def _run(self, name: str, tokens: int, at_least: int | None) -> None:
        try:
            async with self.slots.hold(name[0], tokens, at_least=at_least, output_tokens=16):
                self.inside.append(name)
                await self._leave[name].wait()
                self.inside.remove(name)
        except ProxyError as refusal:
            self.refused[name] = refusal

    async def end(self) -> None:
        """Everybody is done, and nothing is held."""
        await self.go(*self._leave)
        await asyncio.gather(*self._tasks)
        assert (self.slots.in_flight, self.slots.queued, self.budget.reserved) == (0, 0, 0)


@contextlib.asynccontextmanager
async def opened(house: House) -> AsyncIterator[House]:
    """A house that must be empty at the end."""
    yield house
    await house.end()


@pytest.mark.parametrize(
    ("tokens", "at_least", "reserved"),
    [
        pytest.param(900, None, 900, id="all there is"),
        pytest.param(901, None, None, id="one more than there is"),
        pytest.param(5_000, 900, 900, id="perhaps more, perhaps not: it has all to itself"),
        pytest.param(5_000, 901, None, id="more for certain"),
    ],
)
def test_what_would_not_fit_an_empty_engine(
    tokens: int, at_least: int | None, reserved: int | None
) -> None:
    """Refused at once for good, with the pool, the need and the setting; an estimate may be wrong."""

    async def play() -> None:
        async with opened(House()) as house:
            await house.come("z1", tokens=100)
            await house.come("a1", tokens=tokens, at_least=at_least)
            if reserved is not None:
                assert house.slots.queued == 1
                await house.go("z1")
                assert house.budget.reserved == reserved
                return
            refused = house.refused["a1"]
            assert isinstance(refused, RequestExceedsCapacity)
            assert "needs 901 tokens, about 885 for its prompt and up to 16" in refused.message
            assert "900 tokens, nine tenths" in refused.message
            assert "KV cache of 1,000 (PROXY_KV_BUDGET_TOKENS)" in refused.message

    warp.run(play())


def test_without_a_pool_nothing_is_held_back() -> None:
    """An engine that never showed one, until it does: then what is there counts."""

    async def play() -> None:
        async with opened(House(TokenBudget())) as house:
            await house.come("a1", "a2", tokens=600)
            assert house.inside == ["a1", "a2"]
            house.budget.set_pool(2_000)
            house.slots.wake()
            await house.come("a3", tokens=700)
            assert house.slots.queued == 1
            await house.go("a1")
            assert house.inside == ["a2", "a3"]

    warp.run(play())


def test_a_large_one_gets_in_between_small_ones_for_ever() -> None:
    """They pass it for five seconds, and then wait until it has been in; nobody has to wake it."""

    async def play() -> None:
        async with opened(House()) as house:
            await house.come("s1", "s2", tokens=300)
            await house.come("b1", tokens=800)
            await asyncio.sleep(4)
            await house.come("s3", tokens=300)
            assert house.inside == ["s1", "s2", "s3"]
            await asyncio.sleep(1.1)
            await house.go("s1")
            await house.come("s4", tokens=101)
            await house.come("b2", tokens=10)
            assert house.inside == ["s2", "s3"]
            await house.go("s2", "s3")
            assert house.inside == ["b1", "b2"]

    warp.run(play())


def test_a_claim_that_no_slot_is_free_for() -> None:
    """It is looked for when one is, and not a thousand times a second."""

    async def play() -> None:
        async with opened(House(max_inflight=2)) as house:
            await house.come("z1", tokens=300)
            await house.come("b1", tokens=800)
            await house.come("s1", tokens=100)
            assert house.inside == ["z1", "s1"]
            before = warp.sleeps()
            await asyncio.sleep(29)
            assert warp.sleeps() - before < 5
            await house.go("s1")
            await house.come("s2", tokens=101)
            assert house.inside == ["z1"]

    warp.run(play())


def test_who_is_kept_waiting_by_a_claim_gets_in_when_that_is_refused() -> None:
    """The large one's deadline comes first, and lets those behind it in without a release."""

    async def play() -> None:
        async with opened(House()) as house:
            await house.come("z1", tokens=300)
            await house.come("b1", tokens=800)
            await asyncio.sleep(26)
            await house.come("s1", tokens=101)
            assert house.inside == ["z1"]
            await asyncio.sleep(4.1)
            assert isinstance(house.refused["b1"], Overloaded)
            assert "with 300 tokens reserved of 900" in house.refused["b1"].message
            assert house.inside == ["z1", "s1"]

    warp.run(play())


def test_who_is_kept_waiting_by_a_claim_gets_in_after_five_seconds() -> None:
    """Nothing else happens meanwhile, and nobody has to wake it."""

    async def play() -> None:
        async with opened(House()) as house:
            await house.come("z1", tokens=300)
            await house.come("b1", tokens=800)
            await asyncio.sleep(10)
            await house.come("s1", tokens=101)
            await asyncio.sleep(4.9)
            assert house.inside == ["z1"]
            await asyncio.sleep(0.2)
            assert house.inside == ["z1", "s1"]

    warp.run(play())


def test_a_claim_that_fits_while_claims_rest() -> None:
    """It is served when there is room, without anybody waking it, and not refused in the end."""

    async def play() -> None:
        async with opened(House()) as house:
            await house.come("a1", tokens=90)
            await house.come("z1", tokens=450)
            await house.come("a2", tokens=540)
            await asyncio.sleep(6)
            await house.come("y1", tokens=0)
            await asyncio.sleep(5.5)
            await house.go("z1", "y1")
            assert house.inside == ["a1", "a2"]

    warp.run(play())


def test_a_pool_that_grows_and_shrinks_unnoticed() -> None:
    """Who came when it was larger is looked at when it has become smaller than it was then."""

    async def play() -> None:
        async with opened(House()) as house:
            house.slots.wake()
            house.budget.set_pool(2_000)
            await house.come("z1", tokens=1_500)
            await house.come("b1", tokens=1_700)
            house.budget.set_pool(1_800)
            house.slots.wake()
            await asyncio.sleep(0)
            assert isinstance(house.refused["b1"], Overloaded)

    warp.run(play())


def test_a_smaller_pool_while_somebody_waits() -> None:
    """Who no longer fits is told to ask again, and does not keep those waiting who do."""

    async def play() -> None:
        async with opened(House()) as house:
            await house.come("z1", tokens=500)
            await house.come("b1", tokens=800)
            await house.come("s1", tokens=400)
            await house.come("s2", tokens=300)
            assert house.inside == ["z1", "s1"]
            house.budget.set_pool(500)
            house.slots.wake()
            await asyncio.sleep(0)
            refused = house.refused["b1"]
            assert isinstance(refused, Overloaded)
            assert refused.retry_after_seconds == 1
            assert "KV cache of 500" in refused.message
            await house.go("z1")
            assert house.inside == ["s1"]
            await house.go("s1")
            assert house.inside == ["s2"]

    warp.run(play())


def test_a_larger_pool_lets_in_who_waits() -> None:
    """At once, when the monitor has read it."""

    async def play() -> None:
        async with opened(House()) as house:
            await house.come("z1", tokens=500)
            await house.come("b1", tokens=800)
            house.budget.set_pool(2_000)
            assert house.inside == ["z1"]
            house.slots.wake()
            await asyncio.sleep(0)
            assert house.inside == ["z1", "b1"]

    warp.run(play())


def test_the_queue_is_here_and_not_in_the_engine() -> None:
    """An engine that runs two and shows a queue is sent one to keep in it, and more when it has none."""

    async def play() -> None:
        async with opened(House()) as house:
            await house.come("a1", "a2", "a3", "a4", "a5")
            for _ in range(2):
                house.budget.note_load(waiting=3, usage_fraction=0.1, at=warp.now(), running=2)
                house.slots.wake()
                await asyncio.sleep(1)
            await house.go("a1", "a2")
            await house.come("b1", "b2")
            assert house.inside == ["a3", "a4", "a5"]
            await house.go("a3")
            assert house.inside == ["a4", "a5", "b1"]
            house.budget.note_load(waiting=0, usage_fraction=0.1, at=warp.now(), running=2)
            house.slots.wake()
            await asyncio.sleep(0)
            assert house.inside == ["a4", "a5", "b1", "b2"]

    warp.run(play())


def test_a_full_cache_and_then_no_word() -> None:
    """It is sent nothing while it says so; when it says nothing, time alone lets in who waits."""

    async def play() -> None:
        async with opened(House()) as house:
            await house.come("a1")
            house.budget.note_load(waiting=0, usage_fraction=0.99, at=warp.now())
            house.slots.wake()
            await house.come("b1")
            await asyncio.sleep(4.9)
            assert house.inside == ["a1"]
            await asyncio.sleep(0.2)
            assert house.inside == ["a1", "b1"]

    warp.run(play())


def test_a_full_cache_of_an_idle_engine() -> None:
    """Its last words keep nobody out: the one that comes in makes it say others."""

    async def play() -> None:
        async with opened(House()) as house:
            house.budget.note_load(waiting=7, usage_fraction=0.99, at=warp.now())
            house.slots.wake()
            await house.come("a1", "a2")
            assert house.inside == ["a1"]
            await house.go("a1")
            assert house.inside == ["a2"]

    warp.run(play())


def test_what_is_said_when_the_engine_is_what_is_full() -> None:
    """The deadline's message names what was missing: not a slot."""

    async def play() -> None:
        async with opened(House()) as house:
            await house.come("a1")
            await house.come("b1")
            assert house.inside == ["a1", "b1"]
            house.budget.note_load(waiting=0, usage_fraction=0.99, at=warp.now())
            await house.come("c1")
            for _ in range(31):
                await asyncio.sleep(1)
                house.budget.note_load(waiting=0, usage_fraction=0.99, at=warp.now())
                house.slots.wake()
            assert "as many as the model server can do with now" in house.refused["c1"].message

    warp.run(play())
