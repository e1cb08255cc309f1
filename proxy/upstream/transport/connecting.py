"""Opens sockets to the upstream: TCP by name, TLS over it, or a Unix socket."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

import httpx

from proxy.names import Names
from proxy.patience import fail_after
from proxy.upstream.target import Target
from proxy.upstream.transport.connection import Connection
from proxy.upstream.transport.pool import Pool


class Connector:
    """Opens connections to one target.

    Args:
        target: Where they go.
        names: Who knows the addresses of names.
    """

    def __init__(self, target: Target, names: Names) -> None:
        self._target = target
        self._names = names
        # The system's authorities, so that an operator can add a private one. No variable that was
        # meant for others (SSLKEYLOGFILE apart, which is the operator's own) redirects us.
        self._tls = ssl.create_default_context() if target.scheme == "https" else None

    async def open(self, pool: Pool, seconds: float | None) -> Connection:
        """A new connection, ready for a request; it is closed if this does not return it.

        Args:
            pool: Whose it is to be.
            seconds: How long the whole of it may take; None for ever.

        Raises:
            httpx.ConnectTimeout: It took longer.
            httpx.ConnectError: It cannot be opened; the cause says why.
        """
        made: list[Connection] = []

        def remembered() -> Connection:
            made.append(pool.make())
            return made[-1]

        try:
            with fail_after(seconds):
                opened = await self._opened(remembered, seconds)
        except BaseException as exc:
            # Called off at the wrong moment, neither the loop nor whoever asked has it.
            _drop(made, pool)
            if isinstance(exc, TimeoutError):
                raise httpx.ConnectTimeout("no connection in time") from exc
            if isinstance(exc, OSError):  # an ssl.SSLError is one
                raise httpx.ConnectError(str(exc)) from exc
            raise
        made.remove(opened)
        _drop(made, pool)
        if opened.closed:
            raise httpx.ConnectError("closed while it was opened") from opened.cause
        return opened

    async def _opened(self, make: Callable[[], Connection], seconds: float | None) -> Connection:
        loop, target = asyncio.get_running_loop(), self._target
        if target.uds is not None:
            return (await loop.create_unix_connection(make, target.uds))[1]

        async def connect(address: str) -> Connection:
            # The loop's transports have TCP_NODELAY.
            return (await loop.create_connection(make, address, target.port))[1]

        connection = await self._names.reach(target.host, connect, seconds)
        if self._tls is not None:
            # Not within reach: an address that answers is not one that says nothing.
            encrypted = await loop.start_tls(
                connection.transport, connection, self._tls, server_hostname=target.host
            )
            connection.encrypted(cast("asyncio.Transport", encrypted))
        return connection


def _drop(made: list[Connection], pool: Pool) -> None:
    for connection in made:
        connection.abort()
        # Of one that was being encrypted, the loop tells nobody that it is over.
        pool.gone(connection)
