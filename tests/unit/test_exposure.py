"""What of the settings lets in whoever can connect."""

import io
import json
from datetime import UTC, datetime

import pytest

from proxy.app.exposure import exposed, remark
from proxy.config import load
from proxy.telemetry.log import Log
from tests.harness.environments import KEY

KEYS = {"api_keys": KEY}
ANONYMOUS = {"allow_anonymous": "true"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        pytest.param({}, [], id="as it comes"),
        pytest.param({"host": "0.0.0.0"}, [], id="everywhere, with keys"),
        pytest.param(ANONYMOUS, [], id="everybody of this machine"),
        pytest.param({**ANONYMOUS, "host": "127.8.9.1"}, [], id="the same elsewhere in loopback"),
        pytest.param({**ANONYMOUS, "host": "::1"}, [], id="the same by IPv6"),
        pytest.param({**ANONYMOUS, "host": "localhost"}, [], id="the same by name"),
        pytest.param({**ANONYMOUS, "host": "0.0.0.0"}, ["PROXY_HOST (0.0.0.0)"], id="everybody"),
        pytest.param({**ANONYMOUS, "host": "::"}, ["PROXY_HOST (::)"], id="everybody by IPv6"),
        pytest.param({**ANONYMOUS, "host": "10.0.0.9"}, ["PROXY_HOST (10.0.0.9)"], id="a network"),
        pytest.param({**ANONYMOUS, "host": "box"}, ["PROXY_HOST (box)"], id="a name"),
        pytest.param({"admin_host": "0.0.0.0"}, ["PROXY_ADMIN_HOST"], id="the admin listener"),
        pytest.param({"admin_host": "::"}, ["PROXY_ADMIN_HOST"], id="the same by IPv6, too"),
        pytest.param({"admin_host": "172.30.71.34"}, [], id="the admin listener in one network"),
        pytest.param(
            {**ANONYMOUS, "host": "::", "admin_host": "::"},
            ["PROXY_ALLOW_ANONYMOUS", "PROXY_ADMIN_HOST"],
            id="both",
        ),
    ],
)
def test_what_is_open(settings: dict[str, str], told: list[str]) -> None:
    """A sentence for each, which the log has as a warning."""
    read = load({f"PROXY_{name.upper()}": value for name, value in (KEYS | settings).items()})
    found = list(exposed(read))
    assert len(found) == len(told)
    assert all(words in sentence for words, sentence in zip(told, found, strict=True))
    stream = io.BytesIO()
    log = Log(stream, form="json", level="info", now=lambda: datetime.now(UTC))
    remark(read, log)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["problem"]) for line in lines] == [
        ("exposed", "warning", sentence) for sentence in found
    ]
