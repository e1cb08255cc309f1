"""The adapter: httpx's requests in, httpx's responses out."""

import asyncio
from math import inf

import httpx

from proxy.pipe import PIPE
from proxy.upstream.request import FIELDS
from proxy.upstream.transport.answering import Answer, fields_of
from proxy.upstream.transport.connecting import Connector
from proxy.upstream.transport.connection import Connection
from proxy.upstream.transport.deadlines import LastLimits
from proxy.upstream.transport.exchange import Exchange
from proxy.upstream.transport.pool import Pool
from proxy.upstream.transport.request import Question, RawFields, question, whole
from proxy.upstream.wire import Head


class Transport(httpx.AsyncBaseTransport):
    """Reuses connections, and asks once more on a new one where a reused one was stale.

    Attributes:
        keeps_time: It keeps the deadlines ``first_byte``, ``idle`` and ``total`` of the ``timeout``
            extension itself.
    """

    keeps_time = True

    def __init__(self, pool: Pool, connector: Connector) -> None:
        self.pool = pool
        self._connector = connector
        self._limits = LastLimits()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Returns when the head of the answer is there.

        Raises:
            httpx.TransportError: There is none, and the connection is closed.
        """
        stream, extensions = request.stream, request.extensions
        if isinstance(stream, httpx.ByteStream):
            fields: RawFields | None = extensions.get(FIELDS)
            if fields is None:
                fields = request.headers.raw
            body = b"".join(stream)
        else:
            fields, body = await whole(request)
        limits = self._limits.of(extensions.get("timeout", {}))
        asked = question(request, fields, body, limits)
        loop = asyncio.get_running_loop()
        now = loop.time()
        exchange = Exchange(loop, asked, now)
        line = self.pool.take(now)
        if line is not None:
            try:
                return _response(exchange, await exchange.ask(line))
            except httpx.TransportError:
                # Once, and on a new one: the others may have been closed with it.
                if not exchange.stale:
                    raise
        line = await self._open(asked, now)
        return _response(exchange, await exchange.ask(line))

    async def aclose(self) -> None:
        """Closes every connection, those that are in use too."""
        await self.pool.aclose()

    async def _open(self, asked: Question, started: float) -> Connection:
        limits = asked.limits
        left = started + limits.total - asyncio.get_running_loop().time()
        seconds = min(limits.connect, left)
        try:
            return await self._connector.open(self.pool, None if seconds == inf else seconds)
        except httpx.ConnectTimeout as exc:
            if left < limits.connect:
                raise httpx.ReadTimeout("no answer in time") from exc
            raise


def _response(exchange: Exchange, head: Head) -> httpx.Response:
    return Answer(
        head.status,
        headers=fields_of(head.fields),
        stream=exchange,
        extensions={PIPE: exchange.pipe},
    )
