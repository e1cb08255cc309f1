"""What the tests with real clients have in common.

A test starts a proxy in front of the stand-in, or in front of the engine at ``BULWARK_ENGINE_URL``,
with ``front``; in front of the misbehaving upstream with ``proxy``. A client that is a program of
its own is run with ``run``, which tells it where to go, and prints one line of JSON::

    async def test_a_chat(front: Launch, run: Run) -> None:
        running = await front(cors_origins="http://127.0.0.1:1")   # settings, as in the contract
        seen = await run(running, "node", HERE / "chat.mjs")
        assert seen["text"]
        assert running.log.requests()[-1]["outcome"] == "ok"

The program finds in its environment ``BULWARK_URL`` (without ``/v1``), ``BULWARK_KEY`` and
``BULWARK_MODEL``. What only the stand-in does (embeddings, always a tool call) is tested with
``front`` and ``@pytest.mark.usefixtures("standin_only")``.

Each module says whom it tries, for the table that is printed at the end and counts its requests::

    @pytest.fixture(scope="module")
    def tried() -> Client:
        return Client("openai-python", openai.__version__)
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from proxy import standin
from tests.harness import programs
from tests.harness import running as runnings
from tests.harness.figures import Figures, figures
from tests.harness.fixtures import ending
from tests.harness.running import KEY, Launch, Running

__all__ = ["ending", "figures"]


@dataclass(slots=True)
class Client:
    """A client that is tried.

    Attributes:
        requests: How many requests the proxies have had from it.
    """

    name: str
    version: str
    requests: int = 0


class Run(Protocol):
    """What the fixture ``run`` is."""

    async def __call__(self, running: Running, *command: str | Path, **environment: str) -> Any:
        """Runs a program against a proxy; gives the JSON of the last line that it prints."""
        ...


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[str]:
    """The URL of what answers: an engine that somebody has started, or else the stand-in."""
    if given := os.environ.get("BULWARK_ENGINE_URL"):
        yield given
        return
    async with standin.serving(word_seconds=0) as url:
        yield url


@pytest.fixture(scope="module")
async def model(engine: str) -> str:
    """The name of its model."""
    async with httpx.AsyncClient(timeout=10) as client:
        return str((await client.get(f"{engine}/v1/models")).json()["data"][0]["id"])


@pytest.fixture(scope="module")
def standin_only() -> None:
    """Skips a test that wants more than a real engine with a small model can do."""
    if os.environ.get("BULWARK_ENGINE_URL"):
        pytest.skip("tried in front of the stand-in only")


@pytest.fixture(scope="module")
def counted(tried: Client, figures: Figures) -> Iterator[Client]:
    """The client of the module, whose requests are counted for the table."""
    yield tried
    # A client may have several modules.
    before = int(figures.tables.get("Clients", {}).get(tried.name, {}).get("requests", 0))
    figures.add("Clients", tried.name, version=tried.version, requests=before + tried.requests)


@pytest.fixture
async def proxy(ending: list[asyncio.Task[int]], counted: Client) -> AsyncIterator[Launch]:
    """Starts a proxy with these settings; it is drained when the test ends."""
    started: list[Running] = []
    async with AsyncExitStack() as stack:

        async def launch(**settings: Any) -> Running:
            running = await stack.enter_async_context(runnings.launch(ending, **settings))
            started.append(running)
            return running

        yield launch
        counted.requests += sum(len(running.log.requests()) for running in started)


@pytest.fixture
def front(proxy: Launch, engine: str) -> Launch:
    """Starts a proxy in front of the stand-in, or of the engine."""

    async def launch(**settings: Any) -> Running:
        return await proxy(**{"upstream_url": engine, **settings})

    return launch


@pytest.fixture
def run(model: str) -> Run:
    """Runs a client that is a program of its own."""

    async def program(running: Running, *command: str | Path, **environment: str) -> Any:
        env = {
            "BULWARK_URL": f"http://127.0.0.1:{running.port}",
            "BULWARK_KEY": KEY,
            "BULWARK_MODEL": model,
            **environment,
        }
        return (await programs.run(*command, env=env)).json()

    return program
