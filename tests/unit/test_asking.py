"""A metrics page beside the requests: it is read in turns, however large and at hand it is."""

import asyncio
import time
from collections.abc import AsyncIterator

import httpx

from proxy.upstream import target as targets
from proxy.upstream.asking import Questions

_PIECES = 20
_LINE = b"vllm:num_requests_running 1\n"


class Slow(httpx.AsyncByteStream):
    """A body that is there at once, and of which each piece costs 3 ms of the loop's time."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield _LINE
        for _ in range(_PIECES):
            time.sleep(0.003)  # noqa: ASYNC251 - work, for which nobody waits
            yield b"# " + b"x" * 4096 + b"\n"

    async def aclose(self) -> None:
        """Nothing to close."""


class Engine(httpx.AsyncBaseTransport):
    """One that has such a page."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answers."""
        return httpx.Response(200, stream=Slow())


async def test_others_have_their_turns_while_a_page_is_read() -> None:
    """About one for each piece, and not only once all of it is read."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    questions = Questions(Engine(), targets.parse("http://engine:8000"), metrics_seconds=30.0)
    reading = await questions.metrics()
    counting.cancel()
    assert reading.running == 1
    assert turns >= _PIECES
