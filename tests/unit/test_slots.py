"""Slots: never more than allowed, in order of arrival, and nothing lost whatever is called off."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.slots import Slots
from proxy.errors import Overloaded


def make(max_inflight: int = 1, queue_size: int = 64, queue_timeout_seconds: float = 30) -> Slots:
    """Slots with a clock that stands still."""
    return Slots(
        max_inflight=max_inflight,
        queue_size=queue_size,
        queue_timeout_seconds=queue_timeout_seconds,
        clock=lambda: 0.0,
    )


class Holder:
    """A task that holds a slot, or waits for one, until it is let go."""

    def __init__(self, slots: Slots, on_turn: Callable[[], None] = lambda: None) -> None:
        self.go = asyncio.Event()
        self.holds = False
        self._on_turn = on_turn
        self.task = asyncio.create_task(self._run(slots))

    async def _run(self, slots: Slots) -> None:
        async with slots.hold():
            self.holds = True
            self._on_turn()
            await self.go.wait()


async def settle() -> None:
    """Lets every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def finish(*holders: Holder) -> None:
    """Lets all go and waits for them."""
    for holder in holders:
        holder.go.set()
    await asyncio.gather(*(holder.task for holder in holders), return_exceptions=True)


async def test_a_free_slot_is_given_at_once() -> None:
    """Nobody waits, and is not told that it did, while there is room."""
    slots = make(max_inflight=2)
    async with slots.hold() as first, slots.hold() as second:
        assert (first, second, slots.in_flight, slots.queued) == (0.0, 0.0, 2, 0)
    assert slots.in_flight == 0


async def test_the_wait_is_measured() -> None:
    """The seconds in the queue are those of the clock."""
    times = iter([10.0, 12.5])
    slots = Slots(max_inflight=1, queue_size=1, queue_timeout_seconds=30, clock=lambda: next(times))
    holder = Holder(slots)
    await settle()

    async def wait() -> float:
        async with slots.hold() as queued_seconds:
            return queued_seconds

    waiter = asyncio.create_task(wait())
    await settle()
    await finish(holder)
    assert await waiter == 2.5


async def test_turns_come_in_order_of_arrival() -> None:
    """First come, first served; a newcomer does not take the slot that was just given back."""
    slots = make()
    order: list[int] = []
    first = Holder(slots)
    await settle()
    waiting = [Holder(slots, lambda n=n: order.append(n)) for n in range(4)]  # type: ignore[misc]
    await settle()
    first.go.set()
    for holder in waiting:
        holder.go.set()
    newcomer = Holder(slots, lambda: order.append(99))
    await finish(first, *waiting, newcomer)
    assert order == [0, 1, 2, 3, 99]
    assert (slots.in_flight, slots.queued) == (0, 0)


@pytest.mark.parametrize(
    ("queue_size", "waiting"),
    [
        pytest.param(0, 0, id="nobody may wait"),
        pytest.param(1, 1, id="one may wait, and does"),
        pytest.param(3, 3, id="three may wait, and do"),
    ],
)
async def test_a_full_queue_refuses_at_once(queue_size: int, waiting: int) -> None:
    """Whoever finds the queue full is told so, with the settings, and changes nothing."""
    slots = make(queue_size=queue_size)
    holders = [Holder(slots) for _ in range(1 + waiting)]
    await settle()
    assert slots.queued == waiting
    with pytest.raises(Overloaded) as refused:
        async with slots.hold():
            pass
    assert refused.value.retry_after_seconds == 5
    assert "PROXY_MAX_INFLIGHT" in refused.value.message
    assert "PROXY_QUEUE_SIZE" in refused.value.message
    assert (slots.in_flight, slots.queued) == (1, waiting)
    await finish(*holders)
    assert (slots.in_flight, slots.queued) == (0, 0)


async def test_a_wait_has_an_end() -> None:
    """At the deadline the waiter is refused, and the slot goes to the next one all the same."""
    slots = make(queue_timeout_seconds=0.01)
    holder = Holder(slots)
    await settle()
    with pytest.raises(Overloaded, match="PROXY_QUEUE_TIMEOUT_SECONDS") as refused:
        async with slots.hold():
            pass
    assert refused.value.retry_after_seconds == 5
    assert (slots.in_flight, slots.queued) == (1, 0)
    await finish(holder)
    assert slots.in_flight == 0


async def test_a_turn_that_comes_with_the_cancellation_is_passed_on() -> None:
    """A waiter called off in the moment of its turn does not take the slot with it."""
    slots = make()
    async with slots.hold():
        second, third = Holder(slots), Holder(slots)
        await settle()
    second.task.cancel()  # its turn has come, and it has not run since
    await settle()
    assert not second.holds
    assert third.holds
    await finish(second, third)
    assert (slots.in_flight, slots.queued) == (0, 0)


class _Script:
    """Takes steps at random and checks after each that the books are right."""

    def __init__(self, slots: Slots, max_inflight: int, queue_size: int) -> None:
        self.slots = slots
        self.max_inflight = max_inflight
        self.queue_size = queue_size
        self.holders: list[Holder] = []

    async def take(self, step: tuple[str, int]) -> None:
        """One step: something arrives, finishes, is called off, or time passes."""
        what, which = step
        if what == "arrive":
            self.holders.append(Holder(self.slots))
        elif what == "tick":
            await asyncio.sleep(0)
        elif self.holders:
            holder = self.holders[which % len(self.holders)]
            if what == "finish":
                holder.go.set()
            else:
                holder.task.cancel()
        holding = sum(holder.holds and not holder.task.done() for holder in self.holders)
        assert holding <= self.slots.in_flight <= self.max_inflight
        assert 0 <= self.slots.queued <= self.queue_size

    async def run(self, steps: Iterator[tuple[str, int]]) -> None:
        """All steps, then the end of everything that is left."""
        for step in steps:
            await self.take(step)
        await finish(*self.holders)
        assert (self.slots.in_flight, self.slots.queued) == (0, 0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive", "tick", "finish", "cancel"]), st.integers(0, 9)),
    max_size=60,
)


@given(STEPS, st.integers(1, 3), st.integers(0, 4))
def test_nothing_is_lost_in_any_order_of_things(
    steps: list[tuple[str, int]], max_inflight: int, queue_size: int
) -> None:
    """Whatever arrives, finishes or is called off when: no slot is lost, none is given twice."""

    async def play() -> None:
        script = _Script(make(max_inflight, queue_size), max_inflight, queue_size)
        await script.run(iter(steps))

    asyncio.run(play())
