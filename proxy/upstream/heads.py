"""What the head of an upstream's answer may be.

The transport has seen that it is HTTP. Here is what a client may be given of it: another transport
may be less strict, and a status can be right for us and wrong for whoever asked.
"""

import re
from http import HTTPStatus

from proxy.errors import RawHeaders, UpstreamError

# Whoever announces more than an exabyte is not counting bytes.
_LENGTH = re.compile(rb"[0-9]{1,18}")

# What belongs to the hop between the two of us, and what only a request of ours could have asked for:
# a part of an answer must never pass for the whole.
_NOT_THE_CLIENTS = frozenset(
    {
        HTTPStatus.RESET_CONTENT,
        HTTPStatus.PARTIAL_CONTENT,
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
        HTTPStatus.MISDIRECTED_REQUEST,
        HTTPStatus.UPGRADE_REQUIRED,
    }
)


def check_head(status: int, fields: RawHeaders) -> None:
    """Lets the head of an answer pass, or says why it must not cross.

    Raises:
        UpstreamError: In the upstream's place.
    """
    match status // 100:
        case 2 | 4 | 5:
            pass
        case 3:
            # Followed, it would let the engine choose whom we talk to; relayed, whom the client does.
            raise UpstreamError(f"The model server answered with a redirect ({status}).")
        case _:
            raise UpstreamError(f"The model server answered with status {status}: no answer.")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        # It is our key that was refused: a client that reads 401 would throw its own away.
        raise UpstreamError(
            f"The model server refused this proxy's own key ({status}, PROXY_UPSTREAM_API_KEY). "
            "Your key is not at fault."
        )
    if status in _NOT_THE_CLIENTS:
        raise UpstreamError(
            f"The model server answered with status {status}, which is not for you."
        )
    codings = [value for name, value in fields if name.lower() == b"content-encoding"]
    if any(coding.strip().lower() not in (b"", b"identity") for coding in codings):
        # Asked for identity. What cannot be read cannot be measured either.
        raise UpstreamError("The model server compressed its answer, which it was asked not to do.")


def announced_length(fields: RawHeaders) -> int | None:
    """The length that an answer announces; None where its framing or its end tells.

    Raises:
        UpstreamError: Two framings, which two readers could read differently (RFC 9112 §6.3).
    """
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    if not lengths:
        return None
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in fields)
    if chunked or len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise UpstreamError("The model server's answer states its length in more than one way.")
    return int(lengths[0])
