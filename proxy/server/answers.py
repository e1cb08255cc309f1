"""Errors that are said below ASGI, in the shape and with the fields of all the others."""

from http import HTTPStatus

from proxy.errors import Dialect, ProxyError, RawHeaders


def fields(error: ProxyError, body: bytes, request_id: str) -> list[tuple[bytes, bytes]]:
    """The header fields of an error whose connection ends with it."""
    return [
        *error.response_headers(),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (b"x-request-id", request_id.encode()),
        (b"x-content-type-options", b"nosniff"),
    ]


def render(
    error: ProxyError, request_id: str, more: RawHeaders, *, head_only: bool = False
) -> bytes:
    """A whole response. The route is not known here, so the error is in the OpenAI shape.

    Args:
        error: What to say.
        request_id: Fresh; the request's own was not read or is not trusted.
        more: What every response has (``date``), and what this one has besides.
        head_only: It answers a HEAD, which says of the body how long it would be.
    """
    body = error.body(Dialect.OPENAI, request_id)
    status = HTTPStatus(error.status)
    head = [b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())]
    for name, value in (*more, *fields(error, body, request_id)):
        head.append(b"%b: %b\r\n" % (name, value))
    return b"".join(head) + b"\r\n" + (b"" if head_only else body)
