"""Fixtures of the tests between the listener and the upstream."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from tests.harness import upstream as harness


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that serves, and the one that anybody's other program runs on."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
async def upstream() -> AsyncIterator[harness.Upstream]:
    """An upstream on a port of its own."""
    async with harness.serve() as server:
        yield server
