"""One line and one count a request, whatever ends it; and no client can make more of them."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import generate_latest

from proxy.app import Clocks
from tests.harness.client import RawClient, request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch, Running
from tests.harness.upstream import COMPLETION, LAST_CHUNK, SSE_HEAD, End, event, response, sse

STREAM = CHAT_BODY.replace(b"16}", b'16,"stream":true}')


async def test_the_line_of_a_chat(proxy: Launch) -> None:
    """Every field that it has is filled."""
    front = await proxy()
    answer = await front.chat(STREAM.replace(b":16,", b":32000,"))
    line = await front.log.of(answer)
    for name in ("timestamp", "duration_seconds", "first_byte_seconds"):
        assert line.pop(name)
    assert line == {
        "level": "info",
        "event": "request",
        "request_id": (answer.header(b"x-request-id") or b"").decode(),
        "client": "127.0.0.1",
        "key_id": "env-1",
        "method": "POST",
        "endpoint": "chat.completions",
        "status": 200,
        "outcome": "ok",
        "upstream_status": 200,
        "stream": True,
        "bytes_in": len(STREAM) + 3,
        "bytes_out": len(answer.body),
        "prompt_chars": 2,
        "output_tokens_bound": 4096,
        "prompt_tokens": None,
        "completion_tokens": None,
        "usage": None,
        "clamped": "max_tokens 32000 -> 4096",
        "queued_seconds": 0.0,
    }
    front.assert_counted(line)


async def test_there_is_one_line_a_request(proxy: Launch) -> None:
    """Good, refused and relayed ones on one connection: as many lines, in order."""
    front = await proxy()
    client = await front.connect()
    statuses = [
        (await client.request("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY)).status,
        (await client.request("GET", "/healthz")).status,
        (await client.request("GET", "/v1/models", BEARER)).status,
        (await client.request("GET", "/v1/models")).status,
    ]
    await front.log.nth(3)
    assert [line["status"] for line in front.log.requests()] == statuses == [200, 200, 200, 401]


async def test_probes_are_silent_at_the_default_level(proxy: Launch) -> None:
    """On both listeners; what they are refused is not."""
    front = await proxy(log_level="info")
    await front.ask("GET", "/healthz")
    await front.ask_admin("GET", "/metrics")
    refused = await front.ask("POST", "/healthz")
    await front.log.of(refused)
    assert [line["outcome"] for line in front.log.requests()] == ["method_not_allowed"]


async def test_the_text_form(proxy: Launch) -> None:
    """PROXY_LOG_FORMAT=text: the same in pairs."""
    front = await proxy(log_format="text")
    await front.chat()
    await front.idle()
    await front.log.until(lambda: "event=request" in front.log.text)
    (line,) = [line for line in front.log.text.splitlines() if "event=request" in line]
    assert " key_id=env-1 method=POST endpoint=chat.completions status=200 outcome=ok " in line


async def test_the_servers_own_lines(proxy: Launch) -> None:
    """Where it listens, how its upstream is, that it drains, that it has stopped."""
    front = await proxy()
    await front.log.until(lambda: '"upstream"' in front.log.text)
    front.stop.set()
    assert await front.served == 0
    lines = [json.loads(line) for line in front.log.text.splitlines()]
    events = ["listening", "upstream", "draining", "stopped"]
    assert [line["event"] for line in lines] == events
    assert lines[0]["public"] == f"127.0.0.1:{front.port}"
    assert lines[0]["admin"] == f"127.0.0.1:{front.admin_port}"


async def test_durations_are_those_of_the_whole_answer(proxy: Launch) -> None:
    """Not of its head: a stream counts until its last byte, on the injected clock."""
    now = 1000.0
    front = await proxy(clocks=Clocks(monotonic=lambda: now))
    first, last = asyncio.Event(), asyncio.Event()
    front.upstream.reply = [SSE_HEAD, first, event("a"), last, LAST_CHUNK]
    client = await front.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, STREAM))
    await client.read_head()
    now += 2
    first.set()
    assert await client.read_chunk() == sse("a")
    now += 8
    last.set()
    assert await client.read_chunk() == b""
    line = await front.log.nth(0)
    assert (line["first_byte_seconds"], line["duration_seconds"]) == (2.0, 10.0)
    labels = {"endpoint": "chat.completions"}
    assert front.metric("bulwark_request_duration_seconds_sum", **labels) == 10
    assert front.metric("bulwark_time_to_first_byte_seconds_sum", **labels) == 2


async def test_scanners_make_no_series(proxy: Launch) -> None:
    """Random paths, methods and keys: fewer than 20 new samples, however many they are."""
    front = await proxy()

    async def scan(times: int) -> int:
        client = await front.connect()
        for number in range(times):
            method = ("GET", "POST", "PROPFIND", "PUT")[number % 4]
            fields = {**BEARER, "X": str(number)} if number % 2 else {"Authorization": "Bearer x"}
            await client.request(method, f"/scan/{number}?{number}", fields)
        await front.idle()
        return len(generate_latest(front.registry).splitlines())

    # Past the wrong keys that an address may send before it is told 429 in place of 403.
    few = await scan(24)
    many = await scan(200)
    assert many == few


async def normal(front: Running) -> None:
    """A chat."""
    assert (await front.chat()).status == 200


async def refused(front: Running) -> None:
    """A stranger."""
    assert (await front.ask("POST", CHAT, JSON, CHAT_BODY)).status == 401


async def too_large(front: Running) -> None:
    """A body over the cap."""
    assert (await front.chat(b"x" * 2000)).status == 413


async def leaves_before_the_answer(front: Running) -> None:
    """A client that does not wait."""
    front.upstream.script.append([End.SILENCE])
    asked = len(front.upstream.requests)
    client = await front.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY))
    await front.upstream.request(asked)
    client.reset()


async def leaves_within_the_answer(front: Running) -> None:
    """A client that has read enough."""
    front.upstream.script.append([SSE_HEAD, event("a"), End.SILENCE])
    client = await front.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, STREAM))
    await client.read_head()
    await client.read_chunk()
    client.reset()


async def upstream_resets(front: Running) -> None:
    """An upstream that dies in its answer."""
    front.upstream.script.append([SSE_HEAD, event("a"), End.RESET])
    assert not (await front.chat(STREAM)).complete


async def upstream_is_gone(front: Running) -> None:
    """An upstream that dies before its answer."""
    front.upstream.script.append([End.RESET])
    assert (await front.chat()).status == 502


ENDINGS = [
    pytest.param(normal, "ok", id="it goes well"),
    pytest.param(refused, "missing_api_key", id="it is refused"),
    pytest.param(too_large, "body_too_large", id="its body is too large"),
    pytest.param(leaves_before_the_answer, "client_disconnected", id="the client leaves before"),
    pytest.param(leaves_within_the_answer, "client_disconnected", id="the client leaves within"),
    pytest.param(upstream_resets, "upstream_error", id="the upstream dies within"),
    pytest.param(upstream_is_gone, "upstream_error", id="the upstream dies before"),
]


@pytest.mark.parametrize(("end", "outcome"), ENDINGS)
async def test_nothing_is_left_in_flight_whatever_ends_a_request(
    proxy: Launch, end: Callable[[Running], Awaitable[None]], outcome: str
) -> None:
    """Twenty of each: as many lines and counts, and every gauge at exactly 0."""
    front = await proxy(max_body_bytes=1024)
    for _ in range(20):
        await end(front)
    await front.log.nth(19)
    await front.idle()
    lines = front.log.requests()
    assert [line["outcome"] for line in lines] == [outcome] * 20
    counted = sum(
        sample.value
        for family in front.registry.collect()
        for sample in family.samples
        if sample.name == "bulwark_requests_total" and sample.labels["outcome"] == outcome
    )
    assert counted == 20
    for gauge in ("requests_in_flight", "slots_in_use", "queue_length", "buffered_bytes"):
        assert front.metric(f"bulwark_{gauge}") == 0


async def test_gauges_show_who_is_served_and_who_waits(proxy: Launch) -> None:
    """Two requests, one slot; and the wait of the second is counted."""
    front = await proxy(max_inflight=1)
    gate = asyncio.Event()
    front.upstream.reply = [gate, response(COMPLETION)]
    first = asyncio.create_task(front.chat())
    await front.upstream.request(0)
    client = await front.connect()
    await wait_in_the_queue(front, client)
    assert front.metric("bulwark_requests_in_flight") == 2
    assert front.metric("bulwark_slots_in_use") == 1
    assert front.metric("bulwark_queue_length") == 1
    assert front.metric("bulwark_buffered_bytes") == 2 * len(CHAT_BODY)
    gate.set()
    assert (await client.read_response()).status == 200
    assert (await first).status == 200
    await front.log.nth(1)
    assert front.metric("bulwark_queue_wait_seconds_count") == 2
    assert front.log.requests()[1]["queued_seconds"] > 0


async def wait_in_the_queue(front: Running, client: RawClient) -> None:
    """Asks, and returns once the request waits for a slot."""
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY))
    async with asyncio.timeout(5):
        while not front.metric("bulwark_queue_length"):  # noqa: ASYNC110 - a gauge has no event
            await asyncio.sleep(0.001)
