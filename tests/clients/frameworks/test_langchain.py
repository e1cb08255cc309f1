"""LangChain through its OpenAI classes: see programs/chain.py for what it does."""

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

FILE = "chain.py"
PARIS = {"name": "Paris", "people": 1}

pytestmark = pytest.mark.usefixtures("standin_only")


@pytest.fixture(scope="module")
def tried() -> Client:
    """For the table."""
    return Client("LangChain", docs.clients()["LangChain"])


async def test_answers(front: Launch, program: Program) -> None:
    """At once, as a stream, in a batch and by the other API; a clamp is among the headers."""
    running = await front()
    seen = await program(running, "answers")
    assert "hello there" in seen["text"]
    assert seen["usage"] == 20
    assert seen["clamped"] == "max_completion_tokens 32000 -> 4096"
    assert "".join(seen["pieces"]) == seen["text"] == seen["responses"]
    assert len(seen["pieces"]) > 20
    assert seen["async_pieces"] > 20
    assert ["one" in seen["batch"][0], "two" in seen["batch"][1]] == [True, True]
    assert seen["responses_pieces"] > 20
    await running.log.nth(7)
    assert {line["outcome"] for line in running.log.requests()} == {"ok"}


async def test_tools(front: Launch, program: Program) -> None:
    """Bound, called, answered; and put together again out of a stream's fragments."""
    seen = await program(await front(), "tools")
    assert seen["call"] == {"name": "get_weather", "args": {"city": "Paris"}}
    assert seen["result"] == "sunny in Paris"
    assert "sunny in Paris" in seen["told"]
    assert seen["streamed"] == [["get_weather", {"city": "Paris"}]]
    assert seen["fragments"] > 1
    assert seen["named"] == "get_weather"


async def test_structured_output(front: Launch, program: Program) -> None:
    """By schema, by tool, and as JSON of any kind."""
    seen = await program(await front(), "structured")
    assert seen == {"json_schema": PARIS, "function_calling": PARIS, "json_mode": {}}


async def test_embeddings(front: Launch, program: Program) -> None:
    """The same for the same text."""
    assert await program(await front(), "embeddings") == {"sizes": [8, 8], "same": True}


async def test_a_prompt_over_the_cap_is_known_as_one(proxy: Launch, program: Program) -> None:
    """By the exception on which LangChain's own code compacts a history; in one call."""
    running = await proxy()
    seen = await program(running, "refused")
    assert {"ContextOverflowError", "BadRequestError"} <= set(seen["classes"])
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
