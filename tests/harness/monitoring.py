"""What Prometheus and Grafana will be asked, a real Prometheus to ask, and series to ask it about.

What they are asked are the expressions of the alerts and of the dashboard.
"""

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import installed, programs

DOCKER = Path(__file__).resolve().parents[2] / "docker"
CONFIG = DOCKER / "prometheus" / "prometheus.yml"
ALERTS = DOCKER / "prometheus" / "alerts.yml"
DASHBOARD = DOCKER / "grafana" / "dashboards" / "bulwark.json"

SECONDS = 30.0
"""How long anything here may take. Prometheus takes its first five to find out whom to ask."""

_BETWEEN_SCRAPES = "400ms"
_STANDS_FOR = {"$instance": ".*", "$__rate_interval": "1m", "$__range": "5m"}

# No library reads YAML here: an expression is the rest of its line, or what is folded below it.
_ALERT = re.compile(
    r"^ +- alert: (?P<name>\w+)\n(?P<indent> +)expr: (?:>-\n(?P<folded>(?:(?P=indent) +.+\n)+)|(?P<line>.+)\n)",
    re.MULTILINE,
)
_METRIC = re.compile(r"\b(?P<name>[a-zA-Z_:][\w:]*)\b(?!\s*\()(?:\{(?P<matchers>[^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_WORDS = {"and", "or", "unless", "offset"}


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric of an expression, with its matchers: label, operator, value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Query:
    """An expression as somebody is asked for it.

    Attributes:
        title: Of its alert, or of its panel with the panel's number and the target's letter.
        legend: How its series are called, with ``{{label}}``; empty for alerts.
    """

    title: str
    expression: str
    legend: str = ""

    def selectors(self) -> Iterator[Selector]:
        """The metrics that it is made of."""
        bare = re.sub(r"\b(by|without) \([^)]*\)|\[[^]]*\]", "", self.expression)
        for found in _METRIC.finditer(bare):
            if found["name"] not in _WORDS:
                matchers = tuple(_MATCHER.findall(found["matchers"] or ""))
                yield Selector(found["name"], matchers)

    def kept_labels(self) -> set[str] | None:
        """The labels of its outermost aggregation; None where there is none, so that all are kept."""
        lists = re.findall(r"\bby \(([^)]*)\)", self.expression)
        return {word.strip() for word in lists[0].split(",")} if lists else None


def alerts() -> list[Query]:
    """The rules."""
    text = ALERTS.read_text("utf-8")
    found = [
        Query(each["name"], " ".join((each["folded"] or each["line"]).split()))
        for each in _ALERT.finditer(text)
    ]
    assert len(found) == text.count("alert:"), "a rule of another form"
    return found


def dashboard() -> Any:
    """The dashboard, as Grafana reads it."""
    return json.loads(DASHBOARD.read_text("utf-8"))


def panels() -> list[Query]:
    """What the dashboard's panels ask."""
    return [
        Query(
            f"{panel['title']}, {panel['id']}{target['refId']}",
            target["expr"],
            target["legendFormat"],
        )
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def tool(name: str) -> Path:
    """``prometheus`` or ``promtool``."""
    path = installed.folder("prometheus") / "bin" / name
    if not path.exists():
        pytest.fail("Prometheus is missing: tests/e2e/install-prometheus fetches it")
    return path


async def promtool(*arguments: str | Path, given: bytes = b"") -> str:
    """Runs it; gives what it says, which must be no complaint."""
    pipe = asyncio.subprocess.PIPE
    async with (
        programs.started(tool("promtool"), *arguments, stdin=pipe) as process,
        asyncio.timeout(SECONDS),
    ):
        output, errors = await process.communicate(given)
    said = (output + errors).decode()
    assert process.returncode == 0, said
    return said


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs.

    Attributes:
        client: Of its API.
    """

    client: httpx.AsyncClient

    async def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API, which must have come without an error or a warning."""
        answer = (await self.client.get(f"/api/v1/{path}", params=parameters)).json()
        assert answer["status"] == "success", answer
        assert not answer.get("warnings"), answer
        return answer["data"]

    async def evaluate(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression as it is now, after Grafana's variables are filled in."""
        for name, value in _STANDS_FOR.items():
            expression = expression.replace(name, value)
        data = await self.ask("query", query=expression)
        assert data["resultType"] == "vector", expression
        return list(data["result"])


@contextlib.asynccontextmanager
async def watching(home: Path, *ports: int) -> AsyncIterator[Prometheus]:
    """A Prometheus with our files, which asks more often, and on the loopback instead."""
    config = CONFIG.read_text("utf-8")
    for pattern, put in (
        (
            r"\b(scrape_interval|scrape_timeout|evaluation_interval): \w+",
            rf"\1: {_BETWEEN_SCRAPES}",
        ),
        (r"targets: .+", f"targets: {json.dumps([f'127.0.0.1:{port}' for port in ports])}"),
    ):
        config, count = re.subn(pattern, put, config)
        assert count, pattern
    (home / "prometheus.yml").write_text(config, "utf-8")
    shutil.copy(ALERTS, home)
    command = (
        tool("prometheus"),
        f"--config.file={home / 'prometheus.yml'}",
        f"--storage.tsdb.path={home / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    )
    async with programs.started(*command) as process:
        assert process.stderr is not None
        port = None
        async with asyncio.timeout(SECONDS):
            while b"Server is ready" not in (line := await process.stderr.readline()):
                assert line, "Prometheus has ended"
                if found := re.search(rb'"Listening on".* address=127\.0\.0\.1:(\d+)', line):
                    port = int(found[1])
        assert port is not None
        # What it writes from now on is read, so that it can go on writing.
        rest = asyncio.create_task(process.stderr.read())
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=SECONDS
        ) as client:
            yield Prometheus(client)
    await rest


def row(name: str, values: str, **labels: str) -> dict[str, str]:
    """A series as promtool takes it: ``a+bxn`` counts up from a by b, n times, 15 s apart."""
    matchers = ",".join(
        f'{label}="{value}"'
        for label, value in {"instance": "i", "job": "bulwark", **labels}.items()
    )
    return {"series": f"{name}{{{matchers}}}", "values": values}


def ended(outcome: str, values: str, endpoint: str = "chat.completions") -> dict[str, str]:
    """So many requests that ended like this."""
    return row("bulwark_requests_total", values, outcome=outcome, endpoint=endpoint)


def upstream_is(state: str, values: str, instance: str = "i") -> dict[str, str]:
    """1 where it is in this state; there is no series of a state that it is not in."""
    return row("bulwark_upstream_state", values, state=state, instance=instance)


def refused(reason: str, values: str, endpoint: str = "chat.completions") -> dict[str, str]:
    """So many that we refused for this."""
    return row("bulwark_refusals_total", values, reason=reason, endpoint=endpoint)


def took(name: str, within: str, more: str, **labels: str) -> list[dict[str, str]]:
    """A histogram with so many up to 10 s, and so many up to 60 s."""
    return [
        row(f"{name}_bucket", values, le=bound, **labels)
        for bound, values in (("10", within), ("60", more), ("+Inf", more))
    ]
