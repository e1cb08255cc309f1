"""How many requests the upstream is asked at once, and who waits.

A slot is held from before the upstream is asked until after the last byte of its answer, by the
request's own task, and given back in one ``finally``. A limiter that lets go when the handler has
returned its response object is none: a streamed answer has only begun by then.

Whose turn it is decides ``proxy.admission.queue``; here are the tasks that wait for it, and the time.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType

from proxy.admission.kv import TokenBudget
from proxy.admission.lineup import UNBOUNDED
from proxy.admission.overload import Busy, outgrown, too_large
from proxy.admission.pace import Pace
from proxy.admission.parties import Entry, Standing
from proxy.admission.queue import FairQueue
from proxy.admission.strangers import is_stranger
from proxy.errors import ProxyError

Turn = asyncio.Future[ProxyError | None]
"""Done when the wait is over: with None where the slot is there, else with why it will not be."""

# uvloop's timers have whole milliseconds, and may fire one early by another clock.
_TIMER_SLACK_SECONDS = 0.001


class Slots:
    """A fixed number of slots, a share of them for each account, and a short, fair queue.

    Args:
        max_inflight: How many may hold a slot at once.
        key_max_inflight: How many of them one account may hold; None: all.
        queue_size: How many may wait for one; 0 lets nobody wait.
        queue_timeout_seconds: How long one may wait.
        clock: Monotonic seconds; for how long somebody has waited, and what is stale.
        budget: The engine's cache, of which a slot takes its tokens; None: not looked at.
    """

    def __init__(
        self,
        *,
        max_inflight: int,
        queue_size: int,
        queue_timeout_seconds: float,
        clock: Callable[[], float],
        key_max_inflight: int | None = None,
        budget: TokenBudget | None = None,
    ) -> None:
        self._max_inflight = max_inflight
        self._share = self._counted(key_max_inflight)
        self._queue_timeout_seconds = queue_timeout_seconds
        self._clock = clock
        self._budget = budget
        self._queue: FairQueue[Turn] = FairQueue(size=queue_size, share=self._share)
        self._in_flight = 0
        self._limit = UNBOUNDED
        self._pace = Pace()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    @property
    def in_flight(self) -> int:
        """How many slots are held."""
        return self._in_flight

    @property
    def queued(self) -> int:
        """How many requests wait for one."""
        return len(self._queue)

    def share_out(self, key_max_inflight: int | None) -> None:
        """One account may hold as many slots from now on; whoever holds more keeps them."""
        self._share = self._counted(key_max_inflight)
        self._queue.share_out(self._share)
        self._look()

    def _counted(self, share: int | None) -> int:
        # All of them is no share: whoever holds all has still had no more than its turns.
        return UNBOUNDED if share is None or share >= self._max_inflight else share

    def hold(
        self,
        account: str,
        tokens: int = 0,
        *,
        at_least: int | None = None,
        output_tokens: int = 0,
    ) -> "Hold":
        """Waits for a slot, holds it for the block, and gives the seconds spent waiting.

        Args:
            account: Whose turn it takes.
            tokens: What the request will probably need of the engine's cache. More than all of it
                reserves all of it: then nothing else runs beside it.
            at_least: What it will need for certain; None: all of `tokens`.
            output_tokens: The part of either that is not its prompt's; only to be told.

        Raises:
            Overloaded: The queue is full, the wait has lasted too long, or another account's request
                needed the place in the queue.
            RequestExceedsCapacity: What it needs for certain is more than the cache has when empty.
        """
        certain = tokens if at_least is None else at_least
        return Hold(self, account, tokens, certain, output_tokens)

    def wake(self) -> None:
        """The budget has changed, or what the engine says of itself: looks whose turn it is."""
        budget = self._budget
        limit = UNBOUNDED if budget is None or budget.limit is None else budget.limit
        if budget is not None and limit < self._limit:
            # Nobody asks for more than there was when he came.
            for entry in [e for e in self._queue.waiting if e.tokens > limit]:
                self._refuse(entry, outgrown(budget))
        self._limit = limit
        self._look()

    def enter(self, account: str, tokens: int, certain: int, output: int) -> Entry[Turn]:
        """A slot, or a place in the queue: then the entry has an item, to be waited for.

        For whoever gives it back by ``release``, and cannot be called off in between.

        Raises:
            Overloaded: Neither.
            RequestExceedsCapacity: As in ``hold``.
        """
        now = self._clock()
        queue, budget = self._queue, self._budget
        if budget is not None and (limit := budget.limit) is not None:
            self._limit = max(self._limit, limit)
            if certain > limit:
                raise too_large(certain, output, budget)
            tokens = min(tokens, limit)
        if self._fits(tokens, now):
            entered = queue.enter_at_once(account, tokens, now)
            if entered is not None:
                self._take(entered)
                return entered
        # Into the line, even if it will not have to wait: only there is known whom it may overtake.
        entry = queue.join(account, tokens, now)
        self._serve(now)
        if entry.standing is Standing.WAITS:
            self._make_room(entry, now)
            entry.item = asyncio.get_running_loop().create_future()
            self._watch(now + self._queue_timeout_seconds)
            if budget is not None and (stale := budget.stale_from(now)) is not None:
                self._watch(stale)
        return entry

    async def wait(self, entry: Entry[Turn], turn: Turn) -> float:
        """Returns when the slot of an entry has been handed over; leaves no trace otherwise.

        Gives the seconds spent waiting; raises as in ``hold``.
        """
        try:
            refusal = await turn
        except BaseException:
            # Called off, perhaps in the same moment in which the slot was handed over.
            if entry.standing is Standing.HOLDS:
                self.release(entry)
            elif entry.standing is Standing.WAITS:
                now = self._clock()
                self._queue.leave(entry, now)
                self._serve(now)
            raise
        if refusal is not None:
            raise refusal
        return self._clock() - entry.since

    def _fits(self, tokens: int, now: float) -> bool:
        budget = self._budget
        if budget is None:
            return self._in_flight < self._max_inflight
        return self._has_room(now) and tokens <= budget.free

    def _has_room(self, now: float) -> bool:
        if self._in_flight >= self._max_inflight:
            return False
        return self._budget is None or self._budget.has_room(now)

    def _take(self, entry: Entry[Turn]) -> None:
        self._in_flight += 1
        if self._budget is not None:
            self._budget.take(entry.tokens)

    def release(self, entry: Entry[Turn]) -> None:
        """Gives a slot back; whoever is next has it."""
        self._in_flight -= 1
        if self._budget is not None:
            self._budget.give_back(entry.tokens)
        self._queue.done(entry)
        now = self._clock()
        self._pace.note(now)
        if self._queue.waiting:
            self._serve(now)

    def _serve(self, now: float) -> None:
        """Gives away every slot that somebody may have."""
        queue, budget = self._queue, self._budget
        while queue and self._has_room(now):
            free = UNBOUNDED if budget is None else budget.free
            limit = UNBOUNDED if budget is None or budget.limit is None else budget.limit
            entry = queue.next(free, limit, now)
            if entry is None:
                break
            turn = entry.item
            if turn is not None and turn.done():
                queue.done(entry)  # called off in this moment, and not run since
                continue
            self._take(entry)
            if turn is not None:
                turn.set_result(None)
        if queue and (until := queue.closed_until) is not None:
            self._watch(until)

    def _make_room(self, newcomer: Entry[Turn], now: float) -> None:
        """Keeps the queue within its size.

        Raises:
            Overloaded: It is the newcomer for whom there is none.
        """
        leaving = self._queue.give_way()
        if leaving is None:
            return
        busy = self._busy(leaving, self.queued - 1)
        if leaving is newcomer:
            self._queue.leave(leaving, now)
            raise busy.full()
        self._refuse(leaving, busy.gave_way(stranger=is_stranger(leaving.account.name)))

    def _refuse(self, entry: Entry[Turn], error: ProxyError) -> None:
        self._queue.leave(entry, self._clock())
        if entry.item is not None and not entry.item.done():
            entry.item.set_result(error)

    def _watch(self, due: float) -> None:
        """Has ``_look`` called at `due`, if it is not to be called earlier anyway."""
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        delay = max(due - self._clock(), 0.0) + _TIMER_SLACK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(delay, self._timed)
        self._timer_due = due

    def _timed(self) -> None:
        self._timer = None
        self._look()

    def _look(self) -> None:
        """Sees whose time is over, whose turn it is, and when to look again."""
        queue, now = self._queue, self._clock()
        while (oldest := queue.oldest) is not None:
            if now - oldest.since < self._queue_timeout_seconds:
                break
            busy = self._busy(oldest, self.queued - 1)
            self._refuse(oldest, busy.too_long(self._queue_timeout_seconds))
        self._serve(now)
        if (oldest := queue.oldest) is not None:
            self._watch(oldest.since + self._queue_timeout_seconds)
            if self._budget is not None and (stale := self._budget.stale_from(now)) is not None:
                self._watch(stale)

    def _busy(self, entry: Entry[Turn], waiting: int) -> Busy:
        now = self._clock()
        return Busy(
            in_flight=self._in_flight,
            waiting=waiting,
            limited_by=self._limited_by(entry, now),
            retry_after_seconds=self._pace.retry_after_seconds(waiting, now),
        )

    def _limited_by(self, entry: Entry[Turn], now: float) -> str:
        budget = self._budget
        if self._in_flight >= self._max_inflight:
            return "which is as many as may be (PROXY_MAX_INFLIGHT)"
        if entry.account.held >= self._share:
            return f"{self._share} of them yours, which is your share (PROXY_KEY_MAX_INFLIGHT)"
        if budget is None or not budget.has_room(now):
            return "which is as many as the model server can do with now"
        return f"with {budget.reserved:,} tokens reserved of {budget.setting}"


class Hold:
    """A slot for one block. Made by ``Slots.hold``."""

    __slots__ = ("_account", "_entry", "_need", "_slots")

    def __init__(self, slots: Slots, account: str, tokens: int, certain: int, output: int) -> None:
        self._slots = slots
        self._account = account
        self._need = (tokens, certain, output)
        self._entry: Entry[Turn]

    async def __aenter__(self) -> float:
        entry = self._slots.enter(self._account, *self._need)
        self._entry = entry
        return 0.0 if entry.item is None else await self._slots.wait(entry, entry.item)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._slots.release(self._entry)
