"""The head of a request: what is written, and what is refused."""

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.upstream.wire import serialise

_HOST = (b"Host", b"engine")

Fields = list[tuple[bytes, bytes]]


@pytest.mark.parametrize(
    ("method", "fields", "length", "expected"),
    [
        pytest.param(b"GET", [_HOST], 0, b"Host: engine\r\n", id="nothing to say of a body"),
        pytest.param(
            b"POST", [_HOST], 0, b"Host: engine\r\ncontent-length: 0\r\n", id="no body of POST"
        ),
        pytest.param(b"POST", [_HOST], 5, b"Host: engine\r\ncontent-length: 5\r\n", id="a body"),
        pytest.param(
            b"GET", [_HOST], 5, b"Host: engine\r\ncontent-length: 5\r\n", id="a body of GET"
        ),
        pytest.param(
            b"POST",
            [(b"Content-Length", b"5"), _HOST],
            5,
            b"Content-Length: 5\r\nHost: engine\r\n",
            id="a length that is there",
        ),
        pytest.param(
            b"POST",
            [_HOST, (b"A", b""), (b"a", b"\xff\tb"), (b"content-length", b"0")],
            0,
            b"Host: engine\r\nA: \r\na: \xff\tb\r\ncontent-length: 0\r\n",
            id="values of all kinds",
        ),
    ],
)
def test_a_head(method: bytes, fields: Fields, length: int, expected: bytes) -> None:
    """The fields are written as they are, the length once."""
    head = serialise(method, b"/v1?a=%20", fields, length)
    assert head == b"%b /v1?a=%%20 HTTP/1.1\r\n%b\r\n" % (method, expected)


@pytest.mark.parametrize(
    "wrong", [b"", b" ", b"a b", b"a\r", b"a\n", b"a\r\nb: c", b"a\0", b"\x7f", b"\xe9"]
)
def test_wrong_parts_of_the_first_line(wrong: bytes) -> None:
    """Neither a method nor a target may be these."""
    for method, target in ((wrong, b"/"), (b"GET", wrong)):
        with pytest.raises(ValueError, match="is not valid"):
            serialise(method, target, [_HOST])


@pytest.mark.parametrize(
    "name",
    [b"", b" ", b"a ", b"a b", b"a:", b":", b"a:b", b"a: b\r\nc", b"a\r\n", b"a\n", b"a\0", b"\xe9", b"a("],
)  # fmt: skip
def test_wrong_names(name: bytes) -> None:
    """A name is a token, in front of other fields and behind them."""
    for fields in ([(name, b"x"), _HOST], [_HOST, (name, b"x")]):
        with pytest.raises(ValueError, match="name of a field"):
            serialise(b"GET", b"/", fields)


@pytest.mark.parametrize(
    "value", [b"\r", b"\n", b"a\r\n", b"a\r\nb: c", b"\r\n\r\n", b"\0", b"\x1f", b"\x7f"]
)
def test_wrong_values(value: bytes) -> None:
    """No value brings a line end or another control character; no two make one between them."""
    for fields in (
        [(b"a", value), _HOST],
        [_HOST, (b"a", value)],
        [_HOST, (b"a", b"\r"), (b"b", b"\n")],
    ):
        with pytest.raises(ValueError, match="value of a field"):
            serialise(b"GET", b"/", fields)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param([], "name", id="no fields"),
        pytest.param([(b"a", b"b")], "Host", id="no host"),
        pytest.param([_HOST, (b"host", b"x")], "Host", id="two hosts"),
        pytest.param([_HOST, (b"Transfer-Encoding", b"chunked")], "coding", id="a coding"),
        pytest.param(
            [_HOST, (b"Content-Length", b"5")] * 1 + [(b"content-length", b"5")], "body", id="two"
        ),
        pytest.param([_HOST, (b"Content-Length", b"4")], "body", id="less"),
        pytest.param([_HOST, (b"Content-Length", b"6")], "body", id="more"),
        pytest.param([_HOST, (b"Content-Length", b"05")], "body", id="written otherwise"),
        pytest.param([_HOST, (b"Content-Length", b"")], "body", id="empty"),
    ],
)
def test_wrong_sets_of_fields(fields: Fields, why: str) -> None:
    """One host; at most one length, which is that of the body."""
    with pytest.raises(ValueError, match=why):
        serialise(b"POST", b"/", fields, 5)


@settings(deadline=None)
@given(
    st.binary(max_size=4),
    st.binary(max_size=6),
    st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=6)), max_size=3),
    st.integers(0, 10),
)
def test_any_parts(method: bytes, target: bytes, fields: Fields, length: int) -> None:
    """What is not refused is read by h11 as what was meant."""
    try:
        head = serialise(method, target, [_HOST, *fields], length)
    except ValueError:
        return
    server = h11.Connection(h11.SERVER)
    server.receive_data(head)
    request = server.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target) == (method, target)
    meant = [(name.lower(), value.strip(b"\t ")) for name, value in [_HOST, *fields]]
    assert list(request.headers)[: len(meant)] == meant
    assert dict(request.headers).get(b"content-length", b"0") == b"%d" % length
