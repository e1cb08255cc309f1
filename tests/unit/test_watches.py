"""Who watches the engine: what it is before anybody has looked, and what it is asked."""

import asyncio
import io
from datetime import UTC, datetime

import httpx
import pytest
from prometheus_client import CollectorRegistry

from proxy.app import watches
from proxy.app.clocks import Clocks
from proxy.config import load
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import UpstreamMetrics
from proxy.upstream import target as targets
from proxy.upstream.monitor import Monitor
from tests.harness.quiet import QuietEngine


class Engine(QuietEngine):
    """Remembers what it is asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As its parent."""
        self.paths.append(request.url.path)
        return await super().handle_async_request(request)


def watching(engine: Engine, registry: CollectorRegistry, **settings: str) -> Monitor:
    """Who watches this engine, and has not begun to."""
    return watches.engine(
        load({"PROXY_API_KEYS": "k" * 32} | settings),
        Clocks(),
        Log(io.BytesIO(), form="json", level="info", now=lambda: datetime(2026, 6, 1, tzinfo=UTC)),
        UpstreamMetrics(registry),
        transport=engine,
        target=targets.parse("http://engine:8000"),
        heed=lambda _: None,
    )


def test_an_engine_that_nobody_has_asked_is_starting() -> None:
    """A scrape that comes first finds a state, or an alert on it would find nothing."""
    registry = CollectorRegistry()
    watching(Engine(), registry)
    assert registry.get_sample_value("bulwark_upstream_state", {"state": "starting"}) == 1


@pytest.mark.parametrize(
    ("engine", "path"),
    [
        pytest.param("vllm", "/health", id="vLLM"),
        pytest.param("sglang", "/ready", id="SGLang, which generates a token for its health"),
    ],
)
async def test_what_an_engine_is_asked(engine: str, path: str) -> None:
    """Every second, what costs it nothing."""
    asked, registry = Engine(), CollectorRegistry()
    monitor = watching(asked, registry, PROXY_ENGINE=engine)
    running = asyncio.create_task(monitor.run())
    assert await monitor.looked(5.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert asked.paths[0] == path
    assert registry.get_sample_value("bulwark_upstream_state", {"state": "starting"}) is None
    assert registry.get_sample_value("bulwark_upstream_state", {"state": "ready"}) == 1
