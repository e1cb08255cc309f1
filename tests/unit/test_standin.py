"""The stand-in behaves like an engine where a client would notice; the SDKs try the rest of it."""

import json
from typing import Any

import httpx
import pytest

from proxy import standin
from proxy.standin.figures import Figures
from proxy.upstream.readings import read

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
    """What the monitor asks, and the models with their context."""
    async with client() as server:
        assert (await server.get("/health")).status_code == 200
        assert (await server.get("/metrics")).headers["content-type"].startswith("text/plain")
        (model,) = (await server.get("/v1/models")).json()["data"]
        assert model["max_model_len"] == 131_072


async def test_it_counts_like_vllm() -> None:
    """Streamed or not; what is read of it is what is read of a real one."""
    async with client() as server:
        before = read((await server.get("/metrics")).content)
        for stream in (False, True):
            body = {"messages": MESSAGES, "max_tokens": 3, "stream": stream}
            await server.post("/v1/chat/completions", json=body)
        page = (await server.get("/metrics")).content
    after = read(page)
    assert (before.engine, before.pool_tokens, before.kv_usage) == ("vllm", 1_048_576, 0.0)
    assert (before.running, before.waiting, before.preemptions_total) == (0, 0, 0.0)
    assert (before.prompt_tokens_total, before.generation_tokens_total) == (0.0, 0.0)
    assert (after.running, after.kv_usage, after.prompt_tokens_total) == (0, 0.0, 6.0)
    # Streamed, the first and the last event of a chat count as words too.
    assert 6 <= (after.generation_tokens_total or 0) <= 9
    assert b'vllm:request_generation_tokens_bucket{engine="0",le="5.0",' in page


async def test_a_request_that_runs_is_seen() -> None:
    """Until its client leaves."""
    figures = Figures()
    with figures.request(10, 20):
        figures.word()
        reading = read(figures.page())
    assert (reading.running, reading.generation_tokens_total) == (1, 1.0)
    assert reading.kv_usage == 30 / 1_048_576
    assert read(figures.page()).running == 0


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/City"},
        "days": {"type": "array", "items": {"enum": ["Monday"]}, "minItems": 2},
        "wind": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "kind": {"const": "forecast"},
        "note": {"type": "string"},
    },
    "required": ["city", "days", "wind", "kind"],
    "$defs": {"City": {"properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}},
}
FITTING = {
    "city": {"name": "Paris", "size": 1},
    "days": ["Monday", "Monday"],
    "wind": 1.5,
    "kind": "forecast",
}


def text_of(answer: dict[str, Any]) -> str:
    """The text in a whole answer of any dialect."""
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    if "output" in answer:
        return str(answer["output"][0]["content"][0]["text"])
    return str(answer["content"][0]["text"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(
            "/v1/chat/completions",
            {"messages": MESSAGES, "response_format": {
                "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            id="chat",
        ),
        pytest.param(
            "/v1/responses",
            {"input": "x", "text": {
                "format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
            id="responses",
        ),
        pytest.param(
            "/v1/messages",
            {"messages": MESSAGES, "output_config": {
                "format": {"type": "json_schema", "schema": SCHEMA}}},
            id="messages",
        ),
    ],
)  # fmt: skip
async def test_structured_output_fits_its_schema(path: str, body: dict[str, object]) -> None:
    """References, alternatives, lists and constants included; what is not required is left out."""
    async with client() as server:
        answer = (await server.post(path, json=body)).json()
    assert json.loads(text_of(answer)) == FITTING


@pytest.mark.parametrize(
    ("response_format", "text"),
    [
        pytest.param({"type": "json_object"}, "{}", id="JSON of any kind is an object"),
        pytest.param(
            {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}},
            '"Paris"',
            id="a schema that is only itself ends",
        ),
    ],
)
async def test_json_without_much_of_a_schema(response_format: dict[str, object], text: str) -> None:
    """Is JSON all the same."""
    async with client() as server:
        body = {"messages": MESSAGES, "response_format": response_format}
        answer = (await server.post("/v1/chat/completions", json=body)).json()
    assert text_of(answer) == text


async def test_a_schema_within_itself_ends() -> None:
    """Eight levels down."""
    node = {"properties": {"next": {"$ref": "#"}}}
    async with client() as server:
        wanted = {"type": "json_schema", "json_schema": {"schema": node}}
        body = {"messages": MESSAGES, "response_format": wanted}
        answer = (await server.post("/v1/chat/completions", json=body)).json()
    assert text_of(answer).count("next") == 9


async def test_the_named_tool_is_called() -> None:
    """In each dialect's way of naming one."""
    functions = [{"name": "a"}, {"name": "b"}]
    async with client() as server:
        chat = {
            "messages": MESSAGES,
            "tools": [{"type": "function", "function": function} for function in functions],
            "tool_choice": {"type": "function", "function": {"name": "b"}},
        }
        answer = (await server.post("/v1/chat/completions", json=chat)).json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "b"
        responses = {
            "input": "x",
            "tools": [{"type": "function"} | function for function in functions],
            "tool_choice": {"type": "function", "name": "b"},
        }
        answer = (await server.post("/v1/responses", json=responses)).json()
        assert answer["output"][0]["name"] == "b"
        messages = {
            "messages": MESSAGES,
            "tools": functions,
            "tool_choice": {"type": "tool", "name": "b"},
        }
        answer = (await server.post("/v1/messages", json=messages)).json()
        assert answer["content"][0]["name"] == "b"
        messages["tool_choice"] = {"type": "none"}
        answer = (await server.post("/v1/messages", json=messages)).json()
        assert answer["content"][0]["type"] == "text"


async def test_it_thinks_aloud_when_asked() -> None:
    """Before it answers, and at the cost of its output."""
    async with client() as server:
        chat = {"messages": MESSAGES, "reasoning_effort": "low"}
        answer = (await server.post("/v1/chat/completions", json=chat)).json()
        (choice,) = answer["choices"]
        assert choice["message"]["reasoning_content"] == choice["message"]["reasoning"] != ""
        assert choice["message"]["content"].startswith("You said")
        answer = (await server.post("/v1/chat/completions", json={**chat, "max_tokens": 3})).json()
        (choice,) = answer["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "length")
        assert answer["usage"]["completion_tokens"] == 3
        messages = {"messages": MESSAGES, "max_tokens": 100, "thinking": {"type": "enabled"}}
        answer = (await server.post("/v1/messages", json=messages)).json()
        assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
        streamed = await server.post("/v1/messages", json={**messages, "stream": True})
        assert streamed.text.index("thinking_delta") < streamed.text.index("signature_delta")
        assert streamed.text.index("signature_delta") < streamed.text.index("text_delta")


@pytest.mark.parametrize(
    ("body", "vectors", "numbers"),
    [
        pytest.param({"input": ["a", "b"]}, 2, 8, id="two texts"),
        pytest.param({"input": [1, 2, 3]}, 1, 8, id="one text in tokens"),
        pytest.param({"input": [[1, 2], [3]]}, 2, 8, id="two texts in tokens"),
        pytest.param({"input": "a", "dimensions": 64}, 1, 64, id="as many dimensions as wanted"),
    ],
)
async def test_embeddings(body: dict[str, object], vectors: int, numbers: int) -> None:
    """One vector for each input, as long as asked."""
    async with client() as server:
        answer = (await server.post("/v1/embeddings", json=body)).json()
    assert [len(item["embedding"]) for item in answer["data"]] == [numbers] * vectors
