"""The first and the last members of a JSON document of which only the ends were kept.

What a model has written about usage, in a string or in the arguments of a tool, is never taken for
what the engine says: strings are told from what is outside of them, and depths are counted. That
works from the end to the front too. A quote is a delimiter if an even number of backslashes stands
before it, and behind the last bracket one is outside of every string.
"""

import re
from collections.abc import Iterator

# In the reversed document: what stands before a quote comes behind it.
_TOKEN = re.compile(rb'(["{}\[\]])(\\*)')
_FORWARD = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.DOTALL)
_COLON = re.compile(rb"[ \t\n\r]*:[ \t\n\r]*")


def last_objects(document: bytes, depth: int) -> dict[bytes, bytes]:
    """The objects and lists that are members at this depth, by name, back to one called ``usage``.

    Args:
        document: Its last bytes, up to the very end.
        depth: 1 is the outermost object's.
    """
    found: dict[bytes, bytes] = {}
    level = 0
    start = end = 0
    for opening, closing in _backwards(document):
        if opening != closing:
            if level == depth and _COLON.fullmatch(document, closing + 1, start):
                found.setdefault(document[opening + 1 : closing], document[start:end])
        elif document[opening] in b"}]":
            end = opening + 1 if level == depth else end
            level += 1
        else:
            level -= 1
            start = opening if level == depth else start
        if level <= 0 or b"usage" in found:
            break
    return found


def first_object(document: bytes, name: bytes) -> bytes | None:
    """The object or list that is a member of the outermost object under this name.

    Args:
        document: Its first bytes, from the very first.
        name: Without its quotes.
    """
    level = start = key_end = 0
    key = b""
    for token in _FORWARD.finditer(document):
        text = token[0]
        if text in b"{[":
            if level == 1:
                start = token.start()
            level += 1
        elif text in b"}]":
            level -= 1
            named = key == b'"%b"' % name and _COLON.fullmatch(document, key_end, start)
            if level == 1 and named:
                return document[start : token.end()]
            if level <= 0:
                break
        elif level == 1:
            key, key_end = text, token.end()  # or a value
    return None


def _backwards(document: bytes) -> Iterator[tuple[int, int]]:
    """The strings, from quote to quote, and brackets outside of them, from the last to the first."""
    closing = -1
    for token in _TOKEN.finditer(document[::-1]):
        at = len(document) - 1 - token.start()
        if token[1] != b'"':
            if closing < 0:
                yield at, at
        elif len(token[2]) % 2 == 0:
            if closing < 0:
                closing = at
            else:
                yield at, closing
                closing = -1
