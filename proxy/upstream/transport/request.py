"""What is asked, out of an ``httpx.Request``: as bytes, with its bounds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httpx

from proxy.upstream.transport.deadlines import Limits
from proxy.upstream.wire import serialise

MAX_HEAD_BYTES = "bulwark.max_head_bytes"
"""The extension of a request that bounds what is read until its answer begins, interim answers and
all; without it, 64 KiB are."""

ON_SENT = "bulwark.on_sent"
"""The extension of a request whose value is called each time that it is handed to a socket: from then
on the engine may be working on it."""


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


async def question(request: httpx.Request) -> Question:
    """What a request asks.

    Raises:
        httpx.LocalProtocolError: It cannot be written down so that it can be read in one way only.
    """
    extensions = request.extensions
    method = request.method.encode("ascii", "replace")
    fields = request.headers.raw
    target = extensions.get("target")
    if target is None:
        target = request.url.raw_path
    stream = request.stream
    if isinstance(stream, httpx.ByteStream):
        body = b"".join(stream)
    else:
        # A body that is made while it is sent is nobody's here: it goes with its length.
        body = b"".join([piece async for piece in cast("httpx.AsyncByteStream", stream)])
        fields = [item for item in fields if item[0].lower() != b"transfer-encoding"]
    try:
        head = serialise(method, target, fields, len(body))
    except ValueError as exc:
        raise httpx.LocalProtocolError(str(exc)) from exc
    limits = Limits.of(extensions.get("timeout", {}))
    return Question(
        method, head, body, limits, extensions.get(ON_SENT), extensions.get(MAX_HEAD_BYTES)
    )
