"""Streams as other gateways have broken them: errors in them, cuts, buffers, and long silences."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.config import load
from proxy.keepalive import COMMENT
from tests.harness import edge as edges
from tests.harness.client import RawClient, RawResponse, request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, KEY, STREAM_BODY, Launch, Running
from tests.harness.upstream import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    End,
    Script,
    Step,
    chunk,
    event,
    response,
    sse,
)

pytestmark = pytest.mark.both_ways


async def begin(running: Running, **headers: str) -> tuple[RawClient, RawResponse]:
    """A client that has asked for a stream, and the head of its answer."""
    client = await running.connect()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON, **fields}, STREAM_BODY))
    return client, await client.read_head()


ERROR = b'{"error":{"message":"no","type":"BadRequestError","param":null,"code":%d}}'


@pytest.mark.case("ST-01")
@pytest.mark.parametrize("newline", [b"", b"\n"], ids=["no line end", "a line end"])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
async def test_an_error_keeps_its_status(
    proxy: Launch, status: int, framing: str, newline: bytes
) -> None:
    """A stream that the upstream refuses is refused: status, type, body and Retry-After."""
    running = await proxy()
    body = ERROR % status + newline
    head = b"HTTP/1.1 %d No\r\nContent-Type: application/json\r\n" % status
    head += b"Retry-After: 7\r\n" if status in (429, 503) else b""
    script: dict[str, list[Step]] = {
        "length": [head + b"Content-Length: %d\r\n\r\n" % len(body) + body],
        "chunked": [head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(body), LAST_CHUNK],
        "close": [head + b"Connection: close\r\n\r\n" + body, End.FIN],
    }
    running.upstream.reply = script[framing]
    answer = await running.chat(STREAM_BODY)
    assert (answer.status, answer.body, answer.complete) == (status, body, True)
    assert answer.header(b"content-type") == b"application/json"
    assert answer.header(b"retry-after") == (b"7" if status in (429, 503) else None)
    line = await running.log.of(answer)
    assert (line["status"], line["upstream_status"], line["stream"]) == (status, status, True)
    running.assert_counted(line)


@pytest.mark.case("ST-01")
@pytest.mark.parametrize("status", [401, 403])
async def test_a_complaint_about_our_key_is_not_the_clients(proxy: Launch, status: int) -> None:
    """It becomes a 502, or the client would throw its own key away."""
    running = await proxy()
    running.upstream.reply = [response(b'{"error":"Unauthorized"}', status)]
    answer = await running.chat(STREAM_BODY)
    assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_error")
    line = await running.log.of(answer)
    assert (line["upstream_status"], line["outcome"]) == (status, "upstream_error")


@pytest.mark.case("ST-02")
@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([End.RESET], id="a reset"),
        pytest.param([End.FIN], id="an end without the last chunk"),
        pytest.param([b"1f\r\ndata: ha", End.FIN], id="an end within a chunk"),
        pytest.param([b"zz\r\n", End.SILENCE], id="a chunk without a size"),
    ],
)
async def test_a_stream_that_dies_is_broken_off(proxy: Launch, ends: Script) -> None:
    """The transfer is visibly incomplete, nothing is invented, and it counts as failed."""
    running = await proxy()
    events, gate = [f"event {number}" for number in range(3)], asyncio.Event()
    running.upstream.reply = [SSE_HEAD, *(event(text) for text in events), gate, *ends]
    client, head = await begin(running)
    assert head.status == 200
    received = b""
    while len(received) < sum(len(sse(text)) for text in events):
        received += await client.read_chunk()
    gate.set()
    answer = await client.read_rest()
    assert not answer.complete
    assert received == b"".join(sse(text) for text in events)
    assert b"data: ha".startswith(answer.body)
    line = await running.log.of(head)
    assert (line["status"], line["outcome"], line["level"]) == (200, "upstream_error", "error")
    running.assert_counted(line)
    await running.upstream.connection_closed(0)


@pytest.mark.case("ST-03")
@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        pytest.param({}, {"Accept_Encoding": "gzip, br"}, id="a client that takes gzip"),
        pytest.param({}, {"Accept_Encoding": "*"}, id="a client that takes anything"),
        pytest.param({}, {}, id="a client that takes it as it is"),
        pytest.param(
            {"cors_origins": "https://chat.example.org"},
            {"Origin": "https://chat.example.org", "Accept_Encoding": "gzip"},
            id="a browser",
        ),
    ],
)
async def test_each_event_arrives_before_the_next_is_sent(
    proxy: Launch, settings: dict[str, Any], headers: dict[str, str]
) -> None:
    """Ten events of 30 bytes: the upstream sends one only when the client has the one before."""
    running = await proxy(**settings)
    events = [f"{number:022}" for number in range(10)]
    gates = [asyncio.Event() for _ in events]
    steps = (step for text, gate in zip(events, gates, strict=True) for step in (gate, event(text)))
    running.upstream.reply = [SSE_HEAD, *steps, chunk(DONE), LAST_CHUNK]
    client, head = await begin(running, **headers)
    assert head.header(b"content-encoding") is None
    assert head.header(b"content-length") is None
    assert head.header(b"cache-control") == b"no-cache"
    assert head.header(b"x-accel-buffering") == b"no"
    for text, gate in zip(events, gates, strict=True):
        gate.set()
        # The end comes with the last one.
        assert (await client.read_chunk()).removesuffix(DONE) == sse(text)
        assert len(sse(text)) == 30
    assert (await client.read_rest()).complete
    assert running.upstream.requests[0].header(b"accept-encoding") == b"identity"


MULTIBYTE = "🦊 你好世界 👩‍👩‍👧‍👦 é"


@pytest.mark.case("ST-05")
async def test_characters_cut_between_chunks(proxy: Launch) -> None:
    """Each byte of an event reaches the client as it is, before the next one is sent."""
    running = await proxy()
    pieces = [bytes([byte]) for byte in sse(MULTIBYTE)]
    gates = [asyncio.Event() for _ in pieces]
    steps = (step for byte, gate in zip(pieces, gates, strict=True) for step in (gate, chunk(byte)))
    running.upstream.reply = [SSE_HEAD, *steps, LAST_CHUNK]
    client, _ = await begin(running)
    for byte, gate in zip(pieces, gates, strict=True):
        gate.set()
        assert await client.read_chunk() == byte
    assert (await client.read_rest()).complete


@pytest.mark.case("ST-05")
async def test_characters_cut_between_segments(proxy: Launch) -> None:
    """An answer that comes byte by byte, head and framing too, is put together again."""
    running = await proxy()
    loop = asyncio.get_running_loop()

    def reply(_: object) -> Iterator[Step]:
        for byte in SSE_HEAD + event(MULTIBYTE) + LAST_CHUNK:
            yield bytes([byte])
            sent = asyncio.Event()
            loop.call_later(0.001, sent.set)  # a segment of its own: apart in time is what it is
            yield sent

    running.upstream.reply = reply
    answer = await running.chat(STREAM_BODY)
    assert (answer.status, answer.complete, answer.body) == (200, True, sse(MULTIBYTE))


VARIANTS = (
    b"\xef\xbb\xbf: a byte order mark and a comment\r\n\r\n",
    b"event: message\r\nid: 1\r\nretry: 3000\r\ndata: crlf\r\n\r\n",
    b"data: bare cr\r\rdata:no space\n\n",
    b":\n\ndata: two\ndata: lines\n\n",
    b"data\n\nunknown: field\n\n",
    b"data: trailing space \n\n\n\n",
    b"data: [DONE]",
)


@pytest.mark.case("ST-07")
@pytest.mark.parametrize("size", [1, 3, 1000], ids="chunks of {} bytes".format)
async def test_event_streams_of_every_form_are_relayed_byte_for_byte(
    proxy: Launch, size: int
) -> None:
    """CRLF, CR, comments, every field, two lines of data, and a last line without an end."""
    running = await proxy()
    stream = b"".join(VARIANTS)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    running.upstream.reply = [SSE_HEAD, *map(chunk, pieces), LAST_CHUNK]
    answer = await running.chat(STREAM_BODY)
    assert (answer.status, answer.complete, answer.body) == (200, True, stream)


@pytest.mark.case("ST-08")
async def test_chunks_that_nobody_expects_pass(proxy: Launch) -> None:
    """Without choices, with empty ones, with a null, and no JSON at all."""
    running = await proxy()
    texts = [
        '{"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}',
        '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}',
        '{"choices":[{"delta":null}]}',
        '{"choices":null,"usage":null}',
        "garbage",
        "",
        "[DONE]",
    ]
    running.upstream.reply = [SSE_HEAD, *map(event, texts), LAST_CHUNK]
    answer = await running.chat(STREAM_BODY)
    assert (answer.status, answer.complete) == (200, True)
    assert answer.body == b"".join(map(sse, texts))
    assert (await running.log.of(answer))["outcome"] == "ok"


# An edge that gives up after 100 s of silence, comments after 15 s, a commitment after 45 s.
PATIENCE = 0.4
SCALED: dict[str, Any] = {
    "sse_keepalive_seconds": 0.15 * PATIENCE,
    "sse_commit_seconds": 0.45 * PATIENCE,
}


async def beyond(edge: edges.Edge, body: bytes) -> RawResponse:
    """One chat from beyond the edge."""
    async with await RawClient.open("127.0.0.1", edge.port) as client:
        await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, body))
        return await client.read_response()


@pytest.mark.case("ST-09")
async def test_a_first_token_that_takes_longer_than_the_edge_waits(proxy: Launch) -> None:
    """A stream comes whole: the edge hears a head and comments until its first event is there."""
    running = await proxy(**SCALED)
    gate = asyncio.Event()
    running.upstream.reply = [gate, SSE_HEAD, event("late"), chunk(DONE), LAST_CHUNK]
    async with edges.in_front_of(running.port, PATIENCE) as edge:
        asking = asyncio.create_task(beyond(edge, STREAM_BODY))
        await asyncio.sleep(1.3 * PATIENCE)  # how long an edge waits is all that this is about
        gate.set()
        answer = await asking
    assert (answer.status, answer.complete, edge.given_up) == (200, True, 0)
    assert answer.body.replace(COMMENT, b"") == sse("late") + DONE
    lines = answer.body.removesuffix(sse("late") + DONE).split(b"\n")
    assert all(line == b"" or line.startswith(b":") for line in lines)


@pytest.mark.case("ST-09")
@pytest.mark.parametrize(
    ("body", "settings"),
    [
        pytest.param(CHAT_BODY, {}, id="an answer in one piece"),
        pytest.param(
            STREAM_BODY, {"sse_keepalive_seconds": 0}, id="a stream where comments are off"
        ),
        pytest.param(
            STREAM_BODY, {"sse_commit_seconds": 0}, id="a stream where nothing is committed"
        ),
    ],
)
async def test_what_nothing_can_keep_alive_is_given_up_by_the_edge(
    proxy: Launch, body: bytes, settings: dict[str, Any]
) -> None:
    """Its client gets the edge's 524, and the engine stops at once."""
    running = await proxy(**SCALED | settings)
    running.upstream.reply = [End.SILENCE]
    async with edges.in_front_of(running.port, PATIENCE) as edge:
        answer = await beyond(edge, body)
    assert (answer.status, edge.given_up) == (524, 1)
    await running.upstream.connection_closed(0, 2.0)
    assert (await running.log.nth(0))["outcome"] == "client_disconnected"


@pytest.mark.case("ST-09")
def test_comments_and_commitment_come_in_time_by_default() -> None:
    """Twice within the 60 s of the least patient hop, and before the 100 s of a tunnel's edge."""
    settings = load({"PROXY_API_KEYS": KEY})
    assert 2 * settings.sse_keepalive_seconds < 60
    assert settings.sse_commit_seconds + settings.sse_keepalive_seconds <= 60


LINES = [b'{"n":%d}\n' % number for number in range(5)]


@pytest.mark.case("ST-11")
@pytest.mark.parametrize(
    "content_type",
    [
        b"application/x-ndjson",
        b"application/jsonl; charset=utf-8",
        b"application/json",
        b"text/plain",
        b"application/octet-stream",
        None,
    ],
)
@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_every_type_arrives_as_it_is_sent(
    proxy: Launch, content_type: bytes | None, framing: str
) -> None:
    """Line by line, whatever it is called and however it is framed; its name is not changed."""
    running = await proxy()
    gates = [asyncio.Event() for _ in LINES]
    head = b"HTTP/1.1 200 OK\r\n"
    head += b"" if content_type is None else b"Content-Type: %b\r\n" % content_type
    head += {
        "chunked": b"Transfer-Encoding: chunked\r\n\r\n",
        "length": b"Content-Length: %d\r\n\r\n" % sum(map(len, LINES)),
        "close": b"Connection: close\r\n\r\n",
    }[framing]
    sent = [chunk(line) if framing == "chunked" else line for line in LINES]
    steps = (step for line, gate in zip(sent, gates, strict=True) for step in (gate, line))
    end: dict[str, list[Step]] = {"chunked": [LAST_CHUNK], "length": [], "close": [End.FIN]}
    running.upstream.reply = [head, *steps, *end[framing]]
    client, answer = await begin(running)
    assert answer.header(b"content-type") == content_type
    for line, gate in zip(LINES, gates, strict=True):
        gate.set()
        assert await client.read_chunk() == line
    assert (await client.read_rest()).complete
