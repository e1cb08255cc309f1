"""What state the engine is in, out of what was seen of it: pure, with hysteresis.

One bad check is a hiccup, and one good one after an outage may be its last: a state that others act
on must not follow each of them.

``down`` because the engine has stalled is told and nothing more: requests are not refused for it. A
prompt that takes two minutes to read looks the same from outside, and is served in the end.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from proxy.upstream.readings import Reading

BAD_CHECKS = 3
"""In a row, until an engine that was ready counts as gone."""

GOOD_CHECKS = 2
"""In a row, until one that was gone counts as back."""

HIGH_READINGS, LOW_READINGS = 3, 5
"""In a row, until it counts as saturated, and as not saturated any more."""

FULL_KV_USAGE = 0.95
STALE_SECONDS = 15.0
"""How long a reading says anything about the load."""

STALL_SECONDS = 60.0


class State(StrEnum):
    """Of the engine.

    ``STARTING``: never there yet, or not there again: it refuses connections, or still loads.
    ``SATURATED``: it serves, but requests wait in it, or its KV cache is full.
    ``DOWN``: it was there, and now fails, is silent or has stalled.
    """

    STARTING = "starting"
    READY = "ready"
    SATURATED = "saturated"
    DOWN = "down"

    @property
    def serves(self) -> bool:
        """Whether a request that comes now has a chance."""
        return self in {State.READY, State.SATURATED}


class Health(Enum):
    """What came of one question for its health."""

    WELL = auto()
    ABSENT = auto()  # nobody listens there
    LOADING = auto()  # 503
    FAILING = auto()  # another 5xx, or no HTTP, or no answer in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was seen at one moment.

    Attributes:
        at: Monotonic seconds.
        why: What is wrong where it is not well, or odd where it is, in a word.
        reading: Of its metrics; None where there was none.
    """

    at: float
    health: Health
    why: str = ""
    reading: Reading | None = None


class Course:
    """The state as check after check comes in.

    Attributes:
        state: The state now.
        reason: Why, in a word; empty while it is ready and nothing is odd about it.
        restarts: How often it was seen to have been started again.
    """

    def __init__(self) -> None:
        self.state = State.STARTING
        self.reason = "not_asked_yet"
        self.restarts = 0
        self._was_ready = False
        self._good = self._bad = 0
        self._load = _Load()
        self._progress = _Progress()
        self._last: Reading | None = None

    def note(self, check: Check) -> None:
        """Goes on by one check."""
        if check.reading is not None:
            if self._last is not None and check.reading.is_of_a_restarted(self._last):
                self.restarts += 1
            self._last = check.reading
        self._load.note(check)
        self._progress.note(check)
        if check.health is Health.WELL:
            self._bad, self._good = 0, self._good + 1
            self._be(*self._when_well(check))
        else:
            self._bad, self._good = self._bad + 1, 0
            self._be(*self._when_not(check))

    def _be(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        self._was_ready = self._was_ready or state.serves

    def _when_well(self, check: Check) -> tuple[State, str]:
        if self._progress.has_stalled:
            return State.DOWN, "stalled"
        if self.state is State.DOWN and self._good < GOOD_CHECKS:
            return self.state, self.reason
        if self._load.why:
            return State.SATURATED, self._load.why
        return State.READY, check.why

    def _when_not(self, check: Check) -> tuple[State, str]:
        if self.state is State.STARTING:
            # Whatever it does until it is there for the first time is a part of starting.
            gone = self._was_ready and check.health is Health.FAILING and self._bad >= BAD_CHECKS
            return (State.DOWN if gone else State.STARTING), check.why
        if self._bad < BAD_CHECKS:
            return self.state, self.reason
        return (State.STARTING if check.health is Health.ABSENT else State.DOWN), check.why


class _Load:
    """Whether it has had too much to do for several readings."""

    def __init__(self) -> None:
        self.why = ""
        self._high = self._low = 0
        self._at = 0.0

    def note(self, check: Check) -> None:
        if check.reading is None:
            if check.at - self._at > STALE_SECONDS:
                self.why, self._high, self._low = "", 0, 0
            return
        self._at = check.at
        why = self._too_much(check.reading)
        if why:
            self._high, self._low = self._high + 1, 0
            if self._high >= HIGH_READINGS:
                self.why = why
        else:
            self._high, self._low = 0, self._low + 1
            if self._low >= LOW_READINGS:
                self.why = ""

    def _too_much(self, reading: Reading) -> str:
        if reading.waiting:
            return "requests_wait"
        return "kv_cache_full" if (reading.kv_usage or 0.0) > FULL_KV_USAGE else ""


class _Progress:
    """Whether requests have run in it for a while without any of its figures moving."""

    def __init__(self) -> None:
        self.has_stalled = False
        self._figures: tuple[float | None, ...] = ()
        self._since = self._seen = 0.0

    def note(self, check: Check) -> None:
        reading = check.reading
        if check.health in {Health.ABSENT, Health.LOADING}:
            self.has_stalled, self._figures, self._seen = False, (), check.at
        if reading is None:
            if check.at - self._seen > STALL_SECONDS:
                self.has_stalled = False
            return
        self._seen = check.at
        known = any(figure is not None for figure in reading.progress)
        if not (reading.running and known) or reading.progress != self._figures:
            self._figures, self._since = reading.progress, check.at
        self.has_stalled = check.at - self._since >= STALL_SECONDS
