"""Chunked bodies: what is read, what is refused, and how much framing is borne."""

import pytest

from proxy.upstream.wire import ResponseLimits, ResponseReader, WireError
from tests.fuzz.responses import check, read

_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST = b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(_LAST, b"", id="an empty body"),
        pytest.param(b"5\r\nhello\r\n" + _LAST, b"hello", id="one chunk"),
        pytest.param(b"1\r\na\r\n" * 9 + _LAST, b"a" * 9, id="chunks of one byte"),
        pytest.param(b"A\r\n0123456789\r\n" + _LAST, b"0123456789", id="a size in capitals"),
        pytest.param(b"a\r\n0123456789\r\n" + _LAST, b"0123456789", id="a size in small letters"),
        pytest.param(b"0005\r\nhello\r\n000\r\n\r\n", b"hello", id="leading zeros"),
        pytest.param(b"2\r\n\r\n\r\n" + _LAST, b"\r\n", id="a chunk of a line end"),
        pytest.param(b"8\r\n" + b"\r\n" * 5 + _LAST, b"\r\n" * 4, id="a chunk of line ends"),
        pytest.param(
            b"5\r\n" + _LAST + b"\r\n" + _LAST, _LAST, id="a chunk that reads as the last one"
        ),
        pytest.param(b"5;a\r\nhello\r\n" + _LAST, b"hello", id="an extension"),
        pytest.param(b'5;a="b\\"c";d=e\r\nhello\r\n0;f\r\n\r\n', b"hello", id="many extensions"),
        pytest.param(b"0\r\nA: b\r\n\r\n", b"", id="a trailer"),
        pytest.param(b"0\r\nA:\r\nB: c\r\n\r\n", b"", id="an empty trailer, and another"),
        pytest.param(
            b"0\r\nConnection: close\r\n\r\n", b"", id="a connection option in a trailer: dropped"
        ),
    ],
)
def test_a_chunked_body(body: bytes, expected: bytes) -> None:
    """However it arrives, it is read as h11 reads it, and its connection is used again."""
    check(_HEAD + body)
    reading = read([_HEAD + body])
    assert (reading.body, reading.complete, reading.reusable) == (expected, True, True)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"5\r\nhel", id="cut in a chunk"),
        pytest.param(b"5\r\nhello\r\n", id="cut in front of the last chunk"),
        pytest.param(b"0\r\n", id="cut in front of the empty line"),
        pytest.param(b"0\r\n\r", id="cut in the empty line"),
        pytest.param(b"0\r\nA: b\r\n", id="cut in the trailers"),
        pytest.param(b"ffffffffffffffff\r\nhello\r\n" + _LAST, id="longer than anything"),
        pytest.param(b"10000000000000005\r\nhello\r\n" + _LAST, id="a size that overflows 64 bits"),
        pytest.param(b"\r\nhello\r\n" + _LAST, id="no size"),
        pytest.param(b"-5\r\nhello\r\n" + _LAST, id="a negative size"),
        pytest.param(b"+5\r\nhello\r\n" + _LAST, id="a size with a sign"),
        pytest.param(b"0x5\r\nhello\r\n" + _LAST, id="a size with a prefix"),
        pytest.param(b"1_0\r\n0123456789abcdef\r\n" + _LAST, id="a size as in Python"),
        pytest.param(b"g\r\nhello\r\n" + _LAST, id="a size that is not hexadecimal"),
        pytest.param(b" 5\r\nhello\r\n" + _LAST, id="a space in front of a size"),
        pytest.param(b"5 \r\nhello\r\n" + _LAST, id="a space behind a size"),
        pytest.param(b"5\t\r\nhello\r\n" + _LAST, id="a tab behind a size"),
        pytest.param(b"\r\n5\r\nhello\r\n" + _LAST, id="an empty line in front of a size"),
        pytest.param(b"5\nhello\r\n" + _LAST, id="LF behind a size"),
        pytest.param(b"5\rhello\r\n" + _LAST, id="CR behind a size"),
        pytest.param(b"5\r\nhello\n" + _LAST, id="LF behind a chunk"),
        pytest.param(b"5\r\nhello\r" + _LAST, id="CR behind a chunk"),
        pytest.param(b"5\r\nhello" + _LAST, id="no line end behind a chunk"),
        pytest.param(b"4\r\nhello\r\n" + _LAST, id="a chunk longer than its size"),
        pytest.param(b"0\n\r\n", id="LF behind the last chunk"),
        pytest.param(b"0\r\n\n", id="LF for the empty line"),
        pytest.param(b"0\r\n\rx", id="CR for the empty line"),
        pytest.param(b";a\r\nhello\r\n" + _LAST, id="an extension without a size"),
        pytest.param(b"5;\r\nhello\r\n" + _LAST, id="an empty extension"),
        pytest.param(b"5;a\nhello\r\n" + _LAST, id="LF behind an extension"),
        pytest.param(b"5;a\0\r\nhello\r\n" + _LAST, id="NUL in an extension"),
        pytest.param(b'5;a="\n"\r\nhello\r\n' + _LAST, id="LF in an extension's quotes"),
        pytest.param(b"5 ;a\r\nhello\r\n" + _LAST, id="a space in front of an extension"),
        pytest.param(b"0\r\nA: b\n\r\n", id="LF behind a trailer"),
        pytest.param(b"0\r\nA: b\r\n c\r\n\r\n", id="a trailer over two lines"),
        pytest.param(b"0\r\nA : b\r\n\r\n", id="a space in front of a trailer's colon"),
        pytest.param(b"0\r\n: b\r\n\r\n", id="a trailer without a name"),
        pytest.param(b"0\r\nA\r\n\r\n", id="a trailer without a colon"),
        pytest.param(b"0\r\nA: \0\r\n\r\n", id="NUL in a trailer"),
        pytest.param(b"0\r\nA: \x01\r\n\r\n", id="a control character in a trailer"),
        pytest.param(b"0\r\nTransfer-Encoding: gzip\r\n\r\n", id="a coding in a trailer"),
        pytest.param(b"0\r\nA: b\r\ntransfer-encoding: chunked\r\n\r\n", id="our own in a trailer"),
        pytest.param(b"0\r\nContent-Length: 5\r\n\r\n", id="a length in a trailer"),
        pytest.param(_LAST + b"\n", id="LF behind the end"),
        pytest.param(_LAST + b"\r", id="CR behind the end"),
        pytest.param(_LAST + b"\r\n", id="an empty line behind the end"),
        pytest.param(_LAST + b"\r\n\r\n", id="two empty lines behind the end"),
        pytest.param(_LAST + b"H", id="the beginning of another response behind the end"),
        pytest.param(_LAST + b"HTTP/1.1 204 No\r\n\r\n", id="another response behind the end"),
        pytest.param(_LAST + _LAST, id="another end behind the end"),
        pytest.param(_LAST + b"\0", id="NUL behind the end"),
    ],
)
def test_what_is_no_chunked_body(body: bytes) -> None:
    """However it arrives, it never passes for complete."""
    check(_HEAD + body)
    assert not read([_HEAD + body]).complete


def test_bytes_behind_the_end_in_the_packet_that_ends_it() -> None:
    """Found however little of the end is in that packet, also where all of it is line ends."""
    whole = _HEAD + b"5\r\nhello\r\n" + _LAST
    for extra in (
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"\n\n\n\n\n",
        b"x",
        b"HTTP/1.1 200",
    ):
        for at in range(1, 20):
            reader = ResponseReader()
            reader.begin("GET", lambda _: None)
            reader.feed(whole[:-at])
            with pytest.raises(WireError):
                reader.feed(whole[-at:] + extra)
            assert not reader.complete
            assert not reader.reusable


def _fed(pieces: list[bytes], limit: int) -> ResponseReader:
    reader = ResponseReader(ResponseLimits(max_framing_bytes=limit))
    reader.begin("GET", lambda _: None)
    reader.feed(_HEAD)
    for piece in pieces:
        reader.feed(piece)
    return reader


@pytest.mark.parametrize(
    ("pieces", "limit"),
    [
        pytest.param(
            [b"1\r\na\r\n"] * 1000 + [_LAST], 8, id="chunks of one byte pay for themselves"
        ),
        pytest.param([b"1\r\na\r\n" * 1000, _LAST], 8, id="in one packet, too"),
        pytest.param([b"1;" + b"x" * 8 + b"\r\na\r\n"], 9, id="an extension of what is free"),
        pytest.param([b"0\r\nA: " + b"b" * 7 + b"\r\n\r\n"], 17, id="trailers of what is free"),
        pytest.param(
            [b"1;" + b"x" * 18 + b"\r\na\r\n", b"64\r\n" + b"a" * 100 + b"\r\n"] * 9,
            20,
            id="an extension of what is free, again after what pays for it",
        ),
        pytest.param([b"2;xxxx\r\nab\r\n"] * 1000, 8, id="extensions that the body pays for"),
    ],
)
def test_framing_that_is_borne(pieces: list[bytes], limit: int) -> None:
    """A body pays for the framing that chunks need, and a bound of more is free."""
    assert not _fed(pieces[:-1], limit).complete
    assert _fed(pieces, limit).head is not None


@pytest.mark.parametrize(
    ("pieces", "limit"),
    [
        pytest.param([b"1;" + b"x" * 9 + b"\r\na\r\n"], 9, id="an extension of one byte more"),
        pytest.param([b"1;" + b"x" * 8, b"x" * 2], 9, id="an extension without an end"),
        pytest.param([b"0\r\nA: " + b"b" * 8 + b"\r\n\r\n"], 17, id="trailers of one byte more"),
        pytest.param([b"0\r\n", *[b"A: b\r\n"] * 4], 17, id="trailers without an end"),
        pytest.param(
            [b"1;xxxxx\r\na\r\n"] * 10, 20, id="more than the body pays for, again and again"
        ),
        pytest.param(
            [b"3e8\r\n" + b"a" * 1000 + b"\r\n", b"1;" + b"x" * 99], 50, id="nothing is saved up"
        ),
        pytest.param([b"0" * 51], 50, id="a size of zeros without an end"),
    ],
)
def test_framing_that_is_not_borne(pieces: list[bytes], limit: int) -> None:
    """What a body does not pay for, and is not free, is refused."""
    with pytest.raises(WireError, match="too much framing"):
        _fed(pieces, limit)
