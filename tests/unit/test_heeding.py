"""What a reading of the engine changes for those who wait: at once, and not when somebody ends."""

import asyncio

from proxy.admission.kv import TokenBudget
from proxy.admission.slots import Slots
from proxy.app.admission import heeding
from proxy.app.clocks import Clocks
from proxy.upstream.readings import Reading
from tests.harness import warp


def test_a_larger_pool_serves_who_waits_for_it() -> None:
    """The engine was started again with more memory while a request waited for room."""

    async def play() -> None:
        budget = TokenBudget()
        places = Slots(
            max_inflight=4,
            queue_size=4,
            queue_timeout_seconds=30.0,
            clock=warp.now,
            budget=budget,
        )
        heed = heeding(budget, places, Clocks(monotonic=warp.now))
        heed(Reading(engine="vllm", pool_tokens=10_000))

        async def ask() -> float:
            async with places.hold("b", 5_000) as waited:
                return waited

        async with places.hold("a", 9_000):
            asked = asyncio.create_task(ask())
            await asyncio.sleep(1.0)
            assert (places.queued, asked.done()) == (1, False)
            heed(Reading(engine="vllm", pool_tokens=20_000))
            assert await asked == 1.0

    warp.run(play())
