"""The connections to the upstream: which are open, and which of them wait for a request."""

import asyncio

from proxy.upstream.transport.connection import READ_BYTES, Connection

# uvicorn, which most engines run on, closes idle connections after 5 s. Two seconds less, or a
# request is sent into a connection that is just being closed.
KEEPALIVE_EXPIRY_SECONDS = 3.0


class Pool:
    """Every connection of a transport. Any number: the bound on requests is admission's business.

    They are of one loop, and so is their timer: a transport is not used from a second one.

    Attributes:
        idle: Those that wait, the last one used last, each with the time since when it does.
    """

    def __init__(self) -> None:
        # What is read into. One for all: it is filled and emptied within one callback.
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._open: set[Connection] = set()
        self.idle: dict[Connection, float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def busy(self) -> list[Connection]:
        """Those that are open and do not wait."""
        return [each for each in self._open if not each.closed and each not in self.idle]

    @property
    def closed(self) -> bool:
        """Whether there are no more connections to be."""
        return self._emptied is not None

    def make(self) -> Connection:
        """A connection of this pool, not connected yet."""
        return Connection(self, asyncio.get_running_loop(), self._scratch)

    def take(self, now: float) -> Connection | None:
        """The connection used last, if one waits that can be used again.

        The newest: those that are too many grow old and are closed.
        """
        while self.idle:
            connection, since = self.idle.popitem()
            # What its server has said meanwhile, or that it has closed, the loop may not have told
            # us yet: the one would be taken for the answer, the other cost a second try.
            if now - since < KEEPALIVE_EXPIRY_SECONDS and connection.is_quiet():
                return connection
            connection.abort()
        return None

    # What connections call

    def opened(self, connection: Connection) -> None:
        """It has a socket from now on."""
        self._open.add(connection)
        if self.closed:
            connection.abort()

    def rest(self, connection: Connection, now: float) -> None:
        """It can be used again."""
        self.idle[connection] = now
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_at(now + KEEPALIVE_EXPIRY_SECONDS, self._look)

    def lost(self, connection: Connection) -> None:
        """It is closed, or about to be."""
        self.idle.pop(connection, None)

    def gone(self, connection: Connection) -> None:
        """Its socket is closed."""
        self.lost(connection)
        self._open.discard(connection)
        if self._emptied is not None and not self._open:
            self._emptied.set()

    async def aclose(self) -> None:
        """Closes all, those that are in use too; returns when they are closed."""
        self._emptied = self._emptied or asyncio.Event()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in tuple(self._open):
            connection.abort()
        if self._open:
            await self._emptied.wait()

    def _look(self) -> None:
        """Closes what has waited too long. One timer for all."""
        self._sweep = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self.idle:
            oldest, since = next(iter(self.idle.items()))
            if now - since < KEEPALIVE_EXPIRY_SECONDS:
                self._sweep = loop.call_at(since + KEEPALIVE_EXPIRY_SECONDS, self._look)
                return
            oldest.abort()
