"""LlamaIndex through its OpenAI classes: see programs/index.py for what it does."""

import pytest

from scripts import docs
from tests.clients.conftest import Client
from tests.clients.frameworks.conftest import (
    Program,
    assert_a_death_is_seen,
    assert_leaving_is_noticed,
)
from tests.harness.running import Launch
from tests.harness.upstream import End

FILE = "index.py"
CALL = {"name": "get_weather", "args": {"city": "Paris"}}
PARIS = {"name": "Paris", "people": 1}

pytestmark = pytest.mark.usefixtures("standin_only")


@pytest.fixture(scope="module")
def tried() -> Client:
    """For the table."""
    return Client("LlamaIndex", docs.clients()["LlamaIndex"])


async def test_answers(front: Launch, program: Program) -> None:
    """Completed, chatted with, as a stream; by three classes and on three routes."""
    running = await front()
    seen = await program(running, "answers")
    assert "hello there" in seen["chat"]
    assert seen["usage"] == 20
    for name in ("complete", "async_complete", "openai", "responses"):
        assert seen[name] == seen["chat"], name
    assert "".join(seen["pieces"]) == seen["chat"]
    assert seen["chat"].startswith(seen["completions"])
    for name in ("async_pieces", "openai_pieces", "responses_pieces"):
        assert seen[name] > 20, name
    assert seen["completions_pieces"] > 16
    await running.log.nth(10)
    lines = running.log.requests()
    assert {line["outcome"] for line in lines} == {"ok"}
    assert {line["endpoint"] for line in lines} == {"chat.completions", "completions", "responses"}
    assert [line["clamped"] for line in lines].count("max_tokens 32000 -> 4096") == 5


async def test_tools(front: Launch, program: Program) -> None:
    """Offered, called, put together out of a stream's fragments, and run."""
    seen = await program(await front(), "tools")
    assert seen["call"] == seen["streamed"] == CALL
    assert seen["fragments"] > 1
    assert seen["ran"] == "sunny in Paris"


async def test_structured_output(front: Launch, program: Program) -> None:
    """By a tool, and by the schema of an answer."""
    assert await program(await front(), "structured") == {"by_tool": PARIS, "by_schema": PARIS}


async def test_embeddings(front: Launch, program: Program) -> None:
    """The same for the same text."""
    assert await program(await front(), "embeddings") == {"sizes": [8, 8], "same": True}


async def test_a_prompt_over_the_cap_is_told_in_one_call(proxy: Launch, program: Program) -> None:
    """Though this one retries three times what it believes to be passing."""
    running = await proxy()
    seen = await program(running, "refused")
    assert "BadRequestError" in seen["classes"]
    assert "PROXY_MAX_PROMPT_CHARS" in seen["message"]
    assert (await running.log.nth(0))["outcome"] == "context_length_exceeded"
    assert len(running.log.requests()) == 1
    assert running.upstream.requests == []


@pytest.mark.parametrize("end", [End.FIN, End.RESET], ids=["FIN", "RST"])
async def test_a_stream_that_dies_does_not_look_complete(
    proxy: Launch, program: Program, end: End
) -> None:
    """Whoever reads it to its end gets an exception."""
    await assert_a_death_is_seen(proxy, program, end)


async def test_leaving_a_stream_stops_the_model(proxy: Launch, program: Program) -> None:
    """While the program goes on."""
    await assert_leaving_is_noticed(proxy, program)
