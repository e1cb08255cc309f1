"""Bounds of time that hold on a busy machine, for what shares the test's loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


async def soon(
    holds: Callable[[], bool], within: float = 1.0, told: Callable[[], str] = lambda: ""
) -> None:
    """Returns as soon as it holds, which must be within so much time in which we were awake.

    The milliseconds are counted one by one. Proxy, tap and clients share this loop, and a virtual
    machine that a real engine keeps busy did not wake it for up to 13 s, asleep in epoll with a
    timer that was due after 5 ms: a clock on the wall would have called that ours.

    Raises:
        TimeoutError: It did not; with what `told` then says.
    """
    for _ in range(int(within * 1000)):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError(told())


@contextlib.asynccontextmanager
async def counting() -> AsyncIterator[Callable[[], float]]:
    """What the time was in which we were awake, from here on: for bounds of what is waited for.

    Whatever holds the loop itself up is not seen; that is for `Heartbeat`.
    """
    milliseconds = 0

    async def count() -> None:
        nonlocal milliseconds
        while True:
            await asyncio.sleep(0.001)
            milliseconds += 1

    task = asyncio.create_task(count())
    try:
        yield lambda: milliseconds / 1000
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def timeout(within: float) -> AsyncIterator[None]:
    """`asyncio.timeout` of so much time awake: what is waited for goes on in the very turn it comes."""

    async def count() -> None:
        for _ in range(int(within * 1000)):
            await asyncio.sleep(0.001)
        limit.reschedule(asyncio.get_running_loop().time())

    async with asyncio.timeout(None) as limit:
        task = asyncio.create_task(count())
        try:
            yield
        finally:
            task.cancel()
