"""The engine and the proxy as processes of their own, with sockets between them and the clients."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import httpx

from bench.scheduler import Machine

ROOT = Path(__file__).resolve().parent.parent

_START_SECONDS = 20.0


@asynccontextmanager
async def engine(machine: Machine) -> AsyncIterator[str]:
    """A simulated engine for the block; gives its URL."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(machine).items()]
    async with _started("bench.engine", "--port=0", *options, env={}) as line:
        yield line["url"]


@asynccontextmanager
async def proxy(
    upstream_url: str, keys: Sequence[str], settings: Mapping[str, str]
) -> AsyncIterator[str]:
    """A proxy in front of it for the block; gives its URL once it knows the engine's cache."""
    given = {
        "upstream_url": upstream_url,
        "api_keys": ",".join(keys),
        "port": "0",
        "admin_port": "0",
        **settings,
    }
    env = {f"PROXY_{name.upper()}": value for name, value in given.items()}
    async with _started("proxy", "serve", env=env) as line:
        await _ready(f"http://{line['admin']}")
        yield f"http://{line['public']}"


async def preemptions(engine_url: str) -> int:
    """How often the engine has thrown out what it had begun."""
    async with httpx.AsyncClient(trust_env=False) as client:
        page = (await client.get(f"{engine_url}/metrics")).text
    (line,) = (line for line in page.splitlines() if line.startswith("vllm:num_preemptions_total"))
    return int(float(line.split()[-1]))


async def _ready(admin_url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(_START_SECONDS):
        while True:
            answer = await client.get(f"{admin_url}/readyz")
            budget = answer.json().get("kv_budget", {})
            if answer.is_success and (budget.get("limit_tokens") or budget.get("state") == "off"):
                return
            await asyncio.sleep(0.1)


@asynccontextmanager
async def _started(
    module: str, *arguments: str, env: Mapping[str, str]
) -> AsyncIterator[dict[str, str]]:
    """A module that runs for the block; gives the first line that it writes, which is JSON."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROXY_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        cwd=ROOT,
        env={**kept, **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    stdout = process.stdout
    assert stdout is not None  # noqa: S101 - for mypy
    reading: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(_START_SECONDS):
            first = await stdout.readline()
        if not first:
            raise SystemExit(f"{module} did not start")
        # All that it logs is read and dropped: a full pipe would stop it.
        reading = asyncio.create_task(_drop(stdout))
        yield json.loads(first)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


async def _drop(stream: asyncio.StreamReader) -> None:
    while await stream.read(65_536):
        pass
