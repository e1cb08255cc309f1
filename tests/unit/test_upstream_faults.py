"""The table from a transport's failures to what the client is told."""

import inspect

import httpx
import pytest

from proxy.errors import (
    Fault,
    InternalError,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.upstream.faults import translate

SECRET = "http://10.0.0.7:8000 refused sk-secret"


@pytest.mark.parametrize(
    ("failure", "fault", "retry_after"),
    [
        pytest.param(httpx.ConnectError, UpstreamUnavailable, 5, id="refused, or no such host"),
        pytest.param(httpx.ConnectTimeout, UpstreamTimeout, 5, id="nobody accepts"),
        pytest.param(httpx.PoolTimeout, UpstreamTimeout, 5, id="no connection is free"),
        pytest.param(httpx.ReadTimeout, UpstreamTimeout, 5, id="a transport's own read limit"),
        pytest.param(httpx.WriteTimeout, UpstreamTimeout, 5, id="a transport's own write limit"),
        pytest.param(httpx.ReadError, UpstreamError, None, id="reset while reading"),
        pytest.param(httpx.WriteError, UpstreamError, None, id="reset while writing"),
        pytest.param(httpx.CloseError, UpstreamError, None, id="an error while closing"),
        pytest.param(httpx.RemoteProtocolError, UpstreamError, None, id="not HTTP, or cut off"),
        pytest.param(httpx.ProxyError, UpstreamError, None, id="another transport's proxy"),
        pytest.param(httpx.LocalProtocolError, InternalError, None, id="we would break the rules"),
        pytest.param(httpx.UnsupportedProtocol, InternalError, None, id="no such scheme"),
    ],
)
def test_translate(
    failure: type[httpx.TransportError], fault: type[Fault], retry_after: int | None
) -> None:
    """Each failure has its fault, and none of them repeats the failure's own words."""
    translated = translate(failure(SECRET))
    assert type(translated) is fault
    assert translated.retry_after_seconds == retry_after
    assert "10.0.0.7" not in translated.message
    assert "sk-secret" not in translated.message


def test_every_failure_of_a_transport_is_translated() -> None:
    """Also those that httpx may add."""
    failures = [
        member
        for _, member in inspect.getmembers(httpx, inspect.isclass)
        if issubclass(member, httpx.TransportError)
    ]
    assert len(failures) > 10
    for failure in failures:
        assert isinstance(translate(failure(SECRET)), Fault)
