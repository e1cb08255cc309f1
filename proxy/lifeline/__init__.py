"""What a request's life hangs on: its client, its deadlines, the server's own end.

Any of them ends the request's task, in whatever phase it is, and the task leaves through its
``finally`` blocks: the upstream's socket is closed (so that the GPU stops), the slot and the memory
given back. What ended it is the error that the block raises.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Self

from starlette.types import Receive

from proxy.errors import ClientDisconnected, ProxyError, Refusal, ShuttingDown
from proxy.lifeline.alarm import Alarm
from proxy.lifeline.scopes import Scope, TaskScope
from proxy.patience import HELD_UP_SECONDS, READING_SECONDS
from proxy.pipe import Client


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long something may take, and what to say when it took longer."""

    seconds: float
    error: Callable[[], ProxyError]


class Lifelines:
    """Every request that is being served."""

    def __init__(self) -> None:
        self._live: set[Lifeline] = set()
        self._alarm = Alarm(self._live)

    @property
    def in_flight(self) -> int:
        """How many there are."""
        return len(self._live)

    def hold(self, total: Deadline, scope: Scope | None = None) -> "Lifeline":
        """A lifeline for the request whose task enters it, for at most `total`.

        Args:
            total: How long it may take.
            scope: How it is ended; None cancels its task.
        """
        return Lifeline(self._live, self._alarm, total, scope or TaskScope())

    def end_all(self, error: Callable[[], ProxyError]) -> None:
        """Ends every request, each with an error of its own."""
        for lifeline in tuple(self._live):
            lifeline.end(error())


class Lifeline:
    """Runs its block until it is done or something ends it. Made by ``Lifelines.hold``.

    Raises:
        ProxyError: What ended the block, if something did before it was done.
    """

    __slots__ = (
        "_alarm", "_error", "_excused_due", "_live", "_loop", "_phase", "_phase_due", "_scope", "_total", "_total_due",
        "_watcher",
    )  # fmt: skip

    def __init__(self, live: set["Lifeline"], alarm: Alarm, total: Deadline, scope: Scope) -> None:
        self._live = live
        self._alarm = alarm
        self._loop = asyncio.get_running_loop()
        self._scope = scope
        self._error: ProxyError | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._total = self._phase = total
        self._total_due = self._loop.time() + total.seconds
        self._phase_due = self._excused_due = inf

    @property
    def was_left(self) -> bool:
        """Whether its client has ended it, by leaving or by what it sent; no one else has before."""
        error = self._error
        # Of all refusals this one is not about what the client did.
        return isinstance(error, ClientDisconnected | Refusal) and not isinstance(
            error, ShuttingDown
        )

    def end(self, error: ProxyError) -> None:
        """Ends the request with this error; of several, the first counts, and none once it is over."""
        if self._error is None and self in self._live:
            self._error = error
            self._scope.cancel()

    def expect(self, phase: Deadline | None) -> None:
        """Begins a phase: from now on, something has to happen within its deadline, if it has one.

        A phase that is over must be followed by the next one: its deadline would still count.
        """
        if phase is None:
            self._phase_due = inf
        else:
            self._phase = phase
            self._phase_due = due = self._loop.time() + phase.seconds
            self._alarm.set(due, self._loop)

    def watch(self, receive: Receive, client: Client | None = None) -> None:
        """Ends the request when its client leaves.

        Args:
            receive: Tells it, to a task that is only for this.
            client: Tells it without one, of a request whose body has been read.
        """
        if client is not None:
            client.on_disconnect(self._left)
        else:
            self._watcher = self._loop.create_task(self._watch(receive))

    def _left(self, refusal: Refusal | None) -> None:
        self.end(refusal or ClientDisconnected())

    async def _watch(self, receive: Receive) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except ProxyError as refusal:
            self.end(refusal)  # a body where none is read, and a broken one
        else:
            self.end(ClientDisconnected())

    def look(self, now: float) -> float:
        """Ends the request if a deadline is over; says when the next one is, or ``inf``."""
        if self._error is not None:
            return inf
        if now >= self._total_due:
            self.end(self._total.error())
            return inf
        if now >= self._phase_due:
            if now - self._phase_due < HELD_UP_SECONDS or self._phase_due == self._excused_due:
                self.end(self._phase.error())
                return inf
            # It is we who are late, and what came meanwhile was not read. Once in each phase: whoever
            # says nothing now has no excuse.
            self._phase_due = self._excused_due = now + READING_SECONDS
        return min(self._total_due, self._phase_due)

    def __enter__(self) -> Self:
        self._scope.__enter__()
        self._live.add(self)
        self._alarm.set(self._total_due, self._loop)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._live.discard(self)
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
        ours = bool(self._scope.__exit__(exc_type, exc, traceback))
        error, self._error = self._error, None
        if error is None:
            return ours
        if exc is None:
            # The answer was complete before anything could end it; or its client had left while
            # the last of it waited, after which nothing waits any more, and nothing arrives.
            if not isinstance(error, ClientDisconnected):
                return ours
        elif not ours and not isinstance(exc, Exception):
            return False  # the process is being torn down: not for us to turn into an answer
        try:
            raise error from (None if ours else exc)
        finally:
            # It holds this frame from now on, and through it the request's body. Held by the frame or
            # by us, both would wait for the collector of garbage, outside every bound.
            del error
