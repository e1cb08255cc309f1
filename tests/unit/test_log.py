"""The log line: its form, its level, and what never gets into it."""

import asyncio
import io
import json
import os
from datetime import UTC, datetime

import pytest

from proxy.context import RequestContext
from proxy.endpoints import ENDPOINTS
from proxy.errors import HeadTooLarge, Reason
from proxy.principal import Principal
from proxy.telemetry.log import Log, LogFormat, LogLevel

NOW = datetime(2026, 6, 1, 12, 30, 15, 123_456, tzinfo=UTC)


def context(**given: object) -> RequestContext:
    """A request that began at second 1 and went well, unless told otherwise."""
    made = RequestContext(request_id="r1", method="POST", client="1.2.3.4", headers=[], started=1.0)
    made.endpoint, made.status, made.response_complete = ENDPOINTS[1], 200, True
    for name, value in given.items():
        setattr(made, name, value)
    return made


def written(
    made: RequestContext,
    *,
    form: LogFormat = "json",
    level: LogLevel = "debug",
    quiet: bool = False,
) -> str:
    """What the log has of a request that ended at second 3.5."""
    stream = io.BytesIO()
    log = Log(stream, form=form, level=level, now=lambda: NOW)
    log.request(made, ended=3.5, quiet=quiet)
    return stream.getvalue().decode()


@pytest.mark.parametrize(
    ("estimated", "source"),
    [pytest.param(False, "engine", id="it said so"), pytest.param(True, "estimate", id="we guess")],
)
def test_what_a_request_used(estimated: bool, source: str) -> None:
    """And who says so."""
    made = context(prompt_tokens=7, completion_tokens=3, usage_estimated=estimated)
    line = json.loads(written(made))
    used = [line[name] for name in ("prompt_tokens", "completion_tokens", "usage")]
    assert used == [7, 3, source]


def test_the_canonical_line() -> None:
    """One line of JSON with every field, in one order."""
    line = written(
        context(
            principal=Principal("env-1", "salt-canary"),
            upstream_status=200,
            stream=True,
            bytes_in=10,
            bytes_out=20,
            prompt_chars=5,
            output_tokens_bound=4096,
            clamped="max_tokens 32000 -> 4096",
            queued_seconds=0.25,
            first_byte=1.123456,
        )
    )
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert list(json.loads(line).items()) == [
        ("timestamp", "2026-06-01T12:30:15.123+00:00"),
        ("level", "info"),
        ("event", "request"),
        ("request_id", "r1"),
        ("client", "1.2.3.4"),
        ("key_id", "env-1"),
        ("method", "POST"),
        ("endpoint", "chat.completions"),
        ("status", 200),
        ("outcome", "ok"),
        ("upstream_status", 200),
        ("stream", True),
        ("bytes_in", 10),
        ("bytes_out", 20),
        ("prompt_chars", 5),
        ("output_tokens_bound", 4096),
        ("prompt_tokens", None),
        ("completion_tokens", None),
        ("usage", None),
        ("clamped", "max_tokens 32000 -> 4096"),
        ("queued_seconds", 0.25),
        ("first_byte_seconds", 0.1235),
        ("duration_seconds", 2.5),
    ]


def test_what_is_not_known_is_null() -> None:
    """A request that was refused early has the same fields."""
    line = json.loads(written(context(endpoint=None, outcome=Reason.MISSING_API_KEY, status=401)))
    for name in ("key_id", "endpoint", "upstream_status", "clamped", "first_byte_seconds"):
        assert line[name] is None
    assert (line["status"], line["outcome"]) == (401, "missing_api_key")


def test_text_has_the_same_in_pairs() -> None:
    """For people: what is not known is left away, what has spaces is quoted."""
    line = written(context(clamped='a "b"\n'), form="text")
    assert line.count("\n") == 1
    assert line.startswith("timestamp=2026-06-01T12:30:15.123+00:00 level=info event=request ")
    assert r'clamped="a \"b\"\n"' in line
    assert "key_id" not in line


@pytest.mark.parametrize(
    ("outcome", "quiet", "level"),
    [
        pytest.param(None, False, "info", id="it went well"),
        pytest.param(None, True, "debug", id="a probe that went well"),
        pytest.param(Reason.CLIENT_DISCONNECTED, False, "info", id="the client left"),
        pytest.param(Reason.NOT_FOUND, False, "warning", id="a refusal"),
        pytest.param(Reason.METHOD_NOT_ALLOWED, True, "warning", id="a probe that was refused"),
        pytest.param(Reason.OVERLOADED, False, "warning", id="a refusal with 503"),
        pytest.param(Reason.UPSTREAM_ERROR, False, "error", id="a fault of the upstream's"),
        pytest.param(Reason.INTERNAL_ERROR, False, "error", id="a fault of ours"),
    ],
)
def test_the_level_follows_the_outcome(outcome: Reason | None, quiet: bool, level: str) -> None:
    """Refusals warn, faults are errors."""
    assert json.loads(written(context(outcome=outcome), quiet=quiet))["level"] == level


@pytest.mark.parametrize(
    ("level", "outcomes"),
    [
        pytest.param("debug", 3, id="debug writes all"),
        pytest.param("info", 3, id="info writes requests"),
        pytest.param("warning", 2, id="warning leaves those that went well away"),
        pytest.param("error", 1, id="error leaves faults only"),
    ],
)
def test_lines_below_the_level_are_not_written(level: LogLevel, outcomes: int) -> None:
    """PROXY_LOG_LEVEL."""
    each = (None, Reason.NOT_FOUND, Reason.INTERNAL_ERROR)
    lines = [written(context(outcome=outcome), level=level) for outcome in each]
    assert sum(map(bool, lines)) == outcomes


def test_a_probe_is_silent_at_the_default_level() -> None:
    """An orchestrator asks every few seconds."""
    assert not written(context(), level="info", quiet=True)


def test_the_number_of_a_client_that_left() -> None:
    """499, whatever it had been sent before."""
    line = json.loads(written(context(outcome=Reason.CLIENT_DISCONNECTED)))
    assert (line["status"], line["outcome"]) == (499, "client_disconnected")


def test_a_fault_says_where_it_was() -> None:
    """Where there was one; other lines do not have the field."""
    assert json.loads(written(context(fault="ValueError at m:1 f")))["fault"] == (
        "ValueError at m:1 f"
    )
    assert "fault" not in json.loads(written(context()))


def test_a_method_of_the_clients_own_is_not_repeated() -> None:
    """Nothing that a client may choose freely gets into the log."""
    assert json.loads(written(context(method="CANARY")))["method"] == "other"


def test_headers_and_salts_are_not_logged() -> None:
    """What the context carries besides is not the log's."""
    canary = context(
        headers=[(b"authorization", b"Bearer canary")], principal=Principal("env-1", "canary")
    )
    assert "canary" not in written(canary)
    assert "canary" not in written(canary, form="text")


def test_what_was_no_request_has_a_line_too() -> None:
    """A refusal below ASGI: who, what, and no more."""
    stream = io.BytesIO()
    log = Log(stream, form="json", level="info", now=lambda: NOW)
    log.refused_early(HeadTooLarge("canary"), "1.2.3.4", "r1")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["event"], line["client"]) == ("warning", "request", "1.2.3.4")
    assert (line["status"], line["outcome"]) == (431, "head_too_large")
    assert line["request_id"] == "r1"
    assert "canary" not in stream.getvalue().decode()


def test_lines_about_the_server() -> None:
    """Its start and its end."""
    stream = io.BytesIO()
    Log(stream, form="text", level="info", now=lambda: NOW).server("listening", port=8080)
    assert stream.getvalue().decode().endswith("level=info event=listening port=8080\n")


@pytest.mark.parametrize("form", ["json", "text"])
async def test_lines_that_are_missing_are_told(form: LogFormat) -> None:
    """Of a reader that sleeps: how many they were, in their place, whatever the level."""
    out, into = os.pipe()
    lost: list[int] = []
    with os.fdopen(out, "rb") as reader, os.fdopen(into, "wb") as stream:
        log = Log(stream, form=form, level="error", now=lambda: NOW, on_lost=lost.append)
        for _ in range(4):
            log.server("x" * 500_000, level="error")
        assert lost == [1, 1]
        async with asyncio.timeout(10):
            *_, told = [await asyncio.to_thread(reader.readline) for _ in range(3)]
    if form == "json":
        assert json.loads(told) == {
            "timestamp": "2026-06-01T12:30:15.123+00:00",
            "level": "warning",
            "event": "log_lines_dropped",
            "lines": 2,
        }
    else:
        assert told.endswith(b"level=warning event=log_lines_dropped lines=2\n")


def test_what_waits_is_written_when_the_log_is_closed() -> None:
    """And what comes later all the same."""
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0) as reader, os.fdopen(into, "wb") as stream:
        log = Log(stream, form="text", level="info", now=lambda: NOW)

        async def last_words() -> None:
            log.server("stopped")
            log.close()

        asyncio.run(last_words())
        assert reader.read(100).endswith(b"event=stopped\n")
        log.server("later")
        assert reader.read(100).endswith(b"event=later\n")
