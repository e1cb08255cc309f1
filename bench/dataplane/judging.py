"""Whether the targets of the data plane are met, from what was measured. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.dataplane.figures import Figures, ratio

BULWARK, OBVIOUS, NGINX = "bulwark", "obvious", "nginx"
FEW, MANY = 64, 2000

MOST_US_A_REQUEST = 300.0
MOST_OVER_OBVIOUS = 1 / 8
MOST_US_AN_EVENT = 25.0
MOST_OVER_NGINX = 2.0
MOST_ADDED_P50_US = 1_000.0
MOST_ADDED_P99_US = 5_000.0
MOST_DELAY_P50_US = 2_000.0
MOST_RSS_MIB = 200.0
MOST_OVER_FEW = 1.2
MOST_ABORT_P50_MS = 50.0
MOST_ABORT_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target.

    Attributes:
        measured: None where it could not be measured, which is neither met nor missed; a whole
            number where it counts something.
        unit: Of both numbers.
    """

    name: str
    measured: int | float | None
    most: float
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it is; None where nobody knows."""
        return None if self.measured is None else self.measured <= self.most


def judge(seen: Mapping[str, Figures]) -> list[Verdict]:
    """All targets; none where this proxy was not measured."""
    return list(_verdicts(seen)) if BULWARK in seen else []


def reasons_to_fail(verdicts: Sequence[Verdict]) -> list[str]:
    """Why not all is well, a line each: what nobody has measured is not well either."""
    if not verdicts:
        return [f"no target was judged: {BULWARK} was not measured"]
    told = {False: "missed", None: "not measured"}
    return [f"{told[v.met]}: {v.name}" for v in verdicts if v.met is not True]


def _verdicts(seen: Mapping[str, Figures]) -> Iterator[Verdict]:
    ours, obvious, nginx = seen[BULWARK], seen.get(OBVIOUS), seen.get(NGINX)
    request, event = ours.us_a_request, ours.us_an_event(FEW)
    yield Verdict("CPU of a request", request, MOST_US_A_REQUEST, "µs")
    yield Verdict(
        "the same, over the obvious program's",
        ratio(request, obvious.us_a_request if obvious else None),
        MOST_OVER_OBVIOUS,
    )
    yield Verdict(f"CPU of an event, {FEW} streams", event, MOST_US_AN_EVENT, "µs")
    yield Verdict(
        "the same, over nginx's",
        ratio(event, nginx.us_an_event(FEW) if nginx else None),
        MOST_OVER_NGINX,
    )
    half, few, many, aborts = ours.half, ours.streams.get(FEW), ours.streams.get(MANY), ours.aborts
    yield Verdict(
        "added to the first byte at half load, p50",
        half.added_p50_us if half else None,
        MOST_ADDED_P50_US,
        "µs",
    )
    yield Verdict("the same, p99", half.added_p99_us if half else None, MOST_ADDED_P99_US, "µs")
    yield Verdict(
        f"delay of an event, {FEW} streams, p50",
        few.delay_p50_us if few else None,
        MOST_DELAY_P50_US,
        "µs",
    )
    yield Verdict(
        f"memory at {MANY:,} streams", many.rss_mib if many else None, MOST_RSS_MIB, "MiB"
    )
    yield Verdict(f"stalled of {MANY:,} streams", many.stalled if many else None, 0)
    yield Verdict(
        f"CPU of an event at {MANY:,} streams, over {FEW}",
        ratio(many.us if many else None, event),
        MOST_OVER_FEW,
    )
    yield Verdict(
        "client gone, upstream closed, p50",
        aborts.p50_ms if aborts else None,
        MOST_ABORT_P50_MS,
        "ms",
    )
    yield Verdict("the same, at most", aborts.max_ms if aborts else None, MOST_ABORT_MS, "ms")
    yield Verdict("clients whose leaving was not noticed", _unnoticed(ours), 0)
    yield Verdict("requests and streams that went wrong", _errors(ours), 0)


def _unnoticed(seen: Figures) -> int | None:
    return seen.aborts.unnoticed if seen.aborts else None


def _errors(seen: Figures) -> int:
    parts = [seen.requests, seen.half, *seen.streams.values()]
    return sum(part.errors for part in parts if part) + len(seen.faults)
