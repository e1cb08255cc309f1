"""The event with which a stream has said everything, in the dialect of each route.

A client may leave at it without having missed anything: OpenAI's SDKs do, and do not wait for the
end of the body.
"""

import re
from collections.abc import Mapping

from proxy.errors import Dialect

_LINE_END = re.compile(rb"\r\n|\n|\r")
# Atomic: half of a CRLF is no line end.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")

# As a whole line: no text of a model stands alone on one, for it is in a string.
_DONE = (b"data: [DONE]", b"data:[DONE]")

_RESPONSE_ENDS = ("response.completed", "response.failed", "response.incomplete")
_TYPES: Mapping[Dialect, tuple[str, ...]] = {
    Dialect.OPENAI: (),
    Dialect.RESPONSES: _RESPONSE_ENDS,
    Dialect.ANTHROPIC: ("message_stop",),
}

# The type of an event as the first of its members, or the last but for its number.
_FIRST = re.compile(rb'data: ?\{\s*"type":\s*"([^"\\]*)"')
_LAST = re.compile(rb'[,{]\s*"type":\s*"([^"\\]*)"\s*(?:,\s*"sequence_number":\s*[0-9]+\s*)?\}$')
_LAST_BYTES = 128


def is_over(dialect: Dialect, tail: bytes) -> bool:
    """Whether a stream that ends so, between two events, has said everything.

    Args:
        dialect: Of the route.
        tail: Its last bytes. An event of which they have the end only may not be recognised, and
            is never taken for another one.
    """
    event = _EVENT_END.split(tail.rstrip(b"\r\n"))[-1]
    lines = _LINE_END.split(event)
    if any(line in _DONE for line in lines):  # engines send it in other dialects, too
        return True
    return any(name.decode("latin-1") in _TYPES[dialect] for name in _names(lines))


def _names(lines: list[bytes]) -> list[bytes]:
    """All that tell what an event is called."""
    names = [line[6:].strip(b" ") for line in lines if line.startswith(b"event:")]
    found = [_FIRST.match(line) for line in lines] + [_LAST.search(lines[-1][-_LAST_BYTES:])]
    return names + [match[1] for match in found if match is not None]
