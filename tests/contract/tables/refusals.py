"""Every way in which the program says no or fails, and what brings it about on a socket."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import httpx

from proxy.errors import Reason
from tests.harness.client import RawClient, RawResponse, request_bytes
from tests.harness.redis import free_port
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Running
from tests.harness.upstream import COMPLETION, End, response

ORIGIN = "https://chat.example.org"
PAGE = {"Origin": ORIGIN}

Told = tuple[RawResponse, RawClient]
Ask = Callable[[Running], Awaitable[Told]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One of them.

    Attributes:
        how: Which, where there are several with one reason.
        ask: Brings it about; gives the answer, and who got it.
        settings: Of the proxy.
        page_known: Whether the request was read as far as its Origin.
        operators: Whether it is the admin listener's, which no page may read and whose requests are
            not counted.
    """

    reason: Reason
    status: int
    ask: Ask
    settings: Mapping[str, Any] = field(default_factory=dict)
    page_known: bool = True
    operators: bool = False
    how: str = ""


def sends(data: bytes) -> Ask:
    """Sends these bytes, and a page's Origin behind their first line."""

    async def ask(front: Running) -> Told:
        client = await front.connect()
        field = b"\r\noRIGIN:%b \t\r\n" % ORIGIN.encode()
        await client.send(data.replace(b"\r\n", field, 1))
        return await client.read_response(), client

    return ask


def chats(
    body: bytes = CHAT_BODY, target: str = CHAT, fields: Mapping[str, str] = MappingProxyType({})
) -> Ask:
    """Asks with the key."""
    return sends(request_bytes("POST", target, {**BEARER, **JSON, **fields}, body))


def says(field_: str) -> Ask:
    """A chat with one more member."""
    return chats(CHAT_BODY[:-1] + b"," + field_.encode() + b"}")


def after(first: Callable[[Running], Awaitable[object]], then: Ask) -> Ask:
    """Something else has to happen before."""

    async def ask(front: Running) -> Told:
        await first(front)
        return await then(front)

    return ask


async def comes(front: Running) -> Told:
    """Connects, and says nothing."""
    client = await front.connect()
    return await client.read_response(), client


async def wrong_keys(front: Running) -> None:
    """As many as one address may send."""
    for _ in range(10):
        await front.ask("GET", "/v1/models", {"Authorization": "Bearer wrong"})


async def is_busy(front: Running) -> None:
    """The engine has a request, and does not answer."""
    front.upstream.reply = [End.SILENCE]
    client = await front.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY))
    await front.upstream.request(0)


async def has_chatted(front: Running) -> None:
    """The key had its one request."""
    front.upstream.reply = [response(COMPLETION)]
    assert (await front.chat()).status == 200


async def gives_way(front: Running, client: RawClient) -> RawResponse:
    """What this client is told when another needs the only place for idle ones."""
    # What was sent before another listener has answered has been read.
    await front.ask_admin("GET", "/healthz")
    await front.connect()
    return await client.read_response()


async def half_a_head(front: Running) -> Told:
    """Does not end, and another needs the place."""
    client = await front.connect()
    # A field is known once the line behind it has begun: it could have gone on there.
    await client.send(request_bytes("GET", "/", PAGE)[:-2] + b"X")
    return await gives_way(front, client), client


async def while_it_drains(front: Running) -> Told:
    """The drain has no more time for it."""
    front.upstream.reply = [End.SILENCE]
    client = await front.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON, **PAGE}, CHAT_BODY))
    await front.upstream.request(0)
    front.stop.set()
    front.hurry.set()
    return await client.read_response(), client


async def to_the_operator(front: Running) -> Told:
    """A name that is not the admin listener's."""
    client = await front.connect(front.admin_port)
    return await client.request("GET", "/status", {"Host": "evil.example", **PAGE}), client


def upstream_says(reply: list[Any], then: Ask) -> Ask:
    """The engine answers so."""

    async def prepare(front: Running) -> None:
        front.upstream.reply = reply

    return after(prepare, then)


class Buggy(httpx.AsyncBaseTransport):
    """A transport with a bug."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Fails."""
        raise KeyError


R = Reason
CASES = [
    Case(reason=R.MISSING_API_KEY, status=401, ask=sends(request_bytes("POST", CHAT))),
    Case(
        reason=R.INVALID_API_KEY,
        status=403,
        ask=sends(request_bytes("POST", CHAT, {"Authorization": "Bearer x"})),
    ),
    Case(reason=R.NOT_FOUND, status=404, ask=sends(request_bytes("GET", "/nope", BEARER))),
    Case(
        how="an endpoint",
        reason=R.METHOD_NOT_ALLOWED,
        status=405,
        ask=sends(request_bytes("GET", CHAT, BEARER)),
    ),
    Case(
        how="the probe",
        reason=R.METHOD_NOT_ALLOWED,
        status=405,
        ask=sends(request_bytes("POST", "/healthz")),
    ),
    Case(reason=R.MODEL_NOT_FOUND, status=404, ask=chats(), settings={"models": "other"}),
    Case(
        how="a body",
        reason=R.REQUEST_TIMEOUT,
        status=408,
        ask=sends(request_bytes("POST", CHAT, {**BEARER, **JSON, "Content-Length": "9"}, b"{")),
        settings={"body_timeout_seconds": 0.05},
    ),
    Case(
        how="a head",
        reason=R.REQUEST_TIMEOUT,
        status=408,
        ask=half_a_head,
        settings={"max_idle_connections": 1},
    ),
    Case(
        reason=R.BODY_TOO_LARGE,
        status=413,
        ask=chats(b"x" * 2_000),
        settings={"max_body_bytes": 1_024},
    ),
    Case(
        how="a query",
        reason=R.TARGET_TOO_LONG,
        status=414,
        ask=chats(target=CHAT + "?" + "x" * 2_049),
    ),
    Case(how="a target", reason=R.TARGET_TOO_LONG, status=414, ask=chats(target="/" + "x" * 9_000)),
    Case(
        reason=R.UNSUPPORTED_MEDIA_TYPE, status=415, ask=chats(fields={"Content-Encoding": "zstd"})
    ),
    Case(
        reason=R.MISDIRECTED_REQUEST,
        status=421,
        ask=to_the_operator,
        page_known=False,
        operators=True,
    ),
    Case(
        reason=R.RATE_LIMIT_EXCEEDED,
        status=429,
        ask=after(has_chatted, chats()),
        settings={"key_requests_per_minute": 1},
    ),
    Case(
        reason=R.TOO_MANY_FAILURES,
        status=429,
        ask=after(wrong_keys, sends(request_bytes("GET", "/", {"Authorization": "Bearer x"}))),
    ),
    Case(
        reason=R.TOO_MANY_CONNECTIONS,
        status=429,
        ask=after(is_busy, comes),
        settings={"max_connections_per_address": 1},
        page_known=False,
    ),
    Case(how="bytes", reason=R.HEAD_TOO_LARGE, status=431, ask=chats(fields={"X": "x" * 40_000})),
    Case(
        how="fields",
        reason=R.HEAD_TOO_LARGE,
        status=431,
        ask=chats(fields={f"X{n}": "x" for n in range(101)}),
    ),
    Case(how="no Host", reason=R.INVALID_HTTP, status=400, ask=sends(b"GET / HTTP/1.1\r\n\r\n")),
    Case(
        how="a name that is none",
        reason=R.INVALID_HTTP,
        status=400,
        ask=chats(fields={"X\x01": "x"}),
    ),
    Case(
        how="TLS", reason=R.INVALID_HTTP, status=400, ask=sends(b"\x16\x03\x01"), page_known=False
    ),
    Case(
        how="no chunk",
        reason=R.INVALID_HTTP,
        status=400,
        ask=chats(b"zz\r\n", fields={"Transfer-Encoding": "chunked"}),
    ),
    Case(reason=R.KEY_IN_QUERY, status=400, ask=chats(target=CHAT + "?key=1")),
    Case(reason=R.INVALID_JSON, status=400, ask=chats(b"{")),
    Case(reason=R.BODY_TOO_COMPLEX, status=400, ask=says('"x":' + "[" * 200 + "]" * 200)),
    Case(reason=R.INVALID_VALUE, status=400, ask=says('"n":"1"')),
    Case(
        reason=R.CONTEXT_LENGTH_EXCEEDED, status=400, ask=chats(), settings={"max_prompt_chars": 1}
    ),
    Case(reason=R.TOOLS_TOO_LARGE, status=400, ask=says('"tools":[{"d":"%s"}]' % ("x" * 64_000))),
    Case(reason=R.PARAMETERS_TOO_LARGE, status=400, ask=says('"metadata":"%s"' % ("x" * 16_000))),
    Case(
        reason=R.OUTPUT_TOO_LARGE,
        status=400,
        ask=chats(),
        settings={"output_overflow": "reject", "max_output_tokens": 8},
    ),
    Case(reason=R.TOO_MANY_CHOICES, status=400, ask=says('"n":64')),
    Case(
        reason=R.TOO_MANY_INPUTS,
        status=400,
        ask=chats(
            b'{"model":"m","prompt":["a","a","a","a","a","a","a","a","a"]}', "/v1/completions"
        ),
    ),
    Case(reason=R.FIELD_REFUSED, status=400, ask=says('"chat_template":"x"')),
    Case(
        reason=R.MEDIA_REFUSED,
        status=400,
        ask=chats(
            b'{"model":"m","messages":[{"role":"user","content":'
            b'[{"type":"image_url","image_url":{"url":"http://10.0.0.5/"}}]}]}'
        ),
    ),
    Case(
        reason=R.REQUEST_EXCEEDS_RATE_LIMIT,
        status=400,
        ask=chats(),
        settings={"key_tokens_per_minute": 1},
    ),
    Case(
        reason=R.REQUEST_EXCEEDS_CAPACITY,
        status=400,
        ask=says('"max_completion_tokens":4000'),
        settings={"kv_budget_tokens": 1_024},
    ),
    Case(
        reason=R.OVERLOADED,
        status=503,
        ask=after(is_busy, chats()),
        settings={"max_inflight": 1, "queue_size": 0},
    ),
    Case(
        reason=R.CONNECTIONS_EXHAUSTED,
        status=503,
        ask=after(is_busy, comes),
        settings={"max_connections": 1},
        page_known=False,
    ),
    Case(reason=R.SHUTTING_DOWN, status=503, ask=while_it_drains, settings={"drain_seconds": 30}),
    Case(reason=R.INTERNAL_ERROR, status=500, ask=chats(), settings={"transport": Buggy()}),
    Case(
        reason=R.LIMITS_UNAVAILABLE,
        status=503,
        ask=chats(),
        settings={
            "redis_url": f"redis://127.0.0.1:{free_port()}",
            "redis_failure": "closed",
            "key_requests_per_minute": 9,
        },
    ),
    Case(reason=R.UPSTREAM_ERROR, status=502, ask=upstream_says([response(b"", 302)], chats())),
    Case(
        reason=R.UPSTREAM_UNAVAILABLE,
        status=503,
        ask=chats(),
        settings={"upstream_url": f"http://127.0.0.1:{free_port()}"},
    ),
    Case(
        reason=R.UPSTREAM_TIMEOUT,
        status=504,
        ask=upstream_says([End.SILENCE], chats()),
        settings={"first_byte_timeout_seconds": 0.05},
    ),
]
