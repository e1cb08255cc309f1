"""Bounds of time that hold on a busy machine, for what shares the test's loop."""

import asyncio
from collections.abc import Callable


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
