"""How the upstream is asked: httpx's own transport, set up for long answers.

Its defaults are all wrong here: time-outs of 5 s, 100 connections, environment proxies, an idle
expiry at which servers close too. Everything above knows ``httpx.AsyncBaseTransport`` only, so that
another transport can stand in its place.
"""

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from proxy.upstream.target import Target

# uvicorn, which most engines run on, closes idle connections after 5 s. Two seconds less, or a
# request is sent into a connection that is just being closed.
KEEPALIVE_EXPIRY_SECONDS = 3.0

_SocketOptions = Iterable[httpcore.SOCKET_OPTION] | None


def build(target: Target) -> httpx.AsyncBaseTransport:
    """A transport to the target. The request's ``timeout`` extension bounds connecting."""
    return _Transport(target)


class _Transport(httpx.AsyncHTTPTransport):
    """A pool without a bound (admission has one), and one retry where nothing can have happened."""

    def __init__(self, target: Target) -> None:
        tls = _tls(target)
        # trust_env: a proxy or certificate variable meant for others must not redirect us.
        super().__init__(verify=tls, trust_env=False)
        self._pool = _Pool(target, tls)
        # A pool that keeps nothing gives new connections only.
        self._fresh = httpx.AsyncHTTPTransport(
            verify=tls,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            uds=target.uds,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except httpx.TransportError as exc:
            if not isinstance(exc.__cause__, _ClosedWhileIdle):
                raise
        return await self._fresh.handle_async_request(request)

    async def aclose(self) -> None:
        await self._fresh.aclose()
        await super().aclose()


def _tls(target: Target) -> ssl.SSLContext:
    if target.scheme == "https":
        # The system's authorities, so that an operator can add a private one.
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used, and quickly made


class _ClosedWhileIdle(httpcore.RemoteProtocolError):
    """A reused connection ended before one byte of the answer: the request was not looked at."""


class _Pool(httpcore.AsyncConnectionPool):
    """A pool whose connections can tell a stale one from one that broke."""

    def __init__(self, target: Target, tls: ssl.SSLContext) -> None:
        super().__init__(
            ssl_context=tls,
            max_connections=None,
            max_keepalive_connections=None,
            keepalive_expiry=KEEPALIVE_EXPIRY_SECONDS,
            uds=target.uds,
        )
        self._tls = tls
        self._uds_path = target.uds

    def create_connection(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        return _Connection(origin, self._tls, self._uds_path)


class _Connection(httpcore.AsyncHTTPConnection):
    def __init__(self, origin: httpcore.Origin, tls: ssl.SSLContext, uds: str | None) -> None:
        self._ear = _Ear()
        super().__init__(
            origin,
            ssl_context=tls,
            keepalive_expiry=KEEPALIVE_EXPIRY_SECONDS,
            uds=uds,
            network_backend=self._ear,
        )

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        heard_before = self._ear.heard_bytes
        try:
            return await super().handle_async_request(request)
        except (httpcore.NetworkError, httpcore.RemoteProtocolError) as exc:
            # A new connection has heard nothing before; one that heard a part of a head, or an
            # interim response, was working on the request.
            if heard_before == 0 or self._ear.heard_bytes != heard_before:
                raise
            raise _ClosedWhileIdle(str(exc)) from exc


class _Ear(httpcore.AsyncNetworkBackend):
    """The usual network, and how many bytes one connection has heard from the other side."""

    def __init__(self) -> None:
        self._network = httpcore.AnyIOBackend()
        self.heard_bytes = 0

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: _SocketOptions = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        return _HeardStream(stream, self)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        socket_options: _SocketOptions = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._network.connect_unix_socket(path, timeout, socket_options)
        return _HeardStream(stream, self)

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class _HeardStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, ear: _Ear) -> None:
        self._stream = stream
        self._ear = ear

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        data = await self._stream.read(max_bytes, timeout)
        self._ear.heard_bytes += len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return _HeardStream(stream, self._ear)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
