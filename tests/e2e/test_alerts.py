"""A real Prometheus's own test of rules holds every alert to both sides of its bound."""

import json
from pathlib import Path

import pytest

from tests.harness import monitoring
from tests.harness.monitoring import ended, promtool, refused, row, took, upstream_is

pytestmark = pytest.mark.e2e


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
            [row("bulwark_usage_db_bad", "0x4 1x30")],
            7,
            {"BulwarkUsageDbBad"},
            id="what keys use cannot be written",
        ),
        pytest.param(
            [row("bulwark_usage_db_bad", "0x4 1x30")], 6, set(), id="it could not for 4 minutes"
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
    assert tried == {rule.title for rule in monitoring.alerts()}
