"""Where the log's bytes go: whoever reads it, and however slowly, nobody waits for him."""

import asyncio
import contextlib
import errno
import os
import pty
import signal
import sys
import threading
import tty
from collections.abc import Iterator
from types import FrameType
from typing import BinaryIO

import pytest

from proxy.telemetry.outlet import PIECE_BYTES, Outlet
from proxy.telemetry.writer import LineWriter

HELD_SECONDS = 3.0

OTHER = """
import sys
for number in range(int(sys.argv[1])):
    line = (b"o%06d" % number).ljust(592, b".") + b"o%06d\\n" % number
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""
"""Another process that logs to the same stream, and waits for its reader."""


class Held(BaseException):
    """A write waited."""


@contextlib.contextmanager
def nothing_waits() -> Iterator[None]:
    """Raises where the thread is held by a call of the system."""

    def ring(_: int, __: FrameType | None) -> None:
        raise Held

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, HELD_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Terminal:
    """One, of which the test is the other side."""

    def __init__(self) -> None:
        self.ours, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "wb", buffering=0)

    def read(self, size: int = 65_536) -> bytes:
        """Some of what is on its screen, which it shows by lines that end in two bytes."""
        return os.read(self.ours, size).replace(b"\r", b"")

    def close(self) -> None:
        """Both sides."""
        self.stream.close()
        os.close(self.ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """One, closed at the end."""
    with contextlib.closing(Terminal()) as made:
        yield made


def line(number: int, size: int = 600) -> bytes:
    """One that says which it is, at both ends."""
    return (b"w%06d" % number).ljust(size - 8, b".") + b"w%06d\n" % number


def writer_to(stream: BinaryIO) -> LineWriter:
    """One that says what is missing."""
    return LineWriter(stream, lost=lambda number: b"lost %d\n" % number)


def refused(_: int) -> int:
    """A stream of another user."""
    raise PermissionError(errno.EACCES, "not yours")


async def test_a_terminal_that_nobody_reads_holds_nothing_up(terminal: Terminal) -> None:
    """All lines are there once somebody does, in order and whole."""
    writer = writer_to(terminal.stream)
    with nothing_waits():
        for number in range(200):
            writer.write(line(number))
            await asyncio.sleep(0)
    got = b""
    async with asyncio.timeout(10):
        while len(got) < 200 * 600:
            got += await asyncio.to_thread(terminal.read)
    assert got == b"".join(map(line, range(200)))
    writer.close()


async def test_a_terminal_that_is_stopped(terminal: Terminal) -> None:
    """Ctrl-S, and a long time later Ctrl-Q."""
    writer = writer_to(terminal.stream)
    os.write(terminal.ours, b"\x13")
    with nothing_waits():
        writer.write(b"one\n")
        await asyncio.sleep(0)
        os.write(terminal.ours, b"\x11")
        assert writer.flush(1)
    assert terminal.read() == b"one\n"


def test_the_end_does_not_wait_for_a_terminal(terminal: Terminal) -> None:
    """Nor does what comes after the end."""
    ticks = iter(range(100))
    losses: list[int] = []
    writer = LineWriter(
        terminal.stream,
        lost=lambda _: b"lost\n",
        on_lost=losses.append,
        clock=lambda: float(next(ticks)),
    )
    with nothing_waits():
        while not losses:
            writer.write(line(1))
            writer.close()


@pytest.mark.parametrize("raw", [False, True], ids=["by lines", "raw"])
@pytest.mark.parametrize(
    "each",
    [
        pytest.param(b"." * 1_000 + b"\n", id="long lines"),
        pytest.param(b"." * 127 + b"\n", id="short lines"),
        pytest.param(b"\n", id="empty lines"),
        pytest.param(b"..\n.\n", id="lines of a few bytes"),
    ],
)
def test_a_terminal_of_another_user_is_given_what_it_takes_at_once(
    terminal: Terminal, each: bytes, *, raw: bool
) -> None:
    """Filled to its last byte again and again, and nothing is missing."""
    if raw:
        tty.setraw(terminal.stream.fileno())
    outlet = Outlet(terminal.stream.fileno(), refused)
    left = sent = each * (40_000 // len(each))
    got = b""
    with nothing_waits():
        while left:
            while left and (taken := outlet.write(left[:PIECE_BYTES])):
                left = left[taken:]
            got += terminal.read(1_001)
        while len(got) < len(sent):
            got += terminal.read()
    assert got == sent


@pytest.mark.parametrize("reopens", [True, False], ids=["ours", "another user's"])
def test_a_pipe_that_is_full_takes_nothing(*, reopens: bool) -> None:
    """And the stream of whoever shares it still waits, as he is used to."""
    out, into = os.pipe()
    outlet = Outlet(into) if reopens else Outlet(into, refused)
    with nothing_waits():
        while outlet.write(b"." * PIECE_BYTES):
            pass
    assert os.get_blocking(into)
    os.read(out, PIECE_BYTES)
    assert outlet.write(b"." * PIECE_BYTES) == PIECE_BYTES
    os.close(into)
    os.close(out)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "forgotten"])
def test_the_reader_learns_of_the_end(*, closed: bool) -> None:
    """What was opened is not left open; what is written after the end goes to the stream."""
    out, into = os.pipe()
    outlet = Outlet(into)
    if closed:
        outlet.close()
        outlet.close()
        assert outlet.write(b"after\n") == 6
        assert os.read(out, 100) == b"after\n"
    else:
        del outlet
    os.close(into)
    assert os.read(out, 100) == b""
    os.close(out)


async def test_two_processes_on_one_pipe() -> None:
    """Each one's lines are whole and in order, and the one that must not wait does not.

    The reader makes room by the page, so that both are told of the same one again and again.
    """
    out, into = os.pipe()
    stream = os.fdopen(into, "wb", buffering=0)
    writer = writer_to(stream)
    got: list[bytes] = []

    def read() -> None:
        while data := os.read(out, 4_096):
            got.append(data)

    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OTHER, "1000"), stdout=stream
    )
    reader = threading.Thread(target=read)
    reader.start()
    with nothing_waits():
        for number in range(1_000):
            writer.write(line(number))
            await asyncio.sleep(0)
        assert writer.flush(2)
    assert await other.wait() == 0
    writer.close()
    stream.close()
    await asyncio.to_thread(reader.join, 10)
    os.close(out)
    lines = b"".join(got).splitlines()
    assert all(each[:7] == each[-7:] for each in lines)
    for name in (b"w", b"o"):
        assert [each[:7] for each in lines if each.startswith(name)] == [
            b"%b%06d" % (name, number) for number in range(1_000)
        ]
