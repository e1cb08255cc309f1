"""A process that was held up for longer than its upstream may be silent: what came meanwhile counts.

A virtual machine was seen to leave a process asleep for 13 s, and one may be stopped for minutes. Then
its timers are called first, and what lies unread must not be taken for silence.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from proxy.pipe import Flow
from proxy.upstream import target, transport
from proxy.upstream.transport.transport import Transport
from tests.harness.heldup import hold_up
from tests.harness.upstream import LAST_CHUNK, SSE_HEAD, End, Script, Upstream, event, sse

BOUND_SECONDS = 0.25
HELD_UP_SECONDS = BOUND_SECONDS + 0.05


@pytest.fixture
async def asked(upstream: Upstream) -> AsyncIterator[Transport]:
    """A transport to the upstream."""
    async with transport.build(target.parse(upstream.url)) as made:
        assert isinstance(made, Transport)
        yield made


async def ask(asked: Transport, seconds: dict[str, float], *, push: bool) -> bytes:
    """The body of one answer."""
    request = httpx.Request(
        "POST",
        "http://localhost",
        headers=[(b"host", b"x")],
        stream=httpx.ByteStream(b"{}"),
        extensions={"target": b"/", "timeout": seconds},
    )
    answer = await asked.handle_async_request(request)
    pieces: list[bytes] = []
    if push:
        await answer.extensions["pipe"](pieces.append, Flow())
        return b"".join(pieces)
    return await answer.aread()


def says(upstream: Upstream, data: bytes) -> Callable[[], None]:
    """The upstream says this, past the loop; nothing is the end of its connection."""

    def act() -> None:
        sock = upstream.connections[0].transport.get_extra_info("socket")
        if data:
            os.write(sock.fileno(), data)
        else:
            with socket.socket(fileno=os.dup(sock.fileno())) as other:
                other.shutdown(socket.SHUT_WR)

    return act


async def outcome(answer: Awaitable[bytes]) -> bytes | type[Exception]:
    """The body, or what there is in its place."""
    try:
        return await answer
    except httpx.TransportError as exc:
        return type(exc)


IDLE, FIRST_BYTE = {"idle": BOUND_SECONDS}, {"first_byte": BOUND_SECONDS}
BEGUN: Script = [SSE_HEAD, event("a"), End.SILENCE]
SILENT: Script = [End.SILENCE]


# asyncio's own loop reads first, whatever timer is due.
@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize(
    ("seconds", "reply", "meanwhile", "push", "expected"),
    [
        pytest.param(
            IDLE, BEGUN, event("b") + LAST_CHUNK, True, sse("a") + sse("b"), id="the rest, pushed"
        ),
        pytest.param(
            IDLE, BEGUN, event("b") + LAST_CHUNK, False, sse("a") + sse("b"), id="the rest, pulled"
        ),
        pytest.param(IDLE, BEGUN, b"", True, httpx.RemoteProtocolError, id="its end, too early"),
        pytest.param(IDLE, BEGUN, event("b"), True, httpx.ReadTimeout, id="a part, then nothing"),
        pytest.param(
            FIRST_BYTE, SILENT, SSE_HEAD + event("a") + LAST_CHUNK, True, sse("a"), id="all of it"
        ),
        pytest.param(FIRST_BYTE, SILENT, SSE_HEAD[:20], True, httpx.ReadTimeout, id="half a head"),
    ],
)
async def test_what_came_while_we_were_held_up(
    asked: Transport,
    upstream: Upstream,
    seconds: dict[str, float],
    reply: Script,
    meanwhile: bytes,
    *,
    expected: Any,
    push: bool,
) -> None:
    """It is read before anybody is called silent."""
    upstream.reply = reply
    task = asyncio.create_task(outcome(ask(asked, seconds, push=push)))
    await upstream.request(0)
    await hold_up(HELD_UP_SECONDS, says(upstream, meanwhile))
    assert await task == expected
