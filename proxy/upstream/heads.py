"""What the head of an upstream's answer may be.

The transport has seen that it is HTTP. Here is what a client may be given of it: another transport
may be less strict, and a status can be right for us and wrong for whoever asked.
"""

import re
from http import HTTPStatus

from proxy.errors import RawHeaders, UpstreamError

# Whoever announces more than an exabyte is not counting bytes.
_DIGITS = re.compile(rb"[0-9]{1,18}")

_OK = 200
_CODING, _LENGTH, _TRANSFER = b"content-encoding", b"content-length", b"transfer-encoding"
_CODING_SIZE, _LENGTH_SIZE, _TRANSFER_SIZE = map(len, (_CODING, _LENGTH, _TRANSFER))

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
    if status != _OK:
        _check_status(status)
    for name, value in fields:
        # Few names are that long, and fewer have to be made lower.
        if len(name) == _CODING_SIZE and name.lower() == _CODING:
            _check_coding(value)


def _check_status(status: int) -> None:
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


def _check_coding(value: bytes) -> None:
    if value.strip().lower() not in (b"", b"identity"):
        # Asked for identity. What cannot be read cannot be measured either.
        raise UpstreamError("The model server compressed its answer, which it was asked not to do.")


def announced_length(fields: RawHeaders) -> int | None:
    """The length that an answer announces; None where its framing or its end tells.

    Raises:
        UpstreamError: Two framings, which two readers could read differently (RFC 9112 §6.3).
    """
    length: bytes | None = None
    framings = 0
    for name, value in fields:
        size = len(name)
        if size == _LENGTH_SIZE and name.lower() == _LENGTH:
            length = value
            framings += 1
        elif size == _TRANSFER_SIZE and name.lower() == _TRANSFER:
            framings += 1
    if length is None:
        return None
    if framings > 1 or not _DIGITS.fullmatch(length):
        raise UpstreamError("The model server's answer states its length in more than one way.")
    return int(length)
