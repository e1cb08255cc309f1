"""A server that is ready to serve: its two applications on their sockets, until it is told to stop."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

import httpx
from fastapi import FastAPI

from proxy.admin import Readiness
from proxy.config import Settings
from proxy.errors import Refusal, ShuttingDown
from proxy.lifeline import Lifelines
from proxy.server import listeners
from proxy.server.protocol import ProtocolLimits, protocol
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import Metrics

_RETRY_AFTER_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulwark:
    """A server that is ready to serve.

    Attributes:
        public: What the internet sees.
        admin: What the operator sees.
        lifelines: The requests that are being forwarded.
        transport: The way to the upstream; whoever is done with the server closes it.
    """

    settings: Settings
    public: FastAPI
    admin: FastAPI
    lifelines: Lifelines
    readiness: Readiness
    metrics: Metrics
    log: Log
    transport: httpx.AsyncBaseTransport

    def refused_early(self, refusal: Refusal, client: str, request_id: str) -> None:
        """The server refused below ASGI: recorded like every other refusal."""
        self.metrics.refused_early(refusal)
        self.log.refused_early(refusal, client, request_id)

    async def serve(
        self,
        public_socket: socket.socket,
        admin_socket: socket.socket,
        *,
        on_ready: Callable[[], None] = lambda: None,
        stop: asyncio.Event | None = None,
        hurry: asyncio.Event | None = None,
    ) -> int:
        """Serves on these sockets until told to stop, drains, and gives the exit status.

        Args:
            public_socket: As ``bind`` makes it.
            admin_socket: As ``bind`` makes it.
            on_ready: Called when both listen.
            stop: In place of SIGTERM and SIGINT.
            hurry: In place of a second one.
        """

        def ready() -> None:
            self.log.server("listening", public=_name(public_socket), admin=_name(admin_socket))
            on_ready()

        def drain() -> None:
            self.readiness.drain()
            self.log.server("draining", in_flight=self.lifelines.in_flight)

        limits = ProtocolLimits(write_timeout_seconds=self.settings.write_timeout_seconds)
        try:
            return await listeners.serve(
                self.public,
                self.admin,
                http_protocol=protocol(limits, self.refused_early),
                public_socket=public_socket,
                admin_socket=admin_socket,
                drain_seconds=self.settings.drain_seconds,
                on_ready=ready,
                on_drain=drain,
                on_deadline=lambda: self.lifelines.end_all(_drained),
                stop=stop,
                hurry=hurry,
            )
        finally:
            await self.transport.aclose()
            self.log.server("stopped")


def bind(settings: Settings) -> tuple[socket.socket, socket.socket]:
    """The public and the admin socket, before anything else is built.

    Raises:
        ListenError: One of them cannot be had; the other is given back.
    """
    public = listeners.bind(settings.host, settings.port, "PROXY_PORT")
    try:
        return public, listeners.bind(settings.admin_host, settings.admin_port, "PROXY_ADMIN_PORT")
    except listeners.ListenError:
        public.close()
        raise


def _drained() -> ShuttingDown:
    return ShuttingDown(
        "This server is shutting down (PROXY_DRAIN_SECONDS). Try again soon.",
        retry_after_seconds=_RETRY_AFTER_SECONDS,
    )


def _name(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
