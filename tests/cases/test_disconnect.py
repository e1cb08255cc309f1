"""Clients that leave: an engine that goes on generating for nobody is what costs its owner most."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.auth.keys import generate
from tests.harness.client import RawClient, request_bytes
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, STREAM_BODY, Launch, Running
from tests.harness.upstream import SSE_HEAD, End, Step, event, sse

pytestmark = pytest.mark.both_ways

RUNS = 20
WITHIN_SECONDS = 2.0
ORIGIN = "https://chat.example.org"


def generating(_: object) -> Iterator[Step]:
    """A stream that goes on for as long as somebody listens, an event every few milliseconds."""
    loop = asyncio.get_running_loop()
    yield SSE_HEAD
    while True:
        yield event("token")
        next_token = asyncio.Event()
        loop.call_later(0.01, next_token.set)  # a model's pace, not an order of things
        yield next_token


def leave(client: RawClient, turn: int) -> None:
    """Politely, or not."""
    if turn % 2:
        client.reset()
    else:
        client.close()


async def leave_in_mid_stream(running: Running, headers: dict[str, str], turn: int) -> None:
    """After three events."""
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, headers, STREAM_BODY))
    assert (await client.read_head()).status == 200
    for _ in range(3):
        assert await client.read_chunk() == sse("token")
    leave(client, turn)
    await running.upstream.connection_closed(turn, WITHIN_SECONDS)


async def leave_before_the_first_byte(
    running: Running, headers: dict[str, str], body: bytes, turn: int
) -> None:
    """While the upstream has the request and says nothing."""
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, headers, body))
    await running.upstream.request(turn)
    leave(client, turn)
    await running.upstream.connection_closed(turn, WITHIN_SECONDS)


async def assert_all_left(running: Running, runs: int = RUNS) -> None:
    """Each is counted as left by its client, and nothing is held any more."""
    await running.log.nth(runs - 1)
    await running.idle()
    lines = running.log.requests()
    assert [(line["outcome"], line["status"]) for line in lines] == [
        ("client_disconnected", 499)
    ] * runs
    labels = {"endpoint": "chat.completions", "status": "499", "outcome": "client_disconnected"}
    assert running.metric("bulwark_requests_total", **labels) == runs
    for gauge in ("requests_in_flight", "slots_in_use", "queue_length", "buffered_bytes"):
        assert running.registry.get_sample_value(f"bulwark_{gauge}") == 0
    assert running.upstream.open_connections == 0
    assert "Traceback" not in running.log.text


PLAIN: dict[str, str] = {**BEARER, **JSON}


@pytest.mark.case("DC-01")
async def test_a_client_that_stops_a_stream_stops_the_engine(proxy: Launch) -> None:
    """20 of 20: the upstream sees its connection close, and the gauge is back at 0."""
    running = await proxy()
    running.upstream.reply = generating
    for turn in range(RUNS):
        await leave_in_mid_stream(running, PLAIN, turn)
    await assert_all_left(running)


@pytest.mark.case("DC-02")
@pytest.mark.parametrize("body", [CHAT_BODY, STREAM_BODY], ids=["in one piece", "stream"])
async def test_a_client_that_leaves_before_the_first_byte(proxy: Launch, body: bytes) -> None:
    """20 of 20, although the upstream never says a word."""
    running = await proxy()
    running.upstream.reply = [End.SILENCE]
    for turn in range(RUNS):
        await leave_before_the_first_byte(running, PLAIN, body, turn)
    await assert_all_left(running)


@pytest.fixture
def everything(tmp_path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings that switch every layer on, and the head of a request that meets them all."""
    key = generate()
    file = tmp_path / "keys.toml"
    file.write_text(
        f'[[key]]\nid = "{key[6:14]}"\nname = "alice"\n'
        f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
    )
    file.chmod(0o600)
    settings = {
        "keys_file": file,
        "cors_origins": ORIGIN,
        "profile": "strict",
        "cache_salt": "per-key",
        "max_body_bytes": 4096,
        "response_headers": "x-extra",
        "upstream_api_key": "upstream",
        "sse_keepalive_seconds": 5,
        "sse_commit_seconds": 5,
    }
    headers = {"Authorization": f"Bearer {key}", **JSON, "Origin": ORIGIN, "User-Agent": "x"}
    return settings, headers


@pytest.mark.case("DC-05")
async def test_no_layer_hides_that_a_client_has_left(
    proxy: Launch, everything: tuple[dict[str, Any], dict[str, str]]
) -> None:
    """Both cases above with keys from a file, CORS, caps that edit the body, salts and comments."""
    settings, headers = everything
    running = await proxy(**settings)
    running.upstream.reply = generating
    for turn in range(RUNS):
        await leave_in_mid_stream(running, headers, turn)
    running.upstream.reply = [End.SILENCE]
    for turn in range(RUNS, 2 * RUNS):
        await leave_before_the_first_byte(running, headers, STREAM_BODY, turn)
    for turn in range(2 * RUNS, 3 * RUNS):
        await leave_before_the_first_byte(running, headers, CHAT_BODY, turn)
    await assert_all_left(running, 3 * RUNS)
    assert {line["key_id"] for line in running.log.requests()} == {headers["Authorization"][13:21]}


@pytest.mark.case("DC-06")
@pytest.mark.parametrize(
    "go",
    [
        pytest.param(RawClient.close, id="closed"),
        pytest.param(RawClient.reset, id="reset"),
        pytest.param(RawClient.half_close, id="half closed"),
    ],
)
@pytest.mark.parametrize(
    "framing",
    [
        pytest.param({"Content-Length": "1000"}, id="of 1,000 bytes"),
        pytest.param({"Transfer-Encoding": "chunked"}, id="chunked"),
    ],
)
async def test_a_client_that_vanishes_while_it_uploads(
    proxy: Launch, framing: dict[str, str], go: Any
) -> None:
    """Ten bytes, then nothing: the upstream hears of none, each is recorded, no traceback."""
    running = await proxy()
    for turn in range(RUNS):
        client = await running.connect()
        begun = b'{"model":"' if "Content-Length" in framing else b'a\r\n{"model":"\r\n'
        await client.send(request_bytes("POST", CHAT, {**PLAIN, **framing}) + begun)
        await until(lambda: running.metric("bulwark_buffered_bytes") == 10)
        go(client)
        assert (await running.log.nth(turn))["bytes_in"] == 10
    await assert_all_left(running)
    assert running.upstream.connections == []
