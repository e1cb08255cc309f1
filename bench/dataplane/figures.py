"""What is measured of one subject. Plain values: they are stored as JSON as they are here."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_US_PER_SECOND = 1_000_000
BUSY = 0.9
"""Of a core: with less, it was the clients or the upstream that could do no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of steady load, seen from the subject.

    Attributes:
        cpu_us: CPU time, user's and system's, of all its processes.
        seconds: How long it was.
    """

    cpu_us: float
    seconds: float

    def each(self, count: int) -> float | None:
        """Of each of so many; None where there were none."""
        return round(self.cpu_us / count, 2) if count else None

    @property
    def busy(self) -> float:
        """How much of a core it has had."""
        return round(self.cpu_us / _US_PER_SECOND / self.seconds, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """A closed loop: as many requests as it can answer.

    Attributes:
        us: CPU time of one.
        busy: How much of a core it had; below ``BUSY`` it could have answered more.
        errors: Broken, refused, or answered otherwise than they should be.
    """

    us: float | None
    per_second: float
    busy: float
    p50_us: float | None
    p99_us: float | None
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfLoad:
    """An open loop, at half of what it can answer.

    Attributes:
        first_byte_p50_us: From the moment a request is due to the first byte of its answer.
        direct_p50_us: Likewise, at the same rate, with nothing in front.
        never_sent: Requests that were due, and for which no connection was ever free.
    """

    per_second: float
    first_byte_p50_us: float | None
    first_byte_p99_us: float | None
    latency_p50_us: float | None
    latency_p99_us: float | None
    direct_p50_us: float | None
    direct_p99_us: float | None
    errors: int
    never_sent: int

    @property
    def added_p50_us(self) -> float | None:
        """What it adds to the first byte, at the median."""
        return _difference(self.first_byte_p50_us, self.direct_p50_us)

    @property
    def added_p99_us(self) -> float | None:
        """What it adds to the 99th percentile, which is not the 99th percentile of what it adds."""
        return _difference(self.first_byte_p99_us, self.direct_p99_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """So many streams at a time.

    Attributes:
        us: CPU time of an event, with its share of the request that it is of.
        planned_per_second: Events that the upstream would send to clients who take all.
        delay_p50_us: From the upstream's sending an event to its being read.
        first_event_p50_us: From asking to the first event.
        rss_mib: Resident memory at the end.
        stalled: Streams that were silent for longer than a second, and than five intervals.
    """

    us: float | None
    per_second: float
    planned_per_second: float
    busy: float
    delay_p50_us: float | None
    delay_p99_us: float | None
    first_event_p50_us: float | None
    first_event_p99_us: float | None
    rss_mib: float
    stalled: int
    longest_gap_ms: float
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborts:
    """Clients that leave in mid-stream.

    Attributes:
        p50_ms: From the client's close to the upstream's seeing its connection closed.
        unnoticed: Of which it never heard.
    """

    left: int
    unnoticed: int
    p50_ms: float | None
    max_ms: float | None


@dataclass(slots=True, kw_only=True)
class Figures:
    """All of one subject; what could not be measured is None.

    Attributes:
        streams: By how many there are at a time.
        faults: What went wrong, as sentences.
    """

    title: str
    rss_idle_mib: float = 0.0
    requests: Requests | None = None
    half: HalfLoad | None = None
    streams: dict[int, Streams] = field(default_factory=dict)
    aborts: Aborts | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def us_a_request(self) -> float | None:
        """CPU time of a request."""
        return self.requests.us if self.requests else None

    def us_an_event(self, streams: int) -> float | None:
        """CPU time of an event, of so many streams."""
        seen = self.streams.get(streams)
        return seen.us if seen else None

    def plain(self) -> dict[str, Any]:
        """As JSON has it, with what follows from it."""
        stored = asdict(self)
        if self.half:
            stored["half"] |= {
                "added_p50_us": self.half.added_p50_us,
                "added_p99_us": self.half.added_p99_us,
            }
        return stored


def errors(measured: Mapping[str, Any]) -> int:
    """All of a run that went otherwise than it should."""
    return int(measured["errors"] + measured["refused"])


def ratio(value: float | None, to: float | None) -> float | None:
    """One over the other, where both are known."""
    return None if value is None or not to else value / to


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of them lies; the same rule as in ``wire/load.c``."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _difference(value: float | None, less: float | None) -> float | None:
    return None if value is None or less is None else round(value - less, 1)
