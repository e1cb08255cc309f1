"""What the tests of the JavaScript clients have in common: a program to a module."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import javascript
from tests.harness import upstream as upstreams
from tests.harness.javascript import Program, at
from tests.harness.running import Launch

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
async def scenes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Program]:
    """The program that a module names as its ``PROGRAM``, running."""
    source = HERE / request.module.PROGRAM
    async with javascript.program(source, tmp_path_factory.mktemp("program")) as program:
        yield program


async def a_late_error(proxy: Launch, scenes: Program, error: bytes, **given: Any) -> Any:
    """What is seen of a stream that was begun without the engine, which then answers with this."""
    running = await proxy(sse_keepalive_seconds=0.05, sse_commit_seconds=0.05)
    answer = asyncio.Event()
    running.upstream.reply = [answer, upstreams.response(error, 500)]
    await scenes.begin("aStreamThatDies", **at(running, **given))
    await running.upstream.request(0)
    asyncio.get_running_loop().call_later(0.3, answer.set)  # some comments later
    seen = await scenes.result()
    line = running.log.requests()[0]
    assert (line["status"], line["upstream_status"]) == (200, 500)
    return seen
