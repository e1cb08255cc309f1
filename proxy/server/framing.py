"""What the framing of a body may cost.

Chunk extensions and trailers never reach the application's cap on bodies, and chunks of one byte
cost a callback each. So framing is paid for: some is free, and every byte of body earns one of
framing, which cannot be saved up beyond what is free.
"""

from proxy.errors import InvalidHttp

STEP_BYTES = 1024
"""How often the account is settled, counted from the beginning of the body."""


class FramingCredit:
    """The account of one body in chunks.

    It is settled at places of the body and not at the ends of packets, so that the same bytes are
    borne or refused wherever they were cut: within a packet nobody tells what came first, framing or
    what pays for it. What lies behind the last step of a body is borne.

    Attributes:
        room_bytes: How many bytes there are to the end of this step; no more are to be spent at once.
    """

    __slots__ = ("_earned_bytes", "_free_bytes", "_left_bytes", "room_bytes")

    def __init__(self, free_bytes: int) -> None:
        self._free_bytes = self._left_bytes = free_bytes
        self._earned_bytes = 0  # in this step; below 0 where it was more framing than body
        self.room_bytes = STEP_BYTES

    def spend(self, size_bytes: int, body_bytes: int) -> bool:
        """Whether these may have come, so many of which are body."""
        self._earned_bytes += body_bytes - (size_bytes - body_bytes)
        self.room_bytes -= size_bytes
        if not self.room_bytes:
            self._left_bytes = min(self._left_bytes + self._earned_bytes, self._free_bytes)
            self._earned_bytes, self.room_bytes = 0, STEP_BYTES
        return self._left_bytes >= 0


def too_much_framing() -> InvalidHttp:
    """The refusal of a body that is more framing than body."""
    return InvalidHttp(
        "The chunks of this body are too small, or have extensions or trailers that "
        "are too long: more framing than body. Send larger chunks, or a "
        "Content-Length."
    )
