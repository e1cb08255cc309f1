"""How long one step on an event loop holds up everything else on it.

Measured in CPU time of the loop's thread, so that a busy machine holds up nobody, and without the
objects of the tests and their libraries, which a collection of garbage takes 0.1 s to look through.
"""

import asyncio
import gc
import time
from types import TracebackType
from typing import Self

_BEAT_SECONDS = 0.002


class Heartbeat:
    """Beats on the running loop for as long as its block lasts.

    Attributes:
        longest_seconds: The most that the loop computed between two beats.
        beats: How many there were.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self.longest_seconds = 0.0
        self.beats = 0

    def _beat(self) -> None:
        now = time.thread_time()
        self.longest_seconds = max(self.longest_seconds, now - self._last)
        self.beats += 1
        self._last = now
        self._timer = self._loop.call_later(_BEAT_SECONDS, self._beat)

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        self._last = time.thread_time()
        self._timer = self._loop.call_later(_BEAT_SECONDS, self._beat)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What came after the last beat counts too.
        self.longest_seconds = max(self.longest_seconds, time.thread_time() - self._last)
        if self._timer is not None:
            self._timer.cancel()
        gc.unfreeze()
