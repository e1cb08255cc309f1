"""The series: what is counted when, and that the labels are closed sets."""

import dataclasses

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from proxy.context import RequestContext
from proxy.endpoints import ENDPOINTS
from proxy.errors import HeadTooLarge, Reason
from proxy.telemetry.metrics import Gauges, Metrics


def context(**given: object) -> RequestContext:
    """A request that began at second 1 and went well, unless told otherwise."""
    made = RequestContext(request_id="r", method="POST", client="1.2.3.4", headers=[], started=1.0)
    made.endpoint, made.status, made.response_complete = ENDPOINTS[1], 200, True
    for name, value in given.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def metrics() -> Metrics:
    """Series of their own for each test."""
    return Metrics(CollectorRegistry(), version="1.2.3")


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """One sample; None where the series does not exist."""
    return metrics.registry.get_sample_value(name, labels)


@pytest.mark.parametrize(
    ("given", "labels", "refused"),
    [
        pytest.param({}, ("chat.completions", "200", "ok"), False, id="it went well"),
        pytest.param(
            {"status": 429, "upstream_status": 429},
            ("chat.completions", "429", "ok"),
            False,
            id="the upstream's own error was relayed",
        ),
        pytest.param(
            {"status": 413, "outcome": Reason.BODY_TOO_LARGE},
            ("chat.completions", "413", "body_too_large"),
            True,
            id="we refused",
        ),
        pytest.param(
            {"status": 404, "outcome": Reason.NOT_FOUND, "endpoint": None},
            ("none", "404", "not_found"),
            True,
            id="there was no endpoint",
        ),
        pytest.param(
            {"status": 200, "outcome": Reason.UPSTREAM_ERROR, "response_complete": False},
            ("chat.completions", "200", "upstream_error"),
            False,
            id="the upstream died in its answer",
        ),
        pytest.param(
            {"status": 200, "outcome": Reason.CLIENT_DISCONNECTED},
            ("chat.completions", "499", "client_disconnected"),
            False,
            id="the client left in the answer",
        ),
        pytest.param(
            {"status": 0, "outcome": Reason.SHUTTING_DOWN},
            ("chat.completions", "0", "shutting_down"),
            True,
            id="nothing was sent",
        ),
    ],
)
def test_a_request_is_counted_once(
    metrics: Metrics, given: dict[str, object], labels: tuple[str, str, str], refused: bool
) -> None:
    """By endpoint, status and outcome; and among the refusals if it was one."""
    metrics.requests.began()
    metrics.requests.ended(context(**given), ended=3.5)
    endpoint, status, outcome = labels
    names = {"endpoint": endpoint, "status": status, "outcome": outcome}
    assert value(metrics, "bulwark_requests_total", **names) == 1
    refusals = value(metrics, "bulwark_refusals_total", endpoint=endpoint, reason=outcome)
    assert refusals == (1 if refused else None)
    duration = value(metrics, "bulwark_request_duration_seconds_sum", endpoint=endpoint)
    assert duration == 2.5


def test_the_gauge_follows_requests_and_ends_at_zero(metrics: Metrics) -> None:
    """Up when one begins, down when one ends."""
    for _ in range(3):
        metrics.requests.began()
    assert value(metrics, "bulwark_requests_in_flight") == 3
    for _ in range(3):
        metrics.requests.ended(context(), ended=2.0)
    assert value(metrics, "bulwark_requests_in_flight") == 0


def test_times_are_observed_where_there_were_any(metrics: Metrics) -> None:
    """First byte and queue, only of requests that came so far."""
    chat = {"endpoint": "chat.completions"}
    metrics.requests.ended(context(), ended=2.0)
    assert value(metrics, "bulwark_time_to_first_byte_seconds_count", **chat) == 0
    assert value(metrics, "bulwark_queue_wait_seconds_count") == 0
    later = context(first_byte=1.5, upstream_status=200, queued_seconds=0.25, clamped="a 2 -> 1")
    metrics.requests.ended(later, ended=2.0)
    assert value(metrics, "bulwark_time_to_first_byte_seconds_sum", **chat) == 0.5
    assert value(metrics, "bulwark_queue_wait_seconds_sum") == 0.25
    assert value(metrics, "bulwark_clamped_requests_total", **chat) == 1


def test_what_the_server_refuses_below_asgi_is_counted(metrics: Metrics) -> None:
    """Without ever having been in flight."""
    metrics.requests.refused_early(HeadTooLarge("Too long."))
    labels = {"endpoint": "none", "status": "431", "outcome": "head_too_large"}
    assert value(metrics, "bulwark_requests_total", **labels) == 1
    reason = {"endpoint": "none", "reason": "head_too_large"}
    assert value(metrics, "bulwark_refusals_total", **reason) == 1
    assert value(metrics, "bulwark_requests_in_flight") == 0


def test_gauges_are_read_from_their_owners(metrics: Metrics) -> None:
    """At the moment in which somebody looks."""
    held = [1.0]
    metrics.watch(
        Gauges(
            slots_in_use=lambda: held[0],
            queued=lambda: 2.0,
            buffered_bytes=lambda: 3.0,
            kv_budget_tokens=lambda: 4.0,
            kv_reserved_tokens=lambda: 5.0,
            keys=lambda: 6.0,
            keys_file_bad=lambda: 1.0,
            redis_away=lambda: 0.0,
            usage_db_bad=lambda: 1.0,
        )
    )
    held[0] = 7.0
    assert value(metrics, "bulwark_slots_in_use") == 7
    assert value(metrics, "bulwark_queue_length") == 2
    assert value(metrics, "bulwark_buffered_bytes") == 3
    assert value(metrics, "bulwark_kv_budget_tokens") == 4
    assert value(metrics, "bulwark_kv_reserved_tokens") == 5
    assert value(metrics, "bulwark_keys") == 6
    assert value(metrics, "bulwark_keys_file_bad") == 1
    assert value(metrics, "bulwark_redis_away") == 0
    assert value(metrics, "bulwark_usage_db_bad") == 1


@pytest.mark.parametrize(
    ("estimated", "source"),
    [pytest.param(False, "engine", id="it said so"), pytest.param(True, "estimate", id="we guess")],
)
def test_tokens_are_counted_where_somebody_looked(
    metrics: Metrics, estimated: bool, source: str
) -> None:
    """By what they were and by who says so; a request at which nobody looked counts none."""
    metrics.requests.began()
    metrics.requests.ended(context(), ended=2.0)
    assert value(metrics, "bulwark_tokens_total", kind="prompt", source=source) is None
    seen = context(prompt_tokens=7, completion_tokens=3, usage_estimated=estimated)
    metrics.requests.ended(seen, ended=2.0)
    assert value(metrics, "bulwark_tokens_total", kind="prompt", source=source) == 7
    assert value(metrics, "bulwark_tokens_total", kind="completion", source=source) == 3


def test_the_upstream_is_in_one_state(metrics: Metrics) -> None:
    """The last one that was told, and no other."""
    metrics.upstream.state_is("starting")
    metrics.upstream.state_is("ready")
    assert value(metrics, "bulwark_upstream_state", state="ready") == 1
    assert value(metrics, "bulwark_upstream_state", state="starting") is None


def test_what_fails_beside_requests_is_counted(metrics: Metrics) -> None:
    """Redis that does not answer, and pages of the engine that are not used."""
    metrics.redis_failed()
    metrics.upstream.reading_ignored("too_large")
    assert value(metrics, "bulwark_redis_failures_total") == 1
    assert value(metrics, "bulwark_engine_metrics_ignored_total", reason="too_large") == 1


def test_connections_are_read_by_state_from_their_owner(metrics: Metrics) -> None:
    """At the moment in which somebody looks."""
    busy = [1.0]
    metrics.connections.watch({"busy": lambda: busy[0], "idle": lambda: 2.0})
    busy[0] = 7.0
    assert value(metrics, "bulwark_connections", state="busy") == 7
    assert value(metrics, "bulwark_connections", state="idle") == 2


def test_connections_that_are_refused_are_counted(metrics: Metrics) -> None:
    """By reason, and not as requests: nothing was asked."""
    metrics.connections.refused(Reason.TOO_MANY_CONNECTIONS)
    metrics.connections.refused(Reason.TOO_MANY_CONNECTIONS)
    metrics.connections.refused(Reason.CONNECTIONS_EXHAUSTED)
    metrics.connections.refused("idle")
    name = "bulwark_connections_refused_total"
    assert value(metrics, name, reason="too_many_connections") == 2
    assert value(metrics, name, reason="connections_exhausted") == 1
    assert value(metrics, name, reason="idle") == 1


def test_lines_that_nobody_will_read_are_counted(metrics: Metrics) -> None:
    """From the start, so that an alert sees the first."""
    assert value(metrics, "bulwark_log_lines_dropped_total") == 0
    metrics.log_lines_lost(3)
    metrics.log_lines_lost(1)
    assert value(metrics, "bulwark_log_lines_dropped_total") == 4


def test_counts_go_on_where_they_were_bound_before(metrics: Metrics) -> None:
    """Each request of a kind counts in the series of the first one."""
    for _ in range(3):
        metrics.requests.began()
        seen = context(
            outcome=Reason.OVERLOADED, clamped="a 2 -> 1", prompt_tokens=7, completion_tokens=3
        )
        metrics.requests.ended(seen, ended=2.0)
    chat = {"endpoint": "chat.completions"}
    assert value(metrics, "bulwark_refusals_total", reason="overloaded", **chat) == 3
    assert value(metrics, "bulwark_clamped_requests_total", **chat) == 3
    assert value(metrics, "bulwark_tokens_total", kind="prompt", source="engine") == 21
    assert value(metrics, "bulwark_tokens_total", kind="completion", source="engine") == 9


def test_the_version_is_a_label(metrics: Metrics) -> None:
    """For the dashboards."""
    assert value(metrics, "bulwark_build_info", version="1.2.3") == 1


def test_all_series_are_ours(metrics: Metrics) -> None:
    """Nothing in the engine's own name space."""
    metrics.watch(Gauges(**{each.name: lambda: 0.0 for each in dataclasses.fields(Gauges)}))
    names = [family.name for family in metrics.registry.collect()]
    assert names
    assert all(name.startswith("bulwark_") for name in names)


def test_no_field_of_a_request_but_the_closed_ones_becomes_a_label(metrics: Metrics) -> None:
    """A canary in every field that a client fills appears in no series."""
    hostile = context(status=404, outcome=Reason.NOT_FOUND, endpoint=None)
    for each in dataclasses.fields(hostile):
        if isinstance(getattr(hostile, each.name), str):
            setattr(hostile, each.name, "canary")
    hostile.outcome = Reason.NOT_FOUND
    hostile.headers = [(b"canary", b"canary")]
    metrics.requests.ended(hostile, ended=2.0)
    assert b"canary" not in generate_latest(metrics.registry)
