"""Who leaves once the stream has said everything has not left; who leaves one event before has."""

import asyncio

import pytest

from tests.harness import usages
from tests.harness.client import RawClient, request_bytes
from tests.harness.running import BEARER, CHAT, JSON, STREAM_BODY, Launch, Running
from tests.harness.upstream import SSE_HEAD, End, Script, chunk

pytestmark = pytest.mark.both_ways

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
LIMIT = 1_000_000
WITHIN_SECONDS = 1.0

ASKED = STREAM_BODY.replace(b"{", b'{"stream_options":{"include_usage":true},', 1)
TO_RESPONSES = b'{"input":"a","max_output_tokens":9,"stream":true}'
TO_MESSAGES = b'{"messages":[],"max_tokens":9,"stream":true}'

STREAMS = [
    pytest.param(CHAT, ASKED, usages.VLLM_CHAT, id="OpenAI"),
    pytest.param(RESPONSES, TO_RESPONSES, usages.VLLM_RESPONSES, id="Responses"),
    pytest.param(MESSAGES, TO_MESSAGES, usages.LLAMA_MESSAGES, id="Anthropic"),
]


async def left_after(
    running: Running, path: str, body: bytes, stream: bytes, size: int | None = None
) -> None:
    """Its client reads all of the stream, whose body does not end, and leaves."""
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)] if size else [stream]
    script: Script = [SSE_HEAD, *map(chunk, pieces), End.SILENCE]
    running.upstream.reply = script
    client = await running.connect()
    await client.send(request_bytes("POST", path, {**BEARER, **JSON}, body))
    await client.read_head()
    await read(client, len(stream))
    client.close()
    await running.upstream.connection_closed(0, WITHIN_SECONDS)


async def read(client: RawClient, size: int) -> None:
    """Returns once so much of the body has come."""
    async with asyncio.timeout(5):
        while size > 0:
            size -= len(await client.read_chunk())
    assert size == 0


@pytest.mark.parametrize("size", [None, 50, 7, 1])
@pytest.mark.parametrize("comments", [15, 0], ids=["comments", "no comments"])
@pytest.mark.parametrize(("path", "body", "stream"), STREAMS)
async def test_who_leaves_at_the_last_event_has_had_everything(
    proxy: Launch, path: str, body: bytes, stream: bytes, *, size: int | None, comments: int
) -> None:
    """It is recorded and charged as if it had waited for the end of the body, which stops at once."""
    running = await proxy(key_tokens_per_minute=LIMIT, sse_keepalive_seconds=comments)
    await left_after(running, path, body, stream, size)
    line = await running.log.nth(0)
    assert (line["status"], line["outcome"], line["level"]) == (200, "ok", "info")
    assert (line["prompt_tokens"], line["completion_tokens"], line["usage"]) == (21, 3, "engine")
    running.assert_counted(line)


@pytest.mark.parametrize(("path", "body", "stream"), STREAMS)
async def test_who_is_not_limited_too(proxy: Launch, path: str, body: bytes, stream: bytes) -> None:
    """Nobody has read what came."""
    running = await proxy()
    await left_after(running, path, body, stream)
    line = await running.log.nth(0)
    assert (line["status"], line["outcome"], line["usage"]) == (200, "ok", None)


@pytest.mark.parametrize("size", [None, 50])
@pytest.mark.parametrize(("path", "body", "stream"), STREAMS)
async def test_who_leaves_one_event_before_has_left(
    proxy: Launch, path: str, body: bytes, stream: bytes, size: int | None
) -> None:
    """Also where half of the last event has come."""
    for missing in (0, 1, 2):
        running = await proxy(key_tokens_per_minute=LIMIT)
        at = stream.rindex(b"\n\n", 0, -2) + 2
        cut = stream[:at] if not missing else stream[:-missing]
        await left_after(running, path, body, cut, size)
        line = await running.log.nth(0)
        assert (line["status"], line["outcome"]) == (499, "client_disconnected")
        running.assert_counted(line)


@pytest.mark.parametrize(("path", "body", "stream"), STREAMS)
async def test_an_engine_that_breaks_off_behind_it_has_failed(
    proxy: Launch, path: str, body: bytes, stream: bytes
) -> None:
    """It is only clients that may leave there."""
    running = await proxy()
    running.upstream.reply = [SSE_HEAD, chunk(stream), End.FIN]
    client = await running.connect()
    await client.send(request_bytes("POST", path, {**BEARER, **JSON}, body))
    line = await running.log.nth(0)
    assert (line["status"], line["outcome"]) == (200, "upstream_error")
