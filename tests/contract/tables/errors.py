"""What is refused, and how it is called, as rows: for the recording upstream and for real engines."""

import pytest

from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON


def post(body: bytes, target: str = CHAT, **more: str) -> bytes:
    """A request with the key."""
    return request_bytes("POST", target, {**BEARER, **JSON, **more}, body)


REFUSALS = [
    pytest.param(post(b"{"), 400, "invalid_json", id="400 for a body"),
    pytest.param(post(CHAT_BODY, CHAT + "?key=1"), 400, "key_in_query", id="400 for a query"),
    pytest.param(request_bytes("POST", CHAT), 401, "missing_api_key", id="401"),
    pytest.param(
        request_bytes("POST", CHAT, {"Authorization": "Bearer x"}),
        403,
        "invalid_api_key",
        id="403",
    ),
    pytest.param(request_bytes("GET", "/nope", BEARER), 404, "not_found", id="404"),
    pytest.param(request_bytes("GET", CHAT, BEARER), 405, "method_not_allowed", id="405"),
    pytest.param(post(b"x" * 2000), 413, "body_too_large", id="413 announced"),
    pytest.param(
        post(b"", **{"Transfer-Encoding": "chunked"}) + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n",
        413,
        "body_too_large",
        id="413 sent",
    ),
    pytest.param(
        post(CHAT_BODY, **{"Content-Encoding": "zstd"}), 415, "unsupported_media_type", id="415"
    ),
]

BELOW_ASGI = [
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, "invalid_http", id="no Host"),
    pytest.param(
        request_bytes("GET", "/" + "x" * 9000), 414, "target_too_long", id="a long target"
    ),
    pytest.param(
        request_bytes("GET", "/", {"X": "x" * 40_000}), 431, "head_too_large", id="a long head"
    ),
]
