"""What is asked, out of an ``httpx.Request``: as bytes, with its bounds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httpx

from proxy.pipe import ON_SENT
from proxy.upstream.transport.deadlines import Limits
from proxy.upstream.wire import serialise

MAX_HEAD_BYTES = "bulwark.max_head_bytes"
"""The extension of a request that bounds what is read until its answer begins, interim answers and
all; without it, 64 KiB are."""

RawFields = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Question:
    """One request.

    Attributes:
        head: From its first line to the empty one.
        body: The whole of it, so that it can be sent once more.
        on_sent: As ``ON_SENT``.
        max_head_bytes: As ``MAX_HEAD_BYTES``.
    """

    method: bytes
    head: bytes
    body: bytes
    limits: Limits
    on_sent: Callable[[], None] | None
    max_head_bytes: int | None


async def whole(request: httpx.Request) -> tuple[RawFields, bytes]:
    """The fields and the body of a request whose body is made while it is sent.

    That is nobody's here: it goes with its length.
    """
    stream = cast("httpx.AsyncByteStream", request.stream)
    fields = [item for item in request.headers.raw if item[0].lower() != b"transfer-encoding"]
    return fields, b"".join([piece async for piece in stream])


def question(request: httpx.Request, fields: RawFields, body: bytes, limits: Limits) -> Question:
    """What a request asks, with these fields and this body.

    Raises:
        httpx.LocalProtocolError: It cannot be written down so that it can be read in one way only,
            or there is no HTTP behind it.
    """
    extensions = request.extensions
    method = request.method.encode("ascii", "replace")
    target = extensions.get("target")
    if target is None:
        target = request.url.raw_path
    if method == b"CONNECT":
        raise httpx.LocalProtocolError("there is no answer to read behind CONNECT")
    try:
        head = serialise(method, target, fields, len(body))
    except ValueError as exc:
        raise httpx.LocalProtocolError(str(exc)) from exc
    return Question(
        method, head, body, limits, extensions.get(ON_SENT), extensions.get(MAX_HEAD_BYTES)
    )
