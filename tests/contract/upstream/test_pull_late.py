"""A process that was held up while it pulled an answer from a transport that keeps no time."""

import asyncio
import os

import anyio
import httpx
import pytest

from proxy.errors import UpstreamTimeout
from proxy.lifeline import Deadline, Lifelines
from proxy.pump import Body
from tests.harness.heldup import hold_up
from tests.harness.upstream import LAST_CHUNK, SSE_HEAD, End, Upstream, event, sse

IDLE_SECONDS = 0.1
HELD_UP_SECONDS = IDLE_SECONDS + 0.1


async def pull(upstream: Upstream, pieces: list[bytes]) -> None:
    """Keeps the body of one answer."""
    total, idle = (Deadline(at, lambda: UpstreamTimeout("late")) for at in (60.0, IDLE_SECONDS))

    async def write(piece: bytes) -> None:
        pieces.append(piece)

    async with httpx.AsyncHTTPTransport() as foreign:
        response = await foreign.handle_async_request(httpx.Request("GET", upstream.url))
        try:
            with Lifelines().hold(total, anyio.CancelScope()) as lifeline:
                await Body(None, 9999, idle).pull(response, write, lifeline)
        finally:
            await response.aclose()


@pytest.mark.parametrize(
    ("meanwhile", "whole"),
    [
        pytest.param(event("b") + LAST_CHUNK, True, id="the rest"),
        pytest.param(b"", False, id="nothing"),
    ],
)
async def test_what_came_while_we_were_held_up(
    upstream: Upstream, meanwhile: bytes, *, whole: bool
) -> None:
    """It is pulled before its upstream is called silent."""
    upstream.reply = [SSE_HEAD, event("a"), End.SILENCE]
    pieces: list[bytes] = []
    pulling = asyncio.create_task(pull(upstream, pieces))
    async with asyncio.timeout(5):
        while not pieces:  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(0)
    sock = upstream.connections[0].transport.get_extra_info("socket")
    await hold_up(HELD_UP_SECONDS, lambda: os.write(sock.fileno(), meanwhile))
    if whole:
        await pulling
        assert b"".join(pieces) == sse("a") + sse("b")
    else:
        with pytest.raises(UpstreamTimeout):
            await pulling
