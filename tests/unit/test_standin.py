"""The stand-in behaves like an engine where a client would notice; the SDKs try the rest of it."""

import json

import httpx
import pytest

from proxy import standin

MESSAGES = [{"role": "user", "content": "one two three"}]
CASES = [
    pytest.param("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3}, id="chat"),
    pytest.param("/v1/completions", {"prompt": "one two three", "max_tokens": 3}, id="completions"),
    pytest.param(
        "/v1/responses", {"input": "one two three", "max_output_tokens": 3}, id="responses"
    ),
    pytest.param("/v1/messages", {"messages": MESSAGES, "max_tokens": 3}, id="messages"),
]


def client() -> httpx.AsyncClient:
    """A client of the application itself."""
    transport = httpx.ASGITransport(standin.build(word_seconds=0))
    return httpx.AsyncClient(transport=transport, base_url="http://stand-in")


@pytest.mark.parametrize(("path", "body"), CASES)
async def test_the_output_is_bounded_and_its_usage_told(path: str, body: dict[str, object]) -> None:
    """Three tokens and no more, for any model name."""
    async with client() as server:
        answer = (await server.post(path, json={"model": "x/y", **body})).json()
    usage = answer["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 3
    assert answer["model"] == "x/y"


@pytest.mark.parametrize(("path", "body"), CASES)
async def test_it_streams_events(path: str, body: dict[str, object]) -> None:
    """In the dialect of the route; each with a data line of JSON."""
    async with client() as server:
        answer = await server.post(path, json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    if path in {"/v1/chat/completions", "/v1/completions"}:
        assert lines.pop() == "[DONE]"
    assert all(json.loads(line) for line in lines)
    assert len(lines) >= 3


async def test_what_is_no_object_is_a_400() -> None:
    """In the shape of an engine's error."""
    async with client() as server:
        for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/messages/count_tokens"):
            for content in ("[]", "{"):
                answer = await server.post(path, content=content)
                assert answer.status_code == 400
                assert answer.json()["error"]["code"] == 400


async def test_the_engines_own_routes() -> None:
    """What the probe asks, and the gauge that a hang-up must bring back to zero."""
    async with client() as server:
        assert (await server.get("/health")).status_code == 200
        assert "vllm:num_requests_running" in (await server.get("/metrics")).text
        assert (await server.get("/v1/models")).json()["data"]
