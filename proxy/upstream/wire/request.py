"""The head of a request, in one piece."""

from collections.abc import Sequence
from functools import lru_cache

__all__ = ["serialise"]

_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TOKEN = _LETTERS + b"0123456789!#$%&'*+-.^_`|~"
_VISIBLE = bytes(range(0x21, 0x7F))
_TEXT = b"\t " + _VISIBLE + bytes(range(0x80, 0x100))
_KINDS = 64
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
    # What is not allowed is what is left without all that is.
    if not method or method.translate(None, _TOKEN):
        raise ValueError("a method is not valid")
    if not target or target.translate(None, _VISIBLE):
        raise ValueError("a target is not valid")
    at = _length_at(tuple([name for name, _ in fields]))
    length = _missing_length(method, None if at is None else fields[at][1], body_length)
    lines = b"\r\n".join(map(b": ".join, fields))
    head = b"%b %b HTTP/1.1\r\n%b%b\r\n\r\n" % (method, target, lines, length)
    if head.translate(None, _TEXT) != b"\r\n" * (len(fields) + (3 if length else 2)):
        raise ValueError("the value of a field is not valid")
    return head


@lru_cache(_KINDS)
def _length_at(names: tuple[bytes, ...]) -> int | None:
    """Which of the names is Content-Length, having looked at all of them.

    What is sent differs in its values: the names are the same few for each kind of client.
    """
    joined = b":".join(names).lower()
    lower = joined.split(b":")
    if len(lower) != len(names) or b"" in lower or joined.translate(None, _TOKEN).strip(b":"):
        raise ValueError("the name of a field is not valid")
    if lower.count(b"host") != 1:
        raise ValueError("there is not exactly one Host")
    if b"transfer-encoding" in lower:
        raise ValueError("a request of known length has no transfer coding")
    if lower.count(b"content-length") > 1:
        raise ValueError("Content-Length is not that of the body")
    return lower.index(b"content-length") if b"content-length" in lower else None


def _missing_length(method: bytes, length: bytes | None, body_length: int) -> bytes:
    """The line that is to be added, having looked at what is there."""
    if length is None:
        if not body_length and method not in _EXPECT_LENGTH:
            return b""
        return b"\r\ncontent-length: %d" % body_length
    if length != b"%d" % body_length:
        raise ValueError("Content-Length is not that of the body")
    return b""
