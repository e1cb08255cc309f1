"""What holds for every response of an engine, whatever its bytes are.

``make fuzz`` (``tests/fuzz/run.py``) looks for one that breaks it; ``tests/unit/test_wire_corpus.py`` tries those that are kept.
A file of the corpus is what an engine sends on one connection until it closes.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import h11
import httptools

from proxy.upstream.wire import ResponseReader, WireError

_METHODS = ("GET", "HEAD")
_ZEROS = b"0" * 18
"""Where a chunk's size has more than 20 digits, h11 refuses and llhttp counts on: it overflows with 64 bits
only, and leading zeros are valid (RFC 9112 §7.1). The one case in which we are not the stricter one."""

_LARGE = 1 << 20  # h11 reads no head in less, whatever we do


@dataclass(frozen=True, slots=True)
class Reading:
    """What was understood of a response."""

    status: int | None
    fields: list[tuple[bytes, bytes]] | None
    body: bytes
    complete: bool
    reusable: bool = False


def read(pieces: Sequence[bytes], method: str = "GET") -> Reading:
    """Our reading: complete only if not one byte was wrong, also behind the end."""
    reader, body = ResponseReader(), bytearray()
    reader.begin(method, body.extend)
    reusable = False
    try:
        for piece in pieces:
            reader.feed(piece)
        reusable = reader.reusable
        reader.feed_eof()
    except WireError:
        complete = False
    else:
        complete = reader.complete
    head = reader.head
    status, fields = (head.status, head.fields) if head else (None, None)
    return Reading(status, fields, bytes(body), complete, complete and reusable)


def read_by_h11(data: bytes, method: str = "GET") -> Reading | None:
    """What h11 makes of it; None if it refuses."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGE)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "engine")]))
    connection.send(h11.EndOfMessage())
    head: h11.Response | None = None
    body = bytearray()
    try:
        connection.receive_data(data)
        connection.receive_data(b"")
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None
    if head is None or connection.trailing_data[0]:
        return None
    reusable = connection.their_state is h11.DONE
    return Reading(
        head.status_code, list(head.headers), bytes(body), complete=True, reusable=reusable
    )


def body_by_llhttp(data: bytes) -> bytes | None:
    """The body of a response to GET as httptools reads it; None if it refuses or waits for more."""
    parser = _Parser()
    try:
        httptools.HttpResponseParser(parser).feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    return bytes(parser.body) if parser.ended else None


class _Parser:
    def __init__(self) -> None:
        self.body = bytearray()
        self.ended = False
        self.on_body = self.body.extend

    def on_message_begin(self) -> None:
        self.ended = False

    def on_message_complete(self) -> None:
        self.ended = True


def cuts(data: bytes) -> list[list[bytes]]:
    """Some ways in which it may arrive."""
    rng = random.Random(zlib.crc32(data))  # noqa: S311 - the same ones each time
    whole = [data] if data else []
    ways = [whole, [data[at : at + 1] for at in range(len(data))]]
    for pieces in (2, 3, 8):
        at = sorted(rng.randrange(len(data) + 1) for _ in range(pieces - 1))
        bounds = list(zip([0, *at], [*at, len(data)], strict=True))
        ways.append([data[start:end] for start, end in bounds])
    return ways


def check(data: bytes) -> None:
    """Raises AssertionError, or what should never come out of the reader, where it does not hold."""
    for method in _METHODS:
        first, *others = (read(way, method) for way in cuts(data))
        for other in others:
            assert other == first, f"{method}: it matters how it is cut: {first} {other}"
        if first.complete:
            _agree(first, data, method)


def _agree(ours: Reading, data: bytes, method: str) -> None:
    theirs = read_by_h11(data, method)
    if theirs is None:
        assert _ZEROS in data, f"{method}: h11 refuses what we take for complete: {ours}"
        return
    assert (ours.status, ours.body) == (theirs.status, theirs.body), f"{method}: {ours} {theirs}"
    assert _plain(ours) == _plain(theirs), f"{method}: {ours} {theirs}"
    # h11 never uses a connection of HTTP/1.0 again.
    kept = theirs.reusable or b"HTTP/1.0" in data
    assert kept or not ours.reusable, f"{method}: h11 would close"
    body = body_by_llhttp(data) if method == "GET" else None
    assert body is None or body == ours.body, f"llhttp: {body!r} {ours}"


def _plain(reading: Reading) -> list[tuple[bytes, bytes]]:
    # h11 gives this one value in lower case.
    return [
        (name, value.lower() if name == b"transfer-encoding" else value)
        for name, value in reading.fields or []
    ]
