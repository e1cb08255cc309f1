"""The real OpenAI and Anthropic SDKs through the whole proxy.

In front of the stand-in model server where an answer has to make sense, and of the misbehaving
upstream where it must not.
"""

import socket
from collections.abc import AsyncIterator, Callable

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletion, ChatCompletionToolParam

from proxy import standin
from tests.harness import upstream as upstreams
from tests.harness.running import KEY, Launch, Running

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest_asyncio.fixture(loop_scope="module")
async def model_server() -> AsyncIterator[str]:
    """The stand-in on a real socket; gives its URL."""
    async with standin.serving(word_seconds=0) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="module")
async def real(proxy: Launch, model_server: str) -> Running:
    """A proxy in front of the stand-in."""
    return await proxy(upstream_url=model_server)


def client_of(running: Running, key: str = KEY, retries: int = 0) -> openai.AsyncOpenAI:
    """The SDK as people set it up: a base URL and a key."""
    base_url = f"http://127.0.0.1:{running.port}/v1"
    return openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=retries)


async def test_chat(real: Running) -> None:
    """An answer, its usage, and our request id where the SDK looks for it."""
    async with client_of(real) as client:
        answer = await client.chat.completions.create(
            model="any/name:1", messages=[{"role": "user", "content": "hello there"}]
        )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.total_tokens > 0
    assert len(answer._request_id or "") == 32


async def test_a_streamed_chat(real: Running) -> None:
    """Piece by piece, with the usage chunk that was asked for."""
    async with client_of(real) as client:
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "one two three four"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert len(chunks) > 4
    assert "three" in text
    assert chunks[-1].usage is not None


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_tool_call(real: Running, streamed: bool) -> None:
    """The bug of record: tools and tool_choice must reach the model."""
    answer: ChatCompletion
    async with client_of(real) as client:
        if streamed:
            async with client.chat.completions.stream(
                model="m",
                messages=[{"role": "user", "content": "weather in Paris?"}],
                tools=[WEATHER],
                tool_choice="auto",
            ) as stream:
                answer = await stream.get_final_completion()
        else:
            answer = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "weather in Paris?"}],
                tools=[WEATHER],
                tool_choice={"type": "function", "function": {"name": "get_weather"}},
            )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.name == "get_weather"
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_the_other_routes(real: Running) -> None:
    """Models, completions, responses, embeddings."""
    async with client_of(real) as client:
        assert [model.id async for model in await client.models.list()]
        completion = await client.completions.create(model="m", prompt="once", max_tokens=5)
        assert completion.choices[0].text
        response = await client.responses.create(model="m", input="hello")
        assert response.output_text
        events = [e.type async for e in await client.responses.create(
            model="m", input="hello", stream=True)]  # fmt: skip
        assert events[-1] == "response.completed"
        vectors = await client.embeddings.create(model="m", input=["a", "b"])
        assert len(vectors.data) == 2


async def test_a_clamp_is_told_in_a_header(real: Running) -> None:
    """Where whoever looks at raw responses finds it."""
    async with client_of(real) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=32_000
        )
    assert raw.headers["x-bulwark-clamped"] == "max_tokens 32000 -> 4096"
    assert raw.parse().choices


async def test_anthropic_messages(real: Running) -> None:
    """With x-api-key, as its SDK sends it: one answer, a stream, a tool, a count."""
    base_url = f"http://127.0.0.1:{real.port}"
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key=KEY, max_retries=0) as client:
        answer = await client.messages.create(
            model="m", max_tokens=64, messages=[{"role": "user", "content": "hello there"}]
        )
        assert answer.content[0].type == "text"
        async with client.messages.stream(
            model="m", max_tokens=64, messages=[{"role": "user", "content": "hello there"}]
        ) as stream:
            text = "".join([piece async for piece in stream.text_stream])
        assert "hello" in text
        called = await client.messages.create(
            model="m",
            max_tokens=64,
            messages=[{"role": "user", "content": "weather?"}],
            tools=[{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
        )
        assert called.stop_reason == "tool_use"
        counted = await client.messages.count_tokens(
            model="m", messages=[{"role": "user", "content": "hello there"}]
        )
        assert counted.input_tokens > 0


async def test_anthropic_errors(proxy: Launch) -> None:
    """Its SDK reads our refusals: 401, 403, 400 and the words it compacts by."""
    running = await proxy()
    base_url = f"http://127.0.0.1:{running.port}"
    messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": "x" * 10_001}]
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key=KEY, max_retries=0) as client:
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await client.messages.create(model="m", max_tokens=1, messages=messages)
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="no", max_retries=0) as client:
        with pytest.raises(anthropic.PermissionDeniedError):
            await client.messages.create(model="m", max_tokens=1, messages=messages)
    assert running.upstream.requests == []


async def hello(client: openai.AsyncOpenAI, content: str = "hi") -> object:
    """The smallest chat."""
    return await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": content}]
    )


async def test_401_without_a_key(proxy: Launch) -> None:
    """The SDK cannot leave it out, but its header can be taken away."""
    running = await proxy()

    async def strip(request: httpx.Request) -> None:
        del request.headers["Authorization"]

    http_client = openai.DefaultAsyncHttpxClient(event_hooks={"request": [strip]})
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{running.port}/v1",
        api_key="x",
        max_retries=2,
        http_client=http_client,
    ) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await hello(client)
    assert caught.value.code == "missing_api_key"
    assert len(running.log.requests()) == 1


async def test_403_with_a_wrong_key(proxy: Launch) -> None:
    """One call, not retried."""
    running = await proxy()
    async with client_of(running, "sk-wrong", retries=2) as client:
        with pytest.raises(openai.PermissionDeniedError) as caught:
            await hello(client)
    assert caught.value.code == "invalid_api_key"
    assert len(running.log.requests()) == 1


@pytest.mark.parametrize(
    ("content", "code", "error"),
    [
        pytest.param("x" * 10_001, "context_length_exceeded", openai.BadRequestError, id="400"),
        pytest.param("x" * 3_000_000, "body_too_large", openai.APIStatusError, id="413"),
    ],
)
async def test_policy_refusals_reach_the_user_in_one_call(
    proxy: Launch, content: str, code: str, error: type[openai.APIStatusError]
) -> None:
    """Statuses that SDKs do not retry, and a message that names the setting."""
    running = await proxy()
    async with client_of(running, retries=2) as client:
        with pytest.raises(error, match="PROXY_MAX_") as caught:
            await hello(client, content)
    assert caught.value.code == code
    assert len(running.log.requests()) == 1
    assert running.upstream.requests == []


async def test_the_upstreams_429_is_retried_as_it_says(proxy: Launch) -> None:
    """The SDK sees its Retry-After, and then the answer."""
    running = await proxy()
    slow_down = b'{"error":{"message":"slow down","code":"rate_limit_exceeded"}}'
    headers = [(b"Content-Type", b"application/json"), (b"Retry-After", b"0")]
    running.upstream.script.append([upstreams.response(slow_down, 429, headers)])
    async with client_of(running, retries=1) as client:
        assert await hello(client)
    assert len(running.upstream.requests) == 2
    running.upstream.script.append([upstreams.response(slow_down, 429, headers)])
    async with client_of(running) as client:
        with pytest.raises(openai.RateLimitError, match="slow down"):
            await hello(client)


async def test_503_where_nobody_listens(proxy: Launch) -> None:
    """The code and the time to wait."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = await proxy(upstream_url=f"http://127.0.0.1:{port}")
    async with client_of(running) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await hello(client)
    assert (caught.value.status_code, caught.value.code) == (503, "upstream_unavailable")
    assert caught.value.response.headers["retry-after"] == "5"


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda: [upstreams.SSE_HEAD, upstreams.event("{}"), upstreams.End.RESET], id="RST"
        ),
        pytest.param(
            lambda: [upstreams.SSE_HEAD, upstreams.event("{}"), upstreams.End.FIN], id="FIN"
        ),
    ],
)
async def test_a_stream_that_dies_does_not_look_complete(
    proxy: Launch, make: Callable[[], list[upstreams.Step]]
) -> None:
    """The SDK raises; no [DONE] was invented."""
    running = await proxy()
    running.upstream.reply = make()
    async with client_of(running) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises((httpx.RemoteProtocolError, openai.APIError)):
            async for _ in stream:
                pass
    await running.idle()
    assert running.log.requests()[-1]["outcome"] == "upstream_error"


async def test_closing_a_stream_stops_the_model(proxy: Launch) -> None:
    """What a user's stop button does."""
    running = await proxy()
    running.upstream.reply = [
        upstreams.SSE_HEAD,
        upstreams.event(upstreams.completion_chunk({"content": "a"})),
        upstreams.End.SILENCE,
    ]
    async with client_of(running) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        assert (await anext(aiter(stream))).choices
        await stream.close()
        await running.upstream.connection_closed(0, within=1.0)
    await running.idle()
    assert running.log.requests()[-1]["outcome"] == "client_disconnected"
