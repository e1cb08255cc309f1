"""A server that is ready to serve: its two applications on their sockets, until it is told to stop."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from fastapi import FastAPI

from proxy.admin import Readiness
from proxy.app import places
from proxy.app.attending import Attendant, Attending
from proxy.config import Settings
from proxy.cors import Cors
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
        cors: Which pages may read what the public listener answers.
        attendants: What runs beside the requests, each until it is cancelled.
        remarks: Each tells the operator what is of note about all this; called once it listens.
        reload: Looks at the key file now; called at SIGHUP.
        closing: What has connections, to be closed at the end.
    """

    settings: Settings
    public: FastAPI
    admin: FastAPI
    lifelines: Lifelines
    readiness: Readiness
    cors: Cors
    metrics: Metrics
    log: Log
    attendants: Sequence[Attendant]
    remarks: Sequence[Callable[[], None]]
    reload: Callable[[], None]
    closing: Sequence[Callable[[], Awaitable[None]]]

    def refused_early(self, refusal: Refusal, client: str, request_id: str) -> None:
        """The server refused below ASGI: recorded like every other refusal."""
        self.metrics.requests.refused_early(refusal)
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
        beside = Attending(self.attendants, self.log)

        def ready() -> None:
            self.log.server("listening", public=_name(public_socket), admin=_name(admin_socket))
            for remark in self.remarks:
                remark()
            beside.begin()
            on_ready()

        def drain() -> None:
            self.readiness.drain()
            self.log.server("draining", in_flight=self.lifelines.in_flight)

        # In place of the default, which would end the process.
        hangup = contextlib.nullcontext() if stop is not None else _at_hangup(self.reload)
        limits = ProtocolLimits(write_timeout_seconds=self.settings.write_timeout_seconds)
        public_places = places.of_clients(self.settings, self.log, self.metrics.connections)
        try:
            with hangup:
                return await listeners.serve(
                    self.public,
                    self.admin,
                    http_protocol=protocol(
                        limits, self.refused_early, public_places, refusal_fields=self.cors.fields
                    ),
                    admin_protocol=protocol(limits, self.refused_early, places.of_operators()),
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
            await beside.end()
            for close in self.closing:
                await close()
            self.log.server("stopped")
            self.log.close()


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


@contextlib.contextmanager
def _at_hangup(reload: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        # What comes now is too late to matter, and must not kill a server that is at its end.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _drained() -> ShuttingDown:
    return ShuttingDown(
        "This server is shutting down (PROXY_DRAIN_SECONDS). Try again soon.",
        retry_after_seconds=_RETRY_AFTER_SECONDS,
    )


def _name(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
