"""What tools and output schemas count, and what is to be known of them to bound an engine's work.

Clients send the same tools with each request of a conversation, and tools are most of what an agent
sends: to walk over those of one took 13 µs a kilobyte. So what they came to is remembered, under a
digest: nothing of a client's is kept.
"""

from hashlib import sha256 as _sha256
from typing import Any, NamedTuple

import msgspec

from proxy.policy import compiling
from proxy.policy.lengths import Shape, compact, printed_chars, shape

# Tools count as compact JSON, but a template may indent them. Real ones grow to two or three times
# their size by that, so up to four times is free; what grows by more counts for it.
_WRITTEN_TO_COMPACT = 4

# Qwen3-Coder's template makes a block of each parameter: `"a":1,` becomes 42 characters.
_ADDED_TO_MEMBER = 36

# vLLM writes what a tool leaves out, and a whole schema for a custom one: 30 characters of those
# became 300, and 460 where they were indented.
_ADDED_TO_TOOL = 400

MAX_REMEMBERED = 1_000
_MOST_BYTES_OF_CHAR = 4

_encode = msgspec.json.Encoder().encode


class Measured(NamedTuple):
    """One value.

    Attributes:
        seen: Its shape, with ``compiling.TELLTALES``.
        chars: What it counts against the cap on schemas.
        over: Whether it is over that alone, so that nobody need look into it.
    """

    seen: Shape
    chars: int
    over: bool


class Schemas:
    """Measures schemas, and remembers those that are not over the cap.

    Args:
        max_chars: The cap.
    """

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._known: dict[bytes, Measured] = {}

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._known)

    def measure(self, value: Any) -> Measured:
        """What one value, or a list of tools, comes to."""
        encoded = _encode(value)
        # What is as long is refused.
        if len(encoded) > self._max_chars * _MOST_BYTES_OF_CHAR:
            return _measured(value, self._max_chars)
        digest = _sha256(encoded).digest()
        measured = self._known.get(digest)
        if measured is None:
            measured = _measured(value, self._max_chars)
            # 1e999 is written as null too, though it counts for more: such a digest is shared.
            if not measured.over and b"null" not in encoded:
                if len(self._known) >= MAX_REMEMBERED:
                    self._known.clear()
                self._known[digest] = measured
        return measured


def _measured(value: Any, max_chars: int) -> Measured:
    seen = shape(value, compiling.TELLTALES)
    encoded = compact(value, floats=seen.floats)
    size, added = len(encoded), seen.added
    over = size > max_chars
    if not over:  # else it is refused, whatever this says
        added = max(added, printed_chars(value, encoded))
    # A list of them, by any name: formats are objects.
    added += _ADDED_TO_TOOL * len(value) if type(value) is list else 0
    added = max(added, _ADDED_TO_MEMBER * seen.members)
    return Measured(seen, max(size, (size + added) // _WRITTEN_TO_COMPACT), over)
