"""Real servers of Redis."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness import redis as servers
from tests.harness.fixtures import ending, proxy
from tests.harness.redis import Server

__all__ = ["ending", "proxy"]


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Server]:
    """A server for the tests of a module that do it no harm."""
    # Not in pytest's folder: the path of a Unix socket may have 107 bytes.
    with tempfile.TemporaryDirectory() as folder:
        async with servers.serving(Path(folder)) as running:
            yield running


@pytest.fixture
async def own_server() -> AsyncIterator[Server]:
    """A server for one test, to do with as it likes."""
    with tempfile.TemporaryDirectory() as folder:
        async with servers.serving(Path(folder)) as running:
            yield running
