"""No slot and no token is lost or given twice, whoever is called off at whichever moment.

The loop is one step at a time (``asyncio.sleep(0)`` runs every task once), and between any two steps
the books are checked. First each task alone is called off after each step, by both ways that there
are; then several at random.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admission.kv import TokenBudget
from proxy.admission.parties import Standing
from proxy.admission.slots import Slots
from proxy.errors import Overloaded, RequestExceedsCapacity
from tests.harness import warp

STEPS = 24
"""After so many, everybody of these tests is through."""

POOL = 112
LIMIT = 100  # nine tenths of it


@dataclass(frozen=True)
class Plan:
    """One request: whose, how large, when it comes, how long it is answered; in steps."""

    account: str
    tokens: int
    comes: int = 0
    stays: int = 2


class Guest:
    """A request's task, which can be called off as the proxy does it, or as asyncio does."""

    def __init__(self, slots: Slots, plan: Plan) -> None:
        self.plan = plan
        self.holds = False
        self.refused = False
        self._scope = anyio.CancelScope()
        self.task = asyncio.create_task(self._run(slots))

    async def _run(self, slots: Slots) -> None:
        with self._scope, contextlib.suppress(Overloaded, RequestExceedsCapacity):
            self.refused = True
            async with slots.hold(self.plan.account, self.plan.tokens):
                self.refused, self.holds = False, True
                try:
                    for _ in range(self.plan.stays):
                        await asyncio.sleep(0)
                finally:
                    self.holds = False

    def cancel_task(self) -> None:
        """As ``asyncio.timeout`` would."""
        self.task.cancel()

    def cancel_scope(self) -> None:
        """As a lifeline does."""
        self._scope.cancel()


class House:
    """Slots with a budget, and all their guests.

    Attributes:
        most_tokens: The largest limit there has been: nobody is thrown out where it becomes smaller.
    """

    most_tokens = LIMIT

    def __init__(self, *, max_inflight: int = 2, share: int = 2, queue_size: int = 64) -> None:
        self.max_inflight, self.share, self.queue_size = max_inflight, share, queue_size
        self.budget = TokenBudget()
        self.budget.set_pool(POOL)
        self.slots = Slots(
            max_inflight=max_inflight,
            key_max_inflight=share,
            queue_size=queue_size,
            queue_timeout_seconds=30,
            clock=warp.now,
            budget=self.budget,
        )
        self.guests: list[Guest] = []

    async def run(self, plans: list[Plan], at: Callable[[int, "House"], None]) -> None:
        """All plans, one step after the other; `at` may do something before each."""
        for step in range(STEPS):
            self.guests += [Guest(self.slots, plan) for plan in plans if plan.comes == step]
            at(step, self)
            await asyncio.sleep(0)
            self.check()
        async with asyncio.timeout(100):
            await asyncio.gather(*(guest.task for guest in self.guests), return_exceptions=True)
        self.check()
        assert (self.slots.in_flight, self.slots.queued, self.budget.reserved) == (0, 0, 0)
        assert self.slots._queue.accounts == 0

    def check(self) -> None:
        """The books are right."""
        slots, queue = self.slots, self.slots._queue
        accounts = list(queue._accounts.values())
        holding = [guest for guest in self.guests if guest.holds]
        assert len(holding) <= slots.in_flight <= self.max_inflight
        assert slots.in_flight == sum(account.held for account in accounts)
        assert self.budget.reserved == sum(account.held_tokens for account in accounts)
        assert self.budget.reserved <= self.most_tokens
        assert sum(guest.plan.tokens for guest in holding) <= self.budget.reserved
        assert all(account.held <= self.share for account in accounts)
        assert slots.queued <= self.queue_size
        # Work is found for what is free: nobody's patience has come to an end in this time.
        for entry in queue.waiting:
            assert entry.standing is Standing.WAITS
            free = slots.in_flight < self.max_inflight and entry.tokens <= self.budget.free
            assert not free or entry.account.held >= self.share


PLANS: dict[str, tuple[Callable[[], House], list[Plan]]] = {
    "one slot, one account": (
        House,
        [Plan("a", 60), Plan("a", 60), Plan("a", 60, comes=1), Plan("a", 60, comes=2)],
    ),
    "turns and shares": (
        partial(House, max_inflight=3),
        [Plan("a", 1), Plan("a", 1), Plan("a", 1), Plan("b", 1), Plan("b", 1), Plan("c", 1)],
    ),
    "a large one between small ones": (
        partial(House, max_inflight=3, share=3),
        [Plan("a", 40), Plan("b", 90), Plan("a", 40, comes=1), Plan("b", 5, comes=1), Plan("c", 9)],
    ),
    "a full queue and giving way": (
        partial(House, max_inflight=1, queue_size=2),
        [Plan("a", 1), Plan("a", 1), Plan("a", 1), Plan("b", 1, comes=1), Plan("c", 1, comes=1)],
    ),
}


@pytest.mark.parametrize("way", ["cancel_task", "cancel_scope"])
@pytest.mark.parametrize(("house", "plans"), PLANS.values(), ids=PLANS.keys())
def test_each_is_called_off_at_each_step(
    house: Callable[[], House], plans: list[Plan], way: str
) -> None:
    """Every task after every step, one at a time."""
    for victim in range(len(plans)):
        for moment in range(STEPS):

            def at(step: int, now: House, victim: int = victim, moment: int = moment) -> None:
                if step == moment and victim < len(now.guests):
                    getattr(now.guests[victim], way)()

            warp.run(house().run(plans, at))


@pytest.mark.parametrize(("house", "plans"), PLANS.values(), ids=PLANS.keys())
def test_two_are_called_off(house: Callable[[], House], plans: list[Plan]) -> None:
    """Any two of them, in the same moment: the one that would inherit goes too."""
    for first in range(len(plans)):
        for second in range(first):
            for moment in range(STEPS // 2):

                def at(
                    step: int,
                    now: House,
                    pair: tuple[int, int] = (first, second),
                    moment: int = moment,
                ) -> None:
                    if step == moment:
                        for guest in [now.guests[n] for n in pair if n < len(now.guests)]:
                            guest.cancel_task()

                warp.run(house().run(plans, at))


def test_all_are_served_when_nobody_is_called_off() -> None:
    """The books being right is not all: the work is done."""
    for house, plans in PLANS.values():
        here = house()
        warp.run(here.run(plans, lambda *_: None))
        refused = sum(guest.refused for guest in here.guests)
        assert refused == (2 if here.queue_size == 2 else 0)


GUESTS = st.lists(
    st.builds(
        Plan,
        account=st.sampled_from("abc"),
        tokens=st.integers(0, 100),
        comes=st.integers(0, 8),
        stays=st.integers(0, 4),
    ),
    max_size=10,
)
CALLED_OFF = st.lists(st.tuples(st.integers(0, STEPS), st.integers(0, 9), st.booleans()))


HOUSES = st.fixed_dictionaries(
    {
        "max_inflight": st.integers(1, 3),
        "share": st.integers(1, 3),
        "queue_size": st.integers(0, 4),
    }
)


@settings(deadline=None)
@given(GUESTS, CALLED_OFF, HOUSES, st.none() | st.integers(0, 2 * POOL))
def test_nothing_is_lost_in_any_order_of_things(
    plans: list[Plan],
    called_off: list[tuple[int, int, bool]],
    options: dict[str, int],
    pool: int | None,
) -> None:
    """Whatever comes, is called off when and how, and whatever becomes of the pool meanwhile."""

    def at(step: int, now: House) -> None:
        for moment, victim, by_scope in called_off:
            if moment == step and victim < len(now.guests):
                guest = now.guests[victim]
                (guest.cancel_scope if by_scope else guest.cancel_task)()
        if step == STEPS // 4 and pool is not None:
            now.budget.set_pool(pool)
            now.most_tokens = max(LIMIT, pool)
            now.slots.wake()

    warp.run(House(**options).run(plans, at))
