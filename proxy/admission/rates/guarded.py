"""Redis as long as it answers, and what becomes of the rest while it does not.

A server that is gone, frozen or slow costs the requests that are just then asking a tenth of a
second. From then on nobody asks it, until one task of ours has seen that it answers again.
"""

import asyncio
import secrets
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable
from itertools import count
from typing import Any, Protocol

from proxy.admission.rates.ledger import (
    LEASE_SECONDS,
    AnsweredError,
    Ask,
    Charge,
    Decision,
    LinkError,
    charged,
)

RETRY_SECONDS = 5.0
"""How long Redis is left alone once it has failed."""

RENEW_SECONDS = LEASE_SECONDS / 3

FIRST_SECONDS = 3.0
"""How long the first connection may take. Nobody waits for it longer than for any other answer."""

_FIRST_WAIT_SECONDS = 0.1

_MAX_OWED = 1_000
_MAX_AT_ONCE = 100


class Books(Protocol):
    """What is guarded: ``proxy.admission.rates.shared.SharedBooks``. All of it may raise LinkError."""

    async def take(self, account: str, ask: Ask, lease: str) -> Decision:
        """Charges all or nothing."""
        ...

    async def settle(self, charge: Charge, used: int) -> None:
        """Corrects a charge."""
        ...

    async def renew(self, account: str, leases: Iterable[str]) -> None:
        """Has them last from now."""
        ...

    async def probe(self, seconds: float | None = None) -> None:
        """Returns if the books would do what they are asked, within so long."""
        ...

    async def aclose(self) -> None:
        """Ends the connection."""
        ...


class GuardedBooks:
    """Books in Redis that never raise and never make anybody wait for long.

    Args:
        books: Those in Redis.
        on_change: Told when Redis goes and when it is back: whether it answers, and of its going
            why, fit for the log.
        on_failure: Told each time that it did not answer.
        retry_seconds: How long it is left alone once it has failed.
        renew_seconds: How often the leases of running requests are renewed.

    Attributes:
        up: Whether Redis answers, as far as is known; who does not know yet asks.
        has_answered: Whether it ever did.
        failures: How often it did not.
    """

    def __init__(
        self,
        books: Books,
        *,
        on_change: Callable[[bool, str], None] = lambda _up, _why: None,
        on_failure: Callable[[], None] = lambda: None,
        retry_seconds: float = RETRY_SECONDS,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        self._books = books
        self._on_change = on_change
        self._on_failure = on_failure
        self._retry_seconds = retry_seconds
        self._renew_seconds = renew_seconds
        self.up = True
        self.has_answered = False
        self.failures = 0
        self._gone = asyncio.Event()
        # Only while `run` connects for the first time.
        self._first: asyncio.Event | None = None
        self._first_until = 0.0
        self._probing: asyncio.Task[None] | None = None
        self._process = secrets.token_hex(6)
        self._numbers = count()
        self._running: dict[str, str] = {}
        # Of what Redis has charged and could not be told since; the oldest is forgotten first.
        self._owed: deque[tuple[Charge, int]] = deque(maxlen=_MAX_OWED)
        self._tasks: set[asyncio.Task[Any]] = set()

    def lease(self) -> str:
        """A name for one request that no other has, of whichever proxy."""
        return f"{self._process}-{next(self._numbers)}"

    async def take(self, account: str, ask: Ask, lease: str = "") -> Decision | None:
        """What Redis says; None if it says nothing.

        Whoever is called off meanwhile has asked for nothing: what Redis grants later is given back.
        """
        if not self.up or not await self._is_connected():
            return None
        asking = self._start(self._take(account, ask, lease))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda done: self._undo(account, ask, lease, done))
            raise

    def hold(self, account: str, lease: str) -> None:
        """A request runs, whoever has granted it: its lease is kept up from now on."""
        self._running[lease] = account

    def settle(self, charge: Charge, used: int) -> None:
        """Has Redis settle what it has charged, without waiting for it."""
        if self.up:
            self._start(self._settle(charge, used))
        else:
            self._owed.append((charge, used))

    def let_go(self, lease: str) -> None:
        """A request runs no longer."""
        self._running.pop(lease, None)

    async def run(self) -> None:
        """Connects, renews leases, and looks for Redis when it is gone, until cancelled."""
        await self._connect()
        while True:
            if self.up:
                await self._while_up()
            else:
                await asyncio.sleep(self._retry_seconds)
                await self._look()

    async def flush(self) -> None:
        """Returns when nothing is on its way to Redis."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        """Settles what is still to be settled, for as long as one command may take, and ends."""
        await self.flush()
        await self._books.aclose()

    async def _connect(self) -> None:
        """The first connection of a process that is just starting takes longer than any later."""
        self._first = asyncio.Event()
        self._first_until = asyncio.get_running_loop().time() + _FIRST_WAIT_SECONDS
        try:
            await self._look(FIRST_SECONDS)
        finally:
            self._first.set()
            self._first = None
        if self.up:
            await self._renew()

    async def _is_connected(self) -> bool:
        """Whether the first connection is there, or anyhow in question no more."""
        if self._first is None:
            return True
        first, now = self._first, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, self._first_until - now)):
                await first.wait()
        except TimeoutError:
            return False
        return self.up

    async def _take(self, account: str, ask: Ask, lease: str) -> Decision | None:
        try:
            decision = await self._books.take(account, ask, lease)
        except LinkError as exc:
            self._failed(exc)
            return None
        self.has_answered = True
        return decision

    async def _settle(self, charge: Charge, used: int) -> None:
        try:
            await self._books.settle(charge, used)
        except LinkError as exc:
            # Perhaps it was done: twice would be worse than never.
            self._failed(exc)

    def _undo(
        self, account: str, ask: Ask, lease: str, done: "asyncio.Task[Decision | None]"
    ) -> None:
        decision = None if done.cancelled() else done.result()
        if decision is not None and decision.refused_by is None:
            self.settle(charged(account, ask, decision, lease), 0)

    async def _while_up(self) -> None:
        try:
            async with asyncio.timeout(self._renew_seconds):
                await self._gone.wait()
        except TimeoutError:
            await self._renew()

    async def _look(self, seconds: float | None = None) -> None:
        """Asks Redis whether it would answer, and if it is back tells it what it has missed."""
        try:
            await self._books.probe(seconds)
        except LinkError as exc:
            self._fail(exc)
            return
        self.has_answered = True
        if self.up:
            return
        self.up = True
        self._gone.clear()
        self._on_change(True, "")
        owed, self._owed = list(self._owed), deque(maxlen=_MAX_OWED)
        for charge, used in owed:
            self.settle(charge, used)
        await self._renew()

    async def _renew(self) -> None:
        before = dict(self._running)
        accounts = defaultdict(list)
        for lease, account in before.items():
            accounts[account].append(lease)
        turns = [(name, leases) for name, leases in accounts.items()]
        for first in range(0, len(turns), _MAX_AT_ONCE):
            some = turns[first : first + _MAX_AT_ONCE]
            try:
                await asyncio.gather(*(self._books.renew(*turn) for turn in some))
            except LinkError as exc:
                self._failed(exc)
                return
        for lease in before.keys() - self._running.keys():
            # It ended while it was renewed, and may have been renewed after its end.
            self.settle(Charge(before[lease], (), 0, [], lease), 0)

    def _failed(self, exc: LinkError) -> None:
        """A command has failed; whether all others would is for a probe to say, or certain."""
        if not (isinstance(exc, AnsweredError) and exc.is_of_one):
            self._fail(exc)
            return
        self.failures += 1
        self._on_failure()
        if self.up and (self._probing is None or self._probing.done()):
            self._probing = self._start(self._look())

    def _fail(self, exc: LinkError) -> None:
        self.failures += 1
        self._on_failure()
        if self.up:
            self.up = False
            self._gone.set()
            self._on_change(False, str(exc))

    def _start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
