"""The head of a request, in one piece."""

import re
from collections.abc import Sequence

__all__ = ["serialise"]

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_HEAD = re.compile(
    _TOKEN + rb" [\x21-\x7e]++ HTTP/1\.1\r\n(?:[^:\r\n]++: [\t\x20-\x7e\x80-\xff]*+\r\n)*+\r\n"
).fullmatch
_NAMES = re.compile(rb"::(?:" + _TOKEN + rb"::)*+").fullmatch
_EXPECT_LENGTH = frozenset((b"POST", b"PUT", b"PATCH"))


def serialise(
    method: bytes, target: bytes, fields: Sequence[tuple[bytes, bytes]], body_length: int = 0
) -> bytes:
    """The head of a request whose body has this length, and comes behind it as it is.

    Args:
        method: In capitals.
        target: As it is sent: encoded, not empty.
        fields: In their order. ``Host`` exactly once; ``Content-Length``, where it is not among them,
            is added for a body and for the methods that should have one.
        body_length: In bytes.

    Raises:
        ValueError: It would not be read as what is written here. The message quotes nothing.
    """
    # Two colons between names, so that no two of them share one and each is counted.
    names = b"::".join([b"", *[name for name, _ in fields], b""])
    if names.count(b":") != 2 * len(fields) + 2 or not _NAMES(names):
        raise ValueError("the name of a field is not valid")
    length = _length_line(method, names.lower(), fields, body_length)
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    head = b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method, target, lines, length)
    # A field that brings its own line end would make a line more.
    if head.count(b"\r\n") != len(fields) + (3 if length else 2) or not _HEAD(head):
        raise ValueError("a method, a target or a value is not valid")
    return head


def _length_line(
    method: bytes, names: bytes, fields: Sequence[tuple[bytes, bytes]], body_length: int
) -> bytes:
    """What is to be added, having looked at what the fields say of the body."""
    if names.count(b":host:") != 1:
        raise ValueError("there is not exactly one Host")
    if b":transfer-encoding:" in names:
        raise ValueError("a request of known length has no transfer coding")
    found = names.count(b":content-length:")
    if found == 0:
        if not body_length and method not in _EXPECT_LENGTH:
            return b""
        return b"content-length: %d\r\n" % body_length
    values = [value for name, value in fields if name.lower() == b"content-length"]
    if values != [b"%d" % body_length]:
        raise ValueError("Content-Length is not that of the body")
    return b""
