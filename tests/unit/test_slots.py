"""Slots: never more than allowed, a share each, a wait with an end, and what is said of it."""

import asyncio
from typing import Any

import pytest

from proxy.admission.slots import Slots
from proxy.errors import Overloaded, ProxyError
from tests.harness import warp


def make(
    max_inflight: int = 1,
    queue_size: int = 64,
    queue_timeout_seconds: float = 30,
    **options: Any,
) -> Slots:
    """Slots by the clock of the loop that runs."""
    return Slots(
        max_inflight=max_inflight,
        queue_size=queue_size,
        queue_timeout_seconds=queue_timeout_seconds,
        clock=warp.now,
        **options,
    )


class Holder:
    """A task that holds a slot, or waits for one, until it is let go."""

    def __init__(self, slots: Slots, account: str = "a", log: list[str] | None = None) -> None:
        self.go = asyncio.Event()
        self.holds = False
        self.queued_seconds: float | None = None
        self.refused: ProxyError | None = None
        self._log = log
        self.task = asyncio.create_task(self._run(slots, account))

    async def _run(self, slots: Slots, account: str) -> None:
        try:
            async with slots.hold(account) as self.queued_seconds:
                self.holds = True
                if self._log is not None:
                    self._log.append(account)
                await self.go.wait()
        except ProxyError as refusal:
            self.refused = refusal
        finally:
            self.holds = False


async def settle() -> None:
    """Lets every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def finish(*holders: Holder) -> None:
    """Lets all go and waits for them."""
    for holder in holders:
        holder.go.set()
    await asyncio.gather(*(holder.task for holder in holders), return_exceptions=True)


def test_a_free_slot_is_given_at_once() -> None:
    """Nobody waits, and is not told that it did, while there is room."""

    async def play() -> None:
        slots = make(max_inflight=2)
        async with slots.hold("a") as first, slots.hold("a") as second:
            assert (first, second, slots.in_flight, slots.queued) == (0.0, 0.0, 2, 0)
        assert slots.in_flight == 0

    warp.run(play())


def test_the_wait_is_measured() -> None:
    """The seconds in the queue are those of the clock."""

    async def play() -> None:
        slots = make()
        first, second = Holder(slots), Holder(slots)
        await asyncio.sleep(2.5)
        await finish(first, second)
        assert first.queued_seconds == 0.0
        assert second.queued_seconds == pytest.approx(2.5)

    warp.run(play())


def test_turns_come_in_order_of_arrival() -> None:
    """Of each account; a newcomer does not take the slot that was just given back."""

    async def play() -> None:
        slots, order = make(), list[str]()
        first = Holder(slots)
        waiting = [Holder(slots, account, order) for account in "bbac"]
        await settle()
        await finish(first)
        newcomer = Holder(slots, "d", order)
        await finish(*waiting, newcomer)
        assert order == ["b", "c", "a", "d", "b"]
        assert (slots.in_flight, slots.queued) == (0, 0)

    warp.run(play())


def test_a_share_is_left_to_others() -> None:
    """One account's surplus waits while slots are free, and another comes in past it."""

    async def play() -> None:
        slots = make(max_inflight=4, key_max_inflight=3)
        greedy = [Holder(slots, "greedy") for _ in range(6)]
        await settle()
        assert (slots.in_flight, slots.queued) == (3, 3)
        modest = Holder(slots, "modest")
        await settle()
        assert modest.holds
        assert modest.queued_seconds == 0.0
        await finish(greedy[0])
        await settle()
        assert greedy[3].holds
        await finish(*greedy, modest)
        assert (slots.in_flight, slots.queued) == (0, 0)

    warp.run(play())


def test_a_share_that_changes() -> None:
    """Whoever waited for more has it at once; whoever holds more than a smaller one keeps it."""

    async def play() -> None:
        slots = make(max_inflight=4, key_max_inflight=1)
        first, second, third = (Holder(slots) for _ in range(3))
        await settle()
        assert [each.holds for each in (first, second, third)] == [True, False, False]
        slots.share_out(2)
        await settle()
        assert [each.holds for each in (first, second, third)] == [True, True, False]
        slots.share_out(1)
        await finish(first)
        assert [each.holds for each in (second, third)] == [True, False]
        await finish(second)
        await settle()
        assert third.holds
        await finish(third)
        slots.share_out(None)
        many = [Holder(slots) for _ in range(4)]
        await settle()
        assert all(each.holds for each in many)
        await finish(*many)

    warp.run(play())


def test_who_has_its_share_is_told_so() -> None:
    """Slots are free, so that their number is not what it was refused for."""

    async def play() -> None:
        slots = make(max_inflight=4, key_max_inflight=1, queue_size=0)
        async with slots.hold("a"), slots.hold("b"):
            with pytest.raises(Overloaded) as refused:
                async with slots.hold("a"):
                    pass
        assert "2 requests are being answered, 1 of them yours" in refused.value.message
        assert "PROXY_KEY_MAX_INFLIGHT" in refused.value.message

    warp.run(play())


def test_a_newcomer_that_can_be_served_needs_no_place_in_the_queue() -> None:
    """A queue full of somebody's surplus refuses nobody else, and costs nobody their place."""

    async def play() -> None:
        slots = make(max_inflight=2, key_max_inflight=1, queue_size=1)
        greedy = [Holder(slots, "greedy") for _ in range(2)]
        await settle()
        modest = Holder(slots, "modest")
        await settle()
        assert modest.holds
        assert slots.queued == 1
        assert all(holder.refused is None for holder in greedy)
        await finish(*greedy, modest)

    warp.run(play())


@pytest.mark.parametrize(
    ("queue_size", "waiting"),
    [
        pytest.param(0, 0, id="nobody may wait"),
        pytest.param(1, 1, id="one may wait, and does"),
        pytest.param(3, 3, id="three may wait, and do"),
    ],
)
def test_a_full_queue_refuses_at_once(queue_size: int, waiting: int) -> None:
    """Whoever finds the queue full is told so, with the settings, and changes nothing."""

    async def play() -> None:
        slots = make(queue_size=queue_size)
        holders = [Holder(slots) for _ in range(1 + waiting)]
        await settle()
        assert slots.queued == waiting
        with pytest.raises(Overloaded) as refused:
            async with slots.hold("a"):
                pass
        assert refused.value.retry_after_seconds == 5
        assert "1 request is being answered" in refused.value.message
        assert "PROXY_MAX_INFLIGHT" in refused.value.message
        assert f"The queue is full: {waiting}" in refused.value.message
        assert "PROXY_QUEUE_SIZE" in refused.value.message
        assert (slots.in_flight, slots.queued) == (1, waiting)
        await finish(*holders)
        assert (slots.in_flight, slots.queued) == (0, 0)

    warp.run(play())


def test_the_youngest_of_the_greedy_gives_way() -> None:
    """At once, with the same status as any other refusal, and saying why."""

    async def play() -> None:
        slots = make(queue_size=2)
        greedy = [Holder(slots, "greedy") for _ in range(3)]
        await settle()
        modest = Holder(slots, "modest")
        await settle()
        assert [holder.refused is None for holder in greedy] == [True, True, False]
        refused = greedy[2].refused
        assert isinstance(refused, Overloaded)
        assert refused.retry_after_seconds == 5
        assert "gave way" in refused.message
        assert "PROXY_QUEUE_SIZE" in refused.message
        assert slots.queued == 2
        await finish(*greedy, modest)
        assert modest.refused is None
        assert (slots.in_flight, slots.queued) == (0, 0)

    warp.run(play())


def test_a_wait_has_an_end() -> None:
    """At the deadline the waiter is refused, the later one at its own, and the slot stays whole."""

    async def play() -> None:
        slots = make()
        holder, first = Holder(slots), Holder(slots, "b")
        await asyncio.sleep(10)
        second = Holder(slots, "c")
        await asyncio.sleep(19.9)
        assert first.refused is None
        await asyncio.sleep(0.2)
        assert isinstance(first.refused, Overloaded)
        assert "30 s" in first.refused.message
        assert "PROXY_QUEUE_TIMEOUT_SECONDS" in first.refused.message
        assert (slots.in_flight, slots.queued) == (1, 1)
        await finish(holder)
        await settle()
        assert second.holds
        await finish(second)
        assert slots.in_flight == 0

    warp.run(play())


def test_who_leaves_while_it_waits_frees_its_place_at_once() -> None:
    """The queue has room again in the moment in which the client is gone."""

    async def play() -> None:
        slots = make(queue_size=1)
        holder, leaving = Holder(slots), Holder(slots)
        await settle()
        leaving.task.cancel()
        await asyncio.sleep(0)
        assert slots.queued == 0
        staying = Holder(slots)
        await settle()
        assert (slots.queued, staying.refused) == (1, None)
        await finish(holder, leaving, staying)
        assert (slots.in_flight, slots.queued) == (0, 0)

    warp.run(play())


def test_a_turn_that_comes_with_the_cancellation_is_passed_on() -> None:
    """A waiter called off in the moment of its turn does not take the slot with it."""

    async def play() -> None:
        slots = make()
        async with slots.hold("a"):
            second, third = Holder(slots), Holder(slots)
            await settle()
        second.task.cancel()  # its turn has come, and it has not run since
        await settle()
        assert not second.holds
        assert third.holds
        await finish(second, third)
        assert (slots.in_flight, slots.queued) == (0, 0)

    warp.run(play())


def test_a_turn_is_not_given_to_who_was_called_off_a_moment_ago() -> None:
    """The slot goes to the next one at once, though the first has not taken itself out yet."""

    async def play() -> None:
        slots = make()
        async with slots.hold("a"):
            second, third = Holder(slots), Holder(slots)
            await settle()
            second.task.cancel()
        await asyncio.sleep(0)
        assert third.holds
        await finish(second, third)
        assert (slots.in_flight, slots.queued) == (0, 0)

    warp.run(play())


def test_a_refusal_that_comes_with_the_cancellation_is_swallowed() -> None:
    """Nobody is left who would hear of it, and asyncio does not complain of that."""
    complaints: list[Any] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        slots = make(queue_size=2)
        greedy = [Holder(slots, "greedy") for _ in range(3)]
        await settle()
        modest = Holder(slots, "modest")
        greedy[2].task.cancel()
        await settle()
        await finish(*greedy, modest)
        assert (slots.in_flight, slots.queued) == (0, 0)

    warp.run(play())
    assert complaints == []


@pytest.mark.parametrize(
    ("done", "waiting", "seconds"),
    [
        pytest.param(0, 3, 5, id="nobody has been done yet"),
        pytest.param(3, 3, 5, id="too few to tell"),
        pytest.param(4, 3, 8, id="four others, two seconds each"),
        pytest.param(40, 9, 20, id="ten others, two seconds each"),
        pytest.param(40, 63, 60, id="a minute at most"),
    ],
)
def test_when_to_come_again(done: int, waiting: int, seconds: int) -> None:
    """When those who wait will have had their turn, as fast as turns have been coming."""

    async def play() -> None:
        slots = make(queue_size=waiting)
        for _ in range(done):
            async with slots.hold("a"):
                await asyncio.sleep(2)
        holders = [Holder(slots) for _ in range(waiting + 1)]
        await asyncio.sleep(2)
        with pytest.raises(Overloaded) as refused:
            async with slots.hold("a"):
                pass
        assert refused.value.retry_after_seconds == seconds
        await finish(*holders)

    warp.run(play())
