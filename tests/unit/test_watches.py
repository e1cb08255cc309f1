"""Who watches the engine, before it has looked for the first time."""

import io
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from proxy.app import watches
from proxy.app.clocks import Clocks
from proxy.config import load
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import UpstreamMetrics
from proxy.upstream import target as targets
from tests.harness.quiet import QuietEngine


def test_an_engine_that_nobody_has_asked_is_starting() -> None:
    """A scrape that comes first finds a state, or an alert on it would find nothing."""
    registry = CollectorRegistry()
    log = Log(io.BytesIO(), form="json", level="info", now=lambda: datetime(2026, 6, 1, tzinfo=UTC))
    watches.engine(
        load({"PROXY_API_KEYS": "k" * 32}),
        Clocks(),
        log,
        UpstreamMetrics(registry),
        transport=QuietEngine(),
        target=targets.parse("http://engine:8000"),
        heed=lambda _: None,
    )
    assert registry.get_sample_value("bulwark_upstream_state", {"state": "starting"}) == 1
