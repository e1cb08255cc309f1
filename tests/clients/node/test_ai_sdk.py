"""The Vercel AI SDK through the whole proxy, with the providers that people use for such a server."""

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

PROGRAM = "ai-sdk.mjs"
PERSON = {"name": "Ada", "age": 36}
PROVIDERS = ["compatible", "chat", "responses"]


@pytest.fixture(scope="module")
def tried() -> Client:
    """Whom this module tries."""
    packages = ["ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai"]
    return Client("Vercel AI SDK", " / ".join(map(javascript.version, packages)))


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_text(front: Launch, scenes: Program, model: str, provider: str) -> None:
    """An answer and its usage."""
    given = at(await front(), model=model, provider=provider)
    seen = await scenes.play("text", content="hello", **given)
    assert seen["text"]
    assert seen["usage"]["outputTokens"] > 0


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_streamed_text(front: Launch, scenes: Program, model: str, provider: str) -> None:
    """Piece by piece, to the usage at its end."""
    given = at(await front(), model=model, provider=provider)
    seen = await scenes.play("streamedText", content="hello", **given)
    assert seen["pieces"] > 1
    assert seen["text"]


@pytest.mark.usefixtures("standin_only")
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_loop_of_tools(
    front: Launch, scenes: Program, provider: str, streamed: bool
) -> None:
    """The tool is called with what the model said, and the model has its result."""
    running = await front()
    seen = await scenes.play("tools", streamed=streamed, **at(running, provider=provider))
    assert seen["ran"] == [{"city": "Paris"}]
    assert seen["steps"] == 2
    assert "sunny" in seen["text"]
    assert [line["status"] for line in running.log.requests()] == [200, 200]


@pytest.mark.parametrize("scene", ["object", "output"])
@pytest.mark.parametrize("provider", ["compatible", "chat"])
async def test_structured_output(proxy: Launch, scenes: Program, scene: str, provider: str) -> None:
    """What the model says in JSON is checked by the schema and handed out."""
    running = await proxy()
    said = json.loads(upstreams.COMPLETION)
    said["choices"][0]["message"]["content"] = json.dumps(PERSON)
    running.upstream.reply = [upstreams.response(json.dumps(said).encode())]
    assert await scenes.play(scene, **at(running, provider=provider)) == PERSON
    asked: Any = running.upstream.requests[0].json()
    assert asked["response_format"]["type"] in {"json_schema", "json_object"}


@pytest.mark.usefixtures("standin_only")
async def test_embeddings(front: Launch, scenes: Program) -> None:
    """As many as values."""
    vectors = await scenes.play("embeddings", values=["a", "b", "a"], **at(await front()))
    assert vectors[0] == vectors[2] != vectors[1]


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        pytest.param({"key": ""}, (401, "missing_api_key"), id="no key"),
        pytest.param({"key": "wrong"}, (403, "invalid_api_key"), id="a wrong key"),
        pytest.param(
            {"length": 10_001}, (400, "context_length_exceeded"), id="a prompt over the cap"
        ),
        pytest.param({"length": 3_000_000}, (413, "body_too_large"), id="a body over the cap"),
    ],
)
@pytest.mark.parametrize("provider", ["compatible", "chat"])
async def test_a_refusal_is_one_call(
    proxy: Launch, scenes: Program, asked: dict[str, Any], wanted: tuple[int, str], provider: str
) -> None:
    """CC-04: with the SDK's own retries, one call, and words that help."""
    running = await proxy()
    error = await scenes.play("refused", **{**at(running, provider=provider), **asked})
    assert (error["name"], error["status"], error["code"]) == ("APICallError", *wanted)
    assert len(running.log.requests()) == 1
    assert running.upstream.requests == []


@pytest.mark.parametrize("provider", ["compatible", "chat"])
async def test_an_error_in_place_of_a_stream_is_told(
    proxy: Launch, scenes: Program, provider: str
) -> None:
    """After comments, and in the engine's own words; one provider asks twice more by itself."""
    error = b'{"error":{"message":"out of pages","type":"t","code":"c"}}'
    seen = await a_late_error(proxy, scenes, error, provider=provider)
    assert "out of pages" in str(seen["told"])


@pytest.mark.parametrize("end", [upstreams.End.FIN, upstreams.End.RESET])
@pytest.mark.parametrize("provider", ["compatible", "chat"])
async def test_a_stream_that_dies_does_not_look_complete(
    proxy: Launch, scenes: Program, end: upstreams.End, provider: str
) -> None:
    """The loop over its text throws, behind the piece that had come."""
    running = await proxy()
    first = upstreams.event(upstreams.completion_chunk({"content": "a"}))
    running.upstream.reply = [upstreams.SSE_HEAD, first, end]
    seen = await scenes.play("aStreamThatDies", **at(running, provider=provider))
    assert seen["pieces"] == ["a"]
    assert seen["error"]["name"] == "APICallError"
    await running.idle()
    assert {line["outcome"] for line in running.log.requests()} == {"upstream_error"}


async def test_leaving_a_stream_stops_the_model(
    proxy: Launch, scenes: Program, figures: Figures
) -> None:
    """What a user's stop button does: the upstream's connection is closed within a second."""
    running = await proxy()
    first = upstreams.event(upstreams.completion_chunk({"content": "a"}))
    running.upstream.reply = [upstreams.SSE_HEAD, first, upstreams.End.SILENCE]
    await scenes.begin("stopAStream", **at(running))
    assert await scenes.told() == "stopping"
    await stops_the_model(running, figures, "Vercel AI SDK, AbortController")
    await scenes.result()


async def test_leaving_before_the_answer_stops_the_model(
    proxy: Launch, scenes: Program, figures: Figures
) -> None:
    """Also while nothing has come yet."""
    running = await proxy()
    running.upstream.reply = [upstreams.End.SILENCE]
    error = await scenes.play("stopWaiting", milliseconds=1000, **at(running))
    await stops_the_model(running, figures, "Vercel AI SDK, before the answer")
    assert error is not None
