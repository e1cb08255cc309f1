"""Where a comment may come into a stream of events, and when one does."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.keepalive import COMMENT, IS_COMMENT, Boundary, KeepAlive

SOON = 0.01


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([], id="nothing yet"),
        pytest.param([b"data: a\n\n"], id="after LF LF"),
        pytest.param([b"data: a\r\n\r\n"], id="after CRLF CRLF"),
        pytest.param([b"data: a\r\r"], id="after CR CR"),
        pytest.param([b"data: a\n\r\n"], id="after LF CRLF"),
        pytest.param([b"data: a\n", b"\n"], id="an end cut in two"),
        pytest.param([b"data: a\r", b"\n", b"\r", b"\n"], id="an end cut in four"),
        pytest.param([b": comment\n\n"], id="after the upstream's own comment"),
        pytest.param([b"data: a\n\n", b""], id="after an empty chunk"),
    ],
)
def test_between_events(chunks: list[bytes]) -> None:
    """An empty line ends an event, whatever ends its lines and wherever it was cut."""
    assert noted(*chunks).between_events


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b"d"], id="in a name"),
        pytest.param([b"data: a"], id="in a value"),
        pytest.param([b"data: a\n"], id="between the lines of an event"),
        pytest.param([b"data: a\r\n"], id="between its lines, CRLF"),
        pytest.param([b"data: a\r"], id="in half an end of a line"),
        pytest.param([b"data: a\r\n\r"], id="in half an end of an event"),
        pytest.param([b"data: a\n\r"], id="where a line feed may follow"),
        pytest.param([b"data: a\n\n", b"data: b"], id="in the second event"),
        pytest.param([b"data: a\\n\\n"], id="at an escaped end, which is none"),
        pytest.param([b"\n", b"\n", b"x"], id="after single bytes"),
    ],
)
def test_within_an_event(chunks: list[bytes]) -> None:
    """A comment here would cut the event in two."""
    assert not noted(*chunks).between_events


def noted(*chunks: bytes) -> Boundary:
    """The state after these chunks."""
    boundary = Boundary()
    for chunk in chunks:
        boundary.note(chunk)
    return boundary


PIECES = st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"data: x", b": c", b"\n\n", b""])


@given(st.lists(PIECES, max_size=12))
def test_a_comment_never_changes_what_a_client_reads(chunks: list[bytes]) -> None:
    """However a stream is cut: with comments wherever one may come, its events are the same."""
    boundary, written = Boundary(), b""
    for chunk in chunks:
        if boundary.between_events:
            written += COMMENT
        boundary.note(chunk)
        written += chunk
    assert events(written) == events(b"".join(chunks))


def events(stream: bytes) -> list[list[bytes]]:
    """What a reader makes of a stream: the lines of its events and the unfinished rest.

    Slowly, and by the letter of the format: WHATWG HTML, "Server-sent events", §9.2.5 and §9.2.6.
    """
    lines = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    read: list[list[bytes]] = []
    event: list[bytes] = []
    for line in lines[:-1]:
        if line.startswith(b":"):
            continue
        if line:
            event.append(line)
        elif event:
            read.append(event)
            event = []
    return [*read, event, lines[-1:]]


class Client:
    """Receives ASGI messages, and may stop reading."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.pieces: list[bytes] = []
        self.comments = 0
        self._more = asyncio.Event()

    async def send(self, message: Any) -> None:
        """An ASGI send, which waits in front of a write as uvicorn's does."""
        await self.reads.wait()
        self.pieces.append(message["body"])
        self.comments += IS_COMMENT in message
        self._more.set()
        self._more = asyncio.Event()

    async def has(self, pieces: int) -> None:
        """Returns once it has so many."""
        async with asyncio.timeout(5):
            while len(self.pieces) < pieces:
                await self._more.wait()


async def silence() -> None:
    """Returns after a time in which a stream that may have comments has had three."""
    other = Client()
    beside = KeepAlive(other.send, SOON)
    beside.start()
    await other.has(3)
    beside.stop()


async def test_comments_into_silence() -> None:
    """One after the other, until it stops, and each is marked as one."""
    client = Client()
    stream = KeepAlive(client.send, SOON)
    stream.start()
    await client.has(2)
    await stream.write(b"data: a\n\n")
    await client.has(5)
    stream.stop()
    assert client.pieces[:5].count(COMMENT) == 4
    assert client.comments == len(client.pieces) - 1
    before = len(client.pieces)
    await silence()
    assert len(client.pieces) == before


@pytest.mark.parametrize(
    ("seconds", "chunk"),
    [
        pytest.param(SOON, b"data: a\n", id="within an event"),
        pytest.param(0.0, b"data: a\n\n", id="where they are switched off"),
        pytest.param(3600.0, b"data: a\n\n", id="before the time has come"),
    ],
)
async def test_no_comment(seconds: float, chunk: bytes) -> None:
    """However long the silence is."""
    client = Client()
    stream = KeepAlive(client.send, seconds)
    await stream.write(chunk)
    stream.start()
    await silence()
    stream.stop()
    assert client.pieces == [chunk]


async def test_comments_after_an_event_that_was_cut() -> None:
    """They come once it is complete."""
    client = Client()
    stream = KeepAlive(client.send, SOON)
    await stream.write(b"data: a\n")
    stream.start()
    await silence()
    await stream.write(b"\n")
    await client.has(3)
    stream.stop()
    assert client.pieces[:3] == [b"data: a\n", b"\n", COMMENT]


async def test_a_client_that_does_not_read_gets_no_comments() -> None:
    """Not while a chunk waits for it, and afterwards the order is that of the writes."""
    client = Client()
    stream = KeepAlive(client.send, SOON)
    stream.start()
    client.reads.clear()
    writing = asyncio.create_task(stream.write(b"data: a\n\n"))
    await silence()
    assert client.pieces == []
    client.reads.set()
    await writing
    stream.stop()
    assert client.pieces == [b"data: a\n\n"]


async def test_a_chunk_waits_for_a_comment_that_was_first() -> None:
    """Two writes at a time could change places, and a comment come into an event."""
    client = Client()
    client.reads.clear()
    stream = KeepAlive(client.send, SOON)
    stream.start()
    await silence()
    writing = asyncio.create_task(stream.write(b"data: a\n"))
    await silence()
    client.reads.set()
    await writing
    stream.stop()
    assert client.pieces == [COMMENT, b"data: a\n"]


async def test_a_comment_that_waits_is_given_up_at_the_end() -> None:
    """Nothing may be written after an end."""
    client = Client()
    client.reads.clear()
    stream = KeepAlive(client.send, SOON)
    stream.start()
    await silence()
    stream.stop()
    client.reads.set()
    await silence()
    assert client.pieces == []


async def test_a_comment_on_demand() -> None:
    """At once, and it counts as a write."""
    client = Client()
    stream = KeepAlive(client.send, 3600.0)
    await stream.comment()
    assert (client.pieces, client.comments) == ([COMMENT], 1)
