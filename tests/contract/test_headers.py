"""Promise 7: what crosses, in each direction, seen on the wire."""

import pytest

from tests.contract.tables.headers import CROSSING, STAYING
from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, KEY, Launch
from tests.harness.upstream import COMPLETION, LAST_CHUNK, chunk, event, response

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def ours(port: int, request_id: bytes, length: int) -> list[tuple[bytes, bytes]]:
    """The fields that every request with a body has of ours."""
    return [
        (b"host", b"127.0.0.1:%d" % port),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", request_id),
        (b"content-length", b"%d" % length),
    ]


async def test_a_plain_request_gets_nothing_added(proxy: Launch) -> None:
    """What the client did not send is not invented: no Accept, no User-Agent, no Connection."""
    front = await proxy()
    answer = await front.chat()
    (request,) = front.upstream.requests
    request_id = answer.header(b"x-request-id") or b""
    expected = [
        *ours(front.upstream.port, request_id, len(CHAT_BODY)),
        (b"content-type", b"application/json"),
    ]
    assert list(request.headers) == expected


async def test_what_is_listed_crosses_as_it_came(proxy: Launch) -> None:
    """In its order, with repeats and spelling."""
    front = await proxy()
    await front.ask("POST", CHAT, [*BEARER.items(), *JSON.items(), *CROSSING], CHAT_BODY)
    (request,) = front.upstream.requests
    assert [(name, value) for name, value in request.headers if name != b"content-type"][4:] == [
        (name.lower().encode(), value.encode("latin-1")) for name, value in CROSSING
    ]


@pytest.mark.parametrize("upstream_key", [None, "up-" + "u" * 40])
async def test_no_secret_of_the_clients_crosses(proxy: Launch, upstream_key: str | None) -> None:
    """Every field that may carry one, and every field that the engine must not believe."""
    front = await proxy(upstream_api_key=upstream_key)
    answer = await front.ask("POST", CHAT, [*STAYING, *JSON.items()], CHAT_BODY)
    assert answer.status == 200
    (request,) = front.upstream.requests
    raw = bytes(front.upstream.connections[0].received)
    assert b"canary" not in raw
    assert KEY.encode() not in raw
    assert request.header(b"accept-encoding") == b"identity"
    bearer = f"Bearer {upstream_key}".encode() if upstream_key else None
    assert request.header(b"authorization") == bearer
    await front.log.of(answer)
    assert "canary" not in front.log.text


async def test_a_field_named_by_connection_stays_even_if_listed(proxy: Launch) -> None:
    """Connection: user-agent means that it was for us."""
    front = await proxy()
    await front.chat(Connection="user-agent", User_Agent="x")
    assert front.upstream.requests[0].header(b"user-agent") is None


async def test_trailers_do_not_become_fields(proxy: Launch) -> None:
    """A chunked body with a trailer arrives with one length and without it."""
    front = await proxy()
    client = await front.connect()
    head = request_bytes("POST", CHAT, {**BEARER, **JSON, "Transfer-Encoding": "chunked"})
    body = b"%x;ext=1\r\n%b\r\n0\r\nOpenAI-Canary: 1\r\n\r\n" % (len(CHAT_BODY), CHAT_BODY)
    await client.send(head + body)
    assert (await client.read_response()).status == 200
    (request,) = front.upstream.requests
    assert request.body == CHAT_BODY
    assert request.header(b"content-length") == b"%d" % len(CHAT_BODY)
    assert request.header(b"transfer-encoding") is None
    assert request.header(b"openai-canary") is None


async def test_one_request_id_everywhere(proxy: Launch) -> None:
    """Ours: the client's, the upstream's and the log's are the same, and none repeats."""
    front = await proxy()
    front.upstream.reply = [response(COMPLETION, headers=[(b"X-Request-Id", b"canary")])]
    seen = set()
    for _ in range(3):
        answer = await front.chat(X_Request_Id="c1")
        request_id = answer.header(b"x-request-id")
        assert request_id
        assert front.upstream.requests[-1].header(b"x-request-id") == request_id
        assert (await front.log.of(answer))["request_id"] == request_id.decode()
        seen.add(request_id)
    assert len(seen) == 3


async def test_the_name_that_anthropics_sdks_know(proxy: Launch) -> None:
    """On their routes the same id comes as ``request-id`` too, and the upstream's own never does."""
    front = await proxy()
    front.upstream.reply = [response(COMPLETION, headers=[(b"Request-Id", b"canary")])]
    answer = await front.ask("POST", "/v1/messages", {**BEARER, **JSON}, CHAT_BODY)
    assert answer.header(b"request-id") == answer.header(b"x-request-id")
    assert (await front.chat()).header(b"request-id") is None


HOSTILE = [
    (b"Set-Cookie", b"a=1; Expires=Thu, 01 Jan 2026 00:00:00 GMT"),
    (b"Set-Cookie", b"b=2"),
    (b"Location", b"http://evil"),
    (b"Server", b"uvicorn"),
    (b"Date", b"canary"),
    (b"Access-Control-Allow-Origin", b"*"),
    (b"X-RateLimit-Remaining-Requests", b"0"),
    (b"X-Bulwark-Clamped", b"canary"),
    (b"Strict-Transport-Security", b"max-age=1"),
    (b"Connection", b"keep-alive, X-Hop"),
    (b"X-Hop", b"1"),
    (b"Keep-Alive", b"timeout=5"),
    (b"X-Unknown", b"1"),
]


async def test_a_response_has_these_fields_and_no_others(proxy: Launch) -> None:
    """Whatever the engine sends, in whatever case: listed ones, and ours once each."""
    front = await proxy()
    listed = [
        (b"CONTENT-TYPE", b"application/json"),
        (b"Retry-After", b"30"),
        (b"openai-processing-ms", b"5"),
    ]
    front.upstream.reply = [response(COMPLETION, 429, [*HOSTILE, *listed])]
    answer = await front.chat()
    assert (answer.status, answer.body) == (429, COMPLETION)
    assert sorted(name for name, _ in answer.headers) == [
        b"content-length",
        b"content-type",
        b"date",
        b"openai-processing-ms",
        b"retry-after",
        b"x-content-type-options",
        b"x-request-id",
    ]
    assert answer.header(b"date") != b"canary"
    assert answer.header(b"content-length") == b"%d" % len(COMPLETION)
    assert answer.header(b"retry-after") == b"30"
    assert answer.header(b"x-content-type-options") == b"nosniff"


async def test_the_operator_may_relay_more(proxy: Launch) -> None:
    """PROXY_RESPONSE_HEADERS, by name."""
    front = await proxy(response_headers="X-Unknown")
    front.upstream.reply = [response(COMPLETION, headers=HOSTILE)]
    answer = await front.chat()
    assert answer.header(b"x-unknown") == b"1"
    assert answer.values(b"set-cookie") == []


async def test_a_body_of_unknown_length_is_framed_once(proxy: Launch) -> None:
    """Chunked in, chunked out, no length beside it."""
    front = await proxy()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + CHUNKED
    front.upstream.reply = [
        head + b"\r\n",
        chunk(COMPLETION[:9]),
        chunk(COMPLETION[9:]),
        LAST_CHUNK,
    ]
    answer = await front.chat()
    assert (answer.body, answer.complete) == (COMPLETION, True)
    assert answer.header(b"transfer-encoding") == b"chunked"
    assert answer.header(b"content-length") is None


@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(b"", id="the upstream sends none"),
        pytest.param(b"X-Accel-Buffering: no\r\nCache-Control: no-cache\r\n", id="it sends both"),
        pytest.param(b"Cache-Control: private\r\nCache-Control: x\r\n", id="it sends others"),
    ],
)
async def test_event_streams_say_once_that_nobody_may_collect_them(
    proxy: Launch, theirs: bytes
) -> None:
    """Exactly one of each field; other answers have neither of ours."""
    front = await proxy()
    front.upstream.reply = [SSE + CHUNKED + theirs + b"\r\n", event("x"), LAST_CHUNK]
    answer = await front.chat()
    assert answer.header(b"cache-control") == b"no-cache"
    assert answer.header(b"x-accel-buffering") == b"no"
    front.upstream.reply = [response(COMPLETION)]
    plain = await front.chat()
    assert plain.values(b"cache-control") == plain.values(b"x-accel-buffering") == []


async def test_a_clamp_is_told(proxy: Launch) -> None:
    """In a field that only we set, in the log, and in the metrics."""
    front = await proxy()
    answer = await front.chat(CHAT_BODY.replace(b"16}", b"32000}"))
    assert answer.header(b"x-bulwark-clamped") == b"max_tokens 32000 -> 4096"
    assert (await front.log.of(answer))["clamped"] == "max_tokens 32000 -> 4096"
    assert front.metric("bulwark_clamped_requests_total", endpoint="chat.completions") == 1


async def test_what_is_not_clamped_says_nothing(proxy: Launch) -> None:
    """The neighbour of the row above."""
    front = await proxy()
    answer = await front.chat(CHAT_BODY.replace(b"16}", b"4096}"))
    assert answer.values(b"x-bulwark-clamped") == []
