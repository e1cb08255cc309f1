"""The alerts and the dashboard ask for what the proxy says, by the names that it says it under."""

import re
from fnmatch import fnmatch
from itertools import pairwise
from typing import Any

import pytest

from proxy.config.describe import descriptions
from proxy.endpoints import ENDPOINTS
from proxy.errors import Reason
from proxy.middleware.endpoint import HEALTHZ
from proxy.upstream.states import State
from scripts import docs
from tests.harness import monitoring
from tests.harness.monitoring import Query

OVERLAY = (monitoring.DOCKER / "compose.monitoring.yaml").read_text("utf-8")
CONFIG = monitoring.CONFIG.read_text("utf-8")
QUERIES = [*monitoring.alerts(), *monitoring.panels()]
EVERY_QUERY = pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.title)

TARGET = {"instance", "job"}
"""What Prometheus adds to every series."""

ITS_OWN = {"up": TARGET, "ALERTS": {"alertname", "alertstate", "severity", "instance"}}
"""What Prometheus makes itself."""

WORDS = {
    "outcome": {"ok", *Reason},
    "reason": {reason for reason in Reason if reason.is_refusal},
    "endpoint": {"none", HEALTHZ.name, *(row.name for row in ENDPOINTS)},
    "state": set(State),
    "kind": {"prompt", "completion"},
    "source": {"engine", "estimate"},
    "alertstate": {"pending", "firing"},
    "job": {"bulwark"},
}
"""What the labels may say."""


def series() -> dict[str, set[str]]:
    """Every name under which Prometheus knows something of the proxy, with its labels."""
    found: dict[str, set[str]] = {}
    for metric, label_names in docs.series():
        labels = set(label_names) | TARGET
        suffixes = {"counter": ["_total"], "info": ["_info"]}.get(metric.type, [""])
        if metric.type == "histogram":
            suffixes = ["_sum", "_count"]
            found[f"{metric.name}_bucket"] = labels | {"le"}
        if metric.type == "info":
            labels |= {"version"}
        found |= {metric.name + suffix: labels for suffix in suffixes}
    return found


SERIES = series() | ITS_OWN


@EVERY_QUERY
def test_a_query_asks_for_metrics_and_labels_that_there_are(query: Query) -> None:
    """A typo would not be an error of Prometheus, but an empty panel, or an alert that is silent."""
    selectors = list(query.selectors())
    assert selectors
    for selector in selectors:
        assert selector.metric in SERIES
        assert {label for label, *_ in selector.matchers} <= SERIES[selector.metric]


@EVERY_QUERY
def test_a_query_asks_for_words_that_there_are(query: Query) -> None:
    """Each alternative of a matcher is something that the label may say."""
    for selector in query.selectors():
        for label, operator, value in selector.matchers:
            if label in WORDS:
                asked = set(value.split("|")) if "~" in operator else {value}
                assert asked <= WORDS[label], label


@EVERY_QUERY
def test_a_query_keeps_labels_that_there_are(query: Query) -> None:
    """What it groups by is a label of each of its metrics, and a legend has only what is left."""
    labels = set.intersection(*(SERIES[selector.metric] for selector in query.selectors()))
    kept = query.kept_labels()
    assert kept is None or kept <= labels
    assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= (labels if kept is None else kept)


@pytest.mark.parametrize("rule", monitoring.alerts(), ids=lambda rule: rule.title)
def test_an_alert_says_of_which_proxy_it_is(rule: Query) -> None:
    """One of several must not hide behind the others, and they have no common state."""
    assert "instance" in (rule.kept_labels() or ())


def test_every_metric_is_on_the_dashboard() -> None:
    """What the proxy counts is there to be looked at."""
    shown = {selector.metric for query in monitoring.panels() for selector in query.selectors()}
    unseen = {name for name in series() if name not in shown}
    # Of a histogram the buckets are enough.
    assert {name for name in unseen if not name.endswith(("_sum", "_count"))} == set()


def test_the_dashboard_asks_one_source_by_the_name_it_is_provisioned_under() -> None:
    """Of all panels, targets and variables, or they would ask nobody."""
    provisioned = monitoring.DOCKER / "grafana/provisioning/datasources/prometheus.yml"
    (uid,) = re.findall(r"^ +uid: (\S+)$", provisioned.read_text("utf-8"), re.MULTILINE)
    dashboard = monitoring.dashboard()
    assert {source["uid"] for source in _sources(dashboard)} == {uid}
    for panel in dashboard["panels"]:
        assert panel["type"] == "row" or {"datasource", "targets"} <= set(panel), panel["title"]


def _sources(node: Any) -> list[dict[str, str]]:
    """Every data source that is named at any depth."""
    if isinstance(node, list):
        return [source for each in node for source in _sources(each)]
    if not isinstance(node, dict):
        return []
    own = [node["datasource"]] if "datasource" in node else []
    return own + [source for each in node.values() for source in _sources(each)]


def test_the_panels_do_not_overlap() -> None:
    """Each has a place and a number of its own, within the 24 columns."""
    panels = monitoring.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert max(column for column, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    assert all(one["gridPos"]["y"] <= next_["gridPos"]["y"] for one, next_ in pairwise(panels))


def test_the_settings_that_are_named_exist() -> None:
    """In the alerts and on the dashboard; a star stands for anything."""
    known = [row.name for row in descriptions()]
    texts = monitoring.ALERTS.read_text("utf-8") + monitoring.DASHBOARD.read_text("utf-8")
    named = set(re.findall(r"\bPROXY_[A-Z_*]+", texts))
    assert named
    assert [name for name in named if not any(fnmatch(each, name) for each in known)] == []


def test_the_proxy_is_asked_by_a_name_that_it_answers_to() -> None:
    """Its admin listener answers to no other, and is on a port of its own."""
    (host,) = re.findall(r"PROXY_ADMIN_HOSTS: (\S+)", OVERLAY)
    port = next(row.default for row in descriptions() if row.name == "PROXY_ADMIN_PORT")
    assert f'targets: ["{host}:{port}"]' in CONFIG


def test_grafana_asks_as_often_as_prometheus() -> None:
    """Its rates are taken over four scrapes, which it has to be told the length of."""
    provisioned = monitoring.DOCKER / "grafana/provisioning/datasources/prometheus.yml"
    (interval,) = re.findall(r"scrape_interval: (\S+)", CONFIG)
    assert f"timeInterval: {interval}\n" in provisioned.read_text("utf-8")


def test_nothing_is_published_but_on_the_loopback() -> None:
    """Prometheus asks for no password, and Grafana's page goes over plain HTTP."""
    published = re.findall(r"ports: \[(.+)\]", OVERLAY)
    assert len(published) == 2
    assert all(re.fullmatch(r'"127\.0\.0\.1:\S+:\d+"', port) for port in published)


def test_the_images_are_pinned() -> None:
    """To one version each, not to a line of them."""
    images = re.findall(r"image: (\S+)", OVERLAY)
    assert len(images) == 2
    assert all(re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", image) for image in images)


def test_the_services_hold_nothing() -> None:
    """No capability, no way to more privileges, no writable root; and Grafana no usual password."""
    services = re.findall(r"^  (\w+):\n    <<: \*hardened$", OVERLAY, re.MULTILINE)
    assert services == ["prometheus", "grafana"]
    for line in ("cap_drop: [ALL]", 'security_opt: ["no-new-privileges:true"]', "read_only: true"):
        assert f"\n  {line}\n" in OVERLAY
    assert "cap_add" not in OVERLAY
    assert "GF_SECURITY_ADMIN_PASSWORD: ${BULWARK_GRAFANA_PASSWORD:?" in OVERLAY
