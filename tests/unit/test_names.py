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

from proxy.names import SILENT_SECONDS, Names
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


class Hosts:
    """The addresses of one name: which of them say nothing or refuse, and which were tried."""

    def __init__(self, silent: str = "", refusing: str = "") -> None:
        self.silent, self.refusing = silent, refusing
        self.tried = ""
        self.now, self.passes = 100.0, 0.1
        self.names = Names(lambda _host: list("abc"), clock=lambda: self.now)

    async def connect(self, address: str) -> str:
        """Takes a connection, or does not."""
        self.tried += address
        if address in self.refusing:
            raise ConnectionRefusedError
        if address in self.silent:
            self.now += self.passes
            await asyncio.Event().wait()
        return address

    async def reach(self) -> str:
        """What was tried, in this order, and what came of it."""
        self.tried = ""
        try:
            with anyio.fail_after(0.2):
                made = await self.names.reach("engine", self.connect, 0.03)
        except OSError as exc:
            return f"{self.tried} {type(exc).__name__}"
        assert made == self.tried[-1]
        return self.tried


@pytest.mark.parametrize(
    ("silent", "refusing", "first", "then"),
    [
        pytest.param("", "", "a", "a", id="all answer"),
        pytest.param("", "a", "ab", "ab", id="one refuses, which costs no time"),
        pytest.param("a", "", "ab", "b", id="one says nothing"),
        pytest.param("ab", "", "abc", "c", id="two say nothing"),
        pytest.param("a", "b", "abc", "bc", id="one says nothing, one refuses"),
        pytest.param("c", "ab", "abc TimeoutError", "abc TimeoutError", id="the last is silent"),
        pytest.param("a", "bc", "abc ConnectionRefusedError", "bca TimeoutError", id="the first"),
        pytest.param("abc", "", "abc TimeoutError", "abc TimeoutError", id="all say nothing"),
    ],
)
async def test_one_address_that_says_nothing_hides_no_other(
    silent: str, refusing: str, first: str, then: str
) -> None:
    """It has its part of the time, and from then on comes last."""
    hosts = Hosts(silent, refusing)
    assert [await hosts.reach(), await hosts.reach()] == [first, then]


@pytest.mark.parametrize(
    ("seconds", "tried"),
    [
        pytest.param(SILENT_SECONDS - 1, "b", id="not yet"),
        pytest.param(SILENT_SECONDS, "a", id="five minutes later"),
    ],
)
async def test_what_said_nothing_is_tried_again(seconds: float, tried: str) -> None:
    """A name server may spread the load by its order, in which all have their place."""
    hosts = Hosts("a")
    await hosts.reach()
    hosts.silent = ""
    hosts.now += seconds
    assert await hosts.reach() == tried


async def test_what_answers_again_has_its_place() -> None:
    """At once, where the others have gone meanwhile."""
    hosts = Hosts("a")
    await hosts.reach()
    hosts.silent, hosts.refusing = "", "bc"
    assert [await hosts.reach(), await hosts.reach()] == ["bca", "a"]


@pytest.mark.parametrize(
    ("seconds", "then"),
    [pytest.param(0.49, "a", id="a client that left"), pytest.param(0.5, "b", id="no time left")],
)
async def test_who_is_called_off_has_learnt_something_if_he_waited(
    seconds: float, then: str
) -> None:
    """A look-up may have used the time up, each time."""
    hosts = Hosts("a")
    hosts.passes = seconds
    trying = asyncio.create_task(hosts.names.reach("engine", hosts.connect, 3.0))
    await until(lambda: bool(hosts.tried))
    trying.cancel()
    await asyncio.wait([trying])
    hosts.silent = ""
    assert await hosts.reach() == then


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
from proxy.names import SILENT_SECONDS, Names
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
