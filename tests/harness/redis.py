"""A real redis-server, or valkey-server, as a child of the tests: to kill, freeze and start again."""

import asyncio
import contextlib
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from redis.asyncio import Redis

from tests.harness.leftout import leave_out

PROGRAMS = ("redis-server", "valkey-server")

_SECONDS = 10.0


def program() -> str:
    """Where the server is. Without one the test is left out; where CI is set, it has failed."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        leave_out(f"limits in Redis; no {' or '.join(PROGRAMS)} here")
    return found


def free_port() -> int:
    """A port of the loopback that nobody has: the server can be told one, and not none."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


class Server:
    """A server that keeps nothing: after a restart it is empty.

    Args:
        folder: Where its socket may be.
        options: More of them, as on its command line.

    Attributes:
        url: Its Unix socket.
        tcp_url: Its port on the loopback.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._socket = folder / "redis.sock"
        self.port = free_port()
        self.url = f"unix://{self._socket}"
        self.tcp_url = f"redis://127.0.0.1:{self.port}"
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[bytes] | None = None

    async def start(self) -> None:
        """Starts it; returns when it answers."""
        self._process = await asyncio.create_subprocess_exec(
            program(),
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self._socket), "--dir", str(self._folder)),
            *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            *self._options,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = self._process.stdout
        assert output is not None
        said = b""
        async with asyncio.timeout(_SECONDS):
            while b"Ready to accept connections" not in said:
                said = await output.readline()
                assert said, "the server has ended"
        self._output = asyncio.create_task(output.read())

    async def kill(self) -> None:
        """Kills it; what it knew is gone, and connecting is refused."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._output is not None:
            await self._output

    def freeze(self) -> None:
        """It still accepts connections and bytes, and says nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on, with what it was sent meanwhile."""
        self._signal(signal.SIGCONT)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Redis]:
        """redis-py's own client, to look at what is in it."""
        async with Redis.from_url(self.url, decode_responses=True) as client:
            yield client

    async def early_in_a_minute(self) -> None:
        """Returns when no minute of its clock, which nobody can set, ends in the next 5 s."""
        async with self.client() as client:
            seconds, microseconds = await client.time()
        left = 60 - seconds % 60 - microseconds / 1_000_000
        if left < 5:
            await asyncio.sleep(left)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextlib.asynccontextmanager
async def serving(folder: Path, *options: str) -> AsyncIterator[Server]:
    """A server for the block."""
    server = Server(folder, *options)
    try:
        await server.start()
        yield server
    finally:
        await server.kill()
