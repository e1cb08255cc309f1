"""Anthropic's SDK for JavaScript through the whole proxy."""

import json
from typing import Any

import pytest

from tests.clients.conftest import Client
from tests.clients.node.conftest import a_late_error
from tests.harness import javascript
from tests.harness import upstream as upstreams
from tests.harness.figures import Figures
from tests.harness.hangup import stops_the_model
from tests.harness.javascript import Program, at
from tests.harness.running import KEY, Launch

pytestmark = pytest.mark.clients

PROGRAM = "anthropic.mjs"

SAID: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def named(value: dict[str, Any]) -> bytes:
    """A server-sent event with its type as its name, as one chunk."""
    name = b"event: %b\n" % value["type"].encode()
    return upstreams.chunk(name + upstreams.sse(json.dumps(value)))


@pytest.fixture(scope="module")
def tried() -> Client:
    """Whom this module tries."""
    return Client("@anthropic-ai/sdk", javascript.version("@anthropic-ai/sdk"))


async def test_a_message(front: Launch, scenes: Program, model: str) -> None:
    """An answer and its usage, asked for with x-api-key."""
    running = await front()
    seen = await scenes.play("message", content="hello there", **at(running, model=model))
    assert seen["text"]
    assert seen["usage"]["output_tokens"] > 0
    line = await running.log.nth(0)
    assert (line["outcome"], line["key_id"]) == ("ok", "env-1")


async def test_the_key_stays_here(proxy: Launch, scenes: Program) -> None:
    """Neither in x-api-key nor anywhere else does the engine see it."""
    running = await proxy()
    running.upstream.reply = [upstreams.response(json.dumps(SAID).encode())]
    await scenes.play("message", content="hi", **at(running))
    (request,) = running.upstream.requests
    assert request.header(b"x-api-key") is None
    assert KEY.encode() not in request.head + request.body


async def test_a_bearer_token(front: Launch, scenes: Program, model: str) -> None:
    """The SDK's other credential."""
    given = at(await front(), model=model)
    seen = await scenes.play("message", content="hi", **{**given, "key": None, "authToken": KEY})
    assert seen["text"]


async def test_a_streamed_message(front: Launch, scenes: Program, model: str) -> None:
    """From the first event to the last."""
    seen = await scenes.play("streamedMessage", content="hello", **at(await front(), model=model))
    assert (seen["types"][0], seen["types"][-1]) == ("message_start", "message_stop")
    assert seen["types"].count("content_block_delta") > 1
    assert seen["text"]


@pytest.mark.usefixtures("standin_only")
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_tool_call(front: Launch, scenes: Program, streamed: bool) -> None:
    """Whole or in pieces, the call of the tool that was offered."""
    seen = await scenes.play("toolCall", streamed=streamed, **at(await front()))
    assert seen["stop"] == "tool_use"
    assert (seen["call"]["name"], seen["call"]["input"]) == ("get_weather", {"city": "Paris"})


@pytest.mark.usefixtures("standin_only")
async def test_counting_tokens(front: Launch, scenes: Program) -> None:
    """What agents do before each turn."""
    assert await scenes.play("count", content="hello there you", **at(await front())) == 3


async def test_thinking_with_a_budget_over_the_cap(proxy: Launch, scenes: Program) -> None:
    """Both numbers are lowered, the budget stays under the output, and the client learns it."""
    running = await proxy()
    running.upstream.reply = [
        upstreams.SSE_HEAD,
        named({"type": "message_start", "message": SAID}),
        named({"type": "message_stop"}),
        upstreams.LAST_CHUNK,
    ]
    seen = await scenes.play("thinking", **at(running))
    assert seen["types"] == ["message_start", "message_stop"]
    assert "max_tokens 32000 -> 4096" in seen["clamped"]
    body: Any = running.upstream.requests[0].json()
    assert body["max_tokens"] == 4096
    assert body["thinking"]["budget_tokens"] < 4096


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        pytest.param(
            {"key": None, "defaultHeaders": {"x-api-key": None, "authorization": None}},
            ("AuthenticationError", 401, "key"),
            id="no key",
        ),
        pytest.param({"key": "wrong"}, ("PermissionDeniedError", 403, "key"), id="a wrong key"),
        pytest.param(
            {"length": 10_001},
            ("BadRequestError", 400, "prompt is too long"),
            id="a prompt over the cap, in the words that agents compact by",
        ),
        pytest.param(
            {"length": 3_000_000},
            ("ContentTooLargeError", 413, "PROXY_MAX_BODY_BYTES"),
            id="a body over the cap",
        ),
    ],
)
async def test_a_refusal_is_one_call(
    proxy: Launch, scenes: Program, asked: dict[str, Any], wanted: tuple[str, int, str]
) -> None:
    """CC-04: with the SDK's own retries, one call, an error of its class, words that help."""
    running = await proxy()
    error = await scenes.play("refused", **{**at(running), **asked})
    assert (error["name"], error["status"]) == wanted[:2]
    assert wanted[2] in error["message"]
    assert len(running.log.requests()) == 1
    assert running.upstream.requests == []


async def test_an_error_in_place_of_a_stream_is_raised(proxy: Launch, scenes: Program) -> None:
    """After comments, and in the engine's own words."""
    error = b'{"type":"error","error":{"type":"overloaded_error","message":"out of pages"}}'
    seen = await a_late_error(proxy, scenes, error)
    assert "out of pages" in seen["error"]["message"]


@pytest.mark.parametrize("end", [upstreams.End.FIN, upstreams.End.RESET])
async def test_a_stream_that_dies_does_not_look_complete(
    proxy: Launch, scenes: Program, end: upstreams.End
) -> None:
    """The loop over it throws; no message_stop was invented."""
    running = await proxy()
    first = named({"type": "message_start", "message": SAID})
    running.upstream.reply = [upstreams.SSE_HEAD, first, end]
    seen = await scenes.play("aStreamThatDies", **at(running))
    assert seen["types"] == ["message_start"]
    assert seen["error"]["name"] == "AnthropicError"
    await running.idle()
    (line,) = running.log.requests()
    assert line["outcome"] == "upstream_error"


async def test_leaving_a_stream_stops_the_model(
    proxy: Launch, scenes: Program, figures: Figures
) -> None:
    """What a user's stop button does: the upstream's connection is closed within a second."""
    running = await proxy()
    first = named({"type": "message_start", "message": SAID})
    running.upstream.reply = [upstreams.SSE_HEAD, first, upstreams.End.SILENCE]
    await scenes.begin("stopAStream", **at(running))
    assert await scenes.told() == "stopping"
    await stops_the_model(running, figures, "@anthropic-ai/sdk, AbortController")
    await scenes.result()
