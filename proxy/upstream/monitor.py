"""Looks at the engine once a second: whether it serves, what it holds, how much it has to do.

Beside the requests, never in their way: nothing of a request waits for it, and what it sees arrives
at others through callbacks. Whatever goes wrong here stays here.
"""

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import httpx

from proxy.patience import fail_after
from proxy.upstream.asking import Questions
from proxy.upstream.exposition import PageRefused
from proxy.upstream.readings import Reading
from proxy.upstream.states import Check, Course, Health, State
from proxy.upstream.target import Target

IGNORED_REASONS = (
    *("absent", "broken", "late", "too_large", "compressed", "too_complex"),
    *("no_series", "impossible_pool"),
)
"""Why a metrics page may not have been used."""

_AGAIN_SECONDS = 10.0
"""When the next page is asked for where there was none, or none that will be any better."""

# Of those that may be better next time, and cost a second each if they are not: when the next is
# asked for after one in a row, after two, and so on. Half a second less than so many looks.
_PASSING = frozenset({"late", "broken"})
_PASSING_SECONDS = (0.5, 1.5, 3.5, 7.5, 9.5)

# llama.cpp looks for clients that have left only in a second in which it answers nobody, and its
# metrics are an answer.
_LLAMACPP_SECONDS = 5.0


class Monitor:
    """What is known about the engine.

    Args:
        transport: The way to it; see ``Questions``. Whoever made it closes it.
        target: Where it is.
        clock: Monotonic seconds.
        interval_seconds: From one look to the next; the next never begins before the last has ended.
        sleep: How it waits for that.
        health_path: See ``Questions``.
        on_reading: Told each reading.
        on_state: Told each change of the state, and why it is that.
        on_ignored: Told why a metrics page was not used, a word of ``IGNORED_REASONS``.
        on_fault: Told a bug, once in a row of the same. Must not raise.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        target: Target,
        *,
        clock: Callable[[], float] = time.monotonic,
        interval_seconds: float = 1.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        health_path: Literal["/health", "/ready"] = "/health",
        on_reading: Callable[[Reading], object] = lambda _: None,
        on_state: Callable[[State, str], object] = lambda _state, _reason: None,
        on_ignored: Callable[[str], object] = lambda _reason: None,
        on_fault: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        self._questions = Questions(transport, target, health_path=health_path)
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._sleep = sleep
        self._on_reading = on_reading
        self._on_state = on_state
        self._on_ignored = on_ignored
        self._on_fault = on_fault
        self._course = Course()
        self._since = clock()
        self._last_well: float | None = None
        self._next_page = self._since
        self._setbacks = 0
        self._ignored = Counter[str]()
        self._faults: set[tuple[str, int]] = set()
        self._looked = asyncio.Event()
        self.reading: Reading | None = None
        self.pool_tokens: int | None = None

    async def run(self) -> None:
        """Looks again and again, until it is cancelled."""
        while True:
            began = self._clock()
            await self.look()
            await self._sleep(max(0.0, self._interval_seconds - (self._clock() - began)))

    async def look(self) -> None:
        """Looks once."""
        before, known_faults, self._faults = self.state, self._faults, set()
        try:
            check = await self._check()
        except Exception as exc:  # noqa: BLE001 - a bug here must not be the end of all looking
            self._report(exc, known_faults)
            check = Check(at=self._clock(), health=Health.FAILING, why="bug")
        self._note(check)
        self._looked.set()
        try:
            if self.state is not before:
                self._on_state(self.state, self.reason)
            if check.reading is not None:
                self._on_reading(check.reading)
        except Exception as exc:  # noqa: BLE001 - nor one there
            self._report(exc, known_faults)

    async def looked(self, within_seconds: float) -> bool:
        """Returns once it has looked for the first time; False if it has not within the time."""
        try:
            with fail_after(within_seconds):
                await self._looked.wait()
        except TimeoutError:
            return False
        return True

    @property
    def state(self) -> State:
        """The state that the engine is in."""
        return self._course.state

    @property
    def reason(self) -> str:
        """Why, in a word; empty while it is ready and looks like an engine."""
        return self._course.reason

    @property
    def since_seconds(self) -> float:
        """How long it has been in this state."""
        return self._clock() - self._since

    @property
    def restarts(self) -> int:
        """How often the engine was seen to have been started again."""
        return self._course.restarts

    @property
    def last_ok_seconds_ago(self) -> float | None:
        """When it was well for the last time; None where it never was."""
        return None if self._last_well is None else self._clock() - self._last_well

    @property
    def ignored(self) -> Mapping[str, int]:
        """How many metrics pages were not used, by reason."""
        return {reason: self._ignored[reason] for reason in IGNORED_REASONS}

    def _note(self, check: Check) -> None:
        before = self.state
        self._course.note(check)
        if self.state is not before:
            self._since = check.at
        if check.health is Health.WELL:
            self._last_well = check.at
        if check.reading is not None:
            self.reading = check.reading
            self.pool_tokens = check.reading.pool_tokens or self.pool_tokens

    async def _check(self) -> Check:
        health, why = await self._questions.health()
        now = self._clock()
        if health in {Health.ABSENT, Health.LOADING}:
            # Whatever comes next may have another page.
            self._next_page, self._setbacks = now, 0
            return Check(at=now, health=health, why=why)
        reading = await self._page() if now >= self._next_page else None
        # Where it is silent, its figures may still tell that it works: SGLang answers for its
        # health by generating a token, behind whatever else it generates.
        if why == "silent" and reading is not None and self._moves(reading):
            health, why = Health.WELL, ""
        if health is Health.WELL and (reading or self.reading):
            why = ""
        return Check(at=self._clock(), health=health, why=why, reading=reading)

    def _moves(self, reading: Reading) -> bool:
        return self.reading is not None and reading.progress != self.reading.progress

    async def _page(self) -> Reading | None:
        try:
            reading = await self._questions.metrics()
        except PageRefused as refused:
            self._ignored[refused.reason] += 1
            self._on_ignored(refused.reason)
            self._next_page = self._clock() + self._pause(refused.reason)
            return None
        self._setbacks = 0
        if reading.engine == "llamacpp":
            self._next_page = self._clock() + _LLAMACPP_SECONDS
        return reading

    def _pause(self, reason: str) -> float:
        """How long no page is asked for after this one, which was not used."""
        if reason not in _PASSING:
            self._setbacks = 0
            return _AGAIN_SECONDS
        self._setbacks = min(self._setbacks + 1, len(_PASSING_SECONDS))
        return _PASSING_SECONDS[self._setbacks - 1]

    def _report(self, exc: Exception, known: set[tuple[str, int]]) -> None:
        """Unless the look before this one failed in the same place: one line, not one a second."""
        *_, (frame, line) = traceback.walk_tb(exc.__traceback__)
        place = frame.f_code.co_filename, line
        self._faults.add(place)
        if place not in known:
            self._on_fault(exc)
