"""Runs the programs of the frameworks' environment, and sees whether they call anybody else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.clients.conftest import Run
from tests.harness import upstream as upstreams
from tests.harness.programs import cache
from tests.harness.running import Launch, Running
from tests.harness.upstream import End

PROGRAMS = Path(__file__).parent / "programs"

_BEGINNING = upstreams.event(upstreams.completion_chunk({"role": "assistant", "content": "a"}))


class Program(Protocol):
    """What the fixtures ``chain`` and ``index`` are."""

    async def __call__(self, running: Running, name: str) -> Any:
        """Runs one of the programs of a file against a proxy; gives what it saw."""
        ...


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter that has the frameworks."""
    path = cache() / "frameworks" / "venv" / "bin" / "python"
    if not path.exists():
        pytest.fail("LangChain and LlamaIndex are not installed: make test-clients does that")
    return path


@pytest.fixture
async def elsewhere() -> AsyncIterator[str]:
    """The URL of an HTTP proxy for all that is not here; the test fails if anybody wanted it."""
    wanted: list[object] = []

    async def notice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wanted.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(notice, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert wanted == []


@pytest.fixture
def program(request: pytest.FixtureRequest, run: Run, python: Path, elsewhere: str) -> Program:
    """Runs a program of the file that the module names."""
    file = PROGRAMS / request.module.FILE

    async def named(running: Running, name: str) -> Any:
        environment = {"HTTP_PROXY": elsewhere, "HTTPS_PROXY": elsewhere, "NO_PROXY": "127.0.0.1"}
        return await run(running, python, file, name, **environment)

    return named


async def assert_a_death_is_seen(proxy: Launch, program: Program, end: End) -> None:
    """A stream that the upstream ends like this raises an exception, of the HTTP client's."""
    running = await proxy()
    running.upstream.reply = [upstreams.SSE_HEAD, _BEGINNING, end]
    seen = await program(running, "dying")
    assert "HTTPError" in seen["raised"]
    await running.log.nth(0)
    assert {line["outcome"] for line in running.log.requests()} == {"upstream_error"}


async def assert_leaving_is_noticed(proxy: Launch, program: Program) -> None:
    """A program's next answer comes once the connection of the stream that it left is gone."""
    running = await proxy()
    running.upstream.script.append([upstreams.SSE_HEAD, _BEGINNING, End.SILENCE])
    running.upstream.reply = lambda _: [
        running.upstream.connections[0].closed,
        upstreams.response(upstreams.COMPLETION),
    ]
    seen = await program(running, "abandoned")
    assert seen == {"first": "a", "then": "Hello."}
    await running.log.nth(1)
    outcomes = [line["outcome"] for line in running.log.requests()]
    assert outcomes == ["client_disconnected", "ok"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all that is in this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("clients")
