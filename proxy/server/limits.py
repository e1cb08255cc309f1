"""What one connection may take, in bytes and seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProtocolLimits:
    """The limits below ASGI. The defaults are the product's; only tests pass others.

    Attributes:
        head_seconds: From the first byte of a request's head (or from the accepted connection,
            where none comes) to its last.
        max_head_bytes: Request line and fields, with the empty line that ends them.
        max_head_fields: Fields of the head and of the trailer section together.
        max_target_bytes: Path and query.
        linger_seconds: How long a connection whose request was not read to its end stays open
            after the answer, so that the client can read it.
        linger_bytes: What is swallowed of that request meanwhile.
        pending_bytes: What is discarded behind a request while its answer is pending; and of empty
            lines before one.
        write_timeout_seconds: How long a client may take nothing of what waits for it.
        user_timeout_seconds: How long sent bytes may stay unacknowledged by the client's kernel.
    """

    head_seconds: float = 10.0
    max_head_bytes: int = 32 * 1024
    max_head_fields: int = 100
    max_target_bytes: int = 8 * 1024
    linger_seconds: float = 1.0
    linger_bytes: int = 256 * 1024
    pending_bytes: int = 64 * 1024
    write_timeout_seconds: float = 60.0
    user_timeout_seconds: float = 30.0
