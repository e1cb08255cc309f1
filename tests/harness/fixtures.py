"""The whole proxy as a fixture: real listeners, our protocol, the whole chain, a recording upstream.

A conftest imports both names. The tests of a module that use them share a loop, so that a proxy can
end while the next test runs. Each test has a proxy of its own all the same.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.harness import running
from tests.harness.running import Launch, Running


@pytest.fixture(scope="module")
async def ending() -> AsyncIterator[list[asyncio.Task[int]]]:
    """The proxies whose tests are over; waits for their ends."""
    tasks: list[asyncio.Task[int]] = []
    yield tasks
    assert set(await asyncio.gather(*tasks)) <= {0}


@pytest.fixture
async def proxy(ending: list[asyncio.Task[int]]) -> AsyncIterator[Launch]:
    """Starts a proxy with these settings; it is drained when the test ends."""
    async with AsyncExitStack() as stack:

        async def launch(**settings: Any) -> Running:
            return await stack.enter_async_context(running.launch(ending, **settings))

        yield launch
