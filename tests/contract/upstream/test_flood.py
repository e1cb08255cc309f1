"""Clients that read nothing, and an engine that never stops: what a real process holds of that."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.client import request_bytes
from tests.harness.forwarding import until
from tests.harness.process import Process, serving
from tests.harness.running import BEARER, CHAT, CHAT_BODY, JSON, STREAM_BODY
from tests.harness.upstream import (
    SSE_HEAD,
    ReceivedRequest,
    Script,
    Step,
    chunk,
    plausible,
    serve,
)

CLIENTS = 50
GROWTH_BYTES = 40 * 1024 * 1024
"""More than 256 KiB for each client, with room for what Python and malloc make of that."""

QUIET_MILLISECONDS = 300
STREAM = request_bytes("POST", CHAT, {**BEARER, **JSON}, STREAM_BODY)


class Flood:
    """Answers streams without end, and everything else as an engine does.

    Attributes:
        streams: The connections of those that were asked for.
        written: How many bytes of them were taken.
    """

    def __init__(self) -> None:
        self.streams: list[int] = []
        self.written = 0

    def __call__(self, request: ReceivedRequest) -> Script:
        """What is answered."""
        if request.target != CHAT.encode() or b'"stream":true' not in request.body:
            return plausible(request)
        self.streams.append(request.connection)
        return self._endless()

    def _endless(self) -> Iterator[Step]:
        yield SSE_HEAD
        piece = chunk(b"x" * 16_000)
        while True:
            self.written += len(piece)
            yield piece


def resident_bytes(process: Process) -> int:
    """What it has in memory now."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.asyncio(loop_factories=["uvloop"])  # the proxy has its own
@pytest.mark.parametrize("write_through", ["true", "false"], ids=["pushed", "pulled"])
async def test_the_engine_waits_and_the_proxy_does_not_grow(write_through: str) -> None:
    """What is not read is left where it comes from, and others are served meanwhile."""
    flood = Flood()
    async with (
        serve() as upstream,
        serving(
            upstream.url, write_through=write_through, max_inflight=str(2 * CLIENTS)
        ) as process,
    ):
        upstream.reply = flood
        other = await process.connect()
        assert (await other.request("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY)).status == 200
        before = resident_bytes(process)
        for _ in range(CLIENTS):
            await (await process.connect()).send(STREAM)
        await until(lambda: len(flood.streams) == CLIENTS)

        def is_blocked() -> bool:
            assert resident_bytes(process) - before < GROWTH_BYTES
            return all(
                not upstream.connections[index]._writable.is_set() for index in flood.streams
            )

        quiet, written = 0, 0
        async with asyncio.timeout(30):
            while quiet < QUIET_MILLISECONDS:
                await asyncio.sleep(0.001)
                quiet = quiet + 1 if is_blocked() and flood.written == written else 0
                written = flood.written
        assert (await other.request("POST", CHAT, {**BEARER, **JSON}, CHAT_BODY)).status == 200
        assert upstream.open_connections >= CLIENTS
        assert resident_bytes(process) - before < GROWTH_BYTES
