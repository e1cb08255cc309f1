"""Serves the stand-in on a socket, beside whatever else the loop does."""

import asyncio
import contextlib
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import uvicorn

from proxy.server.listeners import ListenError, bind
from proxy.standin.server import build

_BACKLOG = 2048


class _Server(uvicorn.Server):
    """Leaves the signals to whoever owns the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(
    word_seconds: float = 0.02, listener: socket.socket | None = None
) -> AsyncIterator[str]:
    """A stand-in that serves for the block; gives its URL.

    Args:
        word_seconds: As for ``build``.
        listener: A listening socket, TCP or Unix; without one, a free port of the loopback.
    """
    # Bound and listening, so that whoever is quick waits in the backlog.
    sock = listener or bind("127.0.0.1", 0, "the stand-in")
    url = _url(sock)
    config = uvicorn.Config(
        build(word_seconds), log_config=None, access_log=False, lifespan="off", ws="none"
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield url
    finally:
        server.should_exit = server.force_exit = True
        await task


def bind_unix(path: Path) -> socket.socket:
    """A listening Unix socket, in place of one that nobody listens on any more.

    Raises:
        ListenError: It cannot be had.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        sock.bind(str(path))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as exc:
        sock.close()
        raise ListenError(f"cannot listen on {path}: {exc.strerror or exc}") from exc
    return sock


def _remove_stale(path: Path) -> None:
    """A server that was killed leaves its socket, over which no other can be bound."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def _url(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix://{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
