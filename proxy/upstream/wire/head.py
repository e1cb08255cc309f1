"""The head of a response: strict syntax, and what it says about the body behind it.

This is not left to the parser of the body. llhttp reads a response without knowing its request, takes
some forms that other readers take otherwise, and costs a callback a field where this costs none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.upstream.wire.limits import WireError

__all__ = ["CHUNKED", "UNTIL_EOF", "Head", "check_beginning", "judge", "parse"]

CHUNKED = -1
UNTIL_EOF = -2

# Possessive quantifiers: no input makes these go back, so each is linear. Not on the group of fields,
# which can only go back a field at a time: Python before 3.11.5 takes possessive groups that have
# quantifiers inside for no match (its issue 106052), and Debian 12 has 3.11.2.
_HEAD = re.compile(
    rb"HTTP/1\.[01] [1-5][0-9]{2}(?: [\t\x20-\x7e\x80-\xff]*+)?"
    rb"(?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t\x20-\x7e\x80-\xff]*+)*\r\n\r\n"
).fullmatch
_FIELDS = re.compile(rb"\r\n([^:]++):[\t ]*+([^\r]*+)").findall

_HOPELESS = re.compile(rb"(?<!\r)\n|\r[^\n]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]").search
_BEGINNING = b"HTTP/1."
_MINOR, _STATUS = len(_BEGINNING), slice(9, 12)
_MAX_DIGITS = 18  # fits into 64 bits, for whoever reads it after us

_OK = 200
_BODILESS = frozenset((204, 304))

Field = tuple[bytes, bytes]


@dataclass(slots=True)
class Head:
    """The head of a final response.

    Attributes:
        status: 200 to 599.
        fields: In their order; names in lower case, values without white space around them.
    """

    status: int
    fields: list[Field]


def check_beginning(block: bytearray, checked: int) -> None:
    """Looks at a part of a head, so that what can never become one is not waited for.

    Args:
        block: The head so far.
        checked: How much of it was looked at before.

    Raises:
        WireError: Whatever comes, it will not be valid.
    """
    if not _BEGINNING.startswith(bytes(block[: len(_BEGINNING)])):
        raise WireError("what the engine says is not HTTP/1.0 or HTTP/1.1")
    if _HOPELESS(block, max(checked - 1, 0)):
        raise WireError("a head has control characters or lone line ends")


def parse(block: bytes, max_fields: int) -> tuple[Head, int]:
    """One whole head, from the status line to the empty line, and its minor version.

    Raises:
        WireError: It is not valid, or has too many fields.
    """
    if _HEAD(block) is None:
        raise WireError("a head is not valid")
    found = _FIELDS(block)
    if len(found) > max_fields:
        raise WireError("a head has too many fields")
    # A search for two bytes costs four times one for a single one, and tabs are rare.
    if b" \r" in block or (b"\t" in block and b"\t\r" in block):
        fields = [(name.lower(), value.rstrip(b"\t ")) for name, value in found]
    else:
        fields = [(name.lower(), value) for name, value in found]
    return Head(int(block[_STATUS]), fields), block[_MINOR] - ord("0")


def judge(head: Head, minor: int, *, answers_head: bool) -> tuple[int, bool]:
    """What is behind the head: the length of a body in bytes, ``CHUNKED`` or ``UNTIL_EOF``.

    And whether the other side will read another request behind that (RFC 9112 §9.3).

    Raises:
        WireError: It can be read in two ways, also where there is no body at all.
    """
    named = dict(head.fields)
    if len(named) != len(head.fields):
        _merge_repeated(head.fields, named)
    body = _length(named.get(b"content-length"), named.get(b"transfer-encoding"), minor)
    if head.status < _OK and body != UNTIL_EOF:
        raise WireError("an interim response announces a body")
    if answers_head or head.status in _BODILESS:
        body = 0  # RFC 9112 §6.3: whatever the fields say
    return body, body != UNTIL_EOF and _keeps_alive(named.get(b"connection"), minor)


def _merge_repeated(fields: Sequence[Field], named: dict[bytes, bytes]) -> None:
    names = [name for name, _ in fields]
    # Equal ones too: whoever looks at them next may take them for a list.
    if names.count(b"content-length") > 1 or names.count(b"transfer-encoding") > 1:
        raise WireError("a response says more than once how long it is")
    options = [value for name, value in fields if name == b"connection"]
    if options:
        named[b"connection"] = b",".join(options)


def _length(length: bytes | None, coding: bytes | None, minor: int) -> int:
    if coding is not None:
        if length is not None:
            raise WireError("a response has both a length and a transfer coding")
        if minor == 0 or coding.lower() != b"chunked":
            raise WireError("a response has a transfer coding that is not plain chunked")
        return CHUNKED
    if length is None:
        return UNTIL_EOF
    if len(length) > _MAX_DIGITS or not length.isdigit():
        raise WireError("the length of a response is not valid")
    return int(length)


def _keeps_alive(connection: bytes | None, minor: int) -> bool:
    if connection is None:
        return minor == 1
    connection = connection.lower()
    if connection == b"keep-alive":
        return True
    options = {option.strip(b"\t ") for option in connection.split(b",")}
    return b"close" not in options and (minor == 1 or b"keep-alive" in options)
