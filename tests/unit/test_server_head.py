"""The meter of heads, and the rules that the parser never lets a request come to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import HeadTooLarge, InvalidHttp, TargetTooLong
from proxy.server.head import (
    HeadMeter,
    check_head,
    check_target,
    head_too_large,
    is_http,
    too_many_fields,
)
from proxy.server.limits import ProtocolLimits

HOST = (b"host", b"h")


@given(
    head=st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b"\n\r"])).map(b"".join),
    rest=st.lists(st.sampled_from([b"a", b"\r\n", b"\r\n\r\n"])).map(b"".join),
    cuts=st.lists(st.integers(1, 5)),
)
def test_the_meter_counts_to_the_end_of_the_head(head: bytes, rest: bytes, cuts: list[int]) -> None:
    """Wherever the packets were cut, as long as the packet with the end in it is the last."""
    message = head + b"\r\n\r\n"
    size = message.index(b"\r\n\r\n") + 4
    message = message[:size] + rest
    meter, at = HeadMeter(), 0
    for cut in [*cuts, len(message)]:
        meter.feed(message[at : at + cut])
        at += cut
        assert meter.size == min(at, size)
        if at >= size:
            break


@pytest.mark.parametrize(
    "message", [b"GET / HTTP/1.1\r\nHost: h\r\n\r\n{}", b"\r\n\r\n{}", b"\r\r\n\r\n{}"]
)
@pytest.mark.parametrize("first", range(8))
def test_the_meter_finds_an_end_across_packets(message: bytes, first: int) -> None:
    """Byte by byte after any first packet."""
    meter = HeadMeter()
    meter.feed(message[:first])
    at = first
    while meter.size == at and at < len(message) - 2:
        meter.feed(message[at : at + 1])
        at += 1
    assert meter.size == len(message) - 2


@pytest.mark.parametrize(
    ("line", "is_"),
    [
        pytest.param(b"GET / HTTP/1.1", True, id="HTTP"),
        pytest.param(b"GET /" + b"x" * 50 + b" HTTP/1.0", True, id="an old one"),
        pytest.param(b"GET / RTSP/1.1", False, id="RTSP"),
        pytest.param(b"SOURCE / ICE/1.1", False, id="ICE"),
        pytest.param(b"GET / XHTTP/1.1", False, id="a name that ends so"),
        pytest.param(b"GET / HTTP/1.1 RTSP/1.1", False, id="both"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 11, 99])
def test_the_first_line_says_that_it_is_http(line: bytes, size: int, *, is_: bool) -> None:
    """Wherever the packets were cut, and whatever the lines below say."""
    data = line + b"\r\nX: HTTP/1.1\r\nY: RTSP/1.1\r\n\r\n"
    assert is_http(data) == is_
    assert is_http(data[: len(line) + 1])
    meter = HeadMeter()
    for at in range(0, len(data), size):
        meter.feed(data[at : at + size])
        if at + size < len(line) + 2:
            assert meter.is_http
    assert meter.is_http == is_


def test_a_target_may_come_in_pieces() -> None:
    """What has come so far is judged as it is."""
    limits = ProtocolLimits(max_target_bytes=4)
    check_target(b"/", limits)
    check_target(b"/abc", limits)
    with pytest.raises(TargetTooLong, match="4 bytes"):
        check_target(b"/abcd", limits)
    with pytest.raises(InvalidHttp, match="origin-form"):
        check_target(b"h", limits)


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        pytest.param("1.1", [HOST], id="no body"),
        pytest.param("1.0", [HOST, (b"content-length", b"2")], id="a length by HTTP/1.0"),
        pytest.param("1.1", [HOST, (b"transfer-encoding", b"chunked")], id="chunked"),
        pytest.param("1.1", [(b"host", b"")], id="an empty Host"),
        pytest.param("1.1", [(b"host", b"[fe80::1%25eth0]:1")], id="a Host with a zone"),
    ],
)
def test_heads_that_pass(version: str, headers: list[tuple[bytes, bytes]]) -> None:
    """One meaning each."""
    check_head(b"POST", version, headers)


@pytest.mark.parametrize(
    ("method", "version", "headers", "match"),
    [
        pytest.param(b"GET", "2.0", [HOST], "version 2.0", id="a version"),
        pytest.param(b"CONNECT", "1.1", [HOST], "CONNECT", id="a tunnel"),
        pytest.param(b"GET", "1.1", [], "has 0", id="no Host"),
        pytest.param(b"GET", "1.1", [HOST, HOST], "has 2", id="two Hosts"),
        pytest.param(b"GET", "1.1", [(b"host", b"[::1")], "Host field", id="half a bracket"),
        pytest.param(b"GET", "1.1", [(b"host", b"h\n")], "Host field", id="a line end in Host"),
        pytest.param(
            b"POST",
            "1.1",
            [HOST, (b"content-length", b"2"), (b"transfer-encoding", b"chunked")],
            "never both",
            id="length and chunked, should the parser ever let it through",
        ),
    ],
)
def test_heads_that_do_not_pass(
    method: bytes, version: str, headers: list[tuple[bytes, bytes]], match: str
) -> None:
    """With what was wrong."""
    with pytest.raises(InvalidHttp, match=match):
        check_head(method, version, headers)


def test_limits_are_named() -> None:
    """In the refusals that their owners raise."""
    limits = ProtocolLimits(max_head_bytes=5, max_head_fields=7)
    assert isinstance(head_too_large(limits), HeadTooLarge)
    assert "5 bytes" in head_too_large(limits).message
    assert "more than 7" in too_many_fields(limits).message
