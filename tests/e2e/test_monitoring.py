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


def _row(name: str, values: str, **labels: str) -> dict[str, str]:
    """A series as promtool takes it: ``a+bxn`` counts up from a by b, n times, 15 s apart."""
    matchers = ",".join(
        f'{label}="{value}"'
        for label, value in {"instance": "i", "job": "bulwark", **labels}.items()
    )
    return {"series": f"{name}{{{matchers}}}", "values": values}


def _ended(outcome: str, values: str, endpoint: str = "chat.completions") -> dict[str, str]:
    return _row("bulwark_requests_total", values, outcome=outcome, endpoint=endpoint)


def _state(state: str, values: str, instance: str = "i") -> dict[str, str]:
    """There is no series of a state that the upstream is not in."""
    return _row("bulwark_upstream_state", values, state=state, instance=instance)


def _refused(reason: str, values: str, endpoint: str = "chat.completions") -> dict[str, str]:
    return _row("bulwark_refusals_total", values, reason=reason, endpoint=endpoint)


def _took(name: str, within: str, more: str, **labels: str) -> list[dict[str, str]]:
    """A histogram with so many up to 10 s, and so many up to 60 s."""
    return [
        _row(f"{name}_bucket", values, le=bound, **labels)
        for bound, values in (("10", within), ("60", more), ("+Inf", more))
    ]


@pytest.mark.parametrize(
    ("series", "minutes", "firing"),
    [
        pytest.param([_row("up", "1x4 0x8")], 3, {"BulwarkDown"}, id="it does not answer"),
        pytest.param([_row("up", "0x2 1x8")], 3, set(), id="it answers again at once"),
        pytest.param([_row("up", "0x8", job="other")], 2, set(), id="another one does not answer"),
        pytest.param(
            [_state("down", "_x2 1x8")],
            2,
            {"BulwarkUpstreamDown"},
            id="the engine has been down for 90 s",
        ),
        pytest.param([_state("down", "_x5 1x8")], 2, set(), id="it has been down for 45 s"),
        pytest.param(
            [_state("down", "1x4 stale"), _state("starting", "_x5 1x8")],
            2,
            set(),
            id="it was down and starts",
        ),
        pytest.param(
            [_state("down", "1x8", instance="one"), _state("ready", "1x8", instance="two")],
            2,
            {"BulwarkUpstreamDown"},
            id="the engine of one of two is down",
        ),
        pytest.param(
            [
                _state("down", "1x4 stale", instance="one"),
                _state("down", "_x5 1x8", instance="two"),
            ],
            2,
            set(),
            id="the engine of one is down, then that of the other",
        ),
        pytest.param(
            [_state("starting", "1x100")], 21, {"BulwarkUpstreamStarting"}, id="it starts for long"
        ),
        pytest.param([_state("starting", "1x100")], 19, set(), id="a large model is loaded"),
        pytest.param(
            [_state("saturated", "1x60")], 11, {"BulwarkUpstreamSaturated"}, id="it holds no more"
        ),
        pytest.param([_state("saturated", "1x60")], 9, set(), id="it has held no more for a while"),
        pytest.param([_state("ready", "1x100")], 21, set(), id="it is ready"),
        pytest.param(
            [_ended("upstream_unavailable", "0+1x20")],
            4,
            {"BulwarkUpstreamUnavailable"},
            id="the engine is not ready",
        ),
        pytest.param(
            [_ended("upstream_unavailable", "9x40"), _ended("ok", "0+9x40")],
            4,
            set(),
            id="the engine was not ready once",
        ),
        pytest.param(
            [
                _ended("upstream_error", "0+4x80"),
                _ended("upstream_timeout", "0+3x80"),
                _ended("ok", "0+93x80"),
            ],
            16,
            {"BulwarkUpstreamFaults"},
            id="7 in 100 fail at the engine",
        ),
        pytest.param(
            [
                _ended("upstream_error", "0+2x80"),
                _ended("upstream_timeout", "0+2x80"),
                _ended("ok", "0+96x80"),
            ],
            16,
            set(),
            id="4 in 100 fail at the engine",
        ),
        pytest.param(
            [_ended("limits_unavailable", "0+1x20")],
            2,
            {"BulwarkLimitsUnavailable"},
            id="nobody is served without Redis",
        ),
        pytest.param(
            [_ended("limits_unavailable", "0+1x20")], 1, set(), id="it has been so for 45 s"
        ),
        pytest.param(
            [_ended("limits_unavailable", "9x40"), _ended("ok", "0+9x40")],
            4,
            set(),
            id="somebody was not served without Redis once",
        ),
        pytest.param(
            [_row("bulwark_redis_away", "0x4 1x8")], 3, {"BulwarkRedisAway"}, id="Redis is away"
        ),
        pytest.param(
            [_row("bulwark_redis_away", "0x4 1x8")], 2, set(), id="it has been away for 45 s"
        ),
        pytest.param(
            [_row("bulwark_keys_file_bad", "0x4 1x12")],
            4,
            {"BulwarkKeysFileBad"},
            id="somebody has broken the key file",
        ),
        pytest.param(
            [_row("bulwark_keys_file_bad", "0x4 1x12")],
            3,
            set(),
            id="somebody may be writing the key file",
        ),
        pytest.param(
            [_ended("internal_error", "_x20 1x80")],
            10,
            {"BulwarkInternalError"},
            id="the first bug",
        ),
        pytest.param(
            [_ended("internal_error", "1x20 2x80")], 10, {"BulwarkInternalError"}, id="a second bug"
        ),
        pytest.param([_ended("internal_error", "_x20 1x80")], 21, set(), id="a bug a while ago"),
        pytest.param([_ended("internal_error", "5x20 0x80")], 10, set(), id="it began anew"),
        pytest.param(
            [
                _refused("overloaded", "0+1x60"),
                _ended("overloaded", "0+1x60"),
                _ended("ok", "0+9x60"),
            ],
            11,
            {"BulwarkQueueFull"},
            id="one in ten finds everything full",
        ),
        pytest.param(
            [
                _refused("overloaded", "0+9x160"),
                _ended("overloaded", "0+9x160"),
                _ended("ok", "0+1x160"),
            ],
            35,
            {"BulwarkQueueFull"},
            id="nine in ten find everything full, which is no fault of theirs",
        ),
        pytest.param(
            _took("bulwark_queue_wait_seconds", "0+8x100", "0+10x100"),
            22,
            {"BulwarkQueueWait"},
            id="two in ten wait long",
        ),
        pytest.param(
            _took("bulwark_queue_wait_seconds", "0+19x100", "0+20x100"),
            22,
            set(),
            id="one in twenty waits long",
        ),
        pytest.param(
            _took("bulwark_time_to_first_byte_seconds", "0+5x100", "0+10x100", endpoint="messages"),
            22,
            {"BulwarkSlowFirstByte"},
            id="half have a late first byte",
        ),
        pytest.param(
            _took("bulwark_time_to_first_byte_seconds", "0+9x100", "0+10x100", endpoint="messages"),
            22,
            set(),
            id="one in ten has a late first byte",
        ),
        pytest.param(
            _took("bulwark_time_to_first_byte_seconds", "0+5x100", "0+10x100", endpoint="none"),
            22,
            set(),
            id="what is no endpoint has a late first byte",
        ),
        pytest.param(
            [
                _refused("context_length_exceeded", "0+6x160"),
                _ended("context_length_exceeded", "0+6x160"),
                _ended("ok", "0+4x160"),
            ],
            35,
            {"BulwarkRefusals"},
            id="6 in 10 are refused",
        ),
        pytest.param(
            [
                _refused("context_length_exceeded", "0+4x160"),
                _ended("context_length_exceeded", "0+4x160"),
                _ended("ok", "0+6x160"),
            ],
            35,
            set(),
            id="4 in 10 are refused",
        ),
        pytest.param(
            [
                _refused("rate_limit_exceeded", "0+9x160"),
                _ended("rate_limit_exceeded", "0+9x160"),
                _ended("ok", "0+1x160"),
            ],
            35,
            set(),
            id="9 in 10 come when their key has had its share",
        ),
        pytest.param(
            [
                _refused("request_exceeds_rate_limit", "0+6x160"),
                _ended("request_exceeds_rate_limit", "0+6x160"),
                _ended("ok", "0+4x160"),
            ],
            35,
            {"BulwarkRefusals"},
            id="6 in 10 are more than their key has at all",
        ),
        pytest.param(
            [
                _refused("not_found", "0+90x160", endpoint="none"),
                _ended("not_found", "0+90x160", endpoint="none"),
                _ended("ok", "0+1x160"),
            ],
            35,
            set(),
            id="a scanner finds nothing",
        ),
        pytest.param(
            [_refused("invalid_api_key", "0+4x100"), _ended("ok", "0+100x100")],
            22,
            {"BulwarkWrongKeys"},
            id="16 wrong keys a minute",
        ),
        pytest.param(
            [
                _refused("invalid_api_key", "0+2x100"),
                _refused("too_many_failures", "0+2x100"),
                _ended("ok", "0+100x100"),
            ],
            22,
            {"BulwarkWrongKeys"},
            id="16 wrong keys a minute, half of them not even tried",
        ),
        pytest.param(
            [_refused("invalid_api_key", "0+2x100"), _ended("ok", "0+100x100")],
            22,
            set(),
            id="8 wrong keys a minute",
        ),
        pytest.param(
            [_ended("client_disconnected", "0+4x160"), _ended("ok", "0+6x160")],
            35,
            {"BulwarkClientsLeave"},
            id="4 in 10 leave",
        ),
        pytest.param(
            [_ended("client_disconnected", "0+2x160"), _ended("ok", "0+8x160")],
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
    tried = set[str]().union(*(row.values[2] for row in mark.args[1]))
    assert tried == {rule.title for rule in RULES}


async def test_a_prometheus_knows_what_is_asked_of_it(tmp_path: Path) -> None:
    """Every expression of the alerts and the dashboard has data, once there was traffic of each kind."""
    async with (
        nobody() as url,
        proxy(max_inflight=1, queue_size=0) as busy,
        proxy(upstream_url=url) as alone,
        watching(tmp_path, busy.admin_port, alone.admin_port) as prometheus,
    ):
        for _ in range(2):
            await everything(busy)
            assert (await alone.chat()).status == 503
            await asyncio.gather(
                *(busy.chat(Authorization="Bearer wrong") for _ in range(WRONG_KEYS))
            )
            await scraped(busy)
            await scraped(alone)
        for query in PANELS:
            series = await prometheus.evaluate(query.expression)
            assert {each["value"][1] for each in series} - {"NaN"}, query
        for rule in RULES:
            await prometheus.evaluate(rule.expression)
        await assert_selectors_have_data(prometheus)
        await assert_rules_are_healthy(prometheus)


async def assert_selectors_have_data(prometheus: Prometheus) -> None:
    """Every metric of every expression, with each of its matchers."""
    for query in (*RULES, *PANELS):
        for selector in query.selectors():
            if not NOT_MADE_HERE & {value for _, _, value in selector.matchers}:
                matchers = ",".join(f'{name}{op}"{value}"' for name, op, value in selector.matchers)
                assert await prometheus.evaluate(f"{selector.metric}{{{matchers}}}"), selector


async def assert_rules_are_healthy(prometheus: Prometheus) -> None:
    """All of them are there, were evaluated without an error, and one is about to fire."""
    (group,) = (await prometheus.ask("rules"))["groups"]
    states: Mapping[str, str] = {rule["name"]: rule["state"] for rule in group["rules"]}
    assert list(states) == [rule.title for rule in RULES]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    assert states["BulwarkWrongKeys"] == "pending"
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
