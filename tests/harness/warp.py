"""A loop whose time passes only when nobody has anything else to do, and then at once.

Timers of an hour fire in microseconds and in order, and nothing depends on how busy the machine is.
For code that asks no other clock than the loop's, and waits for nothing outside of it.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Instead of sleeping, says how long it would have slept."""

    slept_seconds = 0.0
    sleeps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now; a wait without an end would be one for nothing."""
        if timeout is None:
            raise RuntimeError("Everybody waits, and nothing will ever happen.")
        self.slept_seconds += timeout
        self.sleeps += timeout > 0
        return super().select(0)


class WarpLoop(asyncio.SelectorEventLoop):
    """The loop. Its time begins at 1000."""

    def __init__(self) -> None:
        self._sleeper = _Selector()
        super().__init__(self._sleeper)

    def time(self) -> float:
        """What would have passed."""
        return 1000.0 + self._sleeper.slept_seconds

    @property
    def sleeps(self) -> int:
        """How often nobody had anything to do: a timer that goes on and on shows here."""
        return self._sleeper.sleeps


def sleeps() -> int:
    """``sleeps`` of the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, WarpLoop)
    return loop.sleeps


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in such a loop."""
    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        return runner.run(main)


def now() -> float:
    """The running loop's time: a clock to pass in."""
    return asyncio.get_running_loop().time()
