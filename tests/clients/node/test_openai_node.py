"""openai-node through the whole proxy.

In front of the stand-in model server where an answer has to make sense, and of the misbehaving
upstream where it must not.
"""

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
from tests.harness.running import Launch

pytestmark = pytest.mark.clients

PROGRAM = "openai.mjs"
MB = 1_000_000


@pytest.fixture(scope="module")
def tried() -> Client:
    """Whom this module tries."""
    return Client("openai-node", javascript.version("openai"))


async def test_a_chat(front: Launch, scenes: Program, model: str) -> None:
    """An answer, its usage, and our request id where the SDK looks for it."""
    running = await front()
    seen = await scenes.play("chat", content="hello there", **at(running, model=model))
    assert seen["text"]
    assert seen["usage"]["total_tokens"] > 0
    assert (await running.log.nth(0))["request_id"] == seen["id"]


async def test_a_streamed_chat(front: Launch, scenes: Program, model: str) -> None:
    """Piece by piece, with the usage chunk that was asked for."""
    running = await front()
    seen = await scenes.play("streamedChat", content="one two three", **at(running, model=model))
    assert seen["chunks"] > 4
    assert seen["text"]
    assert seen["usage"]["completion_tokens"] > 0


@pytest.mark.usefixtures("standin_only")
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_tool_call(front: Launch, scenes: Program, streamed: bool) -> None:
    """The bug of record: tools and tool_choice must reach the model, and its call the user."""
    seen = await scenes.play("toolCall", streamed=streamed, **at(await front()))
    assert seen["finish"] == "tool_calls"
    assert seen["call"]["function"]["name"] == "get_weather"
    assert json.loads(seen["call"]["function"]["arguments"]) == {"city": "Paris"}
    assert seen["pieces"] > 1 or not streamed


@pytest.mark.usefixtures("standin_only")
async def test_a_loop_of_tools(front: Launch, scenes: Program) -> None:
    """The replayed turn, with the assistant's content null, goes through as the SDK wrote it."""
    running = await front()
    seen = await scenes.play("runTools", **at(running))
    assert seen["ran"] == [{"city": "Paris"}]
    assert "sunny" in seen["text"]
    assert [line["status"] for line in running.log.requests()] == [200, 200]


PERSON = {"name": "Ada", "age": 36}


async def test_structured_output(proxy: Launch, scenes: Program) -> None:
    """The schema reaches the model as it is, and its answer is parsed by it."""
    running = await proxy()
    said = json.loads(upstreams.COMPLETION)
    said["choices"][0]["message"]["content"] = json.dumps(PERSON)
    running.upstream.reply = [upstreams.response(json.dumps(said).encode())]
    assert await scenes.play("structured", **at(running)) == PERSON
    (request,) = running.upstream.requests
    schema = json.loads(request.body)["response_format"]["json_schema"]
    assert (schema["name"], schema["strict"]) == ("person", True)
    assert list(schema["schema"]["properties"]) == ["name", "age"]


async def test_a_response(front: Launch, scenes: Program, model: str) -> None:
    """The other API: an answer, its usage, its id."""
    seen = await scenes.play("response", content="hello", **at(await front(), model=model))
    assert seen["text"]
    assert seen["usage"]["output_tokens"] > 0
    assert len(seen["id"]) == 32


# The stand-in only: llama.cpp's events have no output_index, and the SDK throws without one.
@pytest.mark.usefixtures("standin_only")
async def test_a_streamed_response(front: Launch, scenes: Program, model: str) -> None:
    """From the first event to the last."""
    seen = await scenes.play("streamedResponse", content="hello", **at(await front(), model=model))
    assert seen["types"][0] == "response.created"
    assert seen["types"][-1] == "response.completed"
    assert seen["types"].count("response.output_text.delta") > 1
    assert seen["text"]


async def test_structured_output_of_a_response(proxy: Launch, scenes: Program) -> None:
    """The same under the other API's name for it."""
    running = await proxy()
    part = {"type": "output_text", "text": json.dumps(PERSON), "annotations": []}
    message = {"id": "1", "type": "message", "role": "assistant", "content": [part]}
    said = {"id": "resp_1", "object": "response", "output": [message]}
    running.upstream.reply = [upstreams.response(json.dumps(said).encode())]
    assert await scenes.play("structuredResponse", **at(running)) == PERSON
    (request,) = running.upstream.requests
    assert json.loads(request.body)["text"]["format"]["name"] == "person"


@pytest.mark.usefixtures("standin_only")
async def test_embeddings(front: Launch, scenes: Program) -> None:
    """Asked for in base64, as the SDK does by itself, and read as numbers."""
    vectors = await scenes.play("embeddings", input=["a", "b", "a"], **at(await front()))
    assert len(vectors) == 3
    assert vectors[0] == vectors[2] != vectors[1]
    assert all(0 <= number <= 1 for vector in vectors for number in vector)


async def test_a_completion(front: Launch, scenes: Program, model: str) -> None:
    """The old API, cut where it was to be cut."""
    seen = await scenes.play("completion", **at(await front(), model=model))
    assert seen["text"]


async def test_models(front: Launch, scenes: Program, model: str) -> None:
    """The list that user interfaces begin with."""
    assert model in await scenes.play("models", **at(await front()))


async def test_a_clamp_is_told_in_a_header(proxy: Launch, scenes: Program) -> None:
    """Where whoever looks at raw responses finds it."""
    assert await scenes.play("clamped", **at(await proxy())) == "max_tokens 32000 -> 4096"


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        pytest.param(
            {"defaultHeaders": {"Authorization": None}},
            ("AuthenticationError", 401, "missing_api_key"),
            id="no key",
        ),
        pytest.param(
            {"key": "sk-wrong"}, ("PermissionDeniedError", 403, "invalid_api_key"), id="a wrong key"
        ),
        pytest.param(
            {"length": 10_001},
            ("BadRequestError", 400, "context_length_exceeded"),
            id="a prompt over the cap",
        ),
        pytest.param(
            {"length": 3 * MB}, ("APIError", 413, "body_too_large"), id="a body over the cap"
        ),
        pytest.param(
            {"path": "/../tokenize"},
            ("NotFoundError", 404, "not_found"),
            id="an engine's own route",
        ),
    ],
)
async def test_a_refusal_is_one_call(
    proxy: Launch, scenes: Program, asked: dict[str, Any], wanted: tuple[str, int, str]
) -> None:
    """CC-04: with the SDK's own retries, one call, an error of its class, words that help."""
    running = await proxy()
    (error,) = await scenes.play("refused", **{**at(running), **asked})
    assert (error["name"], error["status"], error["code"]) == wanted
    assert len(error["message"]) > 20
    (line,) = running.log.requests()
    assert (line["outcome"], line["request_id"]) == (wanted[2], error["requestId"])
    assert running.upstream.requests == []


@pytest.mark.parametrize(
    ("length", "times"),
    [pytest.param(3 * MB, 20, id="3 MB"), pytest.param(50 * MB, 5, id="50 MB")],
)
async def test_413_is_readable(
    proxy: Launch, scenes: Program, figures: Figures, length: int, times: int
) -> None:
    """HF-05: each time, however much of the body was still on its way."""
    running = await proxy()
    seen = await scenes.play("refused", length=length, times=times, **at(running))
    read = sum(error["code"] == "body_too_large" for error in seen)
    figures.add("413 read by", f"openai-node, {length // MB} MB", times=times, read=read)
    assert read == times == len(running.log.requests())


async def test_the_upstreams_429_is_retried_as_it_says(proxy: Launch, scenes: Program) -> None:
    """The SDK sees its Retry-After, and then the answer."""
    running = await proxy()
    slow_down = b'{"error":{"message":"slow down","code":"rate_limit_exceeded"}}'
    headers = [(b"Content-Type", b"application/json"), (b"Retry-After", b"0.01")]
    running.upstream.script.append([upstreams.response(slow_down, 429, headers)])
    seen = await scenes.play("chat", content="hi", **at(running))
    assert seen["text"] == "Hello."
    assert len(running.upstream.requests) == 2


async def test_an_error_in_place_of_a_stream_is_raised(proxy: Launch, scenes: Program) -> None:
    """After comments, and in the engine's own words."""
    error = b'{"error":{"message":"out of pages","type":"t","code":"c"}}'
    seen = await a_late_error(proxy, scenes, error)
    assert "out of pages" in seen["error"]["message"]


@pytest.mark.parametrize("end", [upstreams.End.FIN, upstreams.End.RESET])
async def test_a_stream_that_dies_does_not_look_complete(
    proxy: Launch, scenes: Program, end: upstreams.End
) -> None:
    """The loop over it throws; no [DONE] was invented."""
    running = await proxy()
    first = upstreams.event(upstreams.completion_chunk({"content": "a"}))
    running.upstream.reply = [upstreams.SSE_HEAD, first, end]
    seen = await scenes.play("aStreamThatDies", **at(running))
    assert seen["error"] is not None
    await running.idle()
    assert running.log.requests()[-1]["outcome"] == "upstream_error"


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param("stopAStream", id="AbortController"),
        pytest.param("breakOutOfAStream", id="break"),
    ],
)
async def test_leaving_a_stream_stops_the_model(
    proxy: Launch, scenes: Program, figures: Figures, scene: str
) -> None:
    """What a user's stop button does: the upstream's connection is closed within a second."""
    running = await proxy()
    first = upstreams.event(upstreams.completion_chunk({"content": "a"}))
    running.upstream.reply = [upstreams.SSE_HEAD, first, upstreams.End.SILENCE]
    await scenes.begin(scene, **at(running))
    assert await scenes.told() == "stopping"
    await stops_the_model(running, figures, f"openai-node, {scene}")
    await scenes.result()


async def test_a_client_out_of_patience_stops_the_model(proxy: Launch, scenes: Program) -> None:
    """Its time-out is a hang-up like any other, of the call and of both retries."""
    running = await proxy()
    running.upstream.reply = [upstreams.End.SILENCE]
    error = await scenes.play("stopWaiting", timeout=500, maxRetries=1, **at(running))
    assert error["name"] == "APIConnectionTimeoutError"
    await running.upstream.all_closed(within=1.0)
    await running.idle()
    outcomes = [line["outcome"] for line in running.log.requests()]
    assert outcomes == ["client_disconnected"] * 2
