"""Connections and time-outs: kept too short, reused too long, or led astray by the environment."""

import asyncio
import json
import random
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proxy.config import load
from proxy.keepalive import COMMENT
from proxy.server import listeners
from tests.harness import process
from tests.harness.client import RawClient, request_bytes
from tests.harness.deaf import deaf_port
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, KEY, STREAM_BODY, Launch, Running
from tests.harness.upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Connection,
    End,
    ReceivedRequest,
    Script,
    Step,
    Upstream,
    chunk,
    event,
    response,
    serve,
    sse,
)

AUTHORIZED: dict[str, str] = {**BEARER, **JSON}
PLAIN = request_bytes("POST", CHAT, AUTHORIZED, CHAT_BODY)
STREAM = request_bytes("POST", CHAT, AUTHORIZED, STREAM_BODY)
CONNECT_SECONDS = 0.1
DEFAULTS = load({"PROXY_API_KEYS": KEY})


@pytest.mark.case("PL-01")
@pytest.mark.parametrize(
    ("request_", "before", "after", "expected"),
    [
        pytest.param(PLAIN, [], [response(COMPLETION)], COMPLETION, id="an answer in one piece"),
        pytest.param(
            STREAM, [], [SSE_HEAD, event("a"), LAST_CHUNK], sse("a"), id="the head of a stream"
        ),
        pytest.param(
            STREAM, [SSE_HEAD], [event("a"), LAST_CHUNK], sse("a"), id="the first event of a stream"
        ),
    ],
)
async def test_a_slow_first_byte_is_waited_for(
    proxy: Launch, request_: bytes, before: list[Step], after: list[Step], expected: bytes
) -> None:
    """Six times as long as connecting may take (by default 30 s of 5 s; the limit is 600)."""
    assert DEFAULTS.connect_timeout_seconds == 5
    assert DEFAULTS.first_byte_timeout_seconds >= 600
    running = await proxy(connect_timeout_seconds=CONNECT_SECONDS)
    gate = asyncio.Event()
    running.upstream.reply = [*before, gate, *after]
    client = await running.connect()
    await client.send(request_)
    await running.upstream.request(0)
    await asyncio.sleep(6 * CONNECT_SECONDS)  # that time passes is the case
    gate.set()
    answer = await client.read_response()
    assert (answer.status, answer.body, answer.complete) == (200, expected, True)


@pytest.mark.case("PL-01")
async def test_connecting_has_a_time_out_of_its_own(proxy: Launch) -> None:
    """An upstream that does not accept is given up soon, however long an answer may take."""
    with deaf_port() as port:
        running = await proxy(
            upstream_url=f"http://127.0.0.1:{port}", connect_timeout_seconds=CONNECT_SECONDS
        )
        began = time.monotonic()
        answer = await running.chat()
        assert CONNECT_SECONDS <= time.monotonic() - began < 3
    assert (answer.status, answer.json()["error"]["code"]) == (504, "upstream_timeout")
    assert "PROXY_CONNECT_TIMEOUT_SECONDS" in answer.json()["error"]["message"]
    assert answer.header(b"retry-after") is not None


IDLE_SECONDS = 0.05
LANES = 4
PER_LANE = 50


def closing_when_idle(upstream: Upstream) -> None:
    """Has it close each connection on which nothing came for a while, as servers do."""
    loop = asyncio.get_running_loop()

    def reply(request: ReceivedRequest) -> Script:
        connection = upstream.connections[request.connection]
        received = len(connection.received)

        def close() -> None:
            if len(connection.received) == received:
                connection.close()

        loop.call_later(IDLE_SECONDS, close)
        return [response(COMPLETION)]

    upstream.reply = reply


@pytest.mark.case("PL-02")
async def test_a_connection_that_is_closed_as_it_is_reused(proxy: Launch) -> None:
    """200 requests about the time at which the upstream closes: each is answered, each once."""
    chance = random.Random(2)  # noqa: S311 - a fixed seed: the same pauses each time
    lanes = [await proxy() for _ in range(LANES)]
    statuses: list[int] = []

    async def ask_again_and_again(running: Running) -> None:
        closing_when_idle(running.upstream)
        for _ in range(PER_LANE):
            statuses.append((await running.chat()).status)
            await asyncio.sleep(chance.uniform(0.9, 1.1) * IDLE_SECONDS)

    await asyncio.gather(*map(ask_again_and_again, lanes))
    assert statuses == [200] * LANES * PER_LANE
    for running in lanes:
        assert len(running.upstream.requests) == PER_LANE
    # Both happened: connections were reused, and connections had to be made anew.
    made = sum(len(running.upstream.connections) for running in lanes)
    assert LANES < made < LANES * PER_LANE


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> int:
    """How long an idle connection is kept, which is no setting: a second in place of 120."""
    monkeypatch.setattr(listeners, "serve", partial(listeners.serve, keep_alive_seconds=1))
    return 1


@pytest.mark.case("PL-03")
async def test_a_clients_connection_is_kept_longer_than_a_tunnels_pool(
    proxy: Launch, hasty: int
) -> None:
    """More than 90 s by default; until then it is reusable, and then it ends in order."""
    assert listeners.KEEP_ALIVE_SECONDS > 90
    running = await proxy()
    client = await running.connect()
    for pause in (0.05, 0.25, 0.75):  # of 120 s: 6, 30 and 90
        await client.send(PLAIN)
        answer = await client.read_response()
        assert (answer.status, answer.header(b"connection")) == (200, None)
        await asyncio.sleep(pause * hasty)  # being idle is the case
    await client.send(PLAIN)
    assert (await client.read_response()).status == 200
    assert await client.read_until_closed() == b""
    assert not client.was_reset


STREAMS = 150
BUSY_SECONDS = 4
"""In which all of them have begun or been refused: twice what the case asks for, as the machine may
have other things to do, and less than the 5 s after which a library's pool gives up."""


async def begin(running: Running) -> tuple[RawClient, int]:
    """A stream, and the status of its head."""
    client = await running.connect()
    await client.send(STREAM)
    return client, (await client.read_head()).status


@pytest.mark.case("PL-04")
async def test_as_many_streams_as_there_are_places(proxy: Launch) -> None:
    """151 at once begin, each on an upstream connection of its own: no pool has a bound of 100."""
    running = await proxy(max_inflight=STREAMS + 1)
    gate = asyncio.Event()
    running.upstream.reply = [SSE_HEAD, event("a"), gate, event("b"), LAST_CHUNK]
    began = time.monotonic()
    begun = await asyncio.gather(*(begin(running) for _ in range(STREAMS + 1)))
    assert time.monotonic() - began < BUSY_SECONDS
    assert {status for _, status in begun} == {200}
    assert running.metric("bulwark_slots_in_use") == STREAMS + 1
    assert running.upstream.open_connections == STREAMS + 1
    gate.set()
    answers = await asyncio.gather(*(client.read_rest() for client, _ in begun))
    assert {(answer.complete, answer.body) for answer in answers} == {(True, sse("a") + sse("b"))}


@pytest.mark.case("PL-04")
async def test_more_streams_than_there_are_places(proxy: Launch) -> None:
    """By default 32 begin, 64 wait, and the rest are told 503 at once, with Retry-After."""
    running = await proxy()
    gate = asyncio.Event()
    running.upstream.reply = [SSE_HEAD, event("a"), gate, event("b"), LAST_CHUNK]
    clients = [await running.connect() for _ in range(STREAMS + 1)]
    began = time.monotonic()
    for client in clients:
        await client.send(STREAM)
    heads = [asyncio.create_task(client.read_head()) for client in clients]
    refused = STREAMS + 1 - DEFAULTS.max_inflight - DEFAULTS.queue_size
    await until(lambda: sum(head.done() for head in heads) == DEFAULTS.max_inflight + refused)
    assert time.monotonic() - began < BUSY_SECONDS
    done = [(client, head) for client, head in zip(clients, heads, strict=True) if head.done()]
    told = [(client, head.result()) for client, head in done if head.result().status == 503]
    assert len(told) == refused
    for client, head in told:
        assert head.header(b"retry-after") is not None
        assert json.loads((await client.read_rest()).body)["error"]["code"] == "overloaded"
    labels = {"endpoint": "chat.completions", "reason": "overloaded"}
    assert running.metric("bulwark_refusals_total", **labels) == refused
    assert running.metric("bulwark_queue_length") == DEFAULTS.queue_size
    gate.set()
    statuses = [(await head).status for head in heads]
    assert statuses.count(200) == DEFAULTS.max_inflight + DEFAULTS.queue_size
    assert len(running.upstream.requests) == statuses.count(200)


THREE = [event(text) for text in "abc"]
SOON = 0.03


async def paused(proxy: Launch, **settings: Any) -> tuple[Running, RawClient, asyncio.Event]:
    """A stream of three events, a pause, and three more, of which the first three are read."""
    running = await proxy(**settings)
    gate = asyncio.Event()
    running.upstream.reply = [SSE_HEAD, *THREE, gate, *THREE, chunk(DONE), LAST_CHUNK]
    client, _ = await begin(running)
    received = b""
    while len(received) < len(sse("abc"[0])) * 3:
        received += await client.read_chunk()
    return running, client, gate


@pytest.mark.case("PL-07")
async def test_a_long_pause_between_tokens(proxy: Launch) -> None:
    """Six comments long, as 90 s are by default: all six events come, and a good end."""
    assert DEFAULTS.idle_timeout_seconds >= 300
    assert DEFAULTS.sse_keepalive_seconds == 15
    running, client, gate = await paused(proxy, sse_keepalive_seconds=SOON)
    for _ in range(6):
        assert await client.read_chunk() == COMMENT
    gate.set()
    answer = await client.read_rest()
    assert answer.complete
    assert answer.body.replace(COMMENT, b"") == b"".join(map(sse, "abc")) + DONE
    assert (await running.log.nth(0))["outcome"] == "ok"


@pytest.mark.case("PL-07")
async def test_a_pause_longer_than_the_documented_one(proxy: Launch) -> None:
    """The stream is cut visibly, and the upstream's connection is closed."""
    running, client, _ = await paused(proxy, idle_timeout_seconds=10 * SOON)
    answer = await client.read_rest()
    assert (answer.complete, answer.body) == (False, b"")
    line = await running.log.nth(0)
    assert (line["outcome"], line["level"]) == ("upstream_timeout", "error")
    await running.upstream.connection_closed(0)


@pytest.mark.case("PL-07")
@pytest.mark.both_ways
async def test_a_client_that_pauses_longer_than_the_upstream_may(proxy: Launch) -> None:
    """It gets the whole of its stream: who does not read is not read to, and that is no silence."""
    idle_seconds, chunks = 0.5, 200
    running = await proxy(idle_timeout_seconds=idle_seconds)
    running.upstream.reply = [SSE_HEAD, *[chunk(b"x" * 65_000)] * chunks, LAST_CHUNK]
    client = await running.connect(receive_buffer_bytes=4096)
    await client.send(STREAM)
    await (await running.upstream.connection(0)).write_blocked.wait()
    await asyncio.sleep(2 * idle_seconds)  # being late is the case
    answer = await client.read_response()
    assert (answer.status, answer.complete, len(answer.body)) == (200, True, chunks * 65_000)
    line = await running.log.nth(0)
    assert (line["status"], line["outcome"]) == (200, "ok")


TRAP = "http://127.0.0.1:9"


@pytest.fixture
def misleading(tmp_path: Path) -> dict[str, str]:
    """An environment that sends HTTP elsewhere, with a password for the upstream's host."""
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login eve password hunter2\ndefault login e password p\n")
    netrc.chmod(0o600)
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), TRAP)
    lower = {name.lower(): value for name, value in proxies.items()}
    home = {"HOME": str(tmp_path), "NETRC": str(netrc), "NO_PROXY": "10.0.0.0/8,192.168.0.0/16"}
    return {**proxies, **lower, **home, "SSL_CERT_FILE": str(tmp_path / "none.pem")}


@pytest.mark.case("PL-09")
async def test_the_environment_does_not_lead_astray(misleading: dict[str, str]) -> None:
    """The upstream is reached directly, and without the password that .netrc has for it."""
    async with serve() as upstream, process.serving(upstream.url, misleading) as running:
        client = await running.connect()
        await client.send(PLAIN)
        assert (await client.read_response()).status == 200
        await running.stop()
    [request] = upstream.asked
    assert request.target == CHAT.encode()
    assert request.header(b"authorization") is None
    assert request.header(b"proxy-authorization") is None


@pytest.fixture
def reserved() -> Iterator[socket.socket]:
    """A port that is ours and refuses connections until somebody listens on it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock


@pytest.mark.case("PL-11")
async def test_an_upstream_that_starts_later(proxy: Launch, reserved: socket.socket) -> None:
    """503 with Retry-After at once, and not ready; once it is there, 200 and ready; alive always."""
    port = reserved.getsockname()[1]
    running = await proxy(upstream_url=f"http://127.0.0.1:{port}", monitor_transport=None)
    began = time.monotonic()
    for _ in range(3):
        answer = await running.chat()
        assert (answer.status, answer.json()["error"]["code"]) == (503, "upstream_unavailable")
        assert answer.header(b"retry-after") is not None
    assert time.monotonic() - began < 5
    assert (await running.ask("GET", "/healthz")).status == 200
    assert (await running.ask_admin("GET", "/healthz")).status == 200
    unready = await running.ask_admin("GET", "/readyz")
    assert (unready.status, unready.json()["error"]["code"]) == (503, "upstream_unavailable")

    late = Upstream()
    listening = await asyncio.get_running_loop().create_server(
        lambda: Connection(late), sock=reserved
    )
    try:
        assert (await running.chat()).status == 200
        # With the monitor's next look, which is due within a second.
        await running.log.until(lambda: '"state":"ready"' in running.log.text)
        assert (await running.ask_admin("GET", "/readyz")).status == 200
        assert (await running.ask("GET", "/healthz")).status == 200
    finally:
        listening.close()
        for connection in late.connections:
            connection.transport.abort()


@pytest.mark.case("PL-11")
async def test_an_upstream_that_restarts(proxy: Launch) -> None:
    """What it was asked as it went is a 502; what comes next is answered by the new one."""
    running = await proxy()
    running.upstream.script.append([End.RESET])
    assert (await running.chat()).status == 502
    assert (await running.chat()).status == 200
