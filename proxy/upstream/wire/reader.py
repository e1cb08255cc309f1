"""The responses of one connection, one after the other."""

from collections.abc import Callable
from enum import Enum, auto

from proxy.upstream.wire import head as heads
from proxy.upstream.wire.chunks import Chunks
from proxy.upstream.wire.head import CHUNKED, UNTIL_EOF, Head
from proxy.upstream.wire.limits import ResponseLimits, WireError

__all__ = ["ResponseReader"]

_DEFAULT_LIMITS = ResponseLimits()
_END = b"\r\n\r\n"
_OK = 200
_SWITCHING = 101

OnBody = Callable[[bytes], None]


class _Expect(Enum):
    """What the next byte belongs to."""

    NOTHING = auto()
    HEAD = auto()
    LENGTH = auto()
    EOF = auto()
    FAILED = auto()


class ResponseReader:
    """What an engine answers on one connection.

    Attributes:
        on_body: Takes the body: called at most once in each ``feed``, never with nothing. May be
            replaced at any time. What it raises comes out of ``feed``, after which nothing more may
            be fed.
        head: The final response's head, once it is in.
        complete: The whole response is in.
        reusable: It is, and the connection may carry another one.
        heard: Any byte came since ``begin``.
    """

    __slots__ = (
        "_chunks",
        "_expect",
        "_head_bytes",
        "_interim",
        "_is_head",
        "_keeps_alive",
        "_left",
        "_limits",
        "_max_head_bytes",
        "_partial",
        "complete",
        "head",
        "heard",
        "on_body",
        "reusable",
    )

    def __init__(self, limits: ResponseLimits = _DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._expect = _Expect.NOTHING
        self._chunks: Chunks | None = None
        self._partial = bytearray()
        self._max_head_bytes = self._head_bytes = self._interim = self._left = 0
        self._is_head = self._keeps_alive = False
        self.on_body: OnBody = _drop
        self.head: Head | None = None
        self.complete = self.reusable = self.heard = False

    def begin(
        self, method: bytes | str, on_body: OnBody, max_head_bytes: int | None = None
    ) -> None:
        """What comes next answers a request of this method.

        Args:
            method: In capitals; not CONNECT, behind whose answer there is no HTTP.
            on_body: Takes the body.
            max_head_bytes: In place of the limits' own.

        Raises:
            ValueError: This is not the time, or the method is CONNECT.
        """
        if self._expect is not _Expect.NOTHING or self._chunks or self.complete > self.reusable:
            raise ValueError("this connection carries no further response")
        if method in ("CONNECT", b"CONNECT"):
            raise ValueError("there is no response to read behind CONNECT")
        self._expect = _Expect.HEAD
        self._is_head = method in ("HEAD", b"HEAD")
        self._max_head_bytes = (
            self._limits.max_head_bytes if max_head_bytes is None else max_head_bytes
        )
        self._head_bytes = self._interim = 0
        self.on_body = on_body
        self.head = None
        self.complete = self.reusable = self.heard = False

    def feed(self, data: bytes | memoryview) -> None:
        """What the other side has sent. Of a view nothing is kept.

        Raises:
            WireError: It is not valid; nothing more may be fed.
        """
        chunks = self._chunks
        if chunks is not None:
            body = chunks.feed(data)
            if body:
                self.on_body(body)
            if chunks.over:
                self._end_chunks(chunks)
        elif data:
            self.heard = True
            try:
                self._take(data)
            except BaseException:
                self._fail()
                raise

    def feed_eof(self) -> None:
        """The other side has closed: the end of a body that has no other, or of the connection.

        Raises:
            WireError: The response is not complete, and never will be.
        """
        expect, self._expect = self._expect, _Expect.FAILED
        self.reusable = False
        if expect is _Expect.EOF:
            self.complete = True
        elif expect is not _Expect.NOTHING or self._chunks is not None:
            self._fail()
            raise WireError("the engine closed before its response was complete")

    def _take(self, data: bytes | memoryview) -> None:
        if self._expect is _Expect.LENGTH:
            self._take_length(data)
        elif self._expect is _Expect.EOF:
            self.on_body(bytes(data))
        elif self._expect is _Expect.HEAD:
            self._take_head(data)
        elif self._expect is _Expect.NOTHING:
            raise WireError("the engine says something that it was not asked for")
        else:
            raise WireError("nothing more is read on this connection")

    def _take_length(self, data: bytes | memoryview) -> None:
        left = self._left
        self._left = left - len(data)
        self.on_body(bytes(data if self._left >= 0 else data[:left]))
        if self._left < 0:
            raise WireError("more follows than the length of the response")
        if self._left == 0:
            self._complete()

    def _take_head(self, data: bytes | memoryview) -> None:
        known = len(self._partial)
        self._partial += data
        end = self._partial.find(_END, max(known - len(_END) + 1, 0))
        if end < 0:
            heads.check_beginning(self._partial, known)
            self._check_head_bytes(len(self._partial))
            return
        block = bytes(self._partial)
        self._partial.clear()
        end += len(_END)
        self._check_head_bytes(end)
        self._head_bytes += end
        head, minor = heads.parse(block[:end], self._limits.max_fields)
        self._begin_body(head, minor, block[end:])

    def _check_head_bytes(self, more: int) -> None:
        if self._head_bytes + more > self._max_head_bytes:
            raise WireError("the head of a response is too long")

    def _begin_body(self, head: Head, minor: int, rest: bytes) -> None:
        length = heads.body_behind(head, minor, answers_head=self._is_head)
        if head.status < _OK:
            self._skip_interim(head.status)
        else:
            self.head = head
            self._keeps_alive = length != UNTIL_EOF and heads.keeps_alive(head, minor)
            self._expect_body(length)
        if rest and self.complete:
            self.complete = False
            raise WireError("something follows a response that has no body")
        if rest:
            self.feed(rest)

    def _skip_interim(self, status: int) -> None:
        if status == _SWITCHING:
            raise WireError("the engine wants to speak another protocol")
        self._interim += 1
        if self._interim > self._limits.max_interim:
            raise WireError("the engine sends too many interim responses")

    def _expect_body(self, length: int) -> None:
        if length == CHUNKED:
            self._expect = _Expect.NOTHING
            self._chunks = Chunks(self._limits.max_framing_bytes)
        elif length == UNTIL_EOF:
            self._expect = _Expect.EOF
        elif length:
            self._expect = _Expect.LENGTH
            self._left = length
        else:
            self._complete()

    def _end_chunks(self, chunks: Chunks) -> None:
        self._chunks = None
        if chunks.error is not None:
            self._fail()
            raise chunks.error
        self._complete()

    def _complete(self) -> None:
        self._expect = _Expect.NOTHING
        self.complete = True
        self.reusable = self._keeps_alive

    def _fail(self) -> None:
        self._expect = _Expect.FAILED
        self._chunks = None
        self.reusable = False


def _drop(_: bytes) -> None:
    """Takes the body where no request was made."""
