"""The OpenAI SDK for Python gets through the proxy what it gets without one.

In front of the stand-in model server, or of a real engine where the small model there can do it.
"""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionMessageParam,
    ChatCompletionToolParam,
)
from pydantic import BaseModel

from tests.clients.conftest import Client
from tests.harness.running import KEY, Launch, Running

pytestmark = pytest.mark.both_ways

STANDIN = pytest.mark.usefixtures("standin_only")

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
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello there"}]


class City(BaseModel):
    """A place."""

    name: str
    people: int | None


class Trip(BaseModel):
    """Structured output with a reference, a list and an alternative."""

    cities: list[City]
    price: float


@pytest.fixture(scope="module")
def tried() -> Client:
    """For the table."""
    return Client("openai-python", openai.__version__)


def client_of(running: Running) -> openai.AsyncOpenAI:
    """The SDK as people set it up: a base URL and a key."""
    base_url = f"http://127.0.0.1:{running.port}/v1"
    return openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0)


@STANDIN
async def test_chat(front: Launch) -> None:
    """An answer, its usage, and our request id where the SDK looks for it; any model's name."""
    async with client_of(await front()) as client:
        answer = await client.chat.completions.create(model="any/name:1", messages=HELLO)
    assert "hello there" in (answer.choices[0].message.content or "")
    assert answer.model == "any/name:1"
    assert answer.usage is not None
    assert answer.usage.total_tokens > 0
    assert len(answer._request_id or "") == 32


async def test_a_streamed_chat(front: Launch, model: str) -> None:
    """Piece by piece, with the usage chunk that was asked for."""
    async with client_of(await front()) as client:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "SAY:one two three four"}],
            max_tokens=100,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert len(chunks) > 4
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


async def test_the_synchronous_client(front: Launch, model: str) -> None:
    """Is another program underneath: an answer, a stream and the models."""
    running = await front()

    def program() -> tuple[str | None, int, list[str]]:
        base_url = f"http://127.0.0.1:{running.port}/v1"
        with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
            answer = client.chat.completions.create(model=model, messages=HELLO, max_tokens=9)
            with client.chat.completions.create(
                model=model, messages=HELLO, max_tokens=9, stream=True
            ) as stream:
                chunks = sum(1 for _ in stream)
            return answer.choices[0].message.content, chunks, [m.id for m in client.models.list()]

    content, chunks, models = await asyncio.to_thread(program)
    assert content
    assert chunks >= 9
    assert models[0] == model
    await running.log.nth(2)
    whole, streamed, listed = [line["outcome"] for line in running.log.requests()]
    assert whole == listed == "ok"
    # It may hang up at [DONE], and has had everything.
    assert streamed == "ok"


@STANDIN
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_tool_call(front: Launch, streamed: bool) -> None:
    """The bug of record: tools and tool_choice must reach the model, and the result the next turn."""
    answer: ChatCompletion
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "weather in Paris?"}]
    async with client_of(await front()) as client:
        if streamed:
            async with client.chat.completions.stream(
                model="m", messages=messages, tools=[WEATHER], tool_choice="auto"
            ) as stream:
                events = [event async for event in stream]
                answer = await stream.get_final_completion()
            kinds = [event.type for event in events]
            assert kinds.count("tool_calls.function.arguments.delta") > 1
        else:
            answer = await client.chat.completions.create(
                model="m",
                messages=messages,
                tools=[WEATHER],
                tool_choice={"type": "function", "function": {"name": "get_weather"}},
            )
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        assert answer.choices[0].finish_reason == "tool_calls"
        messages += [
            {"role": "assistant", "tool_calls": [call.to_dict()]},  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        told = await client.chat.completions.create(model="m", messages=messages, tools=[WEATHER])
    assert "sunny" in (told.choices[0].message.content or "")


@STANDIN
async def test_structured_output(front: Launch) -> None:
    """The SDK makes a schema of a class, and an object of that class of the answer."""
    async with client_of(await front()) as client:
        parsed = await client.chat.completions.parse(
            model="m", messages=HELLO, response_format=Trip
        )
        assert parsed.choices[0].message.parsed == Trip(
            cities=[City(name="Paris", people=1)], price=1.5
        )
        async with client.chat.completions.stream(
            model="m", messages=HELLO, response_format=Trip
        ) as stream:
            streamed = await stream.get_final_completion()
        assert streamed.choices[0].message.parsed == parsed.choices[0].message.parsed
        called = await client.chat.completions.parse(
            model="m", messages=HELLO, tools=[openai.pydantic_function_tool(City)]
        )
        (call,) = called.choices[0].message.tool_calls or []
        assert call.function.parsed_arguments == City(name="Paris", people=1)
        response = await client.responses.parse(model="m", input="hello", text_format=Trip)
        assert response.output_parsed == parsed.choices[0].message.parsed


@STANDIN
async def test_an_answer_that_the_cap_cut_is_told_as_such(front: Launch) -> None:
    """Half a JSON object is no object: the SDK raises because the finish reason got through."""
    async with client_of(await front(max_output_tokens=3, max_choices=1)) as client:
        with pytest.raises(openai.LengthFinishReasonError):
            await client.chat.completions.parse(model="m", messages=HELLO, response_format=Trip)


@STANDIN
async def test_thoughts(front: Launch) -> None:
    """Fields that the SDK has no name for are there all the same, whole and streamed."""
    async with client_of(await front()) as client:
        answer = await client.chat.completions.create(
            model="m", messages=HELLO, reasoning_effort="low"
        )
        whole = (answer.choices[0].message.model_extra or {})["reasoning_content"]
        stream = await client.chat.completions.create(
            model="m", messages=HELLO, reasoning_effort="low", stream=True
        )
        deltas = [chunk.choices[0].delta.model_extra or {} async for chunk in stream]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == whole != ""


async def test_responses(front: Launch, model: str) -> None:
    """Whole, and as the events of a stream in their order."""
    async with client_of(await front()) as client:
        response = await client.responses.create(model=model, input="hello", max_output_tokens=40)
        assert response.output_text
        stream = await client.responses.create(
            model=model, input="hello", max_output_tokens=40, stream=True
        )
        events = [event async for event in stream]
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta")
    numbers = [event.sequence_number for event in events]
    # llama.cpp does not number them.
    assert numbers in (list(range(len(events))), [None] * len(events))


@STANDIN
async def test_a_tool_call_of_responses(front: Launch) -> None:
    """As an item of the output, and what it gave as an item of the next input."""
    tool: Any = {"type": "function", **WEATHER["function"], "strict": False}
    async with client_of(await front()) as client:
        async with client.responses.stream(model="m", input="weather?", tools=[tool]) as stream:
            kinds = [event.type async for event in stream]
            response = await stream.get_final_response()
        (item,) = response.output
        assert item.type == "function_call"
        assert json.loads(item.arguments) == {"city": "Paris"}
        assert kinds.count("response.function_call_arguments.delta") > 1
        call: Any = item.to_dict()
        result: Any = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        told = await client.responses.create(
            model="m",
            input=[call, result],
            tools=[tool],
        )
    assert "sunny" in told.output_text


@STANDIN
async def test_embeddings(front: Launch) -> None:
    """The SDK asks for base64 unless told otherwise; the numbers are the same, and as many as asked."""
    async with client_of(await front()) as client:
        packed = await client.embeddings.create(model="m", input=["a", "b"])
        plain = await client.embeddings.create(
            model="m", input=["a", "b"], encoding_format="float", dimensions=8
        )
        tokens = await client.embeddings.create(model="m", input=[[1, 2, 3], [4]])
    assert [item.embedding for item in packed.data] == [
        pytest.approx(item.embedding) for item in plain.data
    ]
    assert len(tokens.data) == 2


async def test_completions(front: Launch, model: str) -> None:
    """The old API, whole and streamed."""
    async with client_of(await front()) as client:
        completion = await client.completions.create(model=model, prompt="once", max_tokens=5)
        assert completion.choices[0].text
        stream = await client.completions.create(
            model=model, prompt="once", max_tokens=5, stream=True
        )
        assert len([chunk async for chunk in stream]) >= 5


async def test_models(front: Launch, model: str) -> None:
    """Can be listed; one by one is no route of ours, and the SDK says so."""
    running = await front()
    async with client_of(running) as client:
        assert model in [each.id async for each in client.models.list()]
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve(model)
    assert caught.value.code == "not_found"
    await running.log.nth(1)
    assert len(running.log.requests()) == 2


async def test_a_clamp_is_told_in_a_header(front: Launch, model: str) -> None:
    """Where whoever looks at raw responses finds it, of a stream as well."""
    async with client_of(await front(max_output_tokens=7, max_choices=1)) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=model, messages=HELLO, max_tokens=32_000
        )
        async with client.chat.completions.with_streaming_response.create(
            model=model, messages=HELLO, max_completion_tokens=32_000, stream=True
        ) as streamed:
            pieces = [chunk async for chunk in await streamed.parse()]
    assert raw.headers["x-bulwark-clamped"] == "max_tokens 32000 -> 7"
    usage = raw.parse().usage
    assert usage is not None
    assert usage.completion_tokens == 7
    assert streamed.headers["x-bulwark-clamped"] == "max_completion_tokens 32000 -> 7"
    assert pieces[-1].choices[0].finish_reason == "length"


async def test_what_the_sdk_sends_is_what_the_engine_gets(proxy: Launch) -> None:
    """Everything that people put into extra_body, and an image, byte for byte."""
    running = await proxy()
    sent: list[bytes] = []
    image = "data:image/png;base64,iVBORw0KGgo="
    async with client_of(running) as client:
        watched = client.with_options(http_client=_watching(sent))
        async with watched:
            await watched.chat.completions.create(
                model="m",
                max_tokens=50,
                messages=[
                    {"role": "system", "content": "be brïef ☃"},
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "what is it?"},
                            {"type": "image_url", "image_url": {"url": image}},
                        ],
                    },
                ],
                temperature=0.0,
                seed=7,
                logit_bias={"5": -100},
                tools=[WEATHER],
                extra_body={
                    "top_k": 5,
                    "repetition_penalty": 1.0,
                    "chat_template_kwargs": {"enable_thinking": False},
                    "zz_future": {"a": [1, None]},
                },
            )
    assert [request.body for request in running.upstream.requests] == sent
    assert b'"zz_future"' in sent[0]


def _watching(sent: list[bytes]) -> openai.DefaultAsyncHttpxClient:
    """The SDK's own HTTP client, which remembers the bodies that it sends."""

    async def remember(request: Any) -> None:
        sent.append(request.content)

    return openai.DefaultAsyncHttpxClient(event_hooks={"request": [remember]})
