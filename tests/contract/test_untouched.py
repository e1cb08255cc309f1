"""Promise 3: what isn't governed isn't touched, in either direction."""

import asyncio
import hashlib
import json

import pytest

from tests.contract.tables.untouched import ODD, TOOLS
from tests.harness import upstream as upstreams
from tests.harness.client import request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, KEY, Launch

pytestmark = pytest.mark.both_ways

JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def sha256(body: bytes) -> str:
    """A digest, as a person would compare two bodies."""
    return hashlib.sha256(body).hexdigest()


async def test_an_unchanged_body_arrives_byte_for_byte(proxy: Launch) -> None:
    """Odd white space, escapes, exotic numbers, 30 unknown fields."""
    running = await proxy()
    response = await running.chat(ODD)
    assert response.status == 200
    assert sha256(running.upstream.requests[0].body) == sha256(ODD)
    assert response.header(b"x-bulwark-clamped") is None


@pytest.mark.parametrize("pieces", [1, 7, 1000])
async def test_a_chunked_body_arrives_with_its_length(proxy: Launch, pieces: int) -> None:
    """Reframed, because the upstream need not know how it came; trailers stay behind."""
    running = await proxy()
    client = await running.connect()
    chunks = [ODD[start : start + pieces] for start in range(0, len(ODD), pieces)]
    if pieces == 1:  # more framing than body is refused, so that one may not be by the byte
        chunks = [ODD]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    await client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n\r\n"
        + framed + b"0\r\nX-Trailer: 1\r\n\r\n"
    )  # fmt: skip
    assert (await client.read_response()).status == 200
    received = running.upstream.requests[0]
    assert sha256(received.body) == sha256(ODD)
    assert received.header(b"content-length") == str(len(ODD)).encode()
    assert received.header(b"transfer-encoding") is None
    assert b"trailer" not in received.head.lower()


async def test_after_a_clamp_only_the_value_differs(proxy: Launch) -> None:
    """And the response says what was done."""
    running = await proxy()
    body = ODD.replace(b'"max_tokens":7', b'"max_tokens" : 99999 ')
    response = await running.chat(body)
    assert running.upstream.requests[0].body == body.replace(b"99999", b"4096")
    assert response.header(b"x-bulwark-clamped") == b"max_tokens 99999 -> 4096"


async def test_a_missing_bound_is_spliced_in(proxy: Launch) -> None:
    """Behind the opening brace; everything else stays."""
    running = await proxy()
    body = ODD.replace(b'"max_tokens":7,', b"")
    response = await running.chat(body)
    assert running.upstream.requests[0].body == body.replace(b"{", b'{"max_tokens":4096,', 1)
    assert response.header(b"x-bulwark-clamped") is None


@pytest.mark.parametrize(
    "tools",
    TOOLS,
)
async def test_tools_are_never_dropped_or_normalised(proxy: Launch, tools: bytes) -> None:
    """The bug of record; and the upstream's own complaint about them comes back as it is."""
    running = await proxy()
    complaint = b'{"error":{"message":"no tools","type":"BadRequestError","code":400}}'
    running.upstream.reply = [upstreams.response(complaint, 400)]
    body = b'{"messages":[],"max_tokens":1,' + tools + b"}"
    response = await running.chat(body)
    assert running.upstream.requests[0].body == body
    assert (response.status, response.body) == (400, complaint)


async def test_the_query_arrives_byte_for_byte(proxy: Launch) -> None:
    """Order, repeats, escapes, empty values, quotes."""
    running = await proxy()
    query = "api-version=2024-10-21&x=a%2Bb&x=2&empty=&sp=a+b&q='%22/../%2e%2e"
    response = await running.ask("GET", f"/v1/models?{query}", BEARER)
    assert response.status == 200
    assert running.upstream.requests[0].target == f"/v1/models?{query}".encode()
    assert "api-version" not in running.log.text


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        pytest.param(200, b"application/json", b'{"logprob":-Infinity,"x":NaN}', id="odd JSON"),
        pytest.param(200, b"text/plain", b"caf\xe9", id="latin-1 text"),
        pytest.param(404, b"text/html", b"<h1>no</h1>", id="an HTML 404"),
        pytest.param(404, b"application/json", b"", id="an empty 404"),
        pytest.param(429, b"application/json", b'{"error":"slow down"}', id="a string error"),
        pytest.param(500, b"text/plain", b"Internal Server Error", id="a plain 500"),
        pytest.param(503, b"application/json", b'{"error":{}}', id="a 503"),
    ],
)
@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_answers_and_errors_of_the_upstream_are_its_own(
    proxy: Launch, status: int, content_type: bytes, body: bytes, stream: bytes
) -> None:
    """Status, type and bytes, with or without ``stream: true``."""
    running = await proxy()
    running.upstream.reply = [
        upstreams.response(body, status, [(b"Content-Type", content_type), (b"Retry-After", b"30")])
    ]
    response = await running.chat(b'{"messages":[],"max_tokens":1,"stream":' + stream + b"}")
    assert (response.status, response.body) == (status, body)
    assert response.header(b"content-type") == content_type
    assert response.header(b"retry-after") == b"30"


async def test_a_model_list_is_relayed_byte_for_byte(proxy: Launch) -> None:
    """Fields that nobody knows, too."""
    running = await proxy()
    listing = b'{"object":"list", "data":[{"id":"m","root":"/models/m","zz":[1, 2]}]}'
    running.upstream.reply = [upstreams.response(listing)]
    response = await running.ask("GET", "/v1/models", BEARER)
    assert response.body == listing


async def test_the_strict_profile_hides_where_models_lie(proxy: Launch) -> None:
    """Only the root changes; what is not a model list is not relayed."""
    running = await proxy(profile="strict")
    listing = b'{"object":"list","data":[{"id":"m","root":"/home/me/m","zz":[1]}]}'
    running.upstream.reply = [upstreams.response(listing)]
    response = await running.ask("GET", "/v1/models", BEARER)
    assert response.status == 200
    assert response.json()["data"] == [{"id": "m", "root": "m", "zz": [1]}]
    running.upstream.reply = [upstreams.response(b"/home/me")]
    refused = await running.ask("GET", "/v1/models", BEARER)
    assert (refused.status, refused.json()["error"]["code"]) == (502, "upstream_error")
    assert b"/home" not in refused.body


STREAM = (
    ": comment\r\n\r\nevent: x\rid: 1\rretry: 5\rdata: a\rdata: b\r\r"
    'data: {"choices":[]}\n\ndata: {"usage":{"total_tokens":1}}\n\ndata: garbage\n\n'
    "data: 😀 漢字\n\ndata: [DONE]"
).encode()


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_a_stream_is_relayed_byte_for_byte(proxy: Launch, size: int) -> None:
    """Line ends of every kind, comments, cut characters, an unterminated last line."""
    running = await proxy()
    chunks = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    running.upstream.reply = [
        upstreams.SSE_HEAD,
        *map(upstreams.chunk, chunks),
        upstreams.LAST_CHUNK,
    ]
    response = await running.chat(b'{"messages":[],"max_tokens":1,"stream":true}')
    assert response.body == STREAM
    assert response.complete
    assert response.values(b"cache-control") == [b"no-cache"]
    assert response.values(b"x-accel-buffering") == [b"no"]


@pytest.mark.parametrize(
    "content_type", [b"text/event-stream", b"application/x-ndjson", b"application/octet-stream"]
)
async def test_every_chunk_is_delivered_at_once(proxy: Launch, content_type: bytes) -> None:
    """Whatever its type: the second is only sent when the client has the first."""
    running = await proxy()
    gates = [asyncio.Event() for _ in range(5)]
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: " + content_type + b"\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    steps: list[upstreams.Step] = [head]
    for number, gate in enumerate(gates):
        steps += [upstreams.chunk(b"line %d\n" % number), gate]
    running.upstream.reply = [*steps, upstreams.LAST_CHUNK]
    client = await running.connect()
    body = b'{"messages":[],"max_tokens":1,"stream":true}'
    await client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        b"Accept-Encoding: gzip, br\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    answer = await client.read_head()
    assert answer.status == 200
    for number, gate in enumerate(gates):
        assert await client.read_chunk() == b"line %d\n" % number
        gate.set()
    assert await client.read_chunk() == b""


async def test_the_usage_of_every_kind_of_endpoint(proxy: Launch) -> None:
    """Each row of the table reaches its own path, with its own field for the output."""
    running = await proxy(endpoints="models,chat.completions,completions,responses,messages,"
                          "messages.count_tokens,embeddings,rerank,score")  # fmt: skip
    for path, body, bound in (
        ("/v1/chat/completions", b'{"messages":[]}', "max_tokens"),
        ("/v1/completions", b'{"prompt":"a"}', "max_tokens"),
        ("/v1/responses", b'{"input":"a"}', "max_output_tokens"),
        ("/v1/messages", b'{"messages":[]}', "max_tokens"),
        ("/v1/messages/count_tokens", b'{"messages":[]}', None),
        ("/v1/embeddings", b'{"input":"a"}', None),
        ("/v1/rerank", b'{"query":"a","documents":["b"]}', None),
        ("/v1/score", b'{"text_1":"a","text_2":"b"}', None),
    ):
        response = await running.ask("POST", path, {**BEARER, **JSON}, body)
        assert response.status == 200, path
        received = running.upstream.requests[-1]
        assert received.target == path.encode()
        expected = json.loads(body)
        if bound:
            expected[bound] = 16 if path == "/v1/completions" else 4096
        assert received.json() == expected


@pytest.mark.parametrize(
    ("head", "body"),
    [
        pytest.param(JSON_HEAD + b"Content-Length: 2\r\n\r\n", b"{}", id="with a length"),
        pytest.param(
            JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
            upstreams.chunk(b"{}") + upstreams.LAST_CHUNK,
            id="in chunks",
        ),
        pytest.param(
            JSON_HEAD.replace(b"application/json", b"text/event-stream")
            + b"Content-Length: 2\r\n\r\n",
            b"{}",
            id="a stream with a length",
        ),
    ],
)
async def test_a_head_arrives_before_its_body(proxy: Launch, head: bytes, body: bytes) -> None:
    """When the upstream sends it: what it says, and that there is somebody, is news."""
    running = await proxy()
    has_head = asyncio.Event()
    running.upstream.reply = [head, has_head, body]
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY))
    assert (await client.read_head()).status == 200
    has_head.set()
    response = await client.read_rest()
    assert (response.body, response.complete) == (b"{}", True)
