"""What was measured, as tables on a terminal."""

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bench.dataplane.figures import BUSY, Figures, ratio
from bench.dataplane.judging import FEW, NGINX, OBVIOUS, Verdict

_WIDTH = 170
_MEASURED = {True: "[green]met[/]", False: "[red]missed[/]", None: "not measured"}


def show(
    console: Console,
    seen: Mapping[str, Figures],
    verdicts: Sequence[Verdict],
) -> None:
    """Prints all of it."""
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(_requests(seen))
    for count in sorted({count for figures in seen.values() for count in figures.streams}):
        console.print(_streams(seen, count))
    console.print(_aborts(seen))
    for name, figures in seen.items():
        for fault in figures.faults:
            console.print(f"{name}: {fault}", markup=False, highlight=False, soft_wrap=True)
    if verdicts:
        console.print(_verdicts(verdicts))


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _requests(seen: Mapping[str, Figures]) -> Table:
    table = _table(
        "requests",
        "CPU µs\na request",
        "over\nobvious",
        "over\nnginx",
        "requests/s",
        "at half load:\nrequests/s",
        "added to first\nbyte p50, µs",
        "p99, µs",
        "wrong",
    )
    over = _over(seen, lambda figures: figures.us_a_request)
    for figures in seen.values():
        closed, half = figures.requests, figures.half
        if closed is None:
            continue
        least = "≥ " if closed.busy < BUSY else ""
        table.add_row(
            figures.title,
            *over(figures),
            f"{least}{closed.per_second:,.0f}",
            _number(half.per_second if half else None, 0),
            _number(half.added_p50_us if half else None, 0),
            _number(half.added_p99_us if half else None, 0),
            str(closed.errors + (half.errors + half.never_sent if half else 0)),
        )
    table.caption = "≥: its core was not busy, the clients and the upstream could do no more"
    return table


def _streams(seen: Mapping[str, Figures], count: int) -> Table:
    table = _table(
        f"{count:,} streams",
        "CPU µs\nan event",
        "over\nobvious",
        "over\nnginx",
        f"over\n{FEW}",
        "events/s",
        "of\nplanned",
        "delay, µs\np50",
        "p99",
        "first event,\nms, p50",
        "p99",
        "MiB",
        "stalled",
        "longest\ngap, ms",
        "wrong",
    )
    over = _over(seen, lambda figures: figures.us_an_event(count))
    for figures in seen.values():
        one = figures.streams.get(count)
        if one is None:
            continue
        first = [
            None if us is None else us / 1000
            for us in (one.first_event_p50_us, one.first_event_p99_us)
        ]
        table.add_row(
            figures.title,
            *over(figures),
            _number(ratio(one.us, figures.us_an_event(FEW)), 2),
            f"{one.per_second:,.0f}",
            f"{one.per_second / one.planned_per_second:.0%}",
            _number(one.delay_p50_us, 0),
            _number(one.delay_p99_us, 0),
            *(_number(ms, 1) for ms in first),
            _number(one.rss_mib, 0),
            str(one.stalled),
            _number(one.longest_gap_ms, 0),
            str(one.errors),
        )
    return table


def _aborts(seen: Mapping[str, Figures]) -> Table:
    table = _table(
        "clients that leave", "streams", "upstream closed\nafter ms, p50", "max", "never"
    )
    for figures in seen.values():
        if one := figures.aborts:
            table.add_row(
                figures.title,
                f"{one.left:,}",
                _number(one.p50_ms, 2),
                _number(one.max_ms, 1),
                str(one.unnoticed),
            )
    return table


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    table = _table("targets", "measured", "at most", "")
    for verdict in verdicts:
        table.add_row(
            verdict.name,
            f"{_number(verdict.measured, 0 if isinstance(verdict.measured, int) else 2)} {verdict.unit}",
            f"{verdict.most:g} {verdict.unit}",
            _MEASURED[verdict.met],
        )
    return table


def _over(
    seen: Mapping[str, Figures], figure: Callable[[Figures], float | None]
) -> Callable[[Figures], tuple[str, str, str]]:
    """A figure, and what it is over the obvious program's and nginx's."""
    bases = [figure(seen[name]) if name in seen else None for name in (OBVIOUS, NGINX)]

    def cells(figures: Figures) -> tuple[str, str, str]:
        # Nothing is in front of the upstream: there is no CPU time to be had.
        value = figure(figures) or None
        obvious, nginx = (
            _number(ratio(value, base), 3 if base is bases[0] else 2) for base in bases
        )
        return _number(value, 1), obvious, nginx

    return cells


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
