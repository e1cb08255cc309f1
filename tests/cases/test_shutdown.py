"""RL-06: the end of a server in front of which somebody streams."""

import asyncio
import time

import pytest

from tests.harness import process
from tests.harness import upstream as upstreams
from tests.harness.client import BrokenOff, request_bytes
from tests.harness.forwarding import until
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, STREAM_BODY
from tests.harness.upstream import (
    COMPLETION,
    SSE_HEAD,
    End,
    ReceivedRequest,
    Script,
    event,
    response,
)

DRAIN_SECONDS = 2


@pytest.mark.case("RL-06")
async def test_endless_streams_end_with_the_drain() -> None:
    """Three of them: the server is gone soon after its drain, with 0; what is short still finishes."""
    soon = asyncio.Event()

    def reply(request: ReceivedRequest) -> Script:
        if request.target != CHAT.encode():
            return [response(b"{}")]
        if b'"stream"' in request.body:
            return [SSE_HEAD, event("a"), End.SILENCE]
        return [soon, response(COMPLETION)]

    async with (
        upstreams.serve() as upstream,
        process.serving(upstream.url, drain_seconds=str(DRAIN_SECONDS)) as running,
    ):
        upstream.reply = reply
        streams = [await running.connect() for _ in range(3)]
        for client in streams:
            await client.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, STREAM_BODY))
            await client.read_head()
            await client.read_chunk()
        short = await running.connect()
        await short.send(request_bytes("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY))
        await until(lambda: len(upstream.asked) == len(streams) + 1)
        began = time.monotonic()
        running.process.terminate()
        soon.set()
        assert (await short.read_response()).status == 200
        for client in streams:
            with pytest.raises(BrokenOff):
                await client.read_chunk()
        await running._output
        assert running.process.returncode == 0
        assert DRAIN_SECONDS <= time.monotonic() - began < DRAIN_SECONDS + 10
        await upstream.all_closed()
