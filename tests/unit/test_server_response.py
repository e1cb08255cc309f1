"""The head of an answer: what is written, which framing it announces, and what is no head."""

from typing import Any

import pytest

from proxy.server.response import head_of

Fields = list[tuple[bytes, bytes]]

LENGTH = (b"content-length", b"5")
LENGTH_LINE = b"content-length: 5\r\n"
CHUNKED = (b"Transfer-Encoding", b"Chunked")
CLOSE = (b"Connection", b"keep-alive, Close")


def head(
    *fields: tuple[bytes, bytes],
    status: int = 200,
    keep_alive: bool = True,
    http_1_0: bool = False,
    head_only: bool = False,
) -> tuple[bytes, int | None, bool, bool]:
    """Of an answer with these fields to a GET by HTTP/1.1, unless told otherwise."""
    return head_of(status, [*fields], keep_alive=keep_alive, http_1_0=http_1_0, head_only=head_only)


@pytest.mark.parametrize(
    ("fields", "given", "written", "framing"),
    [
        pytest.param([LENGTH], {}, b"content-length: 5\r\n", (5, False, True), id="a length"),
        pytest.param([], {}, b"transfer-encoding: chunked\r\n", (None, True, True), id="none"),
        pytest.param(
            [CHUNKED],
            {},
            b"transfer-encoding: Chunked\r\n",
            (None, True, True),
            id="chunks that the application has announced are not announced twice",
        ),
        pytest.param([], {"status": 204}, b"", (None, False, True), id="a 204 has no body"),
        pytest.param([], {"status": 304}, b"", (None, False, True), id="nor has a 304"),
        pytest.param(
            [], {"head_only": True}, b"", (None, False, True), id="nor has an answer to a HEAD"
        ),
        pytest.param(
            [LENGTH],
            {"head_only": True},
            b"content-length: 5\r\n",
            (5, False, True),
            id="of which it may say how long it would be",
        ),
        pytest.param(
            [], {"http_1_0": True}, b"", (None, False, True), id="HTTP/1.0 knows no chunks"
        ),
        pytest.param(
            [LENGTH],
            {"keep_alive": False},
            b"content-length: 5\r\nconnection: close\r\n",
            (5, False, False),
            id="the last answer says so",
        ),
        pytest.param(
            [LENGTH, CLOSE],
            {"keep_alive": True},
            b"content-length: 5\r\nconnection: keep-alive, Close\r\n",
            (5, False, False),
            id="the application may want it to be the last",
        ),
        pytest.param(
            [(b"content-length", b"9" * 18)],
            {},
            b"content-length: %b\r\n" % (b"9" * 18),
            (10**18 - 1, False, True),
            id="as long as any will ever be",
        ),
        pytest.param(
            [(b"content-length", b"0")],
            {"status": 204},
            b"content-length: 0\r\n",
            (0, False, True),
            id="a 204 may say that it has no body",
        ),
        pytest.param(
            [LENGTH],
            {"status": 304, "head_only": True},
            b"content-length: 5\r\n",
            (5, False, True),
            id="a 304 to a HEAD may say how long it would be",
        ),
        pytest.param(
            [LENGTH], {"status": 599}, LENGTH_LINE, (5, False, True), id="the last status"
        ),
        pytest.param(
            [LENGTH, (b"X-Custom", b"\tn\xe4me\xff ")],
            {},
            b"content-length: 5\r\nx-custom: \tn\xe4me\xff \r\n",
            (5, False, True),
            id="a name that is not usual is put in lower case; a value may be Latin-1",
        ),
    ],
)
def test_what_is_written(
    fields: Fields,
    given: dict[str, Any],
    written: bytes,
    framing: tuple[int | None, bool, bool],
) -> None:
    """Each field as a line, in its order, and what the framing needs behind them."""
    text, *announced = head(*fields, **given)
    line, _, rest = text.partition(b"\r\n")
    assert line.startswith(b"HTTP/1.1 %d" % given.get("status", 200))
    assert rest == written + b"\r\n"
    assert tuple(announced) == framing


@pytest.mark.parametrize(
    ("fields", "given", "reason"),
    [
        pytest.param([(b"date", b"a\r\nset-cookie: b")], {}, "value", id="a line break in a value"),
        pytest.param([(b"date", b"a\nb")], {}, "value", id="half of one"),
        pytest.param([(b"date", b"a\rb")], {}, "value", id="the other half"),
        pytest.param([(b"date", b"a\x00")], {}, "value", id="a control character"),
        pytest.param([(b"date", b"\x7f")], {}, "value", id="DEL"),
        pytest.param([(b"x a", b"b")], {}, "name", id="a space in a name"),
        pytest.param([(b"x:", b"b")], {}, "name", id="a colon in a name"),
        pytest.param([(b"x\r\ny", b"b")], {}, "name", id="a line break in a name"),
        pytest.param([(b"content-length", b"-1")], {}, "Content-Length", id="a length below 0"),
        pytest.param([(b"Content-Length", b"1 ")], {}, "Content-Length", id="a length and more"),
        pytest.param([(b"content-length", b"")], {}, "Content-Length", id="no length"),
        pytest.param(
            [(b"content-length", b"9" * 19)], {}, "Content-Length", id="a length without end"
        ),
        pytest.param(
            [LENGTH, (b"content-length", b"6")], {}, "framing", id="two lengths of one body"
        ),
        pytest.param([LENGTH, LENGTH], {}, "framing", id="the same one twice"),
        pytest.param([LENGTH, CHUNKED], {}, "framing", id="a length beside chunks"),
        pytest.param([CHUNKED, LENGTH], {}, "framing", id="chunks beside a length"),
        pytest.param([CHUNKED, CHUNKED], {}, "framing", id="chunks of chunks"),
        pytest.param(
            [(b"transfer-encoding", b"gzip")], {}, "framing", id="a coding that is not ours"
        ),
        pytest.param(
            [(b"transfer-encoding", b"gzip, chunked")], {}, "framing", id="one below the chunks"
        ),
        pytest.param([(b"transfer-encoding", b"chunked ")], {}, "framing", id="a space behind it"),
        pytest.param([(b"transfer-encoding", b"")], {}, "framing", id="no coding"),
        pytest.param([CHUNKED], {"http_1_0": True}, "HTTP/1.0", id="chunks by HTTP/1.0"),
        pytest.param([CHUNKED], {"status": 204}, "framing", id="chunks of a 204"),
        pytest.param([CHUNKED], {"status": 304}, "framing", id="chunks of a 304"),
        pytest.param([LENGTH], {"status": 204}, "framing", id="the length of a 204"),
        pytest.param([LENGTH], {"status": 304}, "framing", id="the length of a 304"),
        pytest.param([(b"", b"a")], {}, "name", id="no name"),
        pytest.param([(b"date", b"a"), (b"", b"")], {}, "name", id="neither name nor value"),
        pytest.param([], {"status": 600}, "status", id="a status that there is none of"),
        pytest.param([], {"status": 199}, "status", id="one after which another answer is awaited"),
        pytest.param([], {"status": 100}, "status", id="and the first of them"),
        pytest.param([], {"status": 0}, "status", id="nothing"),
    ],
)
def test_what_is_no_head(fields: Fields, given: dict[str, Any], reason: str) -> None:
    """A mistake of the application's, which becomes a 500 and not an answer of somebody else's."""
    with pytest.raises(RuntimeError, match=reason):
        head(*fields, **given)
