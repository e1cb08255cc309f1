"""``python -m proxy serve`` in a process of its own, for what only a process has: memory, output."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.client import RawClient
from tests.harness.programs import started
from tests.harness.running import KEY


@dataclass(slots=True)
class Process:
    """A proxy that serves.

    Attributes:
        port: Where the public listener is.
    """

    process: asyncio.subprocess.Process
    port: int
    _output: asyncio.Task[tuple[bytes, bytes]]
    _clients: list[RawClient] = field(default_factory=list)

    async def connect(self) -> RawClient:
        """A new client of the public listener, closed at the end."""
        client = await RawClient.open("127.0.0.1", self.port)
        self._clients.append(client)
        return client

    def memory_bytes(self) -> int:
        """The most that it has ever had resident."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024

    def close_clients(self) -> None:
        """Ends every connection that was made here."""
        for client in self._clients:
            client.close()

    async def kill(self) -> None:
        """Ends it by SIGKILL."""
        self.close_clients()
        self.process.kill()
        await self._output

    async def stop(self) -> str:
        """Ends it by SIGTERM; gives all that it wrote after it listened, of both kinds."""
        self.close_clients()
        self.process.terminate()
        output, errors = await self._output
        assert self.process.returncode == 0, errors
        return (output + errors).decode()


@contextlib.asynccontextmanager
async def serving(
    upstream_url: str, env: Mapping[str, str] = {}, **settings: str
) -> AsyncIterator[Process]:
    """A proxy with the usual key in front of this upstream, on free ports."""
    usual = {"upstream_url": upstream_url, "api_keys": KEY, "port": "0", "admin_port": "0"}
    given = {f"PROXY_{name.upper()}": value for name, value in {**usual, **settings}.items()}
    async with started(sys.executable, "-m", "proxy", "serve", env={**given, **env}) as process:
        assert process.stdout is not None
        line = json.loads(await process.stdout.readline())
        assert line["event"] == "listening"
        output = asyncio.create_task(process.communicate())
        running = Process(process, int(line["public"].rpartition(":")[2]), output)
        try:
            yield running
        finally:
            running.close_clients()
            if not output.done():
                process.kill()
            await output
