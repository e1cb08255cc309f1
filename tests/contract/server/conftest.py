"""Fixtures of the tests of the server below ASGI."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from proxy.server.protocol import ProtocolLimits
from tests.harness.served import App, Serve, Served, serving


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that serves."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts protocols; they end with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def begin(app: App, *, keep_alive_seconds: int = 120, **limits: Any) -> Served:
            return await stack.enter_async_context(
                serving(app, keep_alive_seconds, ProtocolLimits(**limits))
            )

        yield begin
