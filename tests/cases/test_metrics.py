"""Metrics that scanners blow up, that leak, that strangers read, or that call a failure a success."""

import asyncio
import random
import string
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import generate_latest

from proxy.app import Clocks
from tests.harness.client import RawClient, request_bytes
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, STREAM_BODY, Launch, Running
from tests.harness.upstream import (
    COMPLETION,
    LAST_CHUNK,
    SSE_HEAD,
    End,
    ReceivedRequest,
    Script,
    event,
    response,
    sse,
)

AUTHORIZED: dict[str, str] = {**BEARER, **JSON}


def series(running: Running) -> set[str]:
    """The names and labels of every sample on the page."""
    page = generate_latest(running.registry).decode().splitlines()
    return {line.rpartition(" ")[0] for line in page if not line.startswith("#")}


async def scan(running: Running, *, paths: int, methods: int) -> None:
    """What scanners do, with a key and without; the same paths each time."""
    chance = random.Random(1)  # noqa: S311 - a fixed seed
    letters = string.ascii_letters + string.digits + "/.-_~%20"
    client = await running.connect()
    for number in range(paths):
        path = "/" + "".join(chance.choices(letters, k=chance.randrange(1, 60)))
        fields = BEARER if number % 2 else {"Authorization": f"Bearer {number:050}"}
        answer = await client.request("GET", f"{path}?{number}", fields)
        # Ten wrong keys in, that address is told to stop.
        assert answer.status in ((404,) if number % 2 else (403, 429))
    for number in range(methods):
        method = ("FOO", "PROPFIND", "foo", "M-SEARCH")[number % 4] + str(number)
        assert (await running.ask(method, CHAT, BEARER)).status == 400
    for method in ("PUT", "DELETE", "PATCH", "PROPFIND", "TRACE", "OPTIONS", "M-SEARCH"):
        assert (await running.ask(method, CHAT, BEARER)).status == 405
    await running.idle()
    assert running.metric("bulwark_requests_in_flight") == 0


@pytest.mark.case("MT-01")
async def test_scanners_make_no_series(proxy: Launch) -> None:
    """5,000 paths and 200 methods of their own: fewer than 20 series more."""
    running = await proxy(log_level="error")
    await running.chat()
    await scan(running, paths=30, methods=4)
    before = series(running)
    await scan(running, paths=5_000, methods=200)
    new = series(running) - before
    assert len(new) < 20, new
    assert not any("FOO" in name or "/" in name for name in series(running))


def by_user(request: ReceivedRequest) -> Script:
    """What the upstream answers to each kind of request below, which says what it is."""
    match request.json():
        case {"user": "silence"}:
            return [End.SILENCE]
        case {"user": "endless"}:
            return [SSE_HEAD, event("a"), End.SILENCE]
        case {"user": "reset"}:
            return [SSE_HEAD, event("a"), End.RESET]
        case {"user": "gone"}:
            return [End.RESET]
        case _:
            return [response(COMPLETION)]


def asking(user: str) -> bytes:
    """A stream for one of them."""
    return request_bytes(
        "POST", CHAT, AUTHORIZED, b'{"user":"%b",' % user.encode() + STREAM_BODY[1:]
    )


async def normal(running: Running) -> None:
    """A chat."""
    assert (await running.chat()).status == 200


async def stranger(running: Running) -> None:
    """No key."""
    assert (await running.ask("POST", CHAT, JSON, CHAT_BODY)).status == 401


async def too_large(running: Running) -> None:
    """A body over the cap."""
    assert (await running.chat(b"x" * 2000)).status == 413


async def abort_before_the_head(running: Running) -> None:
    """A client that leaves while the upstream is silent."""
    client = await running.connect()
    requests = len(running.upstream.requests)
    await client.send(asking("silence"))
    await running.upstream.request(requests)
    client.reset()


async def abort_in_mid_stream(running: Running) -> None:
    """A client that leaves while it reads."""
    client = await running.connect()
    await client.send(asking("endless"))
    await client.read_head()
    assert await client.read_chunk() == sse("a")
    client.close()


async def abort_while_uploading(running: Running) -> None:
    """A client that leaves within its own body."""
    client = await running.connect()
    await client.send(asking("silence")[:-10])
    client.close()


async def upstream_resets(running: Running) -> None:
    """An upstream that dies in its answer."""
    client = await running.connect()
    await client.send(asking("reset"))
    assert not (await client.read_response()).complete


async def upstream_is_gone(running: Running) -> None:
    """An upstream that dies before it."""
    client = await running.connect()
    await client.send(asking("gone"))
    assert (await client.read_response()).status == 502


KINDS: dict[Callable[[Running], Awaitable[None]], str] = {
    normal: "ok",
    stranger: "missing_api_key",
    too_large: "body_too_large",
    abort_before_the_head: "client_disconnected",
    abort_in_mid_stream: "client_disconnected",
    abort_while_uploading: "client_disconnected",
    upstream_resets: "upstream_error",
    upstream_is_gone: "upstream_error",
}
EACH = 100


@pytest.mark.case("MT-02")
async def test_the_gauge_comes_back_to_zero(proxy: Launch) -> None:
    """100 of each kind, eight kinds at a time: never below 0, and exactly 0 at the end."""
    running = await proxy(max_body_bytes=1024, max_connections_per_address=0)
    running.upstream.reply = by_user
    seen = {running.metric("bulwark_requests_in_flight")}

    async def look() -> None:
        while True:
            seen.add(running.metric("bulwark_requests_in_flight"))
            await asyncio.sleep(0.001)

    looking = asyncio.create_task(look())
    for _ in range(EACH):
        await asyncio.gather(*(kind(running) for kind in KINDS))
    await running.log.nth(EACH * len(KINDS) - 1)
    await running.idle()
    looking.cancel()
    assert min(seen) == 0
    assert 1 < max(seen) <= 2 * len(KINDS)  # some clients have left, and are not counted out yet
    for name in ("requests_in_flight", "slots_in_use", "queue_length", "buffered_bytes"):
        assert running.registry.get_sample_value(f"bulwark_{name}") == 0
    outcomes = [line["outcome"] for line in running.log.requests()]
    expected = list(KINDS.values())
    for outcome in set(expected):
        assert outcomes.count(outcome) == EACH * expected.count(outcome)
        counted = sum(
            sample.value
            for family in running.registry.collect()
            for sample in family.samples
            if sample.name == "bulwark_requests_total" and sample.labels["outcome"] == outcome
        )
        assert counted == outcomes.count(outcome)


PATHS = ["/metrics", "/metrics/", "//metrics", "/v1/../metrics", "/v1/%2e%2e/metrics", "/METRICS"]


@pytest.mark.case("MT-03")
@pytest.mark.parametrize("path", PATHS)
async def test_metrics_are_not_on_the_public_listener(proxy: Launch, path: str) -> None:
    """401 without a key, 404 with one, and neither page is shown: not ours, not the upstream's."""
    running = await proxy()
    running.upstream.reply = [response(b"vllm:num_requests_running 1\n")]
    for fields, status, code in (({}, 401, "missing_api_key"), (BEARER, 404, "not_found")):
        answer = await running.ask("GET", path, fields)
        await running.assert_refused(answer, status, code)
        assert b"bulwark_" not in answer.body
        assert b"vllm:" not in answer.body
    assert running.upstream.connections == []


@pytest.mark.case("MT-03")
async def test_metrics_are_on_the_admin_listener(proxy: Launch) -> None:
    """The proxy's own page, on another port, which does not ask the upstream for anything."""
    running = await proxy()
    page = await running.ask_admin("GET", "/metrics")
    assert page.status == 200
    assert b"bulwark_requests_in_flight" in page.body
    assert running.upstream.requests == []
    assert running.admin_port != running.port


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0


async def completes(running: Running, client: RawClient, clock: Clock, gate: asyncio.Event) -> None:
    """A stream of 10 s."""
    clock.now += 8
    gate.set()
    assert (await client.read_rest()).complete


async def aborts(running: Running, client: RawClient, clock: Clock, gate: asyncio.Event) -> None:
    """A client that leaves after 2 s."""
    client.close()
    await running.upstream.connection_closed(0)


async def fails(running: Running, client: RawClient, clock: Clock, gate: asyncio.Event) -> None:
    """An upstream that dies after 2 s."""
    running.upstream.connections[0].reset()
    assert not (await client.read_rest()).complete


@pytest.mark.case("MT-06")
@pytest.mark.parametrize(
    ("ends", "seconds", "status", "outcome"),
    [
        pytest.param(completes, 10, 200, "ok", id="complete"),
        pytest.param(aborts, 2, 499, "client_disconnected", id="left by its client"),
        pytest.param(fails, 2, 200, "upstream_error", id="broken off by the upstream"),
    ],
)
async def test_a_stream_is_recorded_when_it_ends(
    proxy: Launch,
    ends: Callable[[Running, RawClient, Clock, asyncio.Event], Awaitable[None]],
    seconds: float,
    status: int,
    outcome: str,
) -> None:
    """With how long it took, and how it went: nothing is counted at its head."""
    clock, gate = Clock(), asyncio.Event()
    running = await proxy(clocks=Clocks(monotonic=lambda: clock.now))
    running.upstream.reply = [SSE_HEAD, event("a"), gate, event("b"), LAST_CHUNK]
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, AUTHORIZED, STREAM_BODY))
    await client.read_head()
    assert await client.read_chunk() == sse("a")
    labels = {"endpoint": "chat.completions"}
    assert running.metric("bulwark_request_duration_seconds_count", **labels) == 0
    assert running.metric("bulwark_requests_in_flight") == 1
    clock.now += 2
    await ends(running, client, clock, gate)
    line = await running.log.nth(0)
    assert (line["duration_seconds"], line["status"], line["outcome"]) == (seconds, status, outcome)
    assert running.metric("bulwark_request_duration_seconds_sum", **labels) == seconds
    assert running.metric("bulwark_request_duration_seconds_count", **labels) == 1
    total = {**labels, "status": str(status), "outcome": outcome}
    assert running.metric("bulwark_requests_total", **total) == 1
    assert len([name for name in series(running) if name.startswith("bulwark_requests_total")]) == 1
