"""A real Prometheus reads our configuration, asks a real proxy, and answers what the dashboard asks.

There is no Grafana in any package that the tests could fetch: its files are held to the metrics here
and in ``tests/unit/test_monitoring.py``, and no test has looked at its page.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import monitoring, running
from tests.harness import upstream as upstreams
from tests.harness.client import request_bytes
from tests.harness.monitoring import SECONDS, Prometheus, promtool, watching
from tests.harness.running import BEARER, CHAT, JSON, STREAM_BODY, Running
from tests.harness.upstream import SSE_HEAD, End, event, response

pytestmark = pytest.mark.e2e

WRONG_KEYS = 150
"""More than an alert allows in its ten minutes."""

RULES = monitoring.alerts()
PANELS = monitoring.panels()

NOT_MADE_HERE = {"internal_error", "firing"}
"""Words of labels for what no test should be able to bring about, and for what takes minutes."""

ABOUT_TO_FIRE = {
    *("BulwarkUpstreamDown", "BulwarkUpstreamStarting", "BulwarkUpstreamUnavailable"),
    *("BulwarkUpstreamSaturated", "BulwarkLimitsUnavailable", "BulwarkRedisAway"),
    *("BulwarkKeysFileBad", "BulwarkWrongKeys"),
}
"""What is brought about below, besides what depends on how busy the machine is."""


class Engine(httpx.AsyncBaseTransport):
    """One that only the monitor asks: with requests that wait in it, and well until it is not."""

    def __init__(self) -> None:
        self.is_well = True

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Its health, or its metrics."""
        page = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 1\n"
        status = 200 if self.is_well or request.url.path == "/metrics" else 500
        return httpx.Response(status, stream=httpx.ByteStream(page))


@contextlib.asynccontextmanager
async def proxy(**settings: Any) -> AsyncIterator[Running]:
    """A proxy in front of a scripted upstream, drained when the block ends."""
    ending: list[asyncio.Task[int]] = []
    async with running.launch(ending, **settings) as started:
        yield started
    assert await asyncio.gather(*ending) == [0]


@contextlib.asynccontextmanager
async def nobody() -> AsyncIterator[str]:
    """The URL of a port that refuses, and that nobody else takes."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


async def scraped(proxy: Running, times: int = 3) -> None:
    """Returns once what it has to say by now is stored.

    The first time may have begun before, and what it said the second time is stored when it is asked
    a third time.
    """

    def asked() -> int:
        return sum(line.get("endpoint") == "admin" for line in proxy.log.requests())

    before = asked()
    await proxy.log.until(lambda: asked() >= before + times, within=SECONDS)


async def everything(proxy: Running) -> None:
    """Of every kind of thing that the panels show, at least one."""
    assert (await proxy.chat()).status == 200
    more = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":100000}'
    assert (await proxy.chat(more)).header(b"x-bulwark-clamped")
    assert (await proxy.ask("GET", "/nothing", BEARER)).status == 404
    # It breaks off, and the client leaves.
    proxy.upstream.script.append([SSE_HEAD, event("a"), End.RESET])
    assert not (await proxy.chat(STREAM_BODY)).complete
    proxy.upstream.script.append([SSE_HEAD, event("a"), End.SILENCE])
    client = await proxy.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, STREAM_BODY))
    await client.read_head()
    # Meanwhile the only place is taken.
    assert (await proxy.chat()).status == 503
    client.reset()
    await proxy.idle()


async def test_promtool_accepts_the_configuration_and_its_rules() -> None:
    """As they are in the repository, with every rule."""
    said = await promtool("check", "config", monitoring.CONFIG)
    assert f"{len(RULES)} rules found" in said


async def test_promtool_finds_nothing_wrong_with_the_metrics() -> None:
    """Neither with their names nor with their types and helps."""
    async with proxy() as asked:
        await asked.chat()
        metrics = await asked.ask_admin("GET", "/metrics")
    await promtool("check", "metrics", given=metrics.body)


async def test_a_prometheus_knows_what_is_asked_of_it(tmp_path: Path) -> None:
    """Every expression of the alerts and the dashboard has data, once there was traffic of each kind."""
    keys, engine = tmp_path / "keys.toml", Engine()
    keys.touch(mode=0o600)
    async with (
        nobody() as url,
        nobody() as other,
        proxy(
            max_inflight=1,
            queue_size=0,
            key_tokens_per_day=10**6,
            max_connections_per_address=0,  # hundreds of wrong keys come at once
        ) as busy,
        proxy(upstream_url=url, monitor_transport=None, keys_file=keys) as alone,
        proxy(monitor_transport=Engine(), max_connections_per_address=1) as full,
        proxy(
            monitor_transport=engine,
            redis_url=other.replace("http", "redis"),
            redis_failure="closed",
            key_requests_per_minute=9,
        ) as broken,
        watching(
            tmp_path, *(each.admin_port for each in (busy, alone, full, broken))
        ) as prometheus,
    ):
        await reached(broken, "saturated")
        engine.is_well = False
        keys.write_text("[[key")
        for _ in range(2):
            await everything(busy)
            assert (await alone.chat()).status == 503
            assert (await broken.chat()).status == 503
            await asyncio.gather(
                *(busy.chat(Authorization="Bearer wrong") for _ in range(WRONG_KEYS))
            )
            await full.connect()
            assert (await (await full.connect()).read_response()).status == 429
            await asyncio.gather(*(scraped(each) for each in (busy, alone, full, broken)))
        await reached(broken, "down")
        await reached(full, "saturated")
        await asyncio.gather(*(scraped(each) for each in (alone, full, broken)))
        for query in PANELS:
            series = await prometheus.evaluate(query.expression)
            assert {each["value"][1] for each in series} - {"NaN"}, query
        for rule in RULES:
            await prometheus.evaluate(rule.expression)
        await assert_selectors_have_data(prometheus)
        await assert_rules_are_healthy(prometheus)


async def reached(proxy: Running, state: str) -> None:
    """Returns once it takes its upstream to be in this state, looking whenever it is scraped."""
    metric = "bulwark_upstream_state"
    await proxy.log.until(lambda: proxy.metric(metric, state=state) == 1, within=SECONDS)


async def assert_selectors_have_data(prometheus: Prometheus) -> None:
    """Every metric of every expression, with each of its matchers."""
    asked = {selector for query in (*RULES, *PANELS) for selector in query.selectors()}
    for selector in asked:
        if not NOT_MADE_HERE & {value for _, _, value in selector.matchers}:
            matchers = ",".join(f'{name}{op}"{value}"' for name, op, value in selector.matchers)
            assert await prometheus.evaluate(f"{selector.metric}{{{matchers}}}"), selector


async def assert_rules_are_healthy(prometheus: Prometheus) -> None:
    """All of them are there, were evaluated without an error, and some are about to fire."""
    (group,) = (await prometheus.ask("rules"))["groups"]
    states: Mapping[str, str] = {rule["name"]: rule["state"] for rule in group["rules"]}
    assert list(states) == [rule.title for rule in RULES]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    assert {name for name, state in states.items() if state == "pending"} >= ABOUT_TO_FIRE
    assert states["BulwarkDown"] == "inactive"


async def test_an_answer_that_is_no_metrics_is_seen(tmp_path: Path) -> None:
    """A proxy that was asked under a name that it does not answer to is down, to Prometheus."""
    async with upstreams.serve() as target:
        target.reply = [response(b"", 421)]
        async with watching(tmp_path, target.port) as prometheus:
            # When it asks again, it has stored what came of the time before.
            await target.request(1, within=SECONDS)
            (up,) = await prometheus.evaluate('up{job="bulwark"}')
        assert up["value"][1] == "0"
