"""What a response may cost us, and how it is said that it is not valid."""

from dataclasses import dataclass

__all__ = ["ResponseLimits", "WireError"]


class WireError(Exception):
    """The bytes are no response that has one meaning.

    The message is a constant of ours and never quotes the other side: it may end up in a log.
    """


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """The bounds of one response.

    Attributes:
        max_head_bytes: Of all its heads together, the interim ones and the final one.
        max_fields: Of each head.
        max_interim: How many interim responses (1xx) may come before the final one.
        max_framing_bytes: How much chunk extensions and trailers may come to beyond what the chunks
            themselves need.
    """

    max_head_bytes: int = 64 * 1024
    max_fields: int = 128
    max_interim: int = 8
    max_framing_bytes: int = 64 * 1024
