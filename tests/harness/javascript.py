"""JavaScript programs that play scenes, one after the other, and say what they saw.

A program is an ES module that ends in ``play({...})``: see ``tests/clients/node/play.mjs``. It runs
on the Node, and with the packages, that ``tests/clients/node/install`` has put into the cache.
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import programs
from tests.harness.running import KEY, Running

_HERE = Path(__file__).parents[1] / "clients" / "node"
TIMEOUT_SECONDS = 30.0
"""How long a scene may take to say something; one that says nothing has failed already."""

_END_SECONDS = 10.0


class SceneFailed(Exception):  # noqa: N818 - what a test sees, not an error of this module
    """A scene raised what it was not written to catch."""


def home() -> Path:
    """Where the packages, ``node`` and ``browser`` are."""
    return programs.cache() / "node"


def version(package: str) -> str:
    """The version of a package that is pinned."""
    pins = json.loads((_HERE / "package.json").read_text())
    every = {**pins["dependencies"], **pins["optionalDependencies"], **pins["devDependencies"]}
    return str(every[package])


def at(running: Running, **more: Any) -> dict[str, Any]:
    """Where a scene's client goes, and as whom."""
    return {"url": f"http://127.0.0.1:{running.port}", "key": KEY, "model": "m", **more}


def require_installed() -> None:
    """Fails where the packages are not there, or not those of this checkout."""
    lock = home() / "package-lock.json"
    if not (home() / "stamp").is_file() or not _same(lock, _HERE / "package-lock.json"):
        raise AssertionError("run tests/clients/node/install first, as make test-clients does")


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and one.read_bytes() == other.read_bytes()


@dataclass(slots=True)
class Program:
    """A program that runs and waits for the next scene."""

    _process: asyncio.subprocess.Process
    _number: int = 0

    async def play(self, scene: str, /, **given: Any) -> Any:
        """Plays a scene that tells nothing on its way; gives what it returns."""
        await self.begin(scene, **given)
        return await self.result()

    async def begin(self, scene: str, /, **given: Any) -> None:
        """Begins a scene."""
        assert self._process.stdin is not None
        self._number += 1
        line = json.dumps({"number": self._number, "scene": scene, "given": given})
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    async def told(self) -> Any:
        """What the scene tells next, on its way."""
        return (await self._next())["told"]

    async def result(self) -> Any:
        """What the scene returns."""
        return (await self._next())["value"]

    async def _next(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while line := await self._process.stdout.readline():
                said: dict[str, Any] = json.loads(line)
                if said["number"] != self._number:
                    continue  # of a scene whose test failed before its end
                if "failed" in said:
                    raise SceneFailed(said["failed"])
                return said
        assert self._process.stderr is not None
        raise SceneFailed((await self._process.stderr.read()).decode())


@contextlib.asynccontextmanager
async def program(source: Path, folder: Path) -> AsyncIterator[Program]:
    """Starts a program.

    Args:
        source: Its file; its neighbours are there to be imported.
        folder: An empty one. Modules look for packages beside themselves, so it runs from here.
    """
    require_installed()
    for module in [*_HERE.glob("*.mjs"), *source.parent.glob("*.mjs")]:
        shutil.copy(module, folder)
    (folder / "node_modules").symlink_to(home() / "node_modules")
    command = (home() / "node", folder / source.name)
    env = {"BULWARK_BROWSER": str(home() / "browser")}
    async with programs.started(*command, env=env, stdin=asyncio.subprocess.PIPE) as process:
        yield Program(process)
        # With its input over, it puts away what it has opened. What does not end is killed.
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
