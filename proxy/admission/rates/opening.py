"""Connections to Redis: how they are opened, and how much is heard of what comes through them.

redis-py knows how to introduce itself and how to write. It would look names up in threads that hang
with their name server, and keep in memory whatever a server says, asked or not.
"""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import parse_url
from redis.exceptions import InvalidResponse

from proxy.admission.rates.causes import answered
from proxy.admission.rates.ledger import AnsweredError
from proxy.names import Names

MAX_ANSWER_BYTES = 4 * 1024
"""For one command. The longest that our script says has 200."""

_CONNECT_SECONDS = 0.1
"""What the addresses of a name share. Whoever asks ends it: the first connection has longer."""


class Answers(asyncio.StreamReader):
    """What a server says: answers to what was asked, short ones, and nothing else.

    Attributes:
        asked: How many answers are due. One while the connection introduces itself.
    """

    def __init__(self) -> None:
        super().__init__(limit=MAX_ANSWER_BYTES, loop=asyncio.get_running_loop())
        self.asked: Callable[[], int] = lambda: 1

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        """What has come, unless it is more than there may be: then nothing is kept any more."""
        if self.exception() is not None:
            return
        kept: bytearray = self._buffer  # type: ignore[attr-defined]
        if len(kept) + len(data) > MAX_ANSWER_BYTES * self.asked():
            kept.clear()
            self.set_exception(InvalidResponse("more than was asked for"))
        else:
            super().feed_data(data)

    async def next(self) -> bytes | AnsweredError:
        """One answer.

        Raises:
            OSError: The connection has ended; as do EOFError, ValueError and RedisError.
        """
        line = (await self.readuntil(b"\r\n"))[:-2]
        match line[:1]:
            case b"$" if line == b"$-1":
                return AnsweredError("nil")
            case b"$" if 0 <= (length := int(line[1:])) <= MAX_ANSWER_BYTES:
                return (await self.readexactly(length + 2))[:-2]
            case b"+":
                return line[1:]
            case b"-":
                code = line[1:].partition(b" ")[0].decode("latin-1")
                return AnsweredError(code, answered(code))
            case b":":
                return AnsweredError("integer")
        raise InvalidResponse("no answer that is ever asked for")


class Tcp(Connection):
    """Over TCP, to one of the name's addresses."""

    names: Names
    answers: Answers

    async def _connect(self) -> None:
        await _over_tcp(self)


class Tls(SSLConnection):
    """Over TLS, whose certificate is of the name."""

    names: Names
    answers: Answers

    async def _connect(self) -> None:
        await _over_tcp(self, ssl=self.ssl_context.get(), server_hostname=self.host)


class Local(UnixDomainSocketConnection):
    """Over a Unix socket."""

    names: Names
    answers: Answers

    async def _connect(self) -> None:
        answers, make = _ends()
        made = await asyncio.get_running_loop().create_unix_connection(make, self.path)
        _keep(self, answers, *made)


Opening = Tcp | Tls | Local

_KINDS: dict[type[Any], type[Opening]] = {
    Connection: Tcp,
    SSLConnection: Tls,
    UnixDomainSocketConnection: Local,
}


def connector(url: str, names: Names | None = None) -> Callable[[], Opening]:
    """Makes connections to this URL: ``redis://``, ``rediss://`` or ``unix://``.

    Args:
        url: With the password in it.
        names: Who knows the addresses of names; None asks the system.

    Raises:
        ValueError: It is no such URL, or has parameters, one of which says that TLS may believe
            anybody. The message does not quote it.
    """
    if parse_qs(urlsplit(url).query).keys() - {"db"}:
        raise ValueError("a URL of Redis may have no parameter but db")
    options: dict[str, Any] = {**parse_url(url)}
    kind = _KINDS[options.pop("connection_class", Connection)]
    # RESP2, for answers and nothing else: with RESP3 a server may tell its clients to go elsewhere.
    options |= {"protocol": 2, "driver_info": None}
    # None of its own, for they are those of a single read or write.
    options |= {"socket_timeout": None, "socket_connect_timeout": None}
    known = names or Names()

    def connect() -> Opening:
        made = kind(**options)
        made.names = known
        return made

    return connect


async def _over_tcp(connection: Tcp | Tls, **tls: Any) -> None:
    loop = asyncio.get_running_loop()

    async def connect(address: str) -> None:
        answers, make = _ends()
        made = await loop.create_connection(make, address, connection.port, **tls)
        _keep(connection, answers, *made)

    await connection.names.reach(connection.host, connect, _CONNECT_SECONDS)


def _ends() -> tuple[Answers, Callable[[], asyncio.StreamReaderProtocol]]:
    answers = Answers()
    return answers, lambda: asyncio.StreamReaderProtocol(answers)


def _keep(
    connection: Opening,
    answers: Answers,
    transport: asyncio.WriteTransport,
    protocol: asyncio.StreamReaderProtocol,
) -> None:
    loop = asyncio.get_running_loop()
    connection.answers = connection._reader = answers  # noqa: SLF001 - as redis-py's own does
    connection._writer = asyncio.StreamWriter(transport, protocol, answers, loop)  # noqa: SLF001
