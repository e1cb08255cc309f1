"""The one connection to Redis: whoever asks, asks at once, and has an answer or a reason in time.

redis-py's client takes a connection out of a pool for each command, waits for its answer, and is
lost in between if whoever asked is called off. Here all share one connection, and answers come in
the order of the commands: nobody waits for a connection, a burst is one packet, and a server that
says nothing costs everybody the same tenth of a second. redis-py knows how to connect, to write and
to read.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import Connection
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from proxy.admission.rates.ledger import LinkError

BUDGET_SECONDS = 0.1

# Turns of the loop in which an answer that has arrived is read and handed over.
_GRACE_TURNS = 4

# What comes of a broken connection, or of a server that does not speak as it should.
_BROKEN = (RedisError, OSError, EOFError, ValueError)

Command = tuple[str | bytes, ...]


class AnsweredError(LinkError):
    """An answer, which is an error.

    Attributes:
        code: Its first word, such as ``NOSCRIPT``.
    """

    def __init__(self, code: str) -> None:
        super().__init__(f"it answered {code}")
        self.code = code


def connector(url: str) -> Callable[[], AbstractConnection]:
    """Makes connections to this URL: ``redis://``, ``rediss://`` or ``unix://``.

    Raises:
        ValueError: It is no such URL, or has parameters, one of which says that TLS may believe
            anybody. The message does not quote it.
    """
    if parse_qs(urlsplit(url).query).keys() - {"db"}:
        raise ValueError("a URL of Redis may have no parameter but db")
    options: dict[str, Any] = {**parse_url(url)}
    kind = options.pop("connection_class", Connection)
    # RESP2, for answers and nothing else: with RESP3 a server may tell its clients to go elsewhere.
    options |= {"protocol": 2, "driver_info": None}
    # None of its own, for they are those of a single read or write.
    options |= {"socket_timeout": None, "socket_connect_timeout": None}

    def connect() -> AbstractConnection:
        made: AbstractConnection = kind(**options)
        return made

    return connect


class Link:
    """Asks Redis, over one connection that is made when it is needed.

    Args:
        connect: Makes a connection, as ``connector`` does.
        budget_seconds: How long a command may take, connecting included.
    """

    def __init__(
        self, connect: Callable[[], AbstractConnection], budget_seconds: float = BUDGET_SECONDS
    ) -> None:
        self._connect = connect
        self._budget_seconds = budget_seconds
        self._session: _Session | None = None

    def due(self) -> float:
        """When a command that is asked now must have its answer, on the loop's clock."""
        return asyncio.get_running_loop().time() + self._budget_seconds

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

    def __init__(self, connection: AbstractConnection) -> None:
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
        except _BROKEN as exc:
            self._end(_told(exc))
        finally:
            self._writer = None

    async def _read(self) -> None:
        try:
            await self._connection.connect()  # type: ignore[no-untyped-call]
            self._write_soon()
            while True:
                await self._next()
        except _BROKEN as exc:
            self._end(_told(exc))
        finally:
            with contextlib.suppress(*_BROKEN):
                await self._connection.disconnect(nowait=True)

    async def _next(self) -> None:
        """One answer, to whoever is next."""
        try:
            told: Any = await self._connection.read_response()
        except ResponseError as exc:
            told = AnsweredError(exc.status_code or str(exc).partition(" ")[0])
        if not self._waiting:
            raise InvalidResponse("an answer that nobody asked for")
        answer = self._waiting.popleft()
        if answer.done():
            pass  # called off
        elif isinstance(told, bytes):
            answer.set_result(told)
        elif isinstance(told, AnsweredError):
            answer.set_exception(told)
        else:
            answer.set_exception(AnsweredError(type(told).__name__))

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


def _told(exc: BaseException) -> str:
    """What went wrong, by the names of classes: a message could quote an address."""
    names = []
    error: BaseException | None = exc
    while error is not None:
        names.append(type(error).__name__)
        error = error.__cause__ or error.__context__
    if isinstance(exc, RedisError) and exc.status_code:
        names.insert(0, exc.status_code)
    return " of ".join(dict.fromkeys(names))
