"""Deadlines of a process that may be the one that is late.

One that was stopped, or had no processor, has its timers called before it reads: who was in time would
be called late. A timer tells by when it is called; whoever is waited for then gets the little time that
reading takes, once.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

HELD_UP_SECONDS = 0.05
"""A timer that is called so much too late was held up with all the rest of the process."""

READING_SECONDS = 0.25
"""How long it then takes to read what lies there, and to act on it."""


@contextmanager
def fail_after(seconds: float | None) -> Iterator[None]:
    """As ``anyio.fail_after``, for whoever waits for somebody else.

    Args:
        seconds: How long the block may take; None for ever.

    Raises:
        TimeoutError: It took longer.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None
    # Not asyncio.timeout, for which see proxy.lifeline.
    with anyio.CancelScope() as scope:

        def late(due: float) -> None:
            nonlocal timer
            if loop.time() - due < HELD_UP_SECONDS:
                scope.cancel()
            else:
                timer = loop.call_later(READING_SECONDS, scope.cancel)

        if seconds is not None:
            due = loop.time() + max(0.0, seconds)
            timer = loop.call_at(due, late, due)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
    if scope.cancelled_caught:
        raise TimeoutError
