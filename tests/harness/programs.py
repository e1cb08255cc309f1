"""Runs the programs of real clients beside the loop that serves them, and reads what they saw."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import installed

SECONDS = 50.0
"""How long a program may take: starting one on a busy machine is most of it."""

_NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "ANONYMIZED_TELEMETRY": "false",
    "HF_HUB_OFFLINE": "1",
    "NEXT_TELEMETRY_DISABLED": "1",
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended and what it wrote."""

    status: int
    output: bytes
    errors: bytes

    def json(self) -> Any:
        """The last line of its output, parsed; fails with all that it wrote if it failed."""
        assert self.status == 0, f"status {self.status}\n{self.errors.decode()}\n{self.output!r}"
        return json.loads(self.output.splitlines()[-1])


async def run(*command: str | Path, env: Mapping[str, str] = {}, within: float = SECONDS) -> Ended:
    """Runs a program to its end; it is killed with its children if it takes too long."""
    async with started(*command, env=env) as process, asyncio.timeout(within):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, output, errors)


@contextlib.asynccontextmanager
async def started(
    *command: str | Path,
    env: Mapping[str, str] = {},
    stdin: int = asyncio.subprocess.DEVNULL,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that runs for the block; with its children it does not outlive it."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env=_environment(env),
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        # Also where it has ended by itself: a browser leaves processes behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def cache() -> Path:
    """Where the clients are that were installed for the tests: outside of the checkout."""
    return installed.folder("clients")


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """The little that a program needs of ours: no proxies, no keys, no settings of ours."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH")
    return (
        {name: os.environ[name] for name in kept if name in os.environ} | _NO_TELEMETRY | dict(more)
    )
