"""A chunked body, by llhttp: the one thing that would take too long in Python.

llhttp is strict about chunks, extensions and trailers; ``tests/unit/test_wire_chunks.py`` holds it to
that. It does not tell where a body ended: it skips line ends behind it, and reads what follows as another
response. And it lets a trailer name a transfer coding. All three are found here.
"""

import httptools

__all__ = ["Chunks"]

_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
"""What the parser is told of the response. Its real head was judged before, and by stricter rules."""

_END = b"\r\n\r\n"

_PAID_BYTES = 5
"""How much framing a byte of body pays for: what a chunk of one byte needs. Engines send such chunks."""


class _Events:
    """What the parser calls. Methods of lists, because a call into Python costs as much as a chunk."""

    __slots__ = (
        "on_body",
        "on_header",
        "on_message_begin",
        "on_message_complete",
        "pending",
        "pieces",
        "trailers",
    )

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.trailers: dict[bytes, bytes] = {}
        self.on_header = self.trailers.__setitem__
        self.pending = [None]
        self.on_message_complete = self.pending.clear
        self.on_message_begin = [None].pop  # fails, and so stops the parser, the second time


class Chunks:
    """One chunked body.

    Args:
        max_framing_bytes: What extensions and trailers may come to beyond what the body pays for. It
            is reckoned after each ``feed``: near the bound it matters how the body was cut.

    Attributes:
        over: Nothing more may be fed: the body is complete, or there is an ``error``.
        error: What is wrong, in a constant of ours.
    """

    __slots__ = ("_credit", "_most", "_parse", "_pending", "_pieces", "_trailers", "error", "over")

    def __init__(self, max_framing_bytes: int) -> None:
        self.over = False
        self.error: str | None = None
        self._most = self._credit = max_framing_bytes
        events = _Events()
        self._pieces, self._pending = events.pieces, events.pending
        # One for each response: a trailer ("Connection: close") changes how the next one is read.
        self._parse = httptools.HttpResponseParser(events).feed_data
        self._parse(_HEAD)
        self._trailers = events.trailers
        self._trailers.clear()

    def feed(self, data: bytes | memoryview) -> bytes:
        """What there is of the body in the data, up to its end or an error."""
        size = len(data)
        try:
            if size > len(_END):
                self._parse(data)
            else:
                self._parse_bytewise(data)
        except httptools.HttpParserError:
            self._fail("a chunked body is not valid, or something follows it")
        pieces = self._pieces
        body = pieces.pop() if pieces else b""
        if pieces:  # most often it was the only one
            pieces.append(body)
            body = b"".join(pieces)
            pieces.clear()
        if not self._pending:
            self._check_end(data)
        owed = size - (_PAID_BYTES + 1) * len(body)
        if owed > 0 or self._credit < self._most:
            self._pay(owed)
        return body

    def _parse_bytewise(self, data: bytes | memoryview) -> None:
        # So few may be line ends only, of which one cannot tell which is the last of the body.
        for at in range(len(data)):
            if not self._pending:
                self._fail("something follows a chunked body")
                return
            self._parse(data[at : at + 1])

    def _pay(self, owed: int) -> None:
        # Bounded as the server bounds a request's: what is saved up cannot exceed what is free.
        self._credit = min(self._credit - owed, self._most)
        if self._credit < 0:
            self._fail("a chunked body has too much framing")

    def _check_end(self, data: bytes | memoryview) -> None:
        self.over = True
        # A body ends with an empty line, and the line in front of that is never empty. So any line
        # ends behind it show in its last five bytes.
        if len(data) > len(_END) and (data[-4:] != _END or data[-5] in _END):
            self._fail("something follows a chunked body")
        elif b"transfer-encoding" in map(bytes.lower, self._trailers):
            self._fail("a trailer names a transfer coding")

    def _fail(self, why: str) -> None:
        self.over = True
        self.error = self.error or why
