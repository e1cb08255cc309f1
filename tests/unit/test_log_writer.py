"""The writer of the log: it waits for nobody, keeps order, tears no line, and says what is missing."""

import asyncio
import contextlib
import errno
import fcntl
import io
import os
import pty
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from proxy.telemetry.writer import MAX_BYTES, LineWriter

PIPE_BYTES = 16 * 4096


class Pipe:
    """A pipe whose reader reads when it is told to."""

    def __init__(self) -> None:
        self.out, into = os.pipe()
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.stream = os.fdopen(into, "wb")
        self.got = b""

    def read(self) -> None:
        """Takes what is there now."""
        while select.select([self.out], [], [], 0)[0] and (data := os.read(self.out, 65_536)):
            self.got += data

    async def until(self, is_there: Callable[[bytes], bool]) -> bytes:
        """Reads until what was read is enough."""
        async with asyncio.timeout(10):
            while not is_there(self.got):
                self.read()
                await asyncio.sleep(0.001)
        return self.got

    def leave(self) -> None:
        """The reader is no more."""
        os.close(self.out)
        self.out = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """One, closed at the end."""
    made = Pipe()
    yield made
    made.stream.close()
    if made.out >= 0:
        made.leave()


def writer_to(
    stream: BinaryIO, losses: list[int] | None = None, *, max_bytes: int = MAX_BYTES
) -> LineWriter:
    """A writer, and a list of what it says that it has lost."""
    told = losses.append if losses is not None else lambda _: None
    return LineWriter(
        stream, lost=lambda number: b"lost %d\n" % number, on_lost=told, max_bytes=max_bytes
    )


def line(number: int, size: int = 600) -> bytes:
    """One that says which it is, at both ends."""
    return (b"%06d" % number).ljust(size - 7, b".") + b"%06d\n" % number


def numbers(written: bytes) -> list[int]:
    """The lines that are there, each of which is whole."""
    found = []
    for each in written.splitlines():
        if not each.startswith(b"lost"):
            assert each[:6] == each[-6:], "torn"
            found.append(int(each[:6]))
    return found


def test_memory_is_written_directly() -> None:
    """As every test of something else wants it."""
    stream = io.BytesIO()
    writer = writer_to(stream)
    writer.write(b"one\n")
    assert stream.getvalue() == b"one\n"
    assert writer.flush(0)


def test_without_a_loop_a_line_is_written_at_once(pipe: Pipe) -> None:
    """Before the server runs, and after; behind what others have left in the stream's own buffer."""
    pipe.stream.write(b"before\n")
    writer = writer_to(pipe.stream)
    writer.write(b"one\n")
    pipe.read()
    assert pipe.got == b"before\none\n"


async def test_the_lines_of_one_turn_go_out_together(pipe: Pipe) -> None:
    """After it: nothing is written while requests are served."""
    writer = writer_to(pipe.stream)
    writer.write(b"one\n")
    writer.write(b"two\n")
    pipe.read()
    assert not pipe.got
    await asyncio.sleep(0)
    assert os.read(pipe.out, 100) == b"one\ntwo\n"


async def test_a_reader_that_sleeps_holds_nothing_up(pipe: Pipe) -> None:
    """What fits waits, what does not is lost and said where it is missing; the loop goes on."""
    losses: list[int] = []
    writer = writer_to(pipe.stream, losses, max_bytes=60_000)
    most = 0.0
    for number in range(1_000):
        writer.write(line(number))
        before = time.monotonic()
        await asyncio.sleep(0)
        most = max(most, time.monotonic() - before)
    assert most < 1
    assert sum(losses) > 500
    await pipe.until(lambda got: b"lost" in got)
    writer.write(line(1_000))
    written = await pipe.until(lambda got: got.endswith(line(1_000)))
    kept = 1_000 - sum(losses)
    assert numbers(written) == [*range(kept), 1_000]
    assert written.index(b"lost %d\n" % sum(losses)) == kept * 600
    assert kept * 600 <= PIPE_BYTES + 60_000


async def test_while_lines_are_lost_all_are_until_half_of_them_are_written(pipe: Pipe) -> None:
    """One line in each gap would be followed by one note, and stand before what is lost."""
    losses: list[int] = []
    writer = writer_to(pipe.stream, losses, max_bytes=6_100)
    fill(pipe)
    for number in range(11):
        writer.write(line(number))
    writer.write(line(11, 20))  # for which there would be room
    assert losses == [1, 1]
    written = await pipe.until(lambda got: b"lost" in got)
    assert written.endswith(line(9) + b"lost 2\n")
    assert losses == [1, 1]


@pytest.mark.parametrize(
    ("size", "kept"),
    [
        pytest.param(6_000, True, id="as much as may wait"),
        pytest.param(6_001, False, id="one byte more"),
    ],
)
async def test_what_may_wait(pipe: Pipe, size: int, kept: bool) -> None:
    """The bound is of bytes."""
    losses: list[int] = []
    writer = writer_to(pipe.stream, losses, max_bytes=6_000)
    writer.write(line(1, size))
    expected = line(1, size) if kept else b"lost 1\n"
    assert await pipe.until(lambda got: len(got) >= len(expected)) == expected
    assert losses == ([] if kept else [1])


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([4_095, 4_096, 4_097, 10_000, 50, 50], id="around a page"),
        pytest.param([2_048, 2_048, 2_048, 2_049], id="two of which make a page"),
        pytest.param([100_000], id="longer than the pipe"),
        pytest.param([600] * 300, id="many"),
    ],
)
async def test_order_and_whole_lines(pipe: Pipe, sizes: list[int]) -> None:
    """However they are cut on their way."""
    writer = writer_to(pipe.stream)
    for number, size in enumerate(sizes):
        writer.write(line(number, size))
    written = await pipe.until(lambda got: len(got) >= sum(sizes))
    assert written == b"".join(line(number, size) for number, size in enumerate(sizes))


async def test_a_reader_that_left_ends_nothing(pipe: Pipe) -> None:
    """Nor is the process killed; what cannot be written is lost at the end."""
    losses: list[int] = []
    writer = writer_to(pipe.stream, losses)
    pipe.leave()
    for number in range(3):
        writer.write(line(number))
        await asyncio.sleep(0)
    assert losses == []
    writer.close()
    assert losses == [3]


def test_a_full_disk_is_waited_for() -> None:
    """/dev/full says ENOSPC to whoever writes."""
    losses: list[int] = []
    with Path("/dev/full").open("wb", buffering=0) as full:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            full.write(b"x")
        ticks = iter(range(100))
        told = losses.append
        writer = LineWriter(
            full, lost=lambda _: b"", on_lost=told, clock=lambda: float(next(ticks))
        )
        writer.write(line(1))
        writer.write(line(2))
        writer.close()
    assert losses == [2]


async def test_what_is_left_at_the_end_is_written(pipe: Pipe) -> None:
    """Within a second, to a reader that is slow."""
    writer = writer_to(pipe.stream)
    for number in range(300):
        writer.write(line(number))
    reading = asyncio.get_running_loop().run_in_executor(None, _read_all, pipe.out, 300 * 600)
    writer.close()
    assert numbers(await reading) == list(range(300))


async def test_what_cannot_be_written_at_the_end_is_not_waited_for(pipe: Pipe) -> None:
    """A second, and the process ends."""
    losses: list[int] = []
    ticks = iter(range(100))
    writer = LineWriter(
        pipe.stream, lost=lambda _: b"", on_lost=losses.append, clock=lambda: float(next(ticks))
    )
    fill(pipe)
    writer.write(line(1))
    writer.close()
    assert losses == [1]
    writer.close()
    assert sum(losses) == 1


async def test_a_file_and_what_the_next_loop_brings(tmp_path: Path) -> None:
    """A file takes everything; a loop that ended with lines in hand is no reason to keep them."""
    path = tmp_path / "log"
    with path.open("wb") as stream:
        writer = writer_to(stream)

        async def ends_at_once() -> None:
            writer.write(line(1))
            writer._loop = asyncio.new_event_loop()  # as one that will call nobody any more
            writer._loop.close()

        await ends_at_once()
        writer.write(line(2))
        await asyncio.sleep(0)
        assert numbers(path.read_bytes()) == [1, 2]


async def test_a_terminal(tmp_path: Path) -> None:
    """It takes lines like any other."""
    ours, theirs = pty.openpty()
    with contextlib.closing(os.fdopen(theirs, "wb", buffering=0)) as stream:
        writer_to(stream).write(b"one\n")
        await asyncio.sleep(0)
        assert os.read(ours, 100).replace(b"\r", b"") == b"one\n"
    os.close(ours)


async def test_the_stream_is_left_as_it_is(pipe: Pipe) -> None:
    """Not made non-blocking: it may be another process's, too."""
    writer_to(pipe.stream).write(b"one\n")
    await asyncio.sleep(0)
    assert os.get_blocking(pipe.stream.fileno())


def fill(pipe: Pipe) -> None:
    """Leaves no room in a pipe."""
    os.set_blocking(pipe.stream.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe.stream.fileno(), b"-" * 4095 + b"\n")
    os.set_blocking(pipe.stream.fileno(), True)


def _read_all(descriptor: int, size: int) -> bytes:
    got = b""
    while len(got) < size:
        got += os.read(descriptor, 4_096)
    return got
