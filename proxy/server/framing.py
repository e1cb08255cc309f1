"""What the framing of a body may cost.

Chunk extensions and trailers never reach the application's cap on bodies, and chunks of one byte
cost a callback each. So framing is paid for: some is free, and every byte of body earns one of
framing, which cannot be saved up beyond what is free.
"""

from proxy.errors import InvalidHttp


class FramingCredit:
    """The account of one body."""

    __slots__ = ("_free_bytes", "_left_bytes")

    def __init__(self, free_bytes: int) -> None:
        self._free_bytes = self._left_bytes = free_bytes

    def spend(self, body_bytes: int, framing_bytes: int) -> bool:
        """Whether these may have come."""
        self._left_bytes = min(self._left_bytes + body_bytes - framing_bytes, self._free_bytes)
        return self._left_bytes >= 0


def too_much_framing() -> InvalidHttp:
    """The refusal of a body that is more framing than body."""
    return InvalidHttp(
        "The chunks of this body are too small, or have extensions or trailers that "
        "are too long: more framing than body. Send larger chunks, or a "
        "Content-Length."
    )
