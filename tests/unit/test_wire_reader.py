"""Responses, one after the other on a connection, and the bounds of their heads."""

import contextlib
import gc
import weakref
from collections.abc import Callable

import pytest

from proxy.upstream.wire import ResponseLimits, ResponseReader, WireError
from tests.fuzz.responses import check, read

_OK = b"HTTP/1.1 200 OK\r\n"
_EMPTY = _OK + b"Content-Length: 0\r\n\r\n"
_HELLO = _OK + b"Content-Length: 5\r\n\r\nhello"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SWITCH = b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"


def _begun(limits: ResponseLimits | None = None, method: str = "POST") -> ResponseReader:
    reader = ResponseReader(limits or ResponseLimits())
    reader.begin(method, lambda _: None)
    return reader


@pytest.mark.parametrize(
    ("method", "response", "body"),
    [
        pytest.param("GET", _HELLO, b"hello", id="a length"),
        pytest.param("GET", _EMPTY, b"", id="a length of nothing"),
        pytest.param("GET", _OK + b"Content-Length: 0005\r\n\r\nhello", b"hello", id="leading zeros"),
        pytest.param("GET", _OK + b"Content-Length: 000000000000000005\r\n\r\nhello", b"hello", id="18 digits"),
        pytest.param("GET", _CHUNKED, b"hello", id="chunks"),
        pytest.param("GET", _OK + b"\r\nhello", b"hello", id="until the end"),
        pytest.param("GET", b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello", id="until the end, HTTP/1.0"),
        pytest.param("GET", _OK + b"Connection: keep-alive\r\n\r\n", b"", id="nothing until the end"),
        pytest.param("HEAD", _OK + b"Content-Length: 5\r\n\r\n", b"", id="HEAD and a length"),
        pytest.param("HEAD", _OK + b"Transfer-Encoding: chunked\r\n\r\n", b"", id="HEAD and chunks"),
        pytest.param("HEAD", _OK + b"\r\n", b"", id="HEAD and neither"),
        pytest.param("GET", b"HTTP/1.1 204 No\r\n\r\n", b"", id="204"),
        pytest.param("GET", b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", b"", id="204 and a length"),
        pytest.param("GET", b"HTTP/1.1 304 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"", id="304 and chunks"),
        pytest.param("GET", _CONTINUE * 8 + _HELLO, b"hello", id="eight interim responses"),
        pytest.param("GET", b"HTTP/1.1 103 x\r\nLink: y\r\n\r\n" + _CHUNKED, b"hello", id="early hints"),
    ],
)  # fmt: skip
def test_a_whole_response(method: str, response: bytes, body: bytes) -> None:
    """However it is cut, it is complete with its last byte and not before."""
    check(response)
    reading = read([response], method)
    assert (reading.complete, reading.body) == (True, body)
    until_eof = method == "GET" and b"ength" not in response and b"chunked" not in response
    assert reading.reusable is not (until_eof and b" 204 " not in response)
    if reading.reusable:
        assert not any(read([response[:end]], method).complete for end in range(len(response)))


@pytest.mark.parametrize(
    ("method", "response"),
    [
        pytest.param("GET", b"", id="nothing"),
        pytest.param("GET", _OK, id="a part of a head"),
        pytest.param("GET", _CONTINUE, id="an interim response only"),
        pytest.param("GET", _HELLO[:-1], id="a byte less than its length"),
        pytest.param("GET", _HELLO + b"!", id="a byte more than its length"),
        pytest.param("GET", _HELLO + b"\r\n", id="a line end more than its length"),
        pytest.param("GET", _EMPTY + b"!", id="a byte where there is no body"),
        pytest.param("GET", _HELLO + _HELLO, id="two responses"),
        pytest.param("GET", b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\nhello", id="204 with a body"),
        pytest.param("GET", b"HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\nhello", id="304 with a body"),
        pytest.param("HEAD", _HELLO, id="HEAD with a body"),
        pytest.param("HEAD", _CHUNKED, id="HEAD with chunks"),
        pytest.param("GET", _CONTINUE * 9 + _HELLO, id="nine interim responses"),
        pytest.param("GET", b"HTTP/1.1 100 C\r\nContent-Length: 5\r\n\r\nhello" + _HELLO, id="a body of an interim response"),
        pytest.param("GET", b"HTTP/1.1 100 C\r\nContent-Length: 0\r\n\r\n" + _HELLO, id="a length of an interim response"),
        pytest.param("GET", b"HTTP/1.1 102 C\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNKED, id="a coding of an interim response"),
        pytest.param("GET", _SWITCH, id="another protocol"),
        pytest.param("GET", _SWITCH + _HELLO, id="another protocol, and a response behind it"),
        pytest.param("GET", _CONTINUE + _SWITCH + _CHUNKED, id="the same between two others"),
        pytest.param("HEAD", b"HTTP/1.1 101 S\r\n\r\n" + _EMPTY, id="101 without a field, and a response to HEAD"),
        pytest.param("GET", b"\x15\x03\x01\x00\x02\x02\x16", id="a TLS alert"),
    ],
)  # fmt: skip
def test_what_is_no_whole_response(method: str, response: bytes) -> None:
    """However it is cut, it never passes for complete."""
    check(response)
    assert not read([response], method).complete


@pytest.mark.parametrize("response", [_EMPTY, _HELLO, _CHUNKED, b"HTTP/1.1 204 No\r\n\r\n"])
@pytest.mark.parametrize("late", [b"\r\n", b"!", _HELLO])
def test_bytes_that_come_while_nothing_is_asked(response: bytes, late: bytes) -> None:
    """The response that was complete stays so; the connection is not used again."""
    reader = _begun()
    reader.feed(response)
    assert (reader.complete, reader.reusable) == (True, True)
    with pytest.raises(WireError):
        reader.feed(late)
    assert (reader.complete, reader.reusable) == (True, False)
    with pytest.raises(ValueError, match="no further response"):
        reader.begin("GET", lambda _: None)


def test_a_response_that_was_not_asked_for() -> None:
    """It cannot become the answer to the request that comes next."""
    reader = ResponseReader()
    assert not reader.reusable
    with pytest.raises(WireError):
        reader.feed(_HELLO)
    with pytest.raises(ValueError, match="no further response"):
        reader.begin("GET", lambda _: None)


def test_many_responses_on_one_connection() -> None:
    """Nothing of one is left in the next, neither an option in a trailer nor interim responses."""
    reader = ResponseReader()
    trailer = _CHUNKED.replace(b"0\r\n\r\n", b"0\r\nConnection: close\r\n\r\n")
    for response in (_CONTINUE * 8 + _HELLO, trailer, _CHUNKED, _CONTINUE * 8 + _EMPTY, _CHUNKED):
        body = bytearray()
        reader.begin(b"POST", body.extend)
        assert (reader.head, reader.heard, reader.complete) == (None, False, False)
        reader.feed(response)
        assert (reader.head is not None, reader.heard, reader.complete) == (True, True, True)
        assert bytes(body) == (b"" if response.endswith(_EMPTY) else b"hello")


@pytest.mark.parametrize("part", [b"", _OK, _CONTINUE, _HELLO[:-1], _CHUNKED[:-1], _CHUNKED[:-9]])
def test_no_second_question_while_an_answer_is_coming(part: bytes) -> None:
    """Its answer would be mixed with the one before."""
    reader = _begun()
    reader.feed(part)
    with pytest.raises(ValueError, match="no further response"):
        reader.begin("GET", lambda _: None)
    with pytest.raises(WireError, match="closed before"):
        reader.feed_eof()


def test_a_connection_that_will_not_be_used_again() -> None:
    """Complete, but nothing may be asked behind it."""
    reader = _begun()
    reader.feed(_HELLO.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))
    assert (reader.complete, reader.reusable) == (True, False)
    with pytest.raises(ValueError, match="no further response"):
        reader.begin("GET", lambda _: None)


def test_connect_is_not_spoken() -> None:
    """What follows its answer is not HTTP."""
    for method in ("CONNECT", b"CONNECT"):
        with pytest.raises(ValueError, match="CONNECT"):
            ResponseReader().begin(method, lambda _: None)


def test_the_end_of_a_connection() -> None:
    """It may come before any question, behind an answer, and twice."""
    for response in (b"", _HELLO, _OK + b"\r\nhello"):
        reader = _begun() if response else ResponseReader()
        reader.feed(response)
        reader.feed_eof()
        assert (reader.complete, reader.reusable) == (bool(response), False)
        reader.feed_eof() if response else None
        with pytest.raises(WireError):
            reader.feed(b"x")


@pytest.mark.parametrize("wrong", [b"x", _OK + b"A\r\n\r\n", _HELLO + b"!", _CHUNKED + b"!"])
def test_behind_an_error_nothing_is_read(wrong: bytes) -> None:
    """Whatever comes, the error stays."""
    reader = _begun()
    with pytest.raises(WireError):
        reader.feed(wrong)
    with pytest.raises(WireError):
        reader.feed(_HELLO)
    with pytest.raises(WireError):
        reader.feed_eof()
    assert (reader.complete, reader.reusable) == (False, False)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(_CHUNKED + b"!", id="a byte too many"),
        pytest.param(_CHUNKED.replace(b"5\r\n", b"x\r\n"), id="no size"),
        pytest.param(_CHUNKED.replace(b"hello", b"hello!"), id="longer than its size"),
        pytest.param(_CHUNKED.replace(b"5\r\n", b"5;%b\r\n" % (b"x" * 70_000)), id="framing"),
        pytest.param(_HELLO + b"!", id="a byte more than its length"),
        pytest.param(_SWITCH, id="another protocol"),
    ],
)
@pytest.mark.parametrize("is_cut", [False, True], ids=["at once", "the head, and the rest"])
def test_an_error_is_the_end_of_the_connection(wrong: bytes, *, is_cut: bool) -> None:
    """Each by itself, at once: it is not used again, nothing more is read, and its end completes nothing."""
    head, end, _ = wrong.partition(b"\r\n\r\n")

    def failed() -> ResponseReader:
        reader = _begun()
        with pytest.raises(WireError):
            _feed(reader, wrong, len(head + end) if is_cut else len(wrong))
        assert (reader.complete, reader.reusable) == (False, False)
        return reader

    with pytest.raises(ValueError, match="no further response"):
        failed().begin("GET", lambda _: None)
    with pytest.raises(WireError, match="nothing more is read"):
        failed().feed(_HELLO)
    with pytest.raises(WireError, match="closed before"):
        failed().feed_eof()


def test_heard() -> None:
    """One byte is enough; none is none."""
    reader = _begun()
    reader.feed(b"")
    assert not reader.heard
    reader.feed(b"H")
    assert reader.heard


def test_a_view_is_copied() -> None:
    """What was given to the body does not change with the buffer that it was read into."""
    for response in (_HELLO, _CHUNKED, _OK + b"\r\nhello"):
        body: list[bytes] = []
        reader = ResponseReader()
        reader.begin("GET", body.append)
        for piece in (response[:40], response[40:]):
            buffer = bytearray(piece)
            with memoryview(buffer) as view:
                reader.feed(view)
            buffer[:] = b"X" * len(buffer)
        assert b"".join(body) == b"hello"
        assert {type(chunk) for chunk in body} == {bytes}


@pytest.mark.parametrize(
    "framed",
    [
        pytest.param(lambda data: b"%x\r\n%b\r\n" % (len(data), data), id="chunks"),
        pytest.param(lambda data: data, id="until the end"),
    ],
)
def test_the_sink_is_replaced(framed: Callable[[bytes], bytes]) -> None:
    """The next chunk goes to the new one; several chunks of a packet come as one."""
    first: list[bytes] = []
    second: list[bytes] = []
    reader = ResponseReader()
    reader.begin("GET", first.append)
    coding = b"Transfer-Encoding: chunked\r\n" if framed(b"a") != b"a" else b""
    reader.feed(_OK + coding + b"\r\n" + framed(b"one"))
    reader.on_body = second.append
    reader.feed(framed(b"two") + framed(b"three"))
    assert (first, second) == ([b"one"], [b"twothree"])


@pytest.mark.parametrize("response", [_HELLO, _CHUNKED, _OK + b"\r\nhello"])
def test_a_sink_that_fails(response: bytes) -> None:
    """Its own error comes out, and the response is never complete."""

    def fail(_: bytes) -> None:
        raise LookupError

    reader = ResponseReader()
    reader.begin("GET", fail)
    with pytest.raises(LookupError):
        reader.feed(response)
    with pytest.raises(WireError):
        reader.feed_eof()
    assert (reader.complete, reader.reusable) == (False, False)


def _head(size: int, fields: int = 1) -> bytes:
    """A head of this many bytes and fields."""
    lines = [b"a: b"] * (fields - 1)
    rest = size - len(b"\r\n".join([_OK[:-2], *lines, b"a: \r\n\r\n"]))
    return b"\r\n".join([_OK[:-2], *lines, b"a: " + b"b" * rest, b"", b""])


def _feed(reader: ResponseReader, data: bytes, step: int) -> None:
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("before", "fits"),
    [
        pytest.param(b"", 1000, id="one head"),
        pytest.param(_CONTINUE, 1000 - len(_CONTINUE), id="one behind an interim response"),
    ],
)
def test_how_long_heads_may_be(step: int, before: bytes, fits: int) -> None:
    """All together as long as the bound, and not a byte more; the body is not counted."""
    for limits, override in ((ResponseLimits(max_head_bytes=1000), None), (ResponseLimits(), 1000)):
        reader = ResponseReader(limits)
        reader.begin("GET", lambda _: None, override)
        _feed(reader, before + _head(fits) + b"x" * 2000, step)
        assert reader.head is not None
        reader = ResponseReader(limits)
        reader.begin("GET", lambda _: None, override)
        with pytest.raises(WireError, match="too long"):
            _feed(reader, before + _head(fits + 1), step)


def test_a_head_without_an_end() -> None:
    """It is given up at the bound, not at its end."""
    reader = _begun(ResponseLimits(max_head_bytes=1000))
    reader.feed(_head(2000)[:1000])
    with pytest.raises(WireError, match="too long"):
        reader.feed(b"b")


@pytest.mark.parametrize("step", [1, 1 << 20])
def test_how_many_fields_a_head_may_have(step: int) -> None:
    """As many as the bound, in each head."""
    limits = ResponseLimits(max_fields=10)
    reader = _begun(limits)
    interim = _head(200, 10).replace(b"200 OK", b"103 OK")
    _feed(reader, interim + _head(200, 10), step)
    assert reader.head is not None
    for wrong in (_head(200, 11), interim + _head(200, 11)):
        with pytest.raises(WireError, match="too many fields"):
            _feed(_begun(limits), wrong, step)


@pytest.mark.parametrize(
    "hopeless",
    [
        pytest.param(b"h", id="another first letter"),
        pytest.param(b"HTTP/2", id="another version"),
        pytest.param(_OK + b"\n", id="LF"),
        pytest.param(_OK[:-2] + b"\n", id="LF for the first line"),
        pytest.param(_OK[:-1] + b"A", id="CR"),
        pytest.param(_OK + b"A: \0", id="NUL"),
    ],
)
def test_what_never_becomes_a_head_is_not_waited_for(hopeless: bytes) -> None:
    """An engine that speaks something else is found by its first bytes, not by a time-out."""
    for step in (1, 1 << 20):
        reader = _begun()
        _feed(reader, hopeless[:-1], step)
        with pytest.raises(WireError):
            reader.feed(hopeless[-1:])


@pytest.mark.parametrize("kept", [False, True])
def test_nothing_is_held(kept: bool) -> None:
    """A request is forgotten with its response, a reader with its connection: without the collector."""
    gc.disable()
    try:
        for response in (_OK, _HELLO, _CHUNKED[:-2], _CHUNKED, _CHUNKED + b"!", b"x"):
            reader = ResponseReader()
            reader.begin("GET", (sink := _Sink()))
            with contextlib.suppress(WireError):
                reader.feed(response)
            held = weakref.ref(sink)
            over = reader.complete or response.endswith((b"!", b"x"))
            if not (kept and over):
                del reader
            del sink
            assert held() is None
    finally:
        gc.enable()


class _Sink:
    def __call__(self, _: bytes) -> None:
        pass
