"""Requests on their way to the upstream: whole and unchanged, bounded in number, size and time."""

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.errors import Reason
from proxy.forward.dispatch import Timeouts
from tests.harness import upstream as harness
from tests.harness.client import RawResponse, request_bytes
from tests.harness.deaf import connecting, deaf_port
from tests.harness.forwarding import CHAT, Front, chat, forwarding, post, until
from tests.harness.upstream import SSE_HEAD, End, Script, Upstream, event, response, sse

FAST = Timeouts()


def code(answer: RawResponse) -> str:
    """The reason in an error."""
    reason: str = answer.json()["error"]["code"]
    return reason


ODD = (
    b'{ "model" :"m",\t"messages":[{"role":"user","content":"a\\/b \\u00e9 \xc3\xa9"}],\r\n'
    b'"max_tokens":5 , "x0": 1.0, "x1":1E+2,"x2":-0.0,"x3":[1e-7,{"\\u0061":null}],"x4":true }\n'
)


async def test_the_body_arrives_as_it_was_sent(upstream: Upstream) -> None:
    """The very bytes, whatever their spelling, in whatever pieces they came."""
    async with forwarding(upstream.url) as front, await front.connect() as client:
        await client.send(post(ODD))
        await client.read_response()
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (ODD[:7], ODD[7:90], ODD[90:]))
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        )
        await client.send(head.encode() + chunks + b"0\r\n\r\n")
        await client.read_response()
    digest = hashlib.sha256(ODD).digest()
    assert [hashlib.sha256(got.body).digest() for got in upstream.requests] == [digest] * 2
    assert upstream.requests[1].header(b"content-length") == b"%d" % len(ODD)
    assert upstream.requests[1].header(b"transfer-encoding") is None


async def test_what_was_clamped_is_said(upstream: Upstream) -> None:
    """Only the value's own bytes differ, and the answer names it."""
    async with forwarding(upstream.url) as front:
        answer = await front.ask(post(ODD.replace(b":5 ,", b":32000 ,")))
        assert front.contexts[0].clamped == "max_tokens 32000 -> 4096"
    assert upstream.requests[0].body == ODD.replace(b":5 ,", b":4096 ,")
    assert answer.header(b"x-bulwark-clamped") == b"max_tokens 32000 -> 4096"


async def test_who_asks_is_said_by_us(upstream: Upstream) -> None:
    """The upstream sees our host, our request id and our key, and the client's query."""
    async with forwarding(upstream.url, api_key=b"sk-upstream") as front:
        request = post(chat(), CHAT + "?a=%2F..%2f&b", Authorization="Bearer sk-mine", Cookie="c")
        answer = await front.ask(request)
        assert answer.header(b"x-bulwark-clamped") is None
    received = upstream.requests[0]
    assert received.target == CHAT.encode() + b"?a=%2F..%2f&b"
    assert received.header(b"host") == upstream.url.removeprefix("http://").encode()
    assert received.header(b"authorization") == b"Bearer sk-upstream"
    assert received.header(b"x-request-id") == b"r0"
    assert received.header(b"accept-encoding") == b"identity"
    assert received.header(b"cookie") is None


async def test_what_is_known_of_a_request(upstream: Upstream) -> None:
    """What the log line and the metrics will say is noted on the way."""
    body = chat("Hello?", stream=True, n=2)
    async with forwarding(upstream.url) as front:
        await front.ask(post(body))
        known = front.contexts[0]
    assert known.bytes_in == len(body)
    assert known.stream
    assert known.prompt_chars >= len("Hello?")
    assert known.output_tokens_bound == 10
    assert known.queued_seconds == 0
    assert known.upstream_status == 200
    assert known.response_complete


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        pytest.param(
            post(chat(), content_type="text/plain"), 415, "unsupported_media_type", id="no JSON"
        ),
        pytest.param(
            post(chat(), **{"Content-Encoding": "zstd"}),
            415,
            "unsupported_media_type",
            id="compressed",
        ),
        pytest.param(
            post(b"", **{"Content-Length": "1001"}), 413, "body_too_large", id="announced too long"
        ),
        pytest.param(
            post(b"3e9\r\n" + b" " * 1001 + b"\r\n0\r\n\r\n", **{"Transfer-Encoding": "chunked"}),
            413,
            "body_too_large",
            id="too long without having been announced",
        ),
        pytest.param(post(b"{"), 400, "invalid_json", id="broken JSON"),
        pytest.param(post(chat(), CHAT + "?key=x"), 400, "key_in_query", id="a key in the query"),
        pytest.param(
            post(chat(), CHAT + "?" + "x" * 2049), 414, "target_too_long", id="a long query"
        ),
        pytest.param(post(chat("x" * 700)), 503, "overloaded", id="more than there is room for"),
    ],
)
async def test_what_is_refused_is_not_sent_on(
    upstream: Upstream, request_: bytes, status: int, reason: str
) -> None:
    """The upstream does not even see a connection."""
    async with forwarding(upstream.url, max_body_bytes=1000, max_buffered_bytes=700) as front:
        answer = await front.ask(request_)
        assert (answer.status, code(answer)) == (status, reason)
        await front.nothing_held()
    assert upstream.connections == []


async def test_what_is_no_endpoint_is_not_sent_on(upstream: Upstream) -> None:
    """Even if the layers that know better were missing."""
    async with forwarding(upstream.url) as front:
        answer = await front.ask(request_bytes("GET", "/metrics"))
        assert (answer.status, code(answer)) == (500, "internal_error")
    assert upstream.connections == []


async def test_the_largest_body_passes(upstream: Upstream) -> None:
    """The cap itself is allowed."""
    body = chat()
    async with forwarding(upstream.url, max_body_bytes=len(body)) as front:
        assert (await front.ask(post(body))).status == 200
        assert (await front.ask(post(body + b" "))).status == 413
    assert len(upstream.requests) == 1


async def test_a_client_that_does_not_send_its_body(upstream: Upstream) -> None:
    """Has so long and no longer."""
    async with (
        forwarding(upstream.url, timeouts=replace(FAST, body=0.05)) as front,
        await front.connect() as client,
    ):
        await client.send(post(chat())[:-5])
        answer = await client.read_response()
        assert (answer.status, code(answer)) == (408, "request_timeout")
        await front.nothing_held()
    assert upstream.connections == []


async def test_never_more_at_once_than_allowed(upstream: Upstream) -> None:
    """The others wait, and have their turn in the order in which they came."""
    gate = asyncio.Event()
    upstream.reply = [gate, response(b"{}")]
    async with forwarding(upstream.url, max_inflight=2) as front:
        clients = [await front.connect() for _ in range(5)]
        for n, client in enumerate(clients):
            await client.send(post(chat(f"number {n}")))
            await until(lambda n=n: front.slots.in_flight + front.slots.queued == n + 1)  # type: ignore[misc]
        await upstream.request(1)
        assert (front.slots.in_flight, front.slots.queued) == (2, 3)
        assert len(upstream.requests) == 2
        gate.set()
        assert [(await client.read_response()).status for client in clients] == [200] * 5
        await front.nothing_held()
        waited = [context.queued_seconds > 0 for context in front.contexts]
        assert waited == [False, False, True, True, True]
        for client in clients:
            client.close()
    asked = [request.body.partition(b"number ")[2][:1] for request in upstream.requests]
    assert sorted(asked[:2]) == [b"0", b"1"]
    assert asked[2:] == [b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("queue_size", "queue_timeout_seconds", "setting"),
    [
        pytest.param(0, 30.0, "PROXY_QUEUE_SIZE", id="nobody may wait"),
        pytest.param(1, 0.02, "PROXY_QUEUE_TIMEOUT_SECONDS", id="nobody may wait so long"),
    ],
)
async def test_who_cannot_wait_is_told_so(
    upstream: Upstream, queue_size: int, queue_timeout_seconds: float, setting: str
) -> None:
    """With when to come again."""
    upstream.reply = [End.SILENCE]
    async with (
        forwarding(
            upstream.url,
            max_inflight=1,
            queue_size=queue_size,
            queue_timeout_seconds=queue_timeout_seconds,
        ) as front,
        await front.connect() as first,
    ):
        await first.send(post(chat()))
        await upstream.request(0)
        answer = await front.ask(post(chat()))
        assert (answer.status, code(answer)) == (503, "overloaded")
        assert answer.header(b"retry-after") == b"5"
        assert setting in answer.json()["error"]["message"]
        assert (front.slots.in_flight, front.slots.queued) == (1, 0)
    assert len(upstream.requests) == 1


async def late(front: Front, setting: str) -> None:
    """Asks, and expects to be told that it took too long."""
    answer = await front.ask(post(chat()))
    assert (answer.status, code(answer)) == (504, "upstream_timeout")
    assert answer.header(b"retry-after") == b"5"
    assert setting in answer.json()["error"]["message"]
    await front.nothing_held()


@pytest.mark.parametrize(
    ("timeouts", "reply", "setting"),
    [
        pytest.param(
            replace(FAST, first_byte=0.05),
            [End.SILENCE],
            "PROXY_FIRST_BYTE_TIMEOUT_SECONDS",
            id="it does not answer",
        ),
        pytest.param(
            replace(FAST, first_byte=0.05),
            [b"HTTP/1.1 200 OK\r\n", End.SILENCE],
            "PROXY_FIRST_BYTE_TIMEOUT_SECONDS",
            id="half a head is no answer",
        ),
        pytest.param(
            replace(FAST, total=0.05),
            [End.SILENCE],
            "PROXY_TOTAL_TIMEOUT_SECONDS",
            id="it does not finish",
        ),
    ],
)
async def test_an_upstream_that_does_not_answer(
    upstream: Upstream, timeouts: Timeouts, reply: Script, setting: str
) -> None:
    """Is given up, and is told so."""
    upstream.reply = reply
    async with forwarding(upstream.url, timeouts=timeouts) as front:
        await late(front, setting)
        await upstream.all_closed(1.0)


@pytest.mark.parametrize(
    "timeouts",
    [
        pytest.param(replace(FAST, idle=0.05), id="between two events"),
        pytest.param(replace(FAST, total=0.05), id="altogether"),
    ],
)
async def test_an_upstream_that_does_not_go_on(upstream: Upstream, timeouts: Timeouts) -> None:
    """Breaks the answer off, and is told so."""
    upstream.reply = [SSE_HEAD, event("a"), End.SILENCE]
    async with forwarding(upstream.url, timeouts=timeouts) as front:
        answer = await front.ask(post(chat(stream=True)))
        assert not answer.complete
        assert answer.body == sse("a")
        assert front.contexts[0].outcome is Reason.UPSTREAM_TIMEOUT
        await front.nothing_held()
        await upstream.all_closed(1.0)


async def test_an_upstream_that_nobody_can_connect_to() -> None:
    """Is given up soon, whatever time an answer may take."""
    with deaf_port() as port:
        before = connecting(port)
        url = f"http://127.0.0.1:{port}"
        async with forwarding(url, timeouts=replace(FAST, connect=0.05)) as front:
            await late(front, "PROXY_CONNECT_TIMEOUT_SECONDS")
            assert connecting(port) == before


async def test_an_upstream_that_is_not_there_yet(tmp_path: Path) -> None:
    """Clients are told to come again, and are served when they do."""
    path = tmp_path / "vllm.sock"
    async with forwarding(f"unix://{path}") as front:
        answer = await front.ask(post(chat()))
        assert (answer.status, code(answer)) == (503, "upstream_unavailable")
        assert answer.header(b"retry-after") == b"5"
        assert b"vllm.sock" not in answer.body
        async with harness.serve(path):
            assert (await front.ask(post(chat()))).status == 200
        await front.nothing_held()
