"""No route of an engine is reachable but those that are served."""

import pytest

from tests.harness.engines import Engine
from tests.harness.running import BEARER, JSON
from tests.harness.tap import tap_of
from tests.live.bypasses.bypass import Bypass
from tests.live.conftest import Live

OPEN = {
    "vllm-stub": [
        ("GET", "/metrics", b"", 200),
        ("GET", "/metricsfoo", b"", 200),
        ("GET", "/health", b"", 200),
        ("GET", "/ping", b"", 200),
        ("GET", "/load", b"", 200),
        ("GET", "/version", b"", 200),
        ("GET", "/docs", b"", 200),
        ("GET", "/openapi.json", b"", 200),
        ("GET", "/kv_event_sources", b"", 200),
        ("POST", "/tokenize", b'{"model":"m","prompt":"hi"}', 200),
        ("POST", "/detokenize", b'{"model":"m","tokens":[65]}', 200),
        ("POST", "/invocations", Bypass({"max_tokens": 1}, "", None).body, 200),
        ("POST", "/v1/chat/completions/batch", b"{}", 400),
        ("POST", "/v1/chat/completions/render", b"{}", 403),
        ("POST", "/inference/v1/generate", b"{}", 403),
        ("POST", "/scale_elastic_ep", b"{}", 400),
        ("POST", "/generative_scoring", b"{}", 400),
        ("GET", "/v1/models/", b"", 307),
        ("GET", "/v1/responses/resp_1", b"", 404),
    ],
    "llamacpp": [
        ("GET", "/metrics", b"", 200),
        ("GET", "/health", b"", 200),
        ("GET", "/props", b"", 200),
        ("GET", "/slots", b"", 200),
        ("GET", "/models", b"", 200),
        ("GET", "/lora-adapters", b"", 200),
        ("POST", "/tokenize", b'{"content":"hi"}', 200),
        ("POST", "/detokenize", b'{"tokens":[65]}', 200),
        ("POST", "/apply-template", b'{"messages":[]}', 200),
        ("POST", "/completion", b'{"prompt":"hi","n_predict":1}', 200),
        ("POST", "/chat/completions", Bypass({"max_tokens": 1}, "", None).body, 200),
        ("POST", "/infill", b'{"input_prefix":"a","input_suffix":"b","n_predict":1}', 501),
        ("POST", "/slots/0?action=erase", b"", 501),
    ],
}


@pytest.mark.parametrize(
    ("engine", "method", "target", "body", "direct"),
    [
        pytest.param(name, method, target, body, direct, id=f"{name}: {method} {target}")
        for name, routes in OPEN.items()
        for method, target, body, direct in routes
    ],
    indirect=["engine"],
)
async def test_no_other_route_of_an_engine_is_reachable(
    live: Live, engine: Engine, *, method: str, target: str, body: bytes, direct: int
) -> None:
    """It answers there, and the proxy does not ask it, spelled however."""
    response = await engine.ask(method, target, body)
    assert response.status == direct, response.body
    running = await live()
    spellings = (target, f"/v1/..{target}", f"/v1/%2e%2e{target}", f"/{target}", f"{target}%20")
    for spelled in spellings:
        response = await running.ask(method, spelled, {**BEARER, **JSON}, body)
        assert (response.status, response.json()["error"]["code"]) == (404, "not_found"), spelled
    assert tap_of(running).heard_nothing
