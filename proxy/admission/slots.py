"""How many requests the upstream is asked at once, and who waits.

A slot is held from before the upstream is asked until after the last byte of its answer, by the
request's own task, and given back in one ``finally``. A limiter that lets go when the handler has
returned its response object is none: a streamed answer has only begun by then.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from proxy.errors import Overloaded

RETRY_AFTER_SECONDS = 5


class Slots:
    """A fixed number of slots, and a short queue in order of arrival.

    Args:
        max_inflight: How many may hold a slot at once.
        queue_size: How many may wait for one; 0 lets nobody wait.
        queue_timeout_seconds: How long one may wait.
        clock: Monotonic seconds, to tell how long a request has waited.
    """

    def __init__(
        self,
        *,
        max_inflight: int,
        queue_size: int,
        queue_timeout_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._max_inflight = max_inflight
        self._queue_size = queue_size
        self._queue_timeout_seconds = queue_timeout_seconds
        self._clock = clock
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def in_flight(self) -> int:
        """How many slots are held."""
        return self._in_flight

    @property
    def queued(self) -> int:
        """How many requests wait for one."""
        return len(self._waiting)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[float]:
        """Waits for a slot, holds it for the block, and gives the seconds spent waiting.

        Raises:
            Overloaded: The queue is full, or the wait has lasted too long.
        """
        queued_seconds = await self._acquire()
        try:
            yield queued_seconds
        finally:
            self._release()

    async def _acquire(self) -> float:
        if self._in_flight < self._max_inflight:
            self._in_flight += 1
            return 0.0
        if len(self._waiting) >= self._queue_size:
            raise self._full()
        since = self._clock()
        await self._wait()
        return self._clock() - since

    async def _wait(self) -> None:
        """Returns when a slot has been handed over; leaves no trace otherwise."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        deadline = loop.call_later(self._queue_timeout_seconds, self._expire, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # Handed over in the same moment in which the waiter was called off.
                self._release()
            raise
        finally:
            deadline.cancel()
            if turn in self._waiting:
                self._waiting.remove(turn)

    def _release(self) -> None:
        """Hands the slot to whoever waits longest, so that no newcomer can overtake."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._in_flight -= 1

    def _expire(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            turn.set_exception(self._too_long())

    def _full(self) -> Overloaded:
        return Overloaded(
            f"This server is busy: {self._max_inflight} requests are being answered "
            f"(PROXY_MAX_INFLIGHT) and {len(self._waiting)} wait, which is as many as may "
            "(PROXY_QUEUE_SIZE). Try again soon.",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )

    def _too_long(self) -> Overloaded:
        return Overloaded(
            f"This server is busy: the request has waited {self._queue_timeout_seconds:g} s for "
            "its turn, which is as long as it may (PROXY_QUEUE_TIMEOUT_SECONDS). Try again soon.",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
