"""The head of an answer as bytes, and the framing of its body that it announces. Pure.

The last line before the wire: what could be read in two ways is not written, but raised. Fields are
checked as uvicorn checks them, but all at once and not each by a regular expression; framing and
status, which it takes as they come, besides.
"""

from itertools import chain

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

# RFC 9110 §5.6.2. And what may stand in a line: everything but control characters, the tab excepted.
_TOKEN = bytes(code for code in range(0x21, 0x7F) if code not in b'"(),/:;<=>?@[\\]{}')
_PRINTED = b"\t" + bytes(code for code in range(0x20, 0x100) if code not in b"\x7f")

_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})

# Names that need neither be put in lower case nor looked at: nearly all that are ever sent.
_USUAL = frozenset(
    b"cache-control content-length content-type date request-id retry-after server x-accel-buffering "
    b"x-bulwark-clamped x-content-type-options x-ratelimit-limit-requests x-ratelimit-limit-tokens "
    b"x-ratelimit-remaining-requests x-ratelimit-remaining-tokens x-ratelimit-reset-requests "
    b"x-ratelimit-reset-tokens x-request-id".split()
)
_BODILESS = frozenset({204, 304})
_FINAL = 200
# Behind a lower one another answer is awaited: that to the next request would be taken for it.
_STATUS_LINE = {status: line for status, line in STATUS_LINE.items() if status >= _FINAL}
_LENGTH_DIGITS = 18  # an exabyte
_FIELD = b"%b: %b\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_CLOSE = b"connection: close\r\n"


def head_of(
    status: int,
    fields: list[tuple[bytes, bytes]],
    *,
    keep_alive: bool,
    http_1_0: bool,
    head_only: bool,
) -> tuple[bytes, int | None, bool, bool]:
    """The head; the length of the body, and whether it is chunked; whether the connection is kept.

    Args:
        status: As the application gives it.
        fields: Names in any case.
        keep_alive: Whether the connection is kept, as far as the request goes.
        http_1_0: Whether the request was of that version.
        head_only: Whether it asked for the head alone.

    Raises:
        RuntimeError: A field or the status is none, or the framing cannot be.
    """
    named = dict(fields)
    framing: list[tuple[bytes, bytes]] = []
    if named.keys() <= _USUAL and len(named) == len(fields):
        # Nearly all answers: one length at most, and nothing to look at but the values.
        if (announced := named.get(b"content-length")) is not None:
            framing.append((b"content-length", announced))
    else:
        fields = [(name.lower(), value) for name, value in fields]
        framing = [field for field in fields if field[0] in _FRAMING]
        _check_names(fields)
    line = _STATUS_LINE.get(status)
    if line is None:
        raise RuntimeError("Invalid HTTP status of an answer.")
    head = line + _FIELD * len(fields) % tuple(chain.from_iterable(fields))
    _check_lines(head, 1 + len(fields))
    length, chunked, close = _framing_of(framing)
    if (length or chunked) and status in _BODILESS and not head_only:
        raise RuntimeError("Invalid framing: an answer of this status has no body.")
    if close:
        keep_alive = False
    elif not keep_alive:
        head += _CLOSE
    if http_1_0:
        if chunked:
            raise RuntimeError("An answer by HTTP/1.0 cannot be chunked.")
    elif not chunked and length is None and not head_only and status not in _BODILESS:
        chunked = True
        head += _CHUNKED
    return head + b"\r\n", length, chunked, keep_alive


def _check_names(fields: list[tuple[bytes, bytes]]) -> None:
    """Makes sure that each name is one."""
    names = [name for name, _ in fields]
    if not all(names) or b"".join(names).translate(None, _TOKEN):
        raise RuntimeError("Invalid HTTP header name.")


def _check_lines(head: bytes, lines: int) -> None:
    """Makes sure that each field is one line.

    One look at all of them together: what is no text must be the ends of our own lines, and nothing
    else. A line break inside a value would begin a field, or an answer, of somebody else's making.
    """
    if head.translate(None, _PRINTED) != b"\r\n" * lines:
        raise RuntimeError("Invalid HTTP header value.")


def _framing_of(fields: list[tuple[bytes, bytes]]) -> tuple[int | None, bool, bool]:
    """The length that an answer announces, whether it comes in chunks, and whether it is the last."""
    length: int | None = None
    chunked = close = False
    for name, value in fields:
        if name == b"connection":
            close = close or b"close" in [token.strip().lower() for token in value.split(b",")]
        elif chunked or length is not None:
            raise RuntimeError("Invalid framing: an answer has one length, or comes in chunks.")
        elif name == b"transfer-encoding":
            # Chunks are all that is written here: with another coding, they would not be what it says.
            if value.lower() != b"chunked":
                raise RuntimeError(
                    "Invalid framing: no other Transfer-Encoding than chunked is sent."
                )
            chunked = True
        elif not value.isdigit() or len(value) > _LENGTH_DIGITS:
            raise RuntimeError("Invalid Content-Length.")
        else:
            length = int(value)
    return length, chunked, close
