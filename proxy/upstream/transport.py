"""How the upstream is asked: httpx's own transport, set up for long answers.

Its defaults are all wrong here: time-outs of 5 s, 100 connections, environment proxies, an idle
expiry at which servers close too. Everything above knows ``httpx.AsyncBaseTransport`` only, so that
another transport can stand in its place.
"""

import asyncio
import ssl

import httpcore
import httpx

from proxy.names import Names
from proxy.upstream.network import READ_BYTES, Network
from proxy.upstream.target import Target

# uvicorn, which most engines run on, closes idle connections after 5 s. Two seconds less, or a
# request is sent into a connection that is just being closed.
KEEPALIVE_EXPIRY_SECONDS = 3.0


MAX_HEAD_BYTES = "bulwark.max_head_bytes"
"""The extension of a request that bounds what is read until its answer begins, interim answers and
all; without it, only the length of each head is bounded."""


def build(target: Target, names: Names | None = None) -> httpx.AsyncBaseTransport:
    """A transport to the target. The request's ``timeout`` extension bounds connecting.

    Args:
        target: Where it goes.
        names: Who knows the addresses of names; None asks the system.
    """
    return _Transport(target, names or Names())


class _Transport(httpx.AsyncBaseTransport):
    """Reuses connections, and asks once more on a new one where a reused one was stale."""

    def __init__(self, target: Target, names: Names) -> None:
        tls = _tls(target)
        self._reusing = _Pooled(target, tls, names, max_idle=None)
        self._fresh = _Pooled(target, tls, names, max_idle=0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._reusing.handle_async_request(request)
        except httpx.TransportError as exc:
            if not isinstance(exc.__cause__, _StaleConnection):
                raise
        return await self._fresh.handle_async_request(request)

    async def aclose(self) -> None:
        await self._reusing.aclose()
        await self._fresh.aclose()


def _tls(target: Target) -> ssl.SSLContext:
    if target.scheme == "https":
        # The system's authorities, so that an operator can add a private one.
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used, and quickly made


class _Pooled(httpx.AsyncHTTPTransport):
    """httpx's transport over our sockets, which is the one thing that it has no parameter for."""

    def __init__(
        self, target: Target, tls: ssl.SSLContext, names: Names, max_idle: int | None
    ) -> None:
        # trust_env: a proxy or certificate variable meant for others must not redirect us.
        super().__init__(verify=tls, trust_env=False)
        self._pool = _Pool(target, tls, names, max_idle)


class _Pool(httpcore.AsyncConnectionPool):
    """Any number of connections: the bound on requests is admission's business."""

    def __init__(
        self, target: Target, tls: ssl.SSLContext, names: Names, max_idle: int | None
    ) -> None:
        super().__init__(max_connections=None, max_keepalive_connections=max_idle)
        self._target = target
        self._tls = tls
        self._names = names
        self._scratch = bytearray(READ_BYTES)

    def create_connection(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        network = Network(self._scratch, self._names)
        return _Connection(origin, self._target, self._tls, network)


class _StaleConnection(httpcore.RemoteProtocolError):
    """A reused connection ended before one byte of the answer: the request was not looked at."""


class _Connection(httpcore.AsyncHTTPConnection):
    def __init__(
        self, origin: httpcore.Origin, target: Target, tls: ssl.SSLContext, network: Network
    ) -> None:
        super().__init__(
            origin,
            ssl_context=tls,
            keepalive_expiry=KEEPALIVE_EXPIRY_SECONDS,
            uds=target.uds,
            network_backend=network,
        )
        self._network = network

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        heard_before = self._network.heard_bytes
        is_new = heard_before == 0
        # Of one connection: what comes next on it is another request's.
        self._network.head_bytes_left = request.extensions.get(MAX_HEAD_BYTES)
        try:
            return await super().handle_async_request(request)
        except asyncio.CancelledError:
            # Cancelled between connecting and sending, httpcore 1.0.9 loses sight of a connection:
            # neither idle nor closed, its socket would stay open for ever. (A connection that is
            # not new may be in use by another request by now.)
            if is_new and not self.is_idle():
                await self.aclose()
            raise
        except (httpcore.NetworkError, httpcore.RemoteProtocolError) as exc:
            # One that heard a part of a head, or an interim response, was looking at the request:
            # to ask again could do it twice.
            if is_new or self._network.heard_bytes != heard_before:
                raise
            raise _StaleConnection(str(exc)) from exc
        finally:
            self._network.head_bytes_left = None
