"""What of the data plane's benchmark is pure: figures, verdicts, the chart, what Linux and callgrind say."""

import argparse
import io
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from bench.counting import budgets, callgrind
from bench.counting.callgrind import Cut
from bench.counting.counted import EVENTS, REQUESTS
from bench.dataplane import __main__ as command
from bench.dataplane import chart, figures, judging, machine, proc, tables, traffic
from bench.dataplane.figures import Aborts, Figures, HalfLoad, Requests, Streams, Window
from bench.dataplane.measuring import Cores

STAT = "42 (a) b (c) S 1 42 41 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 1 0 5 6"


@pytest.mark.parametrize(
    ("share", "value"),
    [
        pytest.param(0.0, 1.0, id="the least is the 0th"),
        pytest.param(0.5, 51.0, id="half of a hundred are below the 51st"),
        pytest.param(0.99, 100.0, id="99 of a hundred are below the last"),
        pytest.param(1.0, 100.0, id="nothing is above the last"),
    ],
)
def test_percentile(share: float, value: float) -> None:
    """The value below which this share lies."""
    assert figures.percentile([float(n) for n in range(100, 0, -1)], share) == value


def test_percentile_of_nothing() -> None:
    """There is none."""
    with pytest.raises(ValueError, match="no values"):
        figures.percentile([], 0.5)


@pytest.mark.parametrize(
    ("value", "to", "expected"),
    [
        pytest.param(10.0, 4.0, 2.5, id="both are known"),
        pytest.param(None, 4.0, None, id="the one is not"),
        pytest.param(10.0, None, None, id="the other is not"),
        pytest.param(10.0, 0.0, None, id="nothing in front costs nothing"),
    ],
)
def test_ratio(value: float | None, to: float | None, expected: float | None) -> None:
    """One over the other, where that says something."""
    assert figures.ratio(value, to) == expected


def test_window() -> None:
    """CPU time of one, and how busy its core was; of none there is none."""
    window = Window(cpu_us=3_000_000, seconds=4.0)
    assert (window.each(10_000), window.each(0), window.busy) == (300.0, None, 0.75)


def _figures() -> Figures:
    """Of a proxy that meets every target, each exactly."""
    streams = Streams(
        us=25.0,
        per_second=3200,
        planned_per_second=3200,
        busy=0.1,
        delay_p50_us=2000,
        delay_p99_us=9000,
        first_event_p50_us=1,
        first_event_p99_us=1,
        rss_mib=90,
        stalled=0,
        longest_gap_ms=30,
        errors=0,
    )
    return Figures(
        title="Bulwark",
        requests=Requests(us=300, per_second=3000, busy=0.99, p50_us=1, p99_us=1, errors=0),
        half=HalfLoad(
            per_second=1500,
            first_byte_p50_us=1100,
            first_byte_p99_us=5500,
            latency_p50_us=1100,
            latency_p99_us=5500,
            direct_p50_us=100,
            direct_p99_us=500,
            errors=0,
            never_sent=0,
        ),
        streams={64: streams, 2000: replace(streams, us=30.0, rss_mib=200)},
        aborts=Aborts(left=400, unnoticed=0, p50_ms=50, max_ms=1000),
    )


def _others() -> dict[str, Figures]:
    obvious, nginx = _figures(), _figures()
    assert obvious.requests is not None
    obvious.requests = replace(obvious.requests, us=2400)
    nginx.streams[64] = replace(nginx.streams[64], us=12.5)
    return {"obvious": obvious, "nginx": nginx}


def test_every_target_is_met_at_its_bound() -> None:
    """What is asked for is enough."""
    verdicts = judging.judge({"bulwark": _figures(), **_others()})
    assert [v.name for v in verdicts if v.met is not True] == []


def test_every_target_is_missed_above_its_bound() -> None:
    """A little more is too much, of each."""
    verdicts = judging.judge({"bulwark": _figures(), **_others()})
    above = [replace(v, measured=(v.measured or 0) + 0.001) for v in verdicts]
    assert [v.name for v in above if v.met is not False] == []


@pytest.mark.parametrize(
    ("without", "unknown"),
    [
        pytest.param("nginx", 1, id="without nginx one target is not known"),
        pytest.param("obvious", 1, id="without the obvious program one is not"),
    ],
)
def test_a_peer_that_is_missing(without: str, unknown: int) -> None:
    """What could not be compared is neither met nor missed."""
    seen = {"bulwark": _figures(), **_others()}
    del seen[without]
    assert sum(v.met is None for v in judging.judge(seen)) == unknown


def test_only_this_proxy_has_targets() -> None:
    """Nobody judges the others."""
    assert judging.judge(_others()) == []


def test_what_could_not_be_measured() -> None:
    """A proxy that did not start has met nothing but to have lost nobody."""
    verdicts = judging.judge({"bulwark": Figures(title="Bulwark", faults=["did not start"])})
    assert {v.met for v in verdicts[:-1]} == {None}
    assert verdicts[-1].met is False


@pytest.mark.parametrize(
    ("bulwark", "reasons"),
    [
        pytest.param(_figures(), [], id="all is well"),
        pytest.param(None, ["no target was judged: bulwark was not measured"], id="no targets"),
        pytest.param(
            replace(_figures(), aborts=Aborts(left=9, unnoticed=1, p50_ms=None, max_ms=1000)),
            [
                "not measured: client gone, upstream closed, p50",
                "missed: clients whose leaving was not noticed",
            ],
            id="one was not measured, one is missed",
        ),
    ],
)
def test_what_makes_the_check_fail(bulwark: Figures | None, reasons: list[str]) -> None:
    """A target that nobody could judge is not met."""
    seen = {"bulwark": bulwark, **_others()} if bulwark else _others()
    assert judging.reasons_to_fail(judging.judge(seen)) == reasons


def test_counts_are_shown_as_whole_numbers() -> None:
    """There is no half of a request that went wrong."""
    wrong = _figures()
    wrong.faults.append("ended early")
    out = io.StringIO()
    console = Console(file=out)
    tables.show(console, {"bulwark": wrong}, judging.judge({"bulwark": wrong}))
    (row,) = [line for line in out.getvalue().splitlines() if "went wrong" in line]
    assert [cell.strip() for cell in row.split("│")[2:4]] == ["1", "0"]


@pytest.mark.parametrize(
    ("text", "counts"), [("64", (64,)), ("2000,64", (2000, 64))], ids=["one", "some, as asked"]
)
def test_how_many_streams(text: str, counts: tuple[int, ...]) -> None:
    """Of those that there are."""
    assert command.streams_of(text) == counts


@pytest.mark.parametrize("text", ["7", "x", "", "64,", "64,7", "64.0", "-64"])
def test_how_many_streams_there_are_not(text: str) -> None:
    """The error names those that there are."""
    with pytest.raises(argparse.ArgumentTypeError, match="there are 64, 500, 2000"):
        command.streams_of(text)


def test_stored_figures_have_what_was_added() -> None:
    """The differences, which are no fields, are in the JSON too."""
    half = _figures().plain()["half"]
    assert (half["added_p50_us"], half["added_p99_us"]) == (1000, 5000)


def test_stat() -> None:
    """The fields of a process whose name has brackets and spaces in it."""
    assert proc.session_of(STAT) == 41
    assert proc.ticks_ns(STAT, 100) == 2_000_000_000


@pytest.mark.parametrize(
    ("status", "kib"),
    [
        pytest.param("Name:\tx\nVmRSS:\t  1234 kB\nThreads:\t1\n", 1234, id="a process"),
        pytest.param("Name:\tx\nThreads:\t1\n", 0, id="a process that is ending has no memory"),
    ],
)
def test_resident(status: str, kib: int) -> None:
    """Memory of a process."""
    assert proc.resident_kib(status) == kib


def test_a_session() -> None:
    """CPU time of all its processes grows as one of them works, and it has memory."""
    works = [sys.executable, "-c", "while True: pass"]
    # Of its own: in ours, other processes of the tests end, and take their time with them.
    with subprocess.Popen(works, start_new_session=True) as process:  # noqa: S603 - ours
        try:
            last = proc.cpu_ns(process.pid)
            for _ in range(3):
                deadline = time.monotonic() + 50
                while (now := proc.cpu_ns(process.pid)) < last + 10_000_000:
                    assert time.monotonic() < deadline
                last = now
            assert proc.rss_mib(process.pid) > 1
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        pytest.param("processor\t: 0\nmodel name\t: A CPU: v2\n", "A CPU: v2", id="x86"),
        pytest.param("processor\t: 0\n", machine.cpu_model(""), id="ARM names none"),
    ],
)
def test_cpu_model(cpuinfo: str, model: str) -> None:
    """The name of the CPU."""
    assert machine.cpu_model(cpuinfo) == model


@pytest.mark.parametrize(
    ("available", "cores"),
    [
        pytest.param([0], Cores((), ()), id="one core is shared"),
        pytest.param([0, 1], Cores([1], [0]), id="two are one each"),
        pytest.param([2, 3, 5, 7], Cores([7], [5]), id="of more two are used"),
    ],
)
def test_cores(available: list[int], cores: Cores) -> None:
    """Who runs where."""
    assert Cores.split(available) == cores


def test_body_is_an_agents() -> None:
    """Of the size that the figures are said to be of."""
    assert 2600 < len(traffic.body(stream=False)) < 3000
    assert b"bench-leaver-" not in traffic.body(stream=True)
    assert traffic.body(stream=True, leaves=True).count(b"bench-leaver-") == 1


def _stored() -> dict[str, object]:
    subjects = {"bulwark": _figures(), **_others()}
    subjects["direct"] = Figures(title="nothing <in> front")
    return {"subjects": {name: _as_json(seen) for name, seen in subjects.items()}}


def _as_json(seen: Figures) -> dict[str, object]:
    plain = seen.plain()
    return {**plain, "streams": {str(count): one for count, one in plain["streams"].items()}}


def test_bars_are_sorted_and_one_is_ours() -> None:
    """The cheapest comes first; nothing in front has no bar."""
    drawn = chart.bars(_stored())
    assert [bar.value for bar in drawn["CPU time of a request"]] == [300, 300, 2400]
    assert [bar.value for bar in drawn["CPU time of a streamed event"]] == [12.5, 25, 25]
    assert [sum(bar.ours for bar in bars) for bars in drawn.values()] == [1, 1]


def test_chart_is_svg() -> None:
    """It parses, every bar has a length, and the longest stays within."""
    root = ET.fromstring(chart.svg(_stored()))  # noqa: S314 - our own
    rects = root.findall(".//{http://www.w3.org/2000/svg}rect")
    lengths = [float(rect.get("width", "0")) for rect in rects]
    assert len(lengths) == 6
    assert 0 < min(lengths) <= max(lengths) <= 450


def test_chart_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``make bench`` stores it."""
    stored, drawn = tmp_path / "stored.json", tmp_path / "chart.svg"
    stored.write_text(json.dumps(_stored()))
    monkeypatch.setattr(sys, "argv", ["chart", str(stored), str(drawn)])
    chart.main()
    assert drawn.read_text() == chart.svg(_stored())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "No such file", id="there is none"),
        pytest.param(b"", "not JSON", id="an empty one"),
        pytest.param(b"<svg/>", "not JSON", id="the files were changed about"),
        pytest.param(b"\xff", "not JSON", id="no text"),
        pytest.param(b"[]", "make bench", id="JSON of another kind"),
        pytest.param(b'{"subjects": 1}', "make bench", id="JSON of nearly this kind"),
    ],
)
def test_chart_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, says: str
) -> None:
    """One line, which says which file and why; nothing is drawn."""
    stored, drawn = tmp_path / "stored.json", tmp_path / "chart.svg"
    if content is not None:
        stored.write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["chart", str(stored), str(drawn)])
    with pytest.raises(SystemExit, match=says) as ended:
        chart.main()
    assert str(stored) in str(ended.value)
    assert "\n" not in str(ended.value)
    assert not drawn.exists()


CALLGRIND = """\
# callgrind format
desc: Trigger: Client Request: product-request-1
positions: line
events: Ir
ob=(1) /usr/lib/libpython3.11.so.1.0
fl=(1) ???
fn=(1) _PyEval_EvalFrameDefault
0 100
cob=(2) /x/jiter.cpython-311-x86_64-linux-gnu.so
cfn=(2) from_json
calls=2 0
0 5000
+1 7

fn=(3) PyDict_New
0 11
cfn=(1)
calls=1 0
0 900

ob=(2)
fn=(2)
0 5000
totals: 5118
"""


def test_callgrind() -> None:
    """What functions took themselves; what they called is counted where it is."""
    cut = callgrind.parse(CALLGRIND.splitlines(keepends=True))
    assert (cut.name, cut.total) == ("product-request-1", 5118)
    assert sorted(cut.functions.values()) == [11, 107, 5000]
    assert cut.objects["/x/jiter.cpython-311-x86_64-linux-gnu.so"] == 5000


def _cuts(product: int, bare: int) -> dict[str, Cut]:
    cuts = {}
    for who, each in (
        ("direct", 10),
        ("bare", 10 + bare),
        ("product", 10 + product),
        ("plain", 10 + product),
    ):
        for what, count in (("request", REQUESTS), ("event", EVENTS)):
            for times in (1, 2):
                name = f"{who}-{what}-{times}"
                # What is the same in both runs must not count.
                taken = Counter({("/x/libpython3.11.so", "eval"): 12_345 + each * times * count})
                cuts[name] = Cut(name, taken)
    return cuts


def _calls(more: int = 0) -> dict[str, Counter[str]]:
    calls = {}
    for who in ("direct", "product", "plain"):
        for what, count in (("request", REQUESTS), ("event", EVENTS)):
            for times in (1, 2):
                own = {"proxy.forward": (5 + more) * times * count} if who != "direct" else {}
                calls[f"{who}-{what}-{times}"] = Counter({"bench": 3 * times * count, **own})
    return calls


def test_costs_are_the_products_alone() -> None:
    """Neither the client's, nor the upstream's, nor what it takes to begin."""
    cost = budgets.costs(_cuts(600, 100), _calls())["request"]
    assert (cost.ratio, cost.instructions, cost.calls) == (6.0, 600, 5)
    assert cost.libraries == {"libpython3": 600}
    assert cost.modules == {"proxy.forward": 5}


@pytest.mark.parametrize(
    ("product", "says", "wrong"),
    [
        pytest.param(
            629, "+4.8%, within 5%", False, id="a little under a twentieth more is allowed"
        ),
        pytest.param(631, "+5.2%, more than 5%", True, id="a little over a twentieth is not"),
        pytest.param(571, "-4.8%, within 5%", False, id="a little under a twentieth less"),
        pytest.param(
            569,
            "-5.2%, less than is kept: keep it with ARGS=--update",
            False,
            id="a little over a twentieth less is to be kept, or it could grow again",
        ),
    ],
)
def test_budget(product: int, says: str, wrong: bool) -> None:
    """A count against what is kept."""
    kept = budgets.costs(_cuts(600, 100), _calls())
    complaints, remarks = budgets.judge(budgets.costs(_cuts(product, 100), _calls()), kept)
    assert bool(complaints) is wrong
    assert bool(remarks) is not wrong
    assert says in [*complaints, *remarks][0]


def test_another_build_of_python() -> None:
    """Where everything takes twice as many instructions, nothing has grown."""
    kept = budgets.costs(_cuts(600, 100), _calls())
    complaints, _ = budgets.judge(budgets.costs(_cuts(1200, 200), _calls()), kept)
    assert complaints == []


def test_complaint_says_where() -> None:
    """The module that is called more often is named."""
    kept = budgets.costs(_cuts(600, 100), _calls())
    complaints, _ = budgets.judge(budgets.costs(_cuts(900, 100), _calls(more=2)), kept)
    assert "  +2.0 calls of proxy.forward, 7.0 now" in complaints
