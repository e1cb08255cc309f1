"""CC: what clients do by habit."""

import asyncio
from typing import Any

import openai
import pytest

from tests.harness import upstream as upstreams
from tests.harness.bodies import chat, compact
from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, JSON, KEY, Launch
from tests.harness.sdk import openai_client, say

MODELS = "/v1/models"


@pytest.mark.case("CC-01")
@pytest.mark.parametrize("slash", ["", "/"], ids=["no slash", "a slash"])
async def test_a_client_that_lists_models_first(proxy: Launch, slash: str) -> None:
    """It gets the engine's own list, whichever way its base URL ends."""
    front = await proxy()
    base_url = f"http://127.0.0.1:{front.port}/v1{slash}"
    async with openai_client(front.port, base_url=base_url) as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        assert (await say(client)).choices[0].message.content == "Hello."
    targets = [request.target for request in front.upstream.requests]
    assert targets == [MODELS.encode(), CHAT.encode()]


@pytest.mark.case("CC-01")
async def test_a_list_while_every_place_is_taken(proxy: Launch) -> None:
    """Streams that run do not keep it waiting."""
    front = await proxy(max_inflight=2, queue_size=2)
    gate = asyncio.Event()
    for _ in range(2):
        front.upstream.script.append(
            [upstreams.SSE_HEAD, upstreams.event("a"), gate, upstreams.LAST_CHUNK]
        )
        client = await front.connect()
        body = chat(max_tokens=9, stream=True)
        await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, body))
        await client.read_head()
        await client.read_chunk()
    answer = await front.ask("GET", MODELS, BEARER)
    assert (answer.status, answer.body) == (200, upstreams.MODELS)
    gate.set()


@pytest.mark.case("CC-01")
@pytest.mark.parametrize("name", ["org%2Fname", "org/name", "m", ""])
async def test_one_model(proxy: Launch, name: str) -> None:
    """Nothing there: no path is forwarded that has a client's words in it."""
    front = await proxy()
    path = f"{MODELS}/{name}"
    await front.assert_refused(await front.ask("GET", path), 401, "missing_api_key")
    await front.assert_refused(await front.ask("GET", path, BEARER), 404, "not_found")


@pytest.mark.case("CC-02")
@pytest.mark.parametrize(
    "kind",
    ["application/json; charset=utf-8", "APPLICATION/JSON", 'application/json;charset="UTF-8"'],
)
async def test_spellings_of_json(proxy: Launch, kind: str) -> None:
    """Accepted, and capped."""
    front = await proxy()
    answer = await front.chat(chat(max_tokens=99999), **{"Content-Type": kind})
    assert answer.status == 200
    assert front.upstream.requests[0].body == chat(max_tokens=4096)


@pytest.mark.case("CC-02")
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", ""])
async def test_other_types(proxy: Launch, kind: str | None) -> None:
    """Refused, so that no cap is skipped; the refusal says what to send."""
    front = await proxy()
    fields = {**BEARER, **({} if kind is None else {"Content-Type": kind})}
    answer = await front.ask("POST", CHAT, fields, chat(max_tokens=99999))
    await front.assert_refused(answer, 415, "unsupported_media_type")
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.case("CC-04")
@pytest.mark.parametrize(
    ("content", "key", "error", "words"),
    [
        pytest.param(
            "x" * 10_001,
            KEY,
            openai.BadRequestError,
            "10,001.*PROXY_MAX_PROMPT_CHARS",
            id="a prompt",
        ),
        pytest.param(
            "x" * 2_200_000, KEY, openai.APIStatusError, "PROXY_MAX_BODY_BYTES", id="a body"
        ),
        pytest.param(
            "hi", "sk-bad", openai.PermissionDeniedError, "Ask the server's owner", id="a key"
        ),
    ],
)
async def test_a_refusal_is_not_asked_again(
    proxy: Launch, content: str, key: str, error: type[openai.APIStatusError], words: str
) -> None:
    """One call, for all the SDK's retries, and its user reads why."""
    front = await proxy()
    async with openai_client(front.port, api_key=key) as client:
        assert client.max_retries > 0
        with pytest.raises(error, match=words):
            await say(client, content)
    await front.log.nth(0)
    assert len(front.log.requests()) == 1
    assert front.upstream.requests == []


@pytest.mark.case("CC-05")
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/", 404),
        ("GET", "/", 404),
        ("POST", "/v1/messages/count_tokens", 200),
        ("GET", "/api/tags", 404),
        ("GET", "/v1", 404),
        ("POST", "/chat/completions", 404),
        ("GET", "/v1/responses", 405),
        ("GET", "/favicon.ico", 404),
    ],
)
async def test_what_agents_try(proxy: Launch, method: str, path: str, status: int) -> None:
    """401 first; then it is forwarded, or it is not there, in JSON."""
    front = await proxy()
    body = chat() if method == "POST" else b""
    for fields, expected in ((JSON, 401), ({**JSON, **BEARER}, status)):
        client = await front.connect()
        answer = await client.request(method, path, fields, body)
        assert answer.status == expected
        assert answer.header(b"content-type") == b"application/json"
        if expected == 200:
            assert front.upstream.requests[0].target == path.encode()
            continue
        assert front.upstream.requests == []
        if method == "HEAD":
            assert answer.body == b""
            assert int(answer.header(b"content-length") or b"0") > 0
        else:
            assert answer.json()["error"]["message"]


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
    {"role": "assistant", "content": "", "tool_calls": None},
    {"role": "assistant"},
]


@pytest.mark.case("CC-06")
async def test_a_history_with_tools(proxy: Launch) -> None:
    """Null and missing contents are forwarded as they are."""
    front = await proxy()
    body = compact({"messages": HISTORY, "max_tokens": 9})
    assert (await front.chat(body)).status == 200
    assert front.upstream.requests[0].body == body


@pytest.mark.case("CC-06")
@pytest.mark.parametrize("more", [{}, {"content": None}, {"content": None, "tool_calls": None}])
async def test_null_counts_nothing(proxy: Launch, more: dict[str, None]) -> None:
    """A message without content takes nothing of the cap: full with it, over with a character."""
    front = await proxy()
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "x" * 10_000},
        {"role": "assistant", **more},
    ]
    assert (await front.chat(compact({"messages": messages}))).status == 200
    messages[0]["content"] = "x" * 10_001
    refused = await front.chat(compact({"messages": messages}))
    assert refused.status == 400
    assert "10,001" in refused.json()["error"]["message"]


EVENTS = [upstreams.SSE_HEAD, upstreams.event("a"), upstreams.chunk(upstreams.DONE)]
STREAM = upstreams.sse("a") + upstreams.DONE


@pytest.mark.case("CC-08")
@pytest.mark.parametrize(
    ("accept", "fields"),
    [
        pytest.param("text/event-stream", {}, id="only accept says it"),
        pytest.param("application/json", {"stream": True}, id="only the flag says it"),
        pytest.param("*/*", {"stream": True}, id="true"),
        pytest.param("*/*", {"stream": "true"}, id="a string"),
        pytest.param("*/*", {"stream": 1}, id="a number"),
        pytest.param("*/*", {"stream": None}, id="null"),
        pytest.param("*/*", {"stream": False}, id="false"),
    ],
)
async def test_the_answer_says_whether_it_is_a_stream(
    proxy: Launch, accept: str, fields: dict[str, object]
) -> None:
    """Whatever was asked for, each kind of answer arrives with its own type and framing."""
    front = await proxy()
    body = chat(max_tokens=9, **fields)
    front.upstream.script.extend(
        [[*EVENTS, upstreams.LAST_CHUNK], [upstreams.response(upstreams.COMPLETION)]]
    )
    events = await front.chat(body, Accept=accept)
    assert (events.status, events.body, events.complete) == (200, STREAM, True)
    assert events.header(b"content-type") == b"text/event-stream; charset=utf-8"
    assert events.header(b"transfer-encoding") == b"chunked"
    whole = await front.chat(body, Accept=accept)
    assert (whole.status, whole.body) == (200, upstreams.COMPLETION)
    assert whole.header(b"content-type") == b"application/json"
    assert whole.header(b"content-length") == b"%d" % len(upstreams.COMPLETION)
    for request in front.upstream.requests:
        assert (request.body, request.header(b"accept")) == (body, accept.encode())
