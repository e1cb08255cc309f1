"""The gate: all that a request needs, in one block that gives all of it back, however it ends."""

import asyncio

import pytest

from proxy.admission import rates
from proxy.admission.estimates import Estimates
from proxy.admission.gate import Demand, Gate
from proxy.admission.kv import TokenBudget
from proxy.admission.slots import Slots
from proxy.errors import Overloaded, RateLimitExceeded, RequestExceedsCapacity
from proxy.principal import Allowance
from tests.harness import warp

ALLOWANCE = Allowance(tokens_per_minute=1_000, concurrency=2)
DEMAND = Demand(text_bytes=300, media_parts=0, output_tokens=200)
RESERVED = 300 // 3 + 200


class Set:
    """A gate and what it is made of, by the clock of the loop that runs."""

    def __init__(self, *, max_inflight: int = 4, queue_size: int = 4, pool: int = 100_000) -> None:
        self.budget = TokenBudget()
        self.budget.set_pool(pool)
        self.slots = Slots(
            max_inflight=max_inflight,
            queue_size=queue_size,
            queue_timeout_seconds=1.0,
            clock=warp.now,
            budget=self.budget,
        )
        self.rates = rates.build(clock=lambda: 30.0)
        self.gate = Gate(
            rates=self.rates,
            slots=self.slots,
            estimates=Estimates(media_tokens=50),
            budget=self.budget,
        )

    async def left(self, account: str = "a") -> int:
        """The tokens that this account has left in its minute, by the field of an answer."""
        grant = await self.rates.reserve(account, ALLOWANCE, 0)
        self.rates.settle(grant, 0)
        return int(dict(grant.fields)[b"x-ratelimit-remaining-tokens"])

    async def takes(self, account: str = "a", count: int = 2) -> None:
        """As many may run at once as the allowance says, and no more: nobody still counts."""
        grants = [await self.rates.reserve(account, ALLOWANCE, 0) for _ in range(count)]
        with pytest.raises(RateLimitExceeded):
            await self.rates.reserve(account, ALLOWANCE, 0)
        for grant in grants:
            self.rates.settle(grant, 0)

    @property
    def held(self) -> tuple[int, int, int]:
        """Slots, requests that wait, and tokens of the budget."""
        return self.slots.in_flight, self.slots.queued, self.budget.reserved


def test_everything_is_held_for_the_block_and_then_settled() -> None:
    """Reserved is the estimate and the output; charged is what was used."""

    async def play() -> None:
        parts = Set()
        async with parts.gate.admit("a", ALLOWANCE, DEMAND) as admitted:
            assert parts.held == (1, 0, RESERVED)
            assert admitted.prompt_tokens == 100
            assert (b"x-ratelimit-remaining-tokens", b"700") in list(admitted.rate_fields)
            admitted.used_tokens = 120
        assert parts.held == (0, 0, 0)
        assert await parts.left() == 880
        await parts.takes()

    warp.run(play())


def test_who_never_got_to_the_engine_is_charged_nothing() -> None:
    """The block was entered, and nobody said that anything was used."""

    async def play() -> None:
        parts = Set()
        with pytest.raises(RuntimeError):
            async with parts.gate.admit("a", ALLOWANCE, DEMAND):
                raise RuntimeError
        assert parts.held == (0, 0, 0)
        assert await parts.left() == 1_000
        await parts.takes()

    warp.run(play())


async def _refused_by_a_full_queue(parts: Set) -> None:
    with pytest.raises(Overloaded):
        async with parts.gate.admit("a", ALLOWANCE, DEMAND):
            pytest.fail("there was no slot")


async def _too_late(parts: Set) -> None:
    with pytest.raises(Overloaded) as refused:
        async with parts.gate.admit("a", ALLOWANCE, DEMAND):
            pytest.fail("there was no slot")
    assert "PROXY_QUEUE_TIMEOUT_SECONDS" in refused.value.message


async def _left(parts: Set) -> None:
    async def wait() -> None:
        async with parts.gate.admit("a", ALLOWANCE, DEMAND):
            pytest.fail("there was no slot")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert parts.slots.queued == 1
    assert await parts.left() == 1_000 - RESERVED
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _larger_than_the_engine(parts: Set) -> None:
    large = Demand(text_bytes=0, media_parts=0, output_tokens=999)
    parts.budget.set_pool(1_024)
    with pytest.raises(RequestExceedsCapacity):
        async with parts.gate.admit("a", ALLOWANCE, large):
            pytest.fail("it does not fit")


@pytest.mark.parametrize(
    ("queue_size", "happens"),
    [
        pytest.param(0, _refused_by_a_full_queue, id="the queue is full"),
        pytest.param(4, _too_late, id="the wait has lasted too long"),
        pytest.param(4, _left, id="the client leaves while it waits"),
        pytest.param(4, _larger_than_the_engine, id="it would not fit an empty engine"),
    ],
)
def test_who_gets_no_slot_gets_everything_back(queue_size: int, happens: object) -> None:
    """Tokens and the place among those that run: a refusal is no use of the engine."""

    async def play() -> None:
        parts = Set(max_inflight=1, queue_size=queue_size)
        async with parts.gate.admit("b", Allowance(), DEMAND):
            await happens(parts)  # type: ignore[operator] # one of the four above
            assert parts.held == (1, 0, RESERVED)
            assert await parts.left() == 1_000
            await parts.takes()

    warp.run(play())


def test_what_the_key_may_not_have_takes_no_slot() -> None:
    """It is refused before anything of the engine's is taken."""

    async def play() -> None:
        parts = Set()
        async with parts.gate.admit("a", ALLOWANCE, DEMAND):
            large = Demand(text_bytes=0, media_parts=0, output_tokens=800)
            with pytest.raises(RateLimitExceeded):
                async with parts.gate.admit("a", ALLOWANCE, large):
                    pytest.fail("it has 700 left")
            assert parts.held == (1, 0, RESERVED)

    warp.run(play())


def test_media_and_what_was_learnt_count() -> None:
    """A picture its tokens; a prompt by what the same account's prompts came to."""

    async def play() -> None:
        parts = Set()
        seen = Demand(text_bytes=3_000, media_parts=2, output_tokens=0)
        async with parts.gate.admit("a", Allowance(), seen) as admitted:
            assert admitted.prompt_tokens == 1_000 + 2 * 50
        plain = Demand(text_bytes=3_000, media_parts=0, output_tokens=0)
        parts.gate.learn("a", plain, 3_000)
        async with parts.gate.admit("a", Allowance(), plain) as admitted:
            assert admitted.prompt_tokens == 3_000
        async with parts.gate.admit("b", Allowance(), plain) as admitted:
            assert admitted.prompt_tokens == 1_000

    warp.run(play())


@pytest.mark.parametrize(
    ("pool", "reserved"),
    [
        pytest.param(556, 500, id="its estimate fits"),
        pytest.param(555, 499, id="its estimate does not: it has all that there is"),
        pytest.param(334, 300, id="what it needs for certain just fits"),
        pytest.param(333, None, id="that does not either"),
    ],
)
def test_what_perhaps_does_not_fit_runs_alone(pool: int, reserved: int | None) -> None:
    """A prompt of 1,200 bytes is taken for 400 tokens, and has 200 for certain."""
    demand = Demand(text_bytes=1_200, media_parts=0, output_tokens=100)

    async def play() -> None:
        parts = Set(pool=pool)
        if reserved is None:
            with pytest.raises(RequestExceedsCapacity):
                async with parts.gate.admit("a", ALLOWANCE, demand):
                    pytest.fail("it cannot run")
        else:
            async with parts.gate.admit("a", ALLOWANCE, demand):
                assert parts.held == (1, 0, reserved)
        assert parts.held == (0, 0, 0)

    warp.run(play())


def test_it_learns_where_there_is_a_limit() -> None:
    """Without a pool nothing depends on it."""

    async def play() -> None:
        parts = Set()
        assert parts.gate.learns
        slots, estimates = parts.slots, Estimates(media_tokens=0)
        without = Gate(rates=parts.rates, slots=slots, estimates=estimates)
        unread = Gate(rates=parts.rates, slots=slots, estimates=estimates, budget=TokenBudget())
        assert not without.learns
        assert not unread.learns

    warp.run(play())
