"""A loop that is held up: as a process is that was stopped, or had no processor."""

import asyncio
import socket
import time
from collections.abc import Callable


async def hold_up(seconds: float, act: Callable[[], object] = lambda: None) -> None:
    """Holds the loop up after it has looked at its sockets; `act` is done meanwhile, past it."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    over = loop.create_future()

    def called() -> None:
        loop.remove_reader(ours)
        act()
        time.sleep(seconds)  # being held up is the case
        over.set_result(None)

    with ours, theirs:
        loop.add_reader(ours, called)
        theirs.send(b"x")
        await over
