"""The heads of responses: which are read, and what they say about the body."""

import pytest

from tests.fuzz.responses import check, read

_END = b"\r\n\r\n"


def _response(*fields: bytes, line: bytes = b"HTTP/1.1 200 OK", body: bytes = b"") -> bytes:
    return b"\r\n".join([line, *fields]) + _END + body


_EMPTY = b"Content-Length: 0"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"HTTP/1.1 200 OK", id="as usual"),
        pytest.param(b"HTTP/1.0 200 OK", id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 200 ", id="no reason"),
        pytest.param(b"HTTP/1.1 200", id="no reason, and no space in front of it"),
        pytest.param(b"HTTP/1.1 200  a\tb \xe9 ", id="a reason of other characters"),
        pytest.param(b"HTTP/1.1 599 x", id="the highest status"),
    ],
)
def test_status_lines(line: bytes) -> None:
    """These are read."""
    check(_response(_EMPTY, line=line))
    reading = read([_response(_EMPTY, line=line)])
    assert (reading.status, reading.complete) == (int(line[9:12]), True)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"HTTP/1.2 200 OK", id="another minor version"),
        pytest.param(b"HTTP/2.0 200 OK", id="another major version"),
        pytest.param(b"HTTP/2 200 OK", id="no minor version"),
        pytest.param(b"HTTP/01.1 200 OK", id="a version of more digits"),
        pytest.param(b"http/1.1 200 OK", id="small letters"),
        pytest.param(b"RTSP/1.1 200 OK", id="another protocol that llhttp knows"),
        pytest.param(b"ICE/1.1 200 OK", id="a third"),
        pytest.param(b" HTTP/1.1 200 OK", id="a space in front"),
        pytest.param(b"\r\nHTTP/1.1 200 OK", id="an empty line in front"),
        pytest.param(b"\nHTTP/1.1 200 OK", id="LF in front"),
        pytest.param(b"HTTP/1.1  200 OK", id="two spaces"),
        pytest.param(b"HTTP/1.1\t200 OK", id="a tab"),
        pytest.param(b"HTTP/1.1 20 OK", id="two digits"),
        pytest.param(b"HTTP/1.1 2000 OK", id="four digits"),
        pytest.param(b"HTTP/1.1 200OK", id="no space behind the status"),
        pytest.param(b"HTTP/1.1 2x0 OK", id="no number"),
        pytest.param(b"HTTP/1.1 099 OK", id="a status too low"),
        pytest.param(b"HTTP/1.1 600 OK", id="a status too high"),
        pytest.param(b"HTTP/1.1 200 O\0K", id="NUL in the reason"),
        pytest.param(b"HTTP/1.1 200 O\x7fK", id="DEL in the reason"),
        pytest.param(b"HTTP/1.1 200 O\rK", id="CR in the reason"),
        pytest.param(b"HTTP/1.1 200 OK\nA: b", id="LF behind the line"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols", id="another protocol"),
        pytest.param(b"GET / HTTP/1.1", id="a request"),
        pytest.param(b"", id="no line"),
    ],
)
def test_what_is_no_status_line(line: bytes) -> None:
    """These are refused however they arrive."""
    check(_response(_EMPTY, line=line))
    assert not read([_response(_EMPTY, line=line)]).complete


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        pytest.param(b"A: b", (b"a", b"b"), id="as usual"),
        pytest.param(b"A:b", (b"a", b"b"), id="no space"),
        pytest.param(b"A: \t b\t ", (b"a", b"b"), id="white space around the value"),
        pytest.param(b"A:", (b"a", b""), id="no value"),
        pytest.param(b"A: \t", (b"a", b""), id="a value of white space"),
        pytest.param(b"A: b \t c", (b"a", b"b \t c"), id="white space in the value"),
        pytest.param(b"A: b:c", (b"a", b"b:c"), id="a colon in the value"),
        pytest.param(b"A: \xff", (b"a", b"\xff"), id="a byte that is not ASCII"),
        pytest.param(b"!#$%&'*+-.^_`|~09: b", (b"!#$%&'*+-.^_`|~09", b"b"), id="all of a token"),
    ],
)
def test_fields(field: bytes, expected: tuple[bytes, bytes]) -> None:
    """Names are in lower case, values without white space around them."""
    check(_response(_EMPTY, field))
    assert read([_response(_EMPTY, field)]).fields == [(b"content-length", b"0"), expected]


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(b"A : b", id="a space in front of the colon"),
        pytest.param(b"A\t: b", id="a tab in front of the colon"),
        pytest.param(b" A: b", id="a space in front of the name"),
        pytest.param(b"A: b\r\n c", id="a value over two lines"),
        pytest.param(b"A: b\r\n\tc", id="a value over two lines, by a tab"),
        pytest.param(b"A", id="no colon"),
        pytest.param(b": b", id="no name"),
        pytest.param(b"A B: c", id="a space in the name"),
        pytest.param(b"A(: b", id="a name that is no token"),
        pytest.param(b"\xc3: b", id="a name that is not ASCII"),
        pytest.param(b"A: \0", id="NUL"),
        pytest.param(b"A: \x01", id="a control character"),
        pytest.param(b"A: \x0b", id="a vertical tab"),
        pytest.param(b"A: \x7f", id="DEL"),
        pytest.param(b"A: b\rc", id="CR in a value"),
        pytest.param(b"A: b\nC: d", id="LF behind a value"),
        pytest.param(b"A: b\r\r", id="two CR behind a value"),
        pytest.param(b"A: b\n", id="an empty line of LF"),
    ],
)
def test_what_is_no_field(field: bytes) -> None:
    """These are refused, in front of other fields and behind them."""
    for fields in ((_EMPTY, field), (field, _EMPTY)):
        check(_response(*fields))
        assert not read([_response(*fields)]).complete


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([b"Content-Length: 5", b"Transfer-Encoding: chunked"], id="both"),
        pytest.param([b"Content-Length: 5", b"Content-Length: 5"], id="two equal lengths"),
        pytest.param([b"Content-Length: 5", b"content-length: 6"], id="two lengths"),
        pytest.param([b"Content-Length: 5, 5"], id="a list of lengths"),
        pytest.param([b"Content-Length: +5"], id="a length with a sign"),
        pytest.param([b"Content-Length: -5"], id="a negative length"),
        pytest.param([b"Content-Length: 5 5"], id="a length with a space"),
        pytest.param([b"Content-Length: 0x5"], id="a length in hexadecimal"),
        pytest.param([b"Content-Length: 5.0"], id="a length with a fraction"),
        pytest.param([b"Content-Length: 1_0"], id="a length as in Python"),
        pytest.param([b"Content-Length: \xb2"], id="a digit of Latin-1"),
        pytest.param([b"Content-Length:"], id="no length"),
        pytest.param([b"Content-Length: 0000000000000000005"], id="a length of 19 digits"),
        pytest.param(
            [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"], id="two codings"
        ),
        pytest.param([b"Transfer-Encoding: gzip, chunked"], id="a list of codings"),
        pytest.param([b"Transfer-Encoding: chunked, chunked"], id="chunked twice"),
        pytest.param([b"Transfer-Encoding: chunked;q=1"], id="a coding with a parameter"),
        pytest.param([b"Transfer-Encoding: identity"], id="identity"),
        pytest.param([b"Transfer-Encoding: gzip"], id="another coding"),
        pytest.param([b'Transfer-Encoding: "chunked"'], id="a coding in quotes"),
        pytest.param([b"Transfer-Encoding: x"], id="a coding that nobody knows"),
        pytest.param([b"Transfer-Encoding:"], id="no coding"),
    ],
)
@pytest.mark.parametrize("body", [b"", b"hello", b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"])
@pytest.mark.parametrize("status", [b"200", b"204", b"304"])
def test_framing_that_is_ambiguous(fields: list[bytes], body: bytes, status: bytes) -> None:
    """Nothing is read of it, also where there is no body to be misread."""
    response = _response(*fields, line=b"HTTP/1.1 %b x" % status, body=body)
    check(response)
    for method in ("GET", "HEAD"):
        reading = read([response], method)
        assert (reading.complete, reading.status) == (False, None)


def test_chunked_is_not_of_http_1_0() -> None:
    """Nobody knows whether it was meant."""
    response = _response(b"Transfer-Encoding: chunked", line=b"HTTP/1.0 200 OK", body=b"0\r\n\r\n")
    check(response)
    assert not read([response]).complete


@pytest.mark.parametrize(
    ("version", "fields", "reusable"),
    [
        pytest.param(b"1.1", [], True, id="1.1"),
        pytest.param(b"1.1", [b"Connection: keep-alive"], True, id="1.1 that says so"),
        pytest.param(b"1.1", [b"Connection: Close"], False, id="1.1 that closes"),
        pytest.param(b"1.1", [b"Connection: x ,\tclose"], False, id="1.1 that closes, in a list"),
        pytest.param(
            b"1.1", [b"Connection: close", b"Connection: x"], False, id="in the first field"
        ),
        pytest.param(b"1.1", [b"Connection: keep-alive", b"Connection: close"], False, id="both"),
        pytest.param(b"1.1", [b"Connection: closed"], True, id="1.1 with an option that is none"),
        pytest.param(b"1.1", [b"Connection: upgrade", b"Upgrade: h2c"], True, id="an offer"),
        pytest.param(b"1.0", [], False, id="1.0"),
        pytest.param(b"1.0", [b"Connection: Keep-Alive"], True, id="1.0 that keeps"),
        pytest.param(b"1.0", [b"Connection: x, keep-alive"], True, id="1.0 that keeps, in a list"),
        pytest.param(b"1.0", [b"Connection: keep-alive, close"], False, id="1.0 that says both"),
    ],
)
def test_what_becomes_of_the_connection(
    version: bytes, fields: list[bytes], reusable: bool
) -> None:
    """RFC 9112 §9.3, where both may be meant it is closed."""
    response = _response(*fields, _EMPTY, line=b"HTTP/%b 200 OK" % version)
    check(response)
    reading = read([response])
    assert (reading.complete, reading.reusable) == (True, reusable)
