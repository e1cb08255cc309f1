"""The Anthropic SDK for Python: answers from the stand-in, and refusals in its own error shape."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam
from pydantic import BaseModel

from tests.clients.conftest import Client
from tests.harness import upstream as upstreams
from tests.harness.running import KEY, Launch, Running
from tests.harness.upstream import End

pytestmark = pytest.mark.both_ways

STANDIN = pytest.mark.usefixtures("standin_only")

HELLO: list[MessageParam] = [{"role": "user", "content": "hello there"}]
WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
MESSAGE_HEAD = (
    "event: message_start\n"
    'data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
    '"model":"m","content":[],"stop_reason":null,"stop_sequence":null,'
    '"usage":{"input_tokens":1,"output_tokens":0}}}\n\n'
)


class City(BaseModel):
    """Structured output."""

    name: str
    people: int


@pytest.fixture(scope="module")
def tried() -> Client:
    """For the table."""
    return Client("anthropic-python", anthropic.__version__)


def client_of(running: Running, **options: Any) -> anthropic.AsyncAnthropic:
    """The SDK as people set it up: its base URL has no ``/v1``.

    This version sends its key as a bearer token; others, and other languages', as ``x-api-key``.
    """
    base_url = f"http://127.0.0.1:{running.port}"
    return anthropic.AsyncAnthropic(**{"base_url": base_url, "api_key": KEY, **options})


async def hello(client: anthropic.AsyncAnthropic, content: Any = "hi", **more: Any) -> object:
    """The smallest message."""
    messages: list[MessageParam] = [{"role": "user", "content": content}]
    given: dict[str, Any] = {"model": "m", "max_tokens": 16, "messages": messages, **more}
    return await client.messages.create(**given)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="as it is by default"),
        pytest.param({"api_key": None, "auth_token": KEY}, id="as a token"),
        pytest.param({"api_key": None, "default_headers": {"x-api-key": KEY}}, id="as x-api-key"),
        pytest.param({"default_headers": {"x-api-key": KEY}}, id="in both fields"),
    ],
)
async def test_a_message(front: Launch, model: str, how: dict[str, Any]) -> None:
    """Text, a reason to stop and what it cost, however the key is sent."""
    async with client_of(await front(), **how) as client:
        answer = await client.messages.create(model=model, max_tokens=64, messages=HELLO)
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert len(answer._request_id or "") == 32
    assert answer.usage.output_tokens > 0


async def test_a_stream(front: Launch, model: str) -> None:
    """Word by word, and the message that the SDK adds up."""
    async with (
        client_of(await front()) as client,
        client.messages.stream(model=model, max_tokens=64, messages=HELLO) as stream,
    ):
        pieces = [piece async for piece in stream.text_stream]
        message = await stream.get_final_message()
    assert len(pieces) > 4
    assert message.content[0].type == "text"
    assert message.content[0].text == "".join(pieces)
    assert message.usage.output_tokens > 0


async def test_the_synchronous_client(front: Launch, model: str) -> None:
    """Is another program underneath: a message and a stream."""
    running = await front()

    def program() -> tuple[str, str]:
        base_url = f"http://127.0.0.1:{running.port}"
        with anthropic.Anthropic(base_url=base_url, api_key=KEY) as client:
            answer = client.messages.create(model=model, max_tokens=20, messages=HELLO)
            with client.messages.stream(model=model, max_tokens=20, messages=HELLO) as stream:
                return answer.content[0].type, "".join(stream.text_stream)

    kind, text = await asyncio.to_thread(program)
    assert kind == "text"
    assert text
    await running.log.nth(1)
    whole, streamed = [line["outcome"] for line in running.log.requests()]
    assert whole == "ok"
    # It may hang up at message_stop, and has had everything.
    assert streamed == "ok"


@STANDIN
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_tool(front: Launch, streamed: bool) -> None:
    """Its input arrives, piece by piece if streamed, and what it gave goes back."""
    kinds: list[str] = []
    async with client_of(await front()) as client:
        asked: dict[str, Any] = {"model": "m", "max_tokens": 64, "tools": [WEATHER]}
        if streamed:
            async with client.messages.stream(messages=HELLO, **asked) as stream:
                kinds = [event.type async for event in stream]
                called = await stream.get_final_message()
            assert kinds.count("input_json") > 1
        else:
            asked["tool_choice"] = {"type": "tool", "name": "get_weather"}
            called = await client.messages.create(messages=HELLO, **asked)
        assert called.stop_reason == "tool_use"
        (use,) = called.content
        assert use.type == "tool_use"
        assert (use.name, use.input) == ("get_weather", {"city": "Paris"})
        result: Any = [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]
        messages: list[MessageParam] = [
            *HELLO,
            {"role": "assistant", "content": called.content},
            {"role": "user", "content": result},
        ]
        told = await client.messages.create(messages=messages, **asked)
    assert told.content[0].type == "text"
    assert "sunny" in told.content[0].text


@STANDIN
async def test_structured_output(front: Launch) -> None:
    """A class in, an object of it out."""
    async with client_of(await front()) as client:
        parsed = await client.messages.parse(
            model="m", max_tokens=64, messages=HELLO, output_format=City
        )
    assert parsed.parsed_output == City(name="Paris", people=1)


async def test_count_tokens(front: Launch, model: str) -> None:
    """Without generating anything."""
    async with client_of(await front()) as client:
        counted = await client.messages.count_tokens(model=model, messages=HELLO, tools=[WEATHER])
    assert counted.input_tokens > 0


@STANDIN
async def test_thinking_with_the_usual_32000_tokens(front: Launch) -> None:
    """Lowered with its budget, told in a header, and thoughts come before the answer."""
    running = await front()
    async with client_of(running) as client:
        with pytest.raises(ValueError, match="Streaming is required"):  # by the SDK itself
            await hello(client, max_tokens=32_000)
        async with client.messages.stream(
            model="m",
            max_tokens=32_000,
            thinking={"type": "enabled", "budget_tokens": 31_999},
            messages=HELLO,
        ) as stream:
            message = await stream.get_final_message()
            headers = stream.response.headers
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.stop_reason == "end_turn"
    clamped = "max_tokens 32000 -> 4096, thinking.budget_tokens 31999 -> 4095"
    assert headers["x-bulwark-clamped"] == clamped


async def test_what_the_engine_gets_of_32000_tokens(proxy: Launch) -> None:
    """A budget under the output, as Anthropic's API wants it, and no other byte changed."""
    running = await proxy()
    async with client_of(running) as client:
        answer = await client.messages.with_raw_response.create(
            model="m",
            max_tokens=32_000,
            thinking={"type": "enabled", "budget_tokens": 31_999},
            messages=HELLO,
            timeout=10.0,
        )
    assert answer.headers["x-bulwark-clamped"]
    (request,) = running.upstream.requests
    assert request.json() == {
        "model": "m",
        "max_tokens": 4096,
        "thinking": {"type": "enabled", "budget_tokens": 4095},
        "messages": HELLO,
    }
    assert request.target == b"/v1/messages"


async def _hello_with(client: anthropic.AsyncAnthropic, name: str, value: str | None) -> object:
    """Sends a message with a header changed behind the SDK's back; None takes it away."""

    async def change(request: Any) -> None:
        if value is None:
            del request.headers[name]
        else:
            request.headers[name] = value

    http_client = anthropic.DefaultAsyncHttpxClient(event_hooks={"request": [change]})
    async with client.with_options(http_client=http_client) as changed:
        return await hello(changed)


Ask = Callable[[anthropic.AsyncAnthropic], Awaitable[object]]


@pytest.mark.parametrize(
    ("ask", "error", "code", "message"),
    [
        pytest.param(
            lambda c: hello(c, "x" * 10_001),
            anthropic.BadRequestError, "context_length_exceeded", "prompt is too long",
            id="a prompt over the cap, in the words by which clients compact",
        ),
        pytest.param(
            lambda c: hello(c, "x" * 3_000_000),
            anthropic.APIStatusError, "body_too_large", "PROXY_MAX_BODY_BYTES",
            id="a body over the cap",
        ),
        pytest.param(
            lambda c: hello(c, max_tokens=0), anthropic.BadRequestError, "invalid_value",
            "max_tokens",
            id="no output at all",
        ),
        pytest.param(
            lambda c: hello(c, extra_body={"kv_transfer_params": {"prompt_token_ids": [1]}}),
            anthropic.BadRequestError, "field_refused", "kv_transfer_params",
            id="a field that replaces the prompt",
        ),
        pytest.param(
            lambda c: hello(c, [{"type": "image", "source": {
                "type": "url", "url": "http://127.0.0.1/x.png"}}]),
            anthropic.BadRequestError, "media_refused", "only sources of type base64",
            id="a picture to fetch",
        ),
        pytest.param(
            lambda c: c.messages.count_tokens(model="m", messages=[
                {"role": "user", "content": "x" * 10_001}]),
            anthropic.BadRequestError, "context_length_exceeded", "prompt is too long",
            id="too much to count",
        ),
        pytest.param(
            lambda c: hello(c.with_options(api_key="no")),
            anthropic.PermissionDeniedError, "invalid_api_key", "Ask the server's owner",
            id="a wrong key",
        ),
        pytest.param(
            lambda c: _hello_with(c, "authorization", None),
            anthropic.AuthenticationError, "missing_api_key", "x-api-key",
            id="no key",
        ),
        pytest.param(
            lambda c: _hello_with(c, "x-api-key", "another"),
            anthropic.AuthenticationError, "missing_api_key", "x-api-key",
            id="two keys that disagree",
        ),
        pytest.param(
            lambda c: c.messages.batches.list(),
            anthropic.NotFoundError, "not_found", "nothing at this path",
            id="a route that is not served",
        ),
    ],
)  # fmt: skip
async def test_a_refusal_is_told_in_one_call(
    proxy: Launch, ask: Ask, error: type[anthropic.APIStatusError], code: str, message: str
) -> None:
    """No status that the SDK would retry; its class, and words that say what to do."""
    running = await proxy()
    async with client_of(running) as client:
        assert client.max_retries == 2
        with pytest.raises(error, match=message):
            await ask(client)
    assert (await running.log.nth(0))["outcome"] == code
    assert len(running.log.requests()) == 1
    assert running.upstream.requests == []


async def test_the_upstreams_error_is_its_own(proxy: Launch) -> None:
    """With the class that its status has, and the type that it wrote."""
    running = await proxy()
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"says the engine"}}'
    running.upstream.reply = [upstreams.response(body, 529)]
    async with client_of(running, max_retries=0) as client:
        with pytest.raises(anthropic.APIStatusError, match="says the engine") as caught:
            await hello(client)
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")


async def test_closing_a_stream_stops_the_model(proxy: Launch) -> None:
    """What Ctrl-C does in an agent."""
    running = await proxy()
    running.upstream.reply = [
        upstreams.SSE_HEAD,
        upstreams.chunk(MESSAGE_HEAD.encode()),
        End.SILENCE,
    ]
    async with client_of(running) as client:
        async with client.messages.stream(model="m", max_tokens=16, messages=HELLO) as stream:
            assert (await anext(aiter(stream))).type == "message_start"
        await running.upstream.connection_closed(0, within=1.0)
    assert (await running.log.nth(0))["outcome"] == "client_disconnected"


@pytest.mark.parametrize("end", [End.RESET, End.FIN], ids=["RST", "FIN"])
async def test_a_stream_that_dies_does_not_look_complete(proxy: Launch, end: End) -> None:
    """The SDK raises; no message_stop was invented."""
    running = await proxy()
    running.upstream.reply = [upstreams.SSE_HEAD, upstreams.chunk(MESSAGE_HEAD.encode()), end]
    async with client_of(running) as client:
        with pytest.raises(Exception, match=r"(?i)peer closed|connection"):
            async with client.messages.stream(model="m", max_tokens=16, messages=HELLO) as stream:
                await stream.get_final_message()
    assert (await running.log.nth(0))["outcome"] == "upstream_error"
    assert len(running.log.requests()) == 1


@pytest.mark.parametrize("whose", ["the engine's", "ours"])
async def test_an_error_event_is_raised(proxy: Launch, whose: str) -> None:
    """In the middle of its stream, and after comments in the place of its answer."""
    running = await proxy(sse_keepalive_seconds=0.05, sse_commit_seconds=0.1)
    error = '{"type":"error","error":{"type":"overloaded_error","message":"out of pages"}}'
    answer = asyncio.Event()
    if whose == "ours":
        running.upstream.reply = [answer, upstreams.response(error.encode(), 529)]
    else:
        event = f"event: error\ndata: {error}\n\n".encode()
        running.upstream.reply = [
            upstreams.SSE_HEAD,
            upstreams.chunk(MESSAGE_HEAD.encode()),
            upstreams.chunk(event),
            upstreams.LAST_CHUNK,
        ]
    async with (
        client_of(running) as client,
        client.messages.stream(model="m", max_tokens=16, messages=HELLO) as stream,
    ):
        assert stream.response.status_code == 200
        answer.set()
        with pytest.raises(anthropic.APIStatusError, match="out of pages"):
            await stream.get_final_message()
    assert len(running.upstream.requests) == 1
