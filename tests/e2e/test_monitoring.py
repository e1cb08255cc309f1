"""A real Prometheus reads our configuration, asks a real proxy, and answers what the dashboard asks.

There is no Grafana in any package that the tests could fetch: its files are held to the metrics here
and in ``tests/unit/test_monitoring.py``, and no test has looked at its page.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import monitoring, running
from tests.harness import upstream as upstreams
from tests.harness.client import request_bytes
from tests.harness.monitoring import (
    SECONDS,
    Prometheus,
    ended,
    promtool,
    refused,
    row,
    took,
    upstream_is,
    watching,
)
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
        return sum(line["endpoint"] == "admin" for line in proxy.log.requests())

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


@pytest.mark.parametrize(
    ("series", "minutes", "firing"),
    [
        pytest.param([row("up", "1x4 0x8")], 3, {"BulwarkDown"}, id="it does not answer"),
        pytest.param([row("up", "0x2 1x8")], 3, set(), id="it answers again at once"),
        pytest.param([row("up", "0x8", job="other")], 2, set(), id="another one does not answer"),
        pytest.param(
            [upstream_is("down", "_x2 1x8")],
            2,
            {"BulwarkUpstreamDown"},
            id="the engine has been down for 90 s",
        ),
        pytest.param([upstream_is("down", "_x5 1x8")], 2, set(), id="it has been down for 45 s"),
        pytest.param(
            [upstream_is("down", "1x4 stale"), upstream_is("starting", "_x5 1x8")],
            2,
            set(),
            id="it was down and starts",
        ),
        pytest.param(
            [
                upstream_is("down", "1x8", instance="one"),
                upstream_is("ready", "1x8", instance="two"),
            ],
            2,
            {"BulwarkUpstreamDown"},
            id="the engine of one of two is down",
        ),
        pytest.param(
            [
                upstream_is("down", "1x4 stale", instance="one"),
                upstream_is("down", "_x5 1x8", instance="two"),
            ],
            2,
            set(),
            id="the engine of one is down, then that of the other",
        ),
        pytest.param(
            [upstream_is("starting", "1x100")],
            21,
            {"BulwarkUpstreamStarting"},
            id="it starts for long",
        ),
        pytest.param([upstream_is("starting", "1x100")], 19, set(), id="a large model is loaded"),
        pytest.param(
            [upstream_is("saturated", "1x60")],
            11,
            {"BulwarkUpstreamSaturated"},
            id="it holds no more",
        ),
        pytest.param(
            [upstream_is("saturated", "1x60")], 9, set(), id="it has held no more for a while"
        ),
        pytest.param([upstream_is("ready", "1x100")], 21, set(), id="it is ready"),
        pytest.param(
            [ended("upstream_unavailable", "0+1x20")],
            4,
            {"BulwarkUpstreamUnavailable"},
            id="the engine is not ready",
        ),
        pytest.param(
            [ended("upstream_unavailable", "9x40"), ended("ok", "0+9x40")],
            4,
            set(),
            id="the engine was not ready once",
        ),
        pytest.param(
            [
                ended("upstream_error", "0+4x80"),
                ended("upstream_timeout", "0+3x80"),
                ended("ok", "0+93x80"),
            ],
            16,
            {"BulwarkUpstreamFaults"},
            id="7 in 100 fail at the engine",
        ),
        pytest.param(
            [
                ended("upstream_error", "0+2x80"),
                ended("upstream_timeout", "0+2x80"),
                ended("ok", "0+96x80"),
            ],
            16,
            set(),
            id="4 in 100 fail at the engine",
        ),
        pytest.param(
            [ended("limits_unavailable", "0+1x20")],
            2,
            {"BulwarkLimitsUnavailable"},
            id="nobody is served without Redis",
        ),
        pytest.param(
            [ended("limits_unavailable", "0+1x20")], 1, set(), id="it has been so for 45 s"
        ),
        pytest.param(
            [ended("limits_unavailable", "9x40"), ended("ok", "0+9x40")],
            4,
            set(),
            id="somebody was not served without Redis once",
        ),
        pytest.param(
            [row("bulwark_redis_away", "0x4 1x8")], 3, {"BulwarkRedisAway"}, id="Redis is away"
        ),
        pytest.param(
            [row("bulwark_redis_away", "0x4 1x8")], 2, set(), id="it has been away for 45 s"
        ),
        pytest.param(
            [row("bulwark_keys_file_bad", "0x4 1x12")],
            4,
            {"BulwarkKeysFileBad"},
            id="somebody has broken the key file",
        ),
        pytest.param(
            [row("bulwark_keys_file_bad", "0x4 1x12")],
            3,
            set(),
            id="somebody may be writing the key file",
        ),
        pytest.param(
            [ended("internal_error", "_x20 1x80")],
            10,
            {"BulwarkInternalError"},
            id="the first bug",
        ),
        pytest.param(
            [ended("internal_error", "1x20 2x80")], 10, {"BulwarkInternalError"}, id="a second bug"
        ),
        pytest.param([ended("internal_error", "_x20 1x80")], 21, set(), id="a bug a while ago"),
        pytest.param([ended("internal_error", "5x20 0x80")], 10, set(), id="it began anew"),
        pytest.param(
            [
                refused("overloaded", "0+1x60"),
                ended("overloaded", "0+1x60"),
                ended("ok", "0+9x60"),
            ],
            11,
            {"BulwarkQueueFull"},
            id="one in ten finds everything full",
        ),
        pytest.param(
            [
                refused("overloaded", "0+9x160"),
                ended("overloaded", "0+9x160"),
                ended("ok", "0+1x160"),
            ],
            35,
            {"BulwarkQueueFull"},
            id="nine in ten find everything full, which is no fault of theirs",
        ),
        pytest.param(
            took("bulwark_queue_wait_seconds", "0+8x100", "0+10x100"),
            22,
            {"BulwarkQueueWait"},
            id="two in ten wait long",
        ),
        pytest.param(
            took("bulwark_queue_wait_seconds", "0+19x100", "0+20x100"),
            22,
            set(),
            id="one in twenty waits long",
        ),
        pytest.param(
            took("bulwark_time_to_first_byte_seconds", "0+5x100", "0+10x100", endpoint="messages"),
            22,
            {"BulwarkSlowFirstByte"},
            id="half have a late first byte",
        ),
        pytest.param(
            took("bulwark_time_to_first_byte_seconds", "0+9x100", "0+10x100", endpoint="messages"),
            22,
            set(),
            id="one in ten has a late first byte",
        ),
        pytest.param(
            took("bulwark_time_to_first_byte_seconds", "0+5x100", "0+10x100", endpoint="none"),
            22,
            set(),
            id="what is no endpoint has a late first byte",
        ),
        pytest.param(
            [
                refused("context_length_exceeded", "0+6x160"),
                ended("context_length_exceeded", "0+6x160"),
                ended("ok", "0+4x160"),
            ],
            35,
            {"BulwarkRefusals"},
            id="6 in 10 are refused",
        ),
        pytest.param(
            [
                refused("context_length_exceeded", "0+4x160"),
                ended("context_length_exceeded", "0+4x160"),
                ended("ok", "0+6x160"),
            ],
            35,
            set(),
            id="4 in 10 are refused",
        ),
        pytest.param(
            [
                refused("rate_limit_exceeded", "0+9x160"),
                ended("rate_limit_exceeded", "0+9x160"),
                ended("ok", "0+1x160"),
            ],
            35,
            set(),
            id="9 in 10 come when their key has had its share",
        ),
        pytest.param(
            [
                refused("request_exceeds_rate_limit", "0+6x160"),
                ended("request_exceeds_rate_limit", "0+6x160"),
                ended("ok", "0+4x160"),
            ],
            35,
            {"BulwarkRefusals"},
            id="6 in 10 are more than their key has at all",
        ),
        pytest.param(
            [
                refused("not_found", "0+90x160", endpoint="none"),
                ended("not_found", "0+90x160", endpoint="none"),
                ended("ok", "0+1x160"),
            ],
            35,
            set(),
            id="a scanner finds nothing",
        ),
        pytest.param(
            [refused("invalid_api_key", "0+4x100"), ended("ok", "0+100x100")],
            22,
            {"BulwarkWrongKeys"},
            id="16 wrong keys a minute",
        ),
        pytest.param(
            [
                refused("invalid_api_key", "0+2x100"),
                refused("too_many_failures", "0+2x100"),
                ended("ok", "0+100x100"),
            ],
            22,
            {"BulwarkWrongKeys"},
            id="16 wrong keys a minute, half of them not even tried",
        ),
        pytest.param(
            [refused("invalid_api_key", "0+2x100"), ended("ok", "0+100x100")],
            22,
            set(),
            id="8 wrong keys a minute",
        ),
        pytest.param(
            [ended("client_disconnected", "0+4x160"), ended("ok", "0+6x160")],
            35,
            {"BulwarkClientsLeave"},
            id="4 in 10 leave",
        ),
        pytest.param(
            [ended("client_disconnected", "0+2x160"), ended("ok", "0+8x160")],
            35,
            set(),
            id="2 in 10 leave",
        ),
    ],
)
async def test_what_fires(
    tmp_path: Path, series: list[dict[str, str]], minutes: int, firing: set[str]
) -> None:
    """Exactly these alerts, for this proxy, where the metrics have gone like this so long."""
    asked = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minutes}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing],
    }
    # JSON is YAML as well.
    rules = {
        "rule_files": [str(monitoring.ALERTS)],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": series, "promql_expr_test": [asked]}],
    }
    (tmp_path / "test.json").write_text(json.dumps(rules), "utf-8")
    await promtool("test", "rules", tmp_path / "test.json")


def test_every_alert_is_tried() -> None:
    """In the table above, once at least."""
    (mark,) = (each for each in test_what_fires.pytestmark if each.name == "parametrize")  # type: ignore[attr-defined]
    tried = set[str]().union(*(each.values[2] for each in mark.args[1]))
    assert tried == {rule.title for rule in RULES}


async def test_a_prometheus_knows_what_is_asked_of_it(tmp_path: Path) -> None:
    """Every expression of the alerts and the dashboard has data, once there was traffic of each kind."""
    keys, engine = tmp_path / "keys.toml", Engine()
    keys.touch(mode=0o600)
    async with (
        nobody() as url,
        nobody() as other,
        proxy(max_inflight=1, queue_size=0, key_tokens_per_day=10**6) as busy,
        proxy(upstream_url=url, monitor_transport=None, keys_file=keys) as alone,
        proxy(monitor_transport=Engine()) as full,
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
            await asyncio.gather(*(scraped(each) for each in (busy, alone, broken)))
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
