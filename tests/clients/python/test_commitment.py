"""What the Python SDKs make of a stream that was begun in the engine's place."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest

from proxy.keepalive import COMMENT
from tests.clients.conftest import Client
from tests.harness import upstream as upstreams
from tests.harness.running import KEY, Launch, Running
from tests.harness.upstream import End, Script, Step, completion_chunk, response

pytestmark = pytest.mark.both_ways

COMMITTING: dict[str, Any] = {"sse_keepalive_seconds": 0.02, "sse_commit_seconds": 0.02}
HELLO: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tried() -> Client:
    """For the table."""
    versions = f"openai {openai.__version__}, anthropic {anthropic.__version__}"
    return Client("python SDKs, committed", versions)


Events = AsyncIterator[Any]
Ask = Callable[[Running], Events]


async def _openai(running: Running, ask: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Events:
    base_url = f"http://127.0.0.1:{running.port}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        async for each in await ask(client):
            yield each


async def _anthropic(running: Running) -> Events:
    base_url = f"http://127.0.0.1:{running.port}"
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key=KEY) as client:
        stream = await client.messages.create(model="m", max_tokens=5, messages=HELLO, stream=True)
        async for each in stream:
            yield each


def chat(running: Running) -> Events:
    """Chat completions."""
    return _openai(
        running,
        lambda c: c.chat.completions.create(model="m", messages=HELLO, stream=True),
    )


def completions(running: Running) -> Events:
    """Completions."""
    return _openai(running, lambda c: c.completions.create(model="m", prompt="hi", stream=True))


def responses(running: Running) -> Events:
    """Responses."""
    return _openai(running, lambda c: c.responses.create(model="m", input="hi", stream=True))


async def chat_helper(running: Running) -> Events:
    """Chat completions through the SDK's own accumulation."""
    base_url = f"http://127.0.0.1:{running.port}/v1"
    async with (
        openai.AsyncOpenAI(base_url=base_url, api_key=KEY) as client,
        client.chat.completions.stream(model="m", messages=HELLO) as stream,
    ):
        async for each in stream:
            yield each


async def responses_helper(running: Running) -> Events:
    """Responses through the SDK's own accumulation."""
    base_url = f"http://127.0.0.1:{running.port}/v1"
    async with (
        openai.AsyncOpenAI(base_url=base_url, api_key=KEY) as client,
        client.responses.stream(model="m", input="hi") as stream,
    ):
        async for each in stream:
            yield each


async def messages_helper(running: Running) -> Events:
    """Messages through the SDK's own accumulation."""
    base_url = f"http://127.0.0.1:{running.port}"
    async with (
        anthropic.AsyncAnthropic(base_url=base_url, api_key=KEY) as client,
        client.messages.stream(model="m", max_tokens=5, messages=HELLO) as stream,
    ):
        async for each in stream:
            yield each


PLAIN = [chat, completions, responses, _anthropic]
HELPERS = [chat_helper, responses_helper, messages_helper]


def after_comments(*steps: Step) -> Script:
    """These steps, each after a time in which five comments are due, on the proxy's own loop."""
    for step in steps:
        due = asyncio.Event()
        asyncio.get_running_loop().call_later(5 * COMMITTING["sse_keepalive_seconds"], due.set)
        yield due
        yield step


def an_error(error: object, status: int = 500) -> bytes:
    """An answer with this error object."""
    return response(json.dumps({"error": error}).encode(), status)


@pytest.mark.parametrize("ask", [*PLAIN, *HELPERS])
@pytest.mark.parametrize(
    ("step", "message"),
    [
        pytest.param(
            an_error({"message": "no model", "type": "t", "code": 404}, 404), "no model",
            id="an error of the engine's",
        ),
        pytest.param(
            an_error({"message": "no", "type": [1], "code": {"a": "b"}, "param": 7}), "no",
            id="an error of members of no known type",
        ),
        pytest.param(
            an_error({"message": "a\u2028\u0085b\n\ndata: [DONE]\n\n"}), "DONE",
            id="an error that would be an event",
        ),
        pytest.param(response(b"", 503), "status 503", id="a status alone"),
        pytest.param(response(b"{}"), "something else", id="an answer in one piece"),
        pytest.param(End.RESET, "broke", id="a reset"),
        pytest.param(End.SILENCE, "FIRST_BYTE", id="a silence without end"),
    ],
)  # fmt: skip
async def test_an_error_event_is_raised(proxy: Launch, ask: Ask, step: Step, message: str) -> None:
    """Each way to stream raises with the message, after no event at all, and asks once."""
    running = await proxy(
        **COMMITTING, first_byte_timeout_seconds=0.4 if step is End.SILENCE else 60
    )
    running.upstream.reply = lambda _: after_comments(step)
    events: list[Any] = []
    with pytest.raises((openai.APIError, anthropic.APIError)) as caught:
        events += [each async for each in ask(running)]
    assert message in str(caught.value)
    assert events == []
    line = await running.log.nth(0)
    ends = {(200, "upstream_error"), (200, "upstream_timeout"), (404, "ok")}
    assert (line["status"], line["outcome"]) in ends
    assert (line["status"] == 404) == (message == "no model")
    assert len(running.log.requests()) == 1


def _named(data: dict[str, Any]) -> bytes:
    return upstreams.chunk(f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode())


TEXT = {"text": "a", "index": 0, "finish_reason": None, "logprobs": None}
PIECE = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [TEXT]}
DELTA = {
    "type": "response.output_text.delta",
    "item_id": "i",
    "output_index": 0,
    "content_index": 0,
    "delta": "a",
    "logprobs": [],
    "sequence_number": 1,
}


@pytest.mark.parametrize(
    ("ask", "event"),
    [
        pytest.param(
            chat, upstreams.event(completion_chunk({"role": "assistant", "content": "a"})),
            id="chat",
        ),
        pytest.param(completions, upstreams.event(json.dumps(PIECE)), id="completions"),
        pytest.param(responses, _named(DELTA), id="responses"),
        pytest.param(_anthropic, _named({"type": "message_stop"}), id="messages"),
    ],
)  # fmt: skip
async def test_comments_are_no_events(proxy: Launch, ask: Ask, event: bytes) -> None:
    """Before the engine's head, and between its events, each of which comes once."""
    running = await proxy(**COMMITTING)
    head, last = upstreams.SSE_HEAD, upstreams.LAST_CHUNK
    running.upstream.reply = lambda _: after_comments(head, event, event + last)
    first, second = [each async for each in ask(running)]
    assert first == second
    line = await running.log.nth(0)
    assert line["outcome"] == "ok"
    told = len(event.split(b"\r\n")[1]) * 2
    assert line["bytes_out"] >= told + 3 * len(COMMENT)
    assert (line["bytes_out"] - told) % len(COMMENT) == 0
