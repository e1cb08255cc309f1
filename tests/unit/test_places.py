"""How many connections of clients there are places for, where the system has few descriptors."""

import io
import json
import resource
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from proxy.app import places
from proxy.config import load
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import ConnectionMetrics

ENOUGH = 4096 + 256 + (64 + 8) + 2 * 32 + 128
"""Clients, those who are told that there is no place, the operator's, the upstream's, and ours."""


@pytest.mark.parametrize(
    ("limit", "inflight", "connections"),
    [
        pytest.param(ENOUGH, 32, None, id="enough"),
        pytest.param(ENOUGH - 1, 32, 4095, id="one too few is one place fewer"),
        pytest.param(1000, 32, 644, id="an eighth of few is for those who are told"),
        pytest.param(1000, 132, 469, id="the upstream takes two for each request"),
        pytest.param(1000, 65_536, 319, id="but never more than one for each client"),
        pytest.param(
            2 * ENOUGH, 65_536, None, id="so that twice as many are enough for any number"
        ),
        pytest.param(100, 32, 8, id="never fewer than a few"),
    ],
)
def test_places(
    monkeypatch: pytest.MonkeyPatch, limit: int, inflight: int, connections: int | None
) -> None:
    """As many as all that has to be open beside them leaves; where it is too little, that is told."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: both)
    settings = load({"PROXY_API_KEYS": "k" * 32, "PROXY_MAX_INFLIGHT": str(inflight)})
    stream = io.BytesIO()
    log = Log(stream, form="json", level="info", now=lambda: datetime(2026, 6, 1, tzinfo=UTC))
    places.of_clients(settings, log, ConnectionMetrics(CollectorRegistry()))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    expected = [] if connections is None else [("few_descriptors", "warning", limit, connections)]
    told = [(line["event"], line["level"], line["limit"], line["connections"]) for line in lines]
    assert told == expected
