"""The responses of one connection, one after the other."""

from collections.abc import Callable

from proxy.upstream.wire import head as heads
from proxy.upstream.wire.chunks import Chunks
from proxy.upstream.wire.head import CHUNKED, UNTIL_EOF, Head
from proxy.upstream.wire.limits import ResponseLimits, WireError

__all__ = ["ResponseReader"]

_DEFAULT_LIMITS = ResponseLimits()
_END = b"\r\n\r\n"
_OK = 200
_SWITCHING = 101
_HEAD = frozenset(("HEAD", b"HEAD"))
_CONNECT = frozenset(("CONNECT", b"CONNECT"))
_TOO_LONG = "the head of a response is too long"

_Data = bytes | memoryview
_OnBody = Callable[[bytes], None]


class ResponseReader:
    """What an engine answers on one connection.

    Attributes:
        on_body: Takes the body: called at most once in each ``feed``, never with nothing. May be
            replaced at any time, and is forgotten at the end. What it raises comes out of ``feed``,
            after which nothing more may be fed.
        head: The final response's head, once it is in.
        complete: The whole response is in.
        reusable: It is, and the connection may carry another one.
        heard: Any byte came since ``begin``.
    """

    __slots__ = (
        "_chunks",
        "_head_bytes",
        "_interim",
        "_is_head",
        "_keeps_alive",
        "_left",
        "_limits",
        "_max_head_bytes",
        "_partial",
        "_take",
        "complete",
        "head",
        "heard",
        "on_body",
        "reusable",
    )

    def __init__(self, limits: ResponseLimits = _DEFAULT_LIMITS) -> None:
        self._limits = limits
        # What takes the next bytes: a function, not a method, which would hold on to its reader.
        self._take: _Take = ResponseReader._take_unasked
        self._chunks: Chunks | None = None  # that does, where there is one
        self._partial = bytearray()
        self._max_head_bytes = self._head_bytes = self._interim = self._left = 0
        self._is_head = self._keeps_alive = False
        self.on_body: _OnBody = _drop
        self.head: Head | None = None
        self.complete = self.reusable = self.heard = False

    def begin(
        self, method: bytes | str, on_body: _OnBody, max_head_bytes: int | None = None
    ) -> None:
        """What comes next answers a request of this method.

        Args:
            method: In capitals; not CONNECT, behind whose answer there is no HTTP.
            on_body: Takes the body.
            max_head_bytes: In place of the limits' own.

        Raises:
            ValueError: This is not the time, or the method is CONNECT.
        """
        idle = self._take is ResponseReader._take_unasked and self._chunks is None
        if not idle or (self.complete and not self.reusable):
            raise ValueError("this connection carries no further response")
        if method in _CONNECT:
            raise ValueError("there is no response to read behind CONNECT")
        self._take = ResponseReader._take_head
        self._is_head = method in _HEAD
        self._max_head_bytes = (
            self._limits.max_head_bytes if max_head_bytes is None else max_head_bytes
        )
        self._head_bytes = self._interim = 0
        self.on_body = on_body
        self.head = None
        self.complete = self.reusable = self.heard = False

    def feed(self, data: _Data) -> None:
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
                self._take(self, data)
            except BaseException:
                self._fail()
                raise

    def feed_eof(self) -> None:
        """The other side has closed: the end of a body that has no other, or of the connection.

        Raises:
            WireError: The response is not complete, and never will be.
        """
        idle = self._take is ResponseReader._take_unasked and self._chunks is None
        until_eof = self._take is ResponseReader._take_until_eof
        self._fail()
        if until_eof:
            self.complete = True
        elif not (idle or self.complete):
            raise WireError("the engine closed before its response was complete")

    def _take_unasked(self, _: _Data) -> None:
        raise WireError("the engine says something that it was not asked for")

    def _take_nothing(self, _: _Data) -> None:
        raise WireError("nothing more is read on this connection")

    def _take_until_eof(self, data: _Data) -> None:
        self.on_body(bytes(data))

    def _take_length(self, data: _Data) -> None:
        left = self._left
        self._left = left - len(data)
        self.on_body(bytes(data if self._left >= 0 else data[:left]))
        if self._left < 0:
            raise WireError("more follows than the length of the response")
        if self._left == 0:
            self._complete()

    def _take_head(self, data: _Data) -> None:
        partial = self._partial
        known = len(partial)
        if known:
            partial += data
            end = partial.find(_END, max(known - len(_END) + 1, 0))
            block = b"" if end < 0 else bytes(partial)
        else:
            block = bytes(data)
            end = block.find(_END)
        if end < 0:
            self._wait_for_head(known, block)
            return
        partial.clear()
        end += len(_END)
        self._head_bytes += end
        if self._head_bytes > self._max_head_bytes:
            raise WireError(_TOO_LONG)
        head, minor = heads.parse(block[:end], self._limits.max_fields)
        self._begin_body(head, minor, block[end:])

    def _wait_for_head(self, known: int, block: bytes) -> None:
        partial = self._partial
        partial += block
        heads.check_beginning(partial, known)
        if self._head_bytes + len(partial) > self._max_head_bytes:
            raise WireError(_TOO_LONG)

    def _begin_body(self, head: Head, minor: int, rest: bytes) -> None:
        length, keeps_alive = heads.judge(head, minor, answers_head=self._is_head)
        if head.status < _OK:
            self._skip_interim(head.status)
        else:
            self.head = head
            self._keeps_alive = keeps_alive
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
            self._take = ResponseReader._take_unasked
            self._chunks = Chunks(self._limits.max_framing_bytes)
        elif length == UNTIL_EOF:
            self._take = ResponseReader._take_until_eof
        elif length:
            self._take = ResponseReader._take_length
            self._left = length
        else:
            self._complete()

    def _end_chunks(self, chunks: Chunks) -> None:
        self._chunks = None
        if chunks.error is not None:
            self._fail()
            raise WireError(chunks.error)
        self._complete()

    def _complete(self) -> None:
        self._take = ResponseReader._take_unasked
        self.on_body = _drop  # an idle connection holds on to nothing of its last request
        self.complete = True
        self.reusable = self._keeps_alive

    def _fail(self) -> None:
        self._take = ResponseReader._take_nothing
        self._chunks = None
        self.on_body = _drop
        self.reusable = False


_Take = Callable[[ResponseReader, _Data], None]


def _drop(_: bytes) -> None:
    """Takes the body where there is none."""
