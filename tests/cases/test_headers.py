"""HD: fields that must cross, fields that must not, and each of them once."""

import asyncio

import pytest

from tests.harness import upstream as upstreams
from tests.harness.bodies import chat
from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, KEY, Launch
from tests.harness.upstream import COMPLETION, LAST_CHUNK, chunk, event, response

STREAM = chat(max_tokens=9, stream=True)
JSON_TYPE = (b"Content-Type", b"application/json")


def head(*lines: bytes) -> bytes:
    """The head of a 200 with these fields."""
    return b"HTTP/1.1 200 OK\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.case("HD-01")
@pytest.mark.parametrize(
    ("reply", "length"),
    [
        pytest.param([response(COMPLETION)], True, id="a length"),
        pytest.param(
            [
                head(b"Content-Type: application/json", b"Transfer-Encoding: chunked"),
                chunk(COMPLETION[:9]),
                chunk(COMPLETION[9:]),
                LAST_CHUNK,
            ],
            False,
            id="chunks",
        ),
    ],
)
async def test_the_framing_of_an_answer(
    proxy: Launch, reply: list[upstreams.Step], length: bool
) -> None:
    """Exactly one framing, a true one, and the connection is good for another request."""
    front = await proxy()
    front.upstream.script.append(reply)
    client = await front.connect()
    for expected in (length, True):
        answer = await client.request("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY)
        assert (answer.status, answer.body, answer.complete) == (200, COMPLETION, True)
        framing = (answer.values(b"content-length"), answer.values(b"transfer-encoding"))
        assert framing == (([b"%d" % len(COMPLETION)], []) if expected else ([], [b"chunked"]))


@pytest.mark.case("HD-01")
async def test_an_answer_that_is_framed_twice(proxy: Launch) -> None:
    """A fault of the engine's: nobody has to guess which framing is the true one."""
    front = await proxy()
    front.upstream.reply = [
        head(b"Content-Type: text/plain", b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        chunk(COMPLETION),
        LAST_CHUNK,
    ]
    answer = await front.chat()
    assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_error")
    assert answer.header(b"content-length") == b"%d" % len(answer.body)
    assert answer.values(b"transfer-encoding") == []


@pytest.mark.case("HD-02")
@pytest.mark.parametrize("body", [CHAT_BODY, STREAM], ids=["JSON", "events"])
async def test_date_and_server(proxy: Launch, body: bytes) -> None:
    """One date, which is ours; the engine's name is nobody's business."""
    front = await proxy()
    fields = [b"Date: Thu, 01 Jan 1970 00:00:00 GMT", b"Server: uvicorn"]
    plain = [b"Content-Type: application/json", b"Content-Length: 2"]
    events = [b"Content-Type: text/event-stream", b"Transfer-Encoding: chunked"]
    front.upstream.reply = (
        [head(*fields, *plain) + b"{}"]
        if body is CHAT_BODY
        else [head(*fields, *events), event("a"), LAST_CHUNK]
    )
    answer = await front.chat(body)
    assert (answer.status, answer.complete) == (200, True)
    (date,) = answer.values(b"date")
    assert b"1970" not in date
    assert answer.values(b"server") == []


@pytest.mark.case("HD-03")
@pytest.mark.parametrize(
    "spell", [bytes.lower, bytes.upper, bytes.title, bytes.swapcase], ids=lambda f: str(f.__name__)
)
async def test_names_in_any_case(proxy: Launch, spell: object) -> None:
    """What is filtered in one spelling is filtered in each."""
    assert callable(spell)
    front = await proxy()
    stays = [(spell(name), b"canary") for name in (b"Server", b"Set-Cookie", b"Keep-Alive")]
    crosses = [(spell(b"Content-Type"), b"application/json"), (spell(b"Retry-After"), b"7")]
    front.upstream.reply = [response(COMPLETION, 429, [*stays, *crosses])]
    answer = await front.chat()
    assert (answer.status, answer.header(b"retry-after")) == (429, b"7")
    assert answer.header(b"content-type") == b"application/json"
    assert all(b"canary" not in value for _, value in answer.headers)


@pytest.mark.case("HD-03")
@pytest.mark.parametrize("name", [b"CONTENT-ENCODING", b"content-encoding", b"Content-encodinG"])
async def test_an_encoding_in_any_case(proxy: Launch, name: bytes) -> None:
    """Noticed in each."""
    front = await proxy()
    front.upstream.reply = [response(b"x", 200, [JSON_TYPE, (name, b"gzip")])]
    assert (await front.chat()).status == 502


@pytest.mark.case("HD-03")
@pytest.mark.parametrize("name", [b"transfer-Encoding", b"TRANSFER-ENCODING"])
async def test_a_framing_in_any_case(proxy: Launch, name: bytes) -> None:
    """Understood in each."""
    front = await proxy()
    fields = [b"Content-Type: application/json", name + b": chunked"]
    front.upstream.reply = [head(*fields), chunk(COMPLETION), LAST_CHUNK]
    answer = await front.chat()
    assert (answer.body, answer.complete) == (COMPLETION, True)
    assert answer.values(b"transfer-encoding") == [b"chunked"]


HOP = {
    "Connection": "close, X-Hop, OpenAI-Hop",
    "X-Hop": "1",
    "OpenAI-Hop": "1",
    "Keep-Alive": "1",
    "TE": "trailers",
    "Upgrade": "h2c",
    "Proxy-Connection": "x",
    "Trailer": "X-Hop",
}


@pytest.mark.case("HD-04")
async def test_fields_for_one_hop(proxy: Launch) -> None:
    """None crosses in either direction, and the connection to the engine is used again."""
    front = await proxy()
    fields = [JSON_TYPE, *((name.encode(), value.encode()) for name, value in HOP.items())]
    fields = [pair for pair in fields if pair[0] != b"Connection"]
    fields.append((b"Connection", b"keep-alive, X-Hop, OpenAI-Hop"))
    front.upstream.reply = [response(COMPLETION, 200, fields)]
    for _ in range(3):
        answer = await front.chat(CHAT_BODY, **HOP)
        assert (answer.status, answer.body) == (200, COMPLETION)
        ours = {name for name, _ in answer.headers} & {name.lower().encode() for name in HOP}
        assert ours <= {b"connection"}
        assert answer.values(b"connection") in ([], [b"close"])  # our own hop's, as it asked
    hops = {name.lower().encode() for name in HOP}
    for request in front.upstream.requests:
        assert not {name for name, _ in request.headers} & hops
        assert request.connection == 0


@pytest.mark.case("HD-05")
async def test_repeated_fields(proxy: Launch) -> None:
    """Those that cross keep their number, order and commas; cookies and links do not cross."""
    front = await proxy(response_headers="Link")
    fields = [
        JSON_TYPE,
        (b"Set-Cookie", b"a=1; Expires=Thu, 01 Jan 2026 00:00:00 GMT"),
        (b"Link", b"<a>; rel=x, <b>"),
        (b"Set-Cookie", b"b=2"),
        (b"openai-x", b"1, 2"),
        (b"Link", b"<c>"),
        (b"openai-x", b"3"),
    ]
    front.upstream.reply = [response(COMPLETION, 200, fields)]
    sent = [("OpenAI-A", "1, 2"), ("anthropic-beta", "x"), ("OpenAI-A", "3"), ("X-A", "4")]
    answer = await front.ask("POST", CHAT, [*BEARER.items(), *JSON.items(), *sent], CHAT_BODY)
    assert answer.values(b"link") == [b"<a>; rel=x, <b>", b"<c>"]
    assert answer.values(b"openai-x") == [b"1, 2", b"3"]
    assert answer.values(b"set-cookie") == []
    received = [pair for pair in front.upstream.requests[0].headers if pair[0].endswith(b"-a")]
    assert received == [(b"openai-a", b"1, 2"), (b"openai-a", b"3")]
    plain = await proxy()
    plain.upstream.reply = [response(COMPLETION, 200, fields)]
    assert (await plain.chat()).values(b"link") == []


@pytest.mark.case("HD-06")
@pytest.mark.parametrize("status", [429, 503])
async def test_when_to_come_back(proxy: Launch, status: int) -> None:
    """The engine's Retry-After crosses; rates and request ids are ours to say."""
    front = await proxy()
    fields = [
        JSON_TYPE,
        (b"Retry-After", b"30"),
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"x-request-id", b"r1"),
    ]
    front.upstream.reply = [response(b'{"error":{}}', status, fields)]
    answer = await front.chat(CHAT_BODY, **{"X-Request-Id": "c1"})
    assert (answer.status, answer.header(b"retry-after")) == (status, b"30")
    assert answer.values(b"x-ratelimit-remaining-requests") == []
    request_id = answer.header(b"x-request-id")
    assert request_id not in (None, b"r1", b"c1")
    assert front.upstream.requests[0].header(b"x-request-id") == request_id


@pytest.mark.case("HD-08")
async def test_addresses_that_anybody_may_write(proxy: Launch) -> None:
    """Nothing believes them: the line has the peer's address, and the engine sees none."""
    front = await proxy()
    names = ("X-Forwarded-For", "X-Real-IP", "CF-Connecting-IP", "Forwarded")
    for number in range(10):
        fields = dict.fromkeys(names, f"203.0.113.{number}")
        refused = await front.chat(CHAT_BODY, **{**fields, "Authorization": "Bearer x"})
        assert refused.status == 403
        assert (await front.log.of(refused))["client"] == "127.0.0.1"
        answer = await front.chat(CHAT_BODY, **fields)
        assert (await front.log.of(answer))["client"] == "127.0.0.1"
    assert "203.0.113" not in front.log.text
    assert b"203.0.113" not in b"".join(
        bytes(connection.received) for connection in front.upstream.connections
    )


@pytest.mark.case("HD-08")
async def test_two_clients_through_the_tunnel(proxy: Launch) -> None:
    """Told apart by the hop that the tunnel named, the last one that is not a tunnel's own.

    One of them makes a new address up for each wrong key, and is told to stop all the same.
    """
    front = await proxy(trusted_proxies="127.0.0.1,10.0.0.9", client_ip_header="X-Forwarded-For")

    async def guess(hops: str) -> tuple[int, str]:
        answer = await front.chat(CHAT_BODY, Authorization="Bearer x", X_Forwarded_For=hops)
        return answer.status, (await front.log.of(answer))["client"]

    for number in range(10):
        assert await guess(f"198.51.100.{number}, 203.0.113.1") == (403, "203.0.113.1")
    assert await guess("198.51.100.77, 203.0.113.1") == (429, "203.0.113.1")
    assert await guess("203.0.113.2, 10.0.0.9") == (403, "203.0.113.2")
    right = await front.chat(CHAT_BODY, X_Forwarded_For="203.0.113.1")
    assert right.status == 200
    assert b"203.0.113" not in b"".join(
        bytes(connection.received) for connection in front.upstream.connections
    )


@pytest.mark.case("HD-10")
async def test_fields_that_the_client_never_sent(proxy: Launch) -> None:
    """No encoding is asked for, no name and no taste invented; the answer is not compressed."""
    front = await proxy()
    client = await front.connect()
    await client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        % (KEY.encode(), len(CHAT_BODY), CHAT_BODY)
    )
    answer = await client.read_response()
    assert answer.header(b"content-encoding") is None
    (received,) = front.upstream.requests
    assert {name for name, _ in received.headers} == {
        b"host",
        b"accept-encoding",
        b"content-type",
        b"content-length",
        b"x-request-id",
    }
    assert received.header(b"accept-encoding") == b"identity"


@pytest.mark.case("HD-10")
async def test_the_clients_own_name(proxy: Launch) -> None:
    """Kept, and not replaced by that of a library of ours."""
    front = await proxy()
    await front.chat(CHAT_BODY, **{"User-Agent": "agent/1 (x; y)"})
    assert front.upstream.requests[0].header(b"user-agent") == b"agent/1 (x; y)"


@pytest.mark.case("HD-11")
@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param([], id="the engine sends none"),
        pytest.param([b"X-Accel-Buffering: no", b"Cache-Control: no-cache"], id="both"),
        pytest.param([b"x-accel-buffering: yes", b"cache-control: no-store"], id="others"),
    ],
)
async def test_nobody_may_collect_events(proxy: Launch, theirs: list[bytes]) -> None:
    """Exactly one of each field on an event stream; none that the engine did not send elsewhere."""
    front = await proxy()
    stream = head(b"Content-Type: text/event-stream", b"Transfer-Encoding: chunked", *theirs)
    plain = head(b"Content-Type: application/json", b"Content-Length: 2", *theirs)
    gate = asyncio.Event()
    front.upstream.script.extend([[stream, event("a"), gate, LAST_CHUNK], [plain, b"{}"]])
    client = await front.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, STREAM))
    events = await client.read_head()
    gate.set()
    assert events.values(b"x-accel-buffering") == [b"no"]
    assert events.values(b"cache-control") == [b"no-cache"]
    answer = await front.chat()
    assert answer.values(b"x-accel-buffering") == []
    assert answer.values(b"cache-control") == [
        line.partition(b": ")[2] for line in theirs if line.lower().startswith(b"cache-control")
    ]
