"""A chart of what was stored: CPU of a request and of an event, one bar each, as SVG.

``python -m bench.dataplane.chart FILE.json CHART.svg``. On a logarithmic scale, for the dearest is a
thousand times the cheapest. It follows the reader's colours, light or dark, by itself.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_FEW = "64"
_OURS = "bulwark"
_WIDTH, _LABELS, _FIGURES = 720, 200, 70
_ROW, _BAR, _TITLE = 24, 16, 44
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600 } .unit { fill: #57606a } .bar { fill: #8c959f } .ours { fill: #0969da }
.name-ours { font-weight: 600 } line { stroke: #d0d7de }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .unit { fill: #9198a1 } .bar { fill: #6e7681 } .ours { fill: #58a6ff }
line { stroke: #30363d } }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One of a chart."""

    title: str
    value: float
    ours: bool


def bars(stored: Mapping[str, Any]) -> dict[str, list[Bar]]:
    """What is to be drawn, by heading, the cheapest first."""
    requests, events = [], []
    for name, seen in stored["subjects"].items():
        ours = name == _OURS
        request = (seen.get("requests") or {}).get("us")
        event = (seen.get("streams", {}).get(_FEW) or {}).get("us")
        # Nothing in front costs nothing, which a logarithm cannot show.
        if request:
            requests.append(Bar(seen["title"], request, ours))
        if event:
            events.append(Bar(seen["title"], event, ours))
    headings = {"CPU time of a request": requests, "CPU time of a streamed event": events}
    return {
        heading: sorted(drawn, key=lambda bar: bar.value) for heading, drawn in headings.items()
    }


def svg(stored: Mapping[str, Any]) -> str:
    """The chart."""
    charts = {heading: drawn for heading, drawn in bars(stored).items() if drawn}
    height = sum(_TITLE + _ROW * len(drawn) for drawn in charts.values()) + 10
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(_summary(charts))}</title>",
        f"<style>{_STYLE}</style>",
    ]
    top = 0
    for heading, drawn in charts.items():
        parts.extend(_chart(heading, drawn, top))
        top += _TITLE + _ROW * len(drawn)
    return "\n".join([*parts, "</svg>", ""])


def _chart(heading: str, drawn: Sequence[Bar], top: int) -> Iterator[str]:
    yield (
        f'<text x="0" y="{top + 26}"><tspan class="title">{escape(heading)}</tspan>'
        '<tspan class="unit"> in µs, logarithmic; less is better</tspan></text>'
    )
    scale = _scale([bar.value for bar in drawn])
    bottom = top + _TITLE + _ROW * len(drawn) - (_ROW - _BAR)
    yield f'<line x1="{_LABELS}" y1="{top + _TITLE - 4}" x2="{_LABELS}" y2="{bottom + 4}"/>'
    for number, bar in enumerate(drawn):
        y = top + _TITLE + _ROW * number
        width = round(scale(bar.value), 1)
        name, kind = ("name-ours", "ours") if bar.ours else ("name", "bar")
        yield (
            f'<text class="{name}" x="{_LABELS - 8}" y="{y + 13}" text-anchor="end">'
            f"{escape(bar.title)}</text>"
        )
        yield f'<rect class="{kind}" x="{_LABELS}" y="{y}" width="{width}" height="{_BAR}" rx="2"/>'
        yield f'<text class="{name}" x="{_LABELS + width + 6}" y="{y + 13}">{figure(bar.value)}</text>'


def _scale(values: Sequence[float]) -> "_Scale":
    # From the power of ten below the cheapest: its bar shall be seen, too.
    least = 10 ** math.floor(math.log10(min(values)) - 0.01)
    return _Scale(least, max(values))


@dataclass(frozen=True, slots=True)
class _Scale:
    least: float
    most: float

    def __call__(self, value: float) -> float:
        room = _WIDTH - _LABELS - _FIGURES
        return room * math.log(value / self.least) / math.log(self.most / self.least)


def figure(value: float) -> str:
    """As many digits as say something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"  # noqa: PLR2004


def _summary(charts: Mapping[str, Sequence[Bar]]) -> str:
    """For whoever does not see it."""
    return "; ".join(
        f"{heading}, µs: " + ", ".join(f"{bar.title} {figure(bar.value)}" for bar in drawn)
        for heading, drawn in charts.items()
    )


def main() -> None:
    """Draws."""
    if len(sys.argv) != 3:  # noqa: PLR2004
        raise SystemExit("usage: python -m bench.dataplane.chart FILE.json CHART.svg")
    try:
        drawn = svg(_stored(Path(sys.argv[1])))
        Path(sys.argv[2]).write_text(drawn, encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise SystemExit(str(exc)) from None


def _stored(path: Path) -> dict[str, Any]:
    """What ``make bench`` has stored.

    Raises:
        ValueError: It is something else.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise ValueError(f"{path}: not JSON: {exc}") from exc
    if not isinstance(stored, dict) or not isinstance(stored.get("subjects"), dict):
        raise ValueError(f"{path}: not what make bench ARGS='--json FILE.json' stores")  # noqa: TRY004
    return stored


if __name__ == "__main__":
    main()
