"""The kept inputs of the fuzz targets, and random ones: what holds for each of them."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.responses import check, read, read_by_h11

_CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus" / "responses"
_KEPT = sorted(_CORPUS.iterdir())

_LINES = (
    b"HTTP/1.1 200 OK",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 204 No",
    b"HTTP/1.1 100 C",
    b"HTTP/1.1 304",
)
_FIELDS = (
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"A: b",
)
_BODIES = (
    b"",
    b"hello",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"1;a=b\r\nx\r\n0\r\nA: b\r\n\r\n",
)
_SPICES = (
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b";",
    b"0",
    b"\0",
    b"\x80",
    b",",
    b"\r\n ",
    b"_",
    b"HTTP/1.1",
)

_heads = st.builds(
    lambda line, fields: b"\r\n".join([line, *fields, b"", b""]),
    st.sampled_from(_LINES),
    st.lists(st.sampled_from(_FIELDS), max_size=3),
)
_mixed = st.builds(
    lambda heads, body: b"".join(heads) + body,
    st.lists(_heads, min_size=1, max_size=2),
    st.sampled_from(_BODIES),
)
_framed = st.builds(
    lambda interim, version, fields, framed: (
        b"HTTP/1.1 100 C\r\n\r\n" * interim + b"\r\n".join([version + b" 200 OK", *fields, framed])
    ),
    st.integers(0, 2),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0"]),
    st.lists(st.sampled_from(_FIELDS[3:]), max_size=2),
    st.sampled_from(
        [
            b"\r\nhello",
            b"content-length: 5\r\n\r\nhello",
            *[b"transfer-encoding: chunked\r\n\r\n" + body for body in _BODIES[2:]],
        ]
    ),
)
_responses = _mixed | _framed | _framed  # half of what is mixed says nothing that can be read


@st.composite
def _spoilt(draw: st.DrawFn) -> bytes:
    """A response of which a few bytes are dropped, and a few put in their place."""
    data: bytes = draw(_responses)
    for _ in range(draw(st.integers(1, 3))):
        at, dropped = draw(st.integers(0, len(data))), draw(st.integers(0, 2))
        spice: bytes = draw(st.sampled_from(_SPICES))
        data = data[:at] + spice + data[at + dropped :]
    return data


def test_the_corpus_is_small() -> None:
    """It is read by everyone who reads the project's files."""
    assert 100 < len(_KEPT) < 200
    assert all(kept.stat().st_size <= 4096 for kept in _KEPT)


@pytest.mark.parametrize("kept", _KEPT, ids=lambda kept: kept.name)
def test_a_kept_response(kept: Path) -> None:
    """What was found once, or is an example of something, still holds."""
    check(kept.read_bytes())


@settings(deadline=None)
@given(_responses)
def test_a_response(data: bytes) -> None:
    """Combinations of everything that says how long a body is."""
    check(data)


@settings(deadline=None)
@given(_spoilt())
def test_a_spoilt_response(data: bytes) -> None:
    """The reader says no or agrees with h11, and raises nothing else."""
    check(data)


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_what_is_no_response_at_all(data: bytes) -> None:
    """The same."""
    check(data)


@settings(deadline=None)
@given(_responses, st.lists(st.integers(0, 200), max_size=6))
def test_any_cuts(data: bytes, cuts: list[int]) -> None:
    """However it arrives, it is read as if it came at once."""
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in itertools.pairwise(bounds)]
    for method in ("GET", "HEAD"):
        assert read(pieces, method) == read([data], method)


# Where we are stricter than h11, and why. Whatever h11 takes and is not of one of these kinds, we take.
_STRICTER = [
    pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", id="lines that end with LF only"),
    pytest.param(b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n", id="folded lines"),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", id="equal lengths"
    ),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0, 0\r\n\r\n", id="a list of equal lengths"),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nContent-Length: 0000000000000000000\r\n\r\n", id="long lengths"
    ),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        id="a length and chunks",
    ),
    pytest.param(
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="1.0 and chunks"
    ),
    pytest.param(b"HTTP/1.3 200 OK\r\nContent-Length: 0\r\n\r\n", id="other versions"),
    pytest.param(b"HTTP/1.1 700 OK\r\nContent-Length: 0\r\n\r\n", id="a status above 599"),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nA: \x01\r\nContent-Length: 0\r\n\r\n", id="control characters"
    ),
    pytest.param(
        b"HTTP/1.1 100 C\r\nContent-Length: 0\r\n\r\nHTTP/1.1 204\r\n\r\n", id="a length of 1xx"
    ),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0 \r\n\r\n",
        id="a space behind a size",
    ),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0; a b\r\n\r\n", id="odd extensions"
    ),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 1\r\n\r\n",
        id="a length in a trailer",
    ),
]


@pytest.mark.parametrize("data", _STRICTER)
def test_where_we_are_stricter_than_h11(data: bytes) -> None:
    """It takes these, and we do not."""
    assert read_by_h11(data) is not None
    assert not read([data]).complete


def test_where_we_are_laxer_than_h11() -> None:
    """More than 20 digits of a size: whoever writes so many zeros is understood in one way only."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for zeros, refused in ((19, False), (20, True)):
        data = head + b"0" * zeros + b"5\r\nhello\r\n0\r\n\r\n"
        check(data)
        assert read([data]).body == b"hello"
        assert (read_by_h11(data) is None) is refused
