"""Time as a loop has it: in turns, so that what happens in between is the same on every machine."""

import asyncio
from collections.abc import Callable


def after(turns: int, call: Callable[[], object]) -> None:
    """Calls it so many turns of the loop later."""
    if turns:
        asyncio.get_running_loop().call_soon(after, turns - 1, call)
    else:
        call()
