"""Which header fields cross the proxy: two allow-lists, one in each direction.

An allow-list, because the fields that must not cross cannot be counted: routing headers that pick a
GPU, session headers that share a cache, whatever an engine reads next year. A field that nobody
thought of stays behind. Nothing here knows a key, and no field of the client's can replace one of
ours: what we set is written by us alone.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from proxy.errors import RawHeaders

_TO_UPSTREAM = frozenset(
    {b"content-type", b"accept", b"user-agent", b"anthropic-version", b"anthropic-beta"}
)
_TO_UPSTREAM_PREFIX = b"openai-"

_TO_CLIENT = frozenset({b"content-type", b"content-length", b"cache-control", b"retry-after"})
_TO_CLIENT_PREFIXES = (b"openai-", b"anthropic-")

# RFC 9110 §7.6.1, and two that old clients and proxies still send.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# The name of the owner's site is not the engine's to act in: no cookie, no redirect, no policy. The
# rest are fields that the proxy or its server writes itself.
_NEVER_TO_CLIENT = _HOP_BY_HOP | {
    b"alt-svc",
    b"clear-site-data",
    b"content-encoding",
    b"content-range",
    b"date",
    b"location",
    b"refresh",
    b"request-id",
    b"server",
    b"set-cookie",
    b"strict-transport-security",
    b"www-authenticate",
    b"x-content-type-options",
    b"x-request-id",
}
_NEVER_TO_CLIENT_PREFIXES = (b"access-control-", b"x-accel-", b"x-bulwark-", b"x-ratelimit-")

_EVENT_STREAM_FIELDS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))

EVENT_STREAM: RawHeaders = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    *_EVENT_STREAM_FIELDS,
)
"""The fields of an event stream of our own, before ``middleware.access`` adds its."""


def to_upstream(
    headers: RawHeaders,
    *,
    host: bytes,
    request_id: bytes,
    api_key: bytes | None,
    content_length: int | None,
) -> list[tuple[bytes, bytes]]:
    """The fields of the request to the upstream.

    Args:
        headers: What the client sent.
        host: The upstream's authority.
        request_id: Ours; the client's own ``X-Request-Id`` stays here.
        api_key: The upstream's key, without a scheme; None sends no ``Authorization``.
        content_length: Bytes of body; None where the request has none.
    """
    fields = [
        (b"host", host),
        # Or an engine may compress what nobody asked it to, and the relay cannot look at the bytes.
        (b"accept-encoding", b"identity"),
        (b"x-request-id", request_id),
    ]
    if api_key is not None:
        fields.append((b"authorization", b"Bearer " + api_key))
    if content_length is not None:
        fields.append((b"content-length", str(content_length).encode()))
    ours = len(fields)
    named: set[bytes] = set()
    for field in headers:
        name = field[0]
        if name in _TO_UPSTREAM:
            fields.append(field)
            continue
        name = name.lower()
        if name in _TO_UPSTREAM or name.startswith(_TO_UPSTREAM_PREFIX):
            fields.append((name, field[1]))
        elif name == b"connection":
            named |= _tokens(field[1])
    if named:
        fields[ours:] = [field for field in fields[ours:] if field[0] not in named]
    return fields


def to_client(headers: RawHeaders, *, extra: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """The fields of the response to the client, before ``middleware.access`` adds ours.

    Args:
        headers: What the upstream sent, names in any case.
        extra: More names to relay, lowercase (``PROXY_RESPONSE_HEADERS``). Those that are not
            ``may_be_relayed`` stay behind all the same.
    """
    fields: list[tuple[bytes, bytes]] = []
    first: dict[bytes, bytes] = {}
    again: set[bytes] = set()
    for raw_name, value in headers:
        name = raw_name.lower()
        if name in first:
            again.add(name)
        else:
            first[name] = value
        if name in _TO_CLIENT or _may_cross(name, extra):
            fields.append((name, value))
    stays = _named_by_connection(headers) if b"connection" in first else set()
    if b"transfer-encoding" in first or b"content-length" in again:
        # RFC 9112 §6.3: it is not the one statement of the body's length, and must not be sent on.
        stays.add(b"content-length")
    if b"content-type" in again:
        fields = list(_once(fields))
    if event_stream := _is_event_stream(first.get(b"content-type", b"")):
        stays.add(b"cache-control")
    if stays:
        fields = [field for field in fields if field[0] not in stays]
    if event_stream:
        # Or a reverse proxy in front of us (nginx, cloudflared) collects events before it sends them.
        fields += _EVENT_STREAM_FIELDS
    return fields


def may_be_relayed(name: bytes) -> bool:
    """Whether an operator may add this response field (lowercase) to the allow-list."""
    return name not in _NEVER_TO_CLIENT and not name.startswith(_NEVER_TO_CLIENT_PREFIXES)


def is_event_stream(headers: RawHeaders) -> bool:
    """Whether the body is server-sent events, whatever parameters its type has."""
    for name, value in headers:
        if name.lower() == b"content-type":
            return _is_event_stream(value)
    return False


@lru_cache(maxsize=64)  # an engine says the same of all its answers
def _is_event_stream(kind: bytes) -> bool:
    return kind.partition(b";")[0].strip().lower() == b"text/event-stream"


def _may_cross(name: bytes, extra: frozenset[bytes]) -> bool:
    return name.startswith(_TO_CLIENT_PREFIXES) or (name in extra and may_be_relayed(name))


def _named_by_connection(headers: RawHeaders) -> set[bytes]:
    return {
        token
        for name, value in headers
        if name.lower() == b"connection"
        for token in _tokens(value)
    }


def _tokens(connection: bytes) -> set[bytes]:
    """The fields that ``Connection`` declares to be for this hop only (RFC 9110 §7.6.1)."""
    return {token.strip().lower() for token in connection.split(b",")}


def _once(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The fields without a second ``content-type``: browsers would take that for the type."""
    typed = False
    for name, value in headers:
        if name == b"content-type":
            if typed:
                continue
            typed = True
        yield name, value
