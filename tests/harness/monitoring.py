"""What Prometheus and Grafana will be asked: the expressions of the alerts and of the dashboard."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCKER = Path(__file__).resolve().parents[2] / "docker"
CONFIG = DOCKER / "prometheus" / "prometheus.yml"
ALERTS = DOCKER / "prometheus" / "alerts.yml"
DASHBOARD = DOCKER / "grafana" / "dashboards" / "bulwark.json"

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
