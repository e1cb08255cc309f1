"""Promise 5: the engine is never asked more than it may be. Who is asked for: test_fairness."""

import asyncio

import pytest

from tests.harness import upstream as upstreams
from tests.harness.client import RawClient, request_bytes
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, Launch, Running


async def send_chat(running: Running) -> RawClient:
    """A chat whose answer is still to come."""
    client = await running.connect()
    await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY))
    return client


async def test_a_full_queue_is_told_at_once(proxy: Launch) -> None:
    """One is answered, one waits, the third is refused; then both get their answers."""
    running = await proxy(max_inflight=1, queue_size=1)
    gate = asyncio.Event()
    running.upstream.reply = [gate, upstreams.response(b"{}")]
    first = await send_chat(running)
    await running.upstream.request(0)
    second = await send_chat(running)
    await until(lambda: running.metric("bulwark_queue_length") == 1)
    refused = await running.chat()
    error = refused.json()["error"]
    assert (refused.status, error["code"]) == (503, "overloaded")
    assert "PROXY_MAX_INFLIGHT" in error["message"]
    assert "PROXY_QUEUE_SIZE" in error["message"]
    assert refused.header(b"retry-after") == b"5"
    line = await running.log.of(refused)
    assert (line["status"], line["outcome"]) == (503, "overloaded")
    assert running.metric(
        "bulwark_refusals_total", endpoint="chat.completions", reason="overloaded"
    )
    assert len(running.upstream.requests) == 1
    gate.set()
    assert (await first.read_response()).status == 200
    assert (await second.read_response()).status == 200
    await running.idle()
    assert running.metric("bulwark_slots_in_use") == 0


async def test_the_wait_has_an_end(proxy: Launch) -> None:
    """The queue's deadline, with its setting."""
    running = await proxy(max_inflight=1, queue_timeout_seconds="0.05")
    running.upstream.reply = [upstreams.End.SILENCE]
    await send_chat(running)
    await running.upstream.request(0)
    refused = await running.chat()
    assert (refused.status, refused.json()["error"]["code"]) == (503, "overloaded")
    assert "PROXY_QUEUE_TIMEOUT_SECONDS" in refused.json()["error"]["message"]
    assert refused.header(b"retry-after") == b"5"


async def test_a_list_of_models_does_not_wait_behind_generations(proxy: Launch) -> None:
    """Clients ask for it first; without it the whole connection looks broken."""
    running = await proxy(max_inflight=1, queue_size=0)
    running.upstream.script.append([upstreams.End.SILENCE])
    await send_chat(running)
    await running.upstream.request(0)
    assert (await running.chat()).status == 503
    assert (await running.ask("GET", "/v1/models", BEARER)).status == 200


@pytest.mark.parametrize(("size", "status"), [(60_000, 200), (90_000, 503)])
async def test_bodies_are_bounded_over_all_requests(proxy: Launch, size: int, status: int) -> None:
    """What one client uploads is not there for another, and comes back when it leaves."""
    running = await proxy(
        max_body_bytes=100_000, max_buffered_bytes=150_000, max_prompt_chars=100_000
    )
    holder = await running.connect()
    await holder.send(
        request_bytes("POST", CHAT, {**BEARER, **JSON, "Content-Length": "100000"}, b"x" * 64_000)
    )
    await until(lambda: running.metric("bulwark_buffered_bytes") >= 64_000)
    body = b'{"max_tokens":1,"x":"' + b"x" * size + b'"}'
    answer = await running.chat(body)
    assert answer.status == status
    if status == 503:
        assert answer.json()["error"]["code"] == "overloaded"
        assert "PROXY_MAX_BUFFERED_BYTES" in answer.json()["error"]["message"]
        assert answer.header(b"retry-after") == b"5"
        assert running.upstream.requests == []
    holder.reset()
    await running.idle()
    assert running.metric("bulwark_buffered_bytes") == 0
    assert (await running.chat(body)).status == 200
