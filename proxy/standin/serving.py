"""Serves the stand-in on a port of the loopback, beside whatever else the loop does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import uvicorn

from proxy.server.listeners import bind
from proxy.standin.server import build


class _Server(uvicorn.Server):
    """Leaves the signals to whoever owns the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(word_seconds: float = 0.02) -> AsyncIterator[str]:
    """A stand-in that serves for the block; gives its URL.

    Args:
        word_seconds: As for ``build``.
    """
    # Bound and listening, so that whoever is quick waits in the backlog.
    sock = bind("127.0.0.1", 0, "the stand-in")
    host, port = sock.getsockname()
    config = uvicorn.Config(
        build(word_seconds), log_config=None, access_log=False, lifespan="off", ws="none"
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = server.force_exit = True
        await task
