"""Reading a request's body: only what is plain JSON, no longer than the cap, no slower than allowed.

Nothing is read of a body whose head already says that it will be refused, so that a client that
asks first (``Expect: 100-continue``) is spared sending it.
"""

import re
from dataclasses import dataclass

from starlette.types import Receive

from proxy.admission.buffers import Lease
from proxy.context import RequestContext
from proxy.errors import (
    BodyTooLarge,
    ClientDisconnected,
    RawHeaders,
    UnsupportedMediaType,
)
from proxy.lifeline import Deadline, Lifeline

# RFC 8259 §8.1: JSON is UTF-8. Any other parameter would be somebody's private meaning.
_JSON_TYPE = re.compile(rb'application/json\s*(;\s*charset\s*=\s*"?utf-?8"?\s*)?', re.IGNORECASE)
_SHOWN_BYTES = 40


@dataclass(frozen=True, slots=True)
class Intake:
    """Reads bodies.

    Attributes:
        max_body_bytes: The longest body that is read (``PROXY_MAX_BODY_BYTES``).
        deadline: How long the whole of it may take.
    """

    max_body_bytes: int
    deadline: Deadline

    async def read(
        self, context: RequestContext, receive: Receive, lifeline: Lifeline, lease: Lease
    ) -> bytes:
        """The whole body; its bytes are on the lease.

        Raises:
            Refusal: It is of the wrong kind, too long, too slow, one too many of its account's, or
                there is no room for it.
            ClientDisconnected: It will never be whole.
        """
        check_content(context.headers, self.max_body_bytes)
        lease.begin()
        lifeline.expect(self.deadline)
        pieces: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            piece: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            context.bytes_in += len(piece)
            if context.bytes_in > self.max_body_bytes:
                raise _too_large("longer than that", self.max_body_bytes)
            lease.grow(len(piece))
            pieces.append(piece)
        lifeline.expect(None)
        lease.end()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def check_content(fields: RawHeaders, max_body_bytes: int) -> None:
    """Lets the head of a request with a body pass, or says why the body will not be read.

    Raises:
        UnsupportedMediaType: Not plain JSON in UTF-8.
        BodyTooLarge: Announced over the cap.
    """
    # Most heads name each field once, and the usual type: one look at each.
    known = dict(fields)
    if (
        len(known) == len(fields)
        and known.get(b"content-type") == b"application/json"
        and b"content-encoding" not in known
    ):
        length = known.get(b"content-length", b"")
        if not length.isdigit() or int(length) <= max_body_bytes:
            return
    types = [value for name, value in fields if name == b"content-type"]
    if len(types) != 1 or not _JSON_TYPE.fullmatch(types[0].strip()):
        shown = ", ".join(_shown(value) for value in types) or "nothing"
        raise UnsupportedMediaType(
            "The body must be JSON in UTF-8, declared by one 'Content-Type: application/json'; "
            f"declared is {shown}."
        )
    for name, value in fields:
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            # Bytes that are not read cannot be limited, and inflating them is how bombs go off.
            raise UnsupportedMediaType(
                f"Content-Encoding {_shown(value)} is not accepted: send the body uncompressed."
            )
        if name == b"content-length" and value.isdigit() and int(value) > max_body_bytes:
            raise _too_large(f"{int(value):,} bytes long", max_body_bytes)


def _too_large(measured: str, max_body_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The body may have {max_body_bytes:,} bytes (PROXY_MAX_BODY_BYTES); it is {measured}."
    )


def _shown(value: bytes) -> str:
    return repr(value[:_SHOWN_BYTES].decode("ascii", "replace"))
