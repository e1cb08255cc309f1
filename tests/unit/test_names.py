"""Addresses of names: asked for once at a time, and never waited for at the end."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest

from proxy.names import Names
from tests.harness.forwarding import until


class System:
    """A name server by hand: what it was asked, and when it answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.addresses = ["192.0.2.1"]
        self.now = 100.0

    def look_up(self, host: str) -> list[str]:
        """Answers, once it does."""
        self.asked.append(host)
        assert self.answers.wait(10)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return self.addresses

    def names(self) -> Names:
        """Those that ask it."""
        return Names(self.look_up, clock=lambda: self.now)


async def test_one_look_up_for_all() -> None:
    """A hundred that need a name while it is looked up, half of which leave, are one question."""
    system = System()
    names = system.names()
    asking = [asyncio.create_task(names.addresses("engine")) for _ in range(100)]
    await until(lambda: bool(system.asked))
    for task in asking[::2]:
        task.cancel()
    await asyncio.wait(asking[::2])
    system.answers.set()
    assert await asyncio.gather(*asking[1::2]) == [["192.0.2.1"]] * 50
    assert system.asked == ["engine"]


async def test_another_name_does_not_wait() -> None:
    """Each has a question of its own."""
    system = System()
    names = system.names()
    first, second = (asyncio.create_task(names.addresses(host)) for host in ("engine", "redis"))
    await until(lambda: sorted(system.asked) == ["engine", "redis"])
    system.answers.set()
    assert await first == await second == ["192.0.2.1"]


@pytest.mark.parametrize("answers", [True, False], ids=["an address", "a failure"])
async def test_what_was_answered_is_kept_for_a_second(answers: bool) -> None:
    """Then it is asked again: a container that comes back has another address."""
    system = System()
    system.answers.set()
    names = system.names()

    async def ask() -> list[str]:
        try:
            return await names.addresses("engine")
        except OSError:
            return []

    system.addresses = ["192.0.2.1"] if answers else []
    first = await ask()
    assert first == system.addresses
    system.addresses = ["192.0.2.2"]
    system.now += 0.99
    assert (await ask(), len(system.asked)) == (first, 1)
    system.now += 0.01
    assert (await ask(), len(system.asked)) == (["192.0.2.2"], 2)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_an_address_is_its_own(address: str) -> None:
    """Nobody is asked for it."""
    system = System()
    assert await system.names().addresses(address) == [address]
    assert system.asked == []


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 300])
async def test_a_name_of_nobody(host: str) -> None:
    """Nor one that no name can be."""
    with pytest.raises(OSError, match=r"."):
        await Names().addresses(host)


async def test_whoever_is_late_goes() -> None:
    """A hanging name server holds nobody longer than he has time."""
    system = System()
    with anyio.move_on_after(0.01) as scope:
        await system.names().addresses("engine")
    assert scope.cancelled_caught
    system.answers.set()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_process_ends_while_a_name_server_hangs(loop: str) -> None:
    """And says nothing of what it left behind."""
    program = f"""
import asyncio, contextlib, time
from {loop} import run
from proxy.names import Names
async def main():
    names = Names(lambda host: time.sleep(60) or [])
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(names.addresses("engine"), 0.1)
run(main())
"""
    started = time.monotonic()
    environment = {name: os.environ[name] for name in ("PATH",)} | {"PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(  # noqa: S603 - fixed arguments
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        check=True,
        timeout=50,
    )
    assert time.monotonic() - started < 30
    assert done.stdout + done.stderr == b""
