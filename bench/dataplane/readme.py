"""The README's table of figures, out of what ``make bench`` has stored."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STORED = Path(__file__).resolve().parent.parent / "figures" / "dataplane.json"
"""What the README shows: a run of everything on a machine that did nothing else."""

HEAD = (
    "in front of the engine", "CPU µs a request", "the obvious = 1", "added to the first byte, ms (p50, p99)",
    "CPU µs an event, 64 streams", "nginx = 1", "CPU µs an event, 2,000 streams", "MiB", "stalled", "client gone, closed, ms",
)  # fmt: skip


def rows(stored: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for each that was measured, but for nothing in front."""
    subjects = stored["subjects"]
    obvious, nginx = subjects.get("obvious"), subjects.get("nginx")
    for name, measured in subjects.items():
        if name == "direct":
            continue
        us, events = measured["requests"]["us"], measured["streams"]
        few, many = events.get("64"), events.get("2000")
        yield (
            _strong(measured["title"]) if name.startswith("bulwark") else measured["title"],
            f"{us:,.0f}",
            _over(us, obvious and obvious["requests"]["us"]),
            _added(measured["half"]),
            f"{few['us']:.1f}" if few else "-",
            _over(few and few["us"], nginx and nginx["streams"]["64"]["us"]),
            f"{many['us']:.1f}" if many else "-",
            f"{many['rss_mib']:,.0f}" if many else "-",
            f"{many['stalled']:,}" if many else "-",
            _gone(measured["aborts"]),
        )


def machine(stored: Mapping[str, Any]) -> str:
    """On what and when, in a line."""
    about = stored["machine"]
    return (
        f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel'].partition('-')[0]}, "
        f"Python {about['python']}, {about['date'][:10]}."
    )


def load() -> dict[str, Any]:
    """What is stored."""
    stored: dict[str, Any] = json.loads(STORED.read_text("utf-8"))
    return stored


def _strong(text: str) -> str:
    return f"**{text}**"


def _over(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}" if one and other else "-"


def _added(half: Mapping[str, Any] | None) -> str:
    if half is None:
        return "-"
    return f"{half['added_p50_us'] / 1000:.1f}, {half['added_p99_us'] / 1000:.1f}"


def _gone(aborts: Mapping[str, Any] | None) -> str:
    if aborts is None:
        return "-"
    if aborts["unnoticed"]:
        return f"{aborts['unnoticed']} of {aborts['left']} never"
    return f"{aborts['p50_ms']:.1f}, at most {aborts['max_ms']:.0f}"
