"""What runs beside the requests, for as long as they are served."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from proxy.telemetry.log import Log

Attendant = Callable[[], Coroutine[Any, Any, None]]
"""Runs until it is cancelled."""


class Attending:
    """Each attendant in a task of its own.

    Args:
        attendants: Who they are.
        log: Told of a bug in one, which ends no request.
    """

    def __init__(self, attendants: Sequence[Attendant], log: Log) -> None:
        self._attendants = attendants
        self._log = log
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """They run from now on."""
        self._tasks = [asyncio.create_task(self._attend(each)) for each in self._attendants]

    async def end(self) -> None:
        """None of them runs any more; nothing where they have not begun."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _attend(self, attendant: Attendant) -> None:
        try:
            await attendant()
        except Exception as exc:  # noqa: BLE001 - requests are served without it, if less well
            name = getattr(attendant, "__qualname__", type(attendant).__name__)
            self._log.server("failed", level="error", part=name, fault=type(exc).__qualname__)
