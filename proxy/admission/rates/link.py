"""The one connection to Redis: whoever asks, asks at once, and has an answer or a reason in time.

redis-py's client takes a connection out of a pool for each command, waits for its answer, and is
lost in between if whoever asked is called off. Here all share one connection, and answers come in
the order of the commands: nobody waits for a connection, a burst is one packet, and a server that
says nothing costs everybody the same tenth of a second.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from redis.exceptions import InvalidResponse

from proxy.admission.rates.causes import BROKEN, told
from proxy.admission.rates.ledger import LinkError
from proxy.admission.rates.opening import Opening

BUDGET_SECONDS = 0.1

# Turns of the loop in which an answer that has arrived is read and handed over.
_GRACE_TURNS = 4

Command = tuple[str | bytes, ...]


class Link:
    """Asks Redis, over one connection that is made when it is needed.

    Args:
        connect: Makes a connection, as ``connector`` does.
        budget_seconds: How long a command may take, connecting included.
    """

    def __init__(
        self, connect: Callable[[], Opening], budget_seconds: float = BUDGET_SECONDS
    ) -> None:
        self._connect = connect
        self._budget_seconds = budget_seconds
        self._session: _Session | None = None

    def due(self, seconds: float | None = None) -> float:
        """When a command that is asked now must have its answer, on the loop's clock.

        Args:
            seconds: How long it may take, in place of the budget.
        """
        budget = self._budget_seconds if seconds is None else seconds
        return asyncio.get_running_loop().time() + budget

    async def ask(self, *command: str | bytes, due: float | None = None) -> bytes:
        """The answer to a command.

        Called off, it leaves the command on its way, and the connection in order.

        Args:
            command: Its words.
            due: In place of ``due()``: of something that takes more than one command.

        Raises:
            LinkError: There is none in time, or it is an error.
        """
        if self._session is None or self._session.ended:
            self._session = _Session(self._connect())
        return await self._session.ask(command, self.due() if due is None else due)

    async def aclose(self) -> None:
        """Ends the connection. Whoever waits is told so."""
        if self._session is not None:
            await self._session.aclose()


class _Session:
    """One connection, from its making to its end. Its first failure is its end."""

    def __init__(self, connection: Opening) -> None:
        self._connection = connection
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._unsent: list[Command] = []
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.Task[None] | None = None
        self._reader = asyncio.create_task(self._read())

    async def ask(self, command: Command, due: float) -> bytes:
        answer: asyncio.Future[bytes] = self._loop.create_future()
        timer = self._loop.call_at(due, self._late, answer, _GRACE_TURNS)
        # Both at once, so that the order of the answers is that of the commands.
        self._waiting.append(answer)
        self._unsent.append(command)
        self._write_soon()
        try:
            return await answer
        finally:
            timer.cancel()

    async def aclose(self) -> None:
        self._end("this proxy is ending")
        await asyncio.wait([self._reader])

    def _write_soon(self) -> None:
        # In a task of its own: whoever asks may be called off, and half a command is the end.
        if self._writer is None and self._connection.is_connected:
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._unsent:
                commands, self._unsent = self._unsent, []
                packed = self._connection.pack_commands(commands)
                await self._connection.send_packed_command(packed, check_health=False)
        except BROKEN as exc:
            self._end(told(exc))
        finally:
            self._writer = None

    async def _read(self) -> None:
        try:
            await self._connection.connect()  # type: ignore[no-untyped-call]
            self._connection.answers.asked = lambda: len(self._waiting)
            self._write_soon()
            while True:
                await self._next()
        except BROKEN as exc:
            self._end(told(exc))
        finally:
            with contextlib.suppress(*BROKEN):
                await self._connection.disconnect(nowait=True)

    async def _next(self) -> None:
        """One answer, to whoever is next."""
        said = await self._connection.answers.next()
        if not self._waiting:
            raise InvalidResponse("an answer that nobody asked for")
        answer = self._waiting.popleft()
        if answer.done():
            pass  # called off
        elif isinstance(said, bytes):
            answer.set_result(said)
        else:
            answer.set_exception(said)

    def _late(self, answer: asyncio.Future[bytes], turns: int) -> None:
        """The budget of a command is spent, and with it that of the connection.

        Unless it was this loop that was held up: what has arrived meanwhile is read first.
        """
        if answer.done():
            return
        if turns:
            self._loop.call_soon(self._late, answer, turns - 1)
        else:
            self._end("it did not answer in time")

    def _end(self, reason: str) -> None:
        if not self.ended:
            self.ended = True
            for answer in self._waiting:
                if not answer.done():
                    answer.set_exception(LinkError(reason))
            if asyncio.current_task() is not self._reader:
                self._reader.cancel()
