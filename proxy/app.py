"""The composition root: from settings to everything that serves, put together in this one place.

Nothing else builds anything. To see what a request passes, and in which order, read ``_chain``.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO

import httpx
import uvloop
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, disable_created_metrics
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import __version__, admin
from proxy.admin import Readiness
from proxy.admission.buffers import BufferBudget
from proxy.admission.slots import Slots
from proxy.auth import Authenticator, keyfile
from proxy.auth.keys import KeyRecord, KeyStore, environment_records
from proxy.config import ConfigError, Settings
from proxy.endpoints import EndpointTable
from proxy.errors import Refusal, ShuttingDown
from proxy.forward import Forward, Timeouts, Upstream
from proxy.lifeline import Lifelines
from proxy.middleware.access import AccessLayer
from proxy.middleware.auth import AuthLayer
from proxy.middleware.endpoint import HEALTHZ, EndpointLayer
from proxy.middleware.errors import ErrorLayer
from proxy.policy import Limits, Policy
from proxy.server import listeners
from proxy.server.protocol import ProtocolLimits, protocol
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import Gauges, Metrics
from proxy.upstream import target as targets
from proxy.upstream import transport as transports
from proxy.upstream.probe import Probe

_POLICY_VIOLATION = 1008  # RFC 6455 §7.4.1
_RETRY_AFTER_SECONDS = 5
_CORS_EXPOSED = ("X-Request-Id", "X-Bulwark-Clamped", "Retry-After")


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clocks:
    """What time it is; tests bring their own.

    Attributes:
        monotonic: Seconds, for durations.
        now: The wall clock in UTC, for log lines and the expiry of keys.
    """

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now


def key_store(settings: Settings, now: Callable[[], datetime] = utc_now) -> KeyStore:
    """The keys of the environment and of the key file.

    Raises:
        ConfigError: The file is not used, or there is no key at all and nobody said that none is
            needed.
    """
    records: list[KeyRecord] = []
    if settings.keys_file is not None:
        try:
            records = keyfile.read(settings.keys_file)
        except keyfile.KeyFileError as exc:
            problems = [f"PROXY_KEYS_FILE: {error}" for error in exc.errors]
            raise ConfigError(problems) from exc
    store = KeyStore(
        environment_records(key.get_secret_value() for key in settings.api_keys),
        records,
        allow_anonymous=settings.allow_anonymous,
        now=now,
    )
    if not len(store) and not settings.allow_anonymous:
        raise ConfigError(["PROXY_KEYS_FILE: holds no key, and PROXY_API_KEYS none either"])
    return store


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

    def refused_early(self, refusal: Refusal, client: str) -> None:
        """The server refused below ASGI: recorded like every other refusal."""
        self.metrics.refused_early(refusal)
        self.log.refused_early(refusal, client)

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


def build(
    settings: Settings,
    authenticator: Authenticator,
    *,
    registry: CollectorRegistry,
    log_stream: BinaryIO,
    clocks: Clocks = Clocks(),
    transport: httpx.AsyncBaseTransport | None = None,
) -> Bulwark:
    """Puts a server together.

    Args:
        settings: What the operator decided.
        authenticator: Who decides who asks; ``key_store`` makes the usual one.
        registry: Where the metrics live.
        log_stream: Where the log goes.
        clocks: What time it is.
        transport: The way to the upstream; None takes httpx's own.
    """
    target = targets.parse(settings.upstream_url)
    transport = transport or transports.build(target)
    slots = Slots(
        max_inflight=settings.max_inflight,
        queue_size=settings.queue_size,
        queue_timeout_seconds=settings.queue_timeout_seconds,
        clock=clocks.monotonic,
    )
    parts = _Parts(
        settings=settings,
        clocks=clocks,
        log=Log(log_stream, form=settings.log_format, level=settings.log_level, now=clocks.now),
        metrics=Metrics(registry, version=__version__),
        slots=slots,
        buffers=BufferBudget(settings.max_buffered_bytes),
        lifelines=Lifelines(),
        upstream=Upstream(transport=transport, target=target, api_key=_upstream_key(settings)),
        readiness=Readiness(Probe(transport, target), clock=clocks.monotonic),
    )
    parts.metrics.watch(
        Gauges(
            slots_in_use=lambda: slots.in_flight,
            queued=lambda: slots.queued,
            buffered_bytes=lambda: parts.buffers.leased_bytes,
        )
    )
    return Bulwark(
        settings=settings,
        public=_public(_chain(parts, authenticator)),
        admin=_admin(parts),
        lifelines=parts.lifelines,
        readiness=parts.readiness,
        metrics=parts.metrics,
        log=parts.log,
        transport=transport,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is built once and handed to several."""

    settings: Settings
    clocks: Clocks
    log: Log
    metrics: Metrics
    slots: Slots
    buffers: BufferBudget
    lifelines: Lifelines
    upstream: Upstream
    readiness: Readiness


def _chain(parts: _Parts, authenticator: Authenticator) -> ASGIApp:
    """What a request passes. Built from the inside out; a request reads it from the bottom up."""
    settings = parts.settings
    app: ASGIApp = _forward(parts)
    # Who asks, and only then whether there is anything to be had: no map for scanners.
    app = AuthLayer(app, authenticator=authenticator)
    # Before auth, which needs to know whose dialect and whose credentials a route speaks.
    app = EndpointLayer(app, table=EndpointTable.named(settings.endpoints))
    # Around everything that may refuse.
    app = ErrorLayer(app)
    if settings.cors_origins:
        # Around errors, because a page may read a refusal only if it says so, and before auth,
        # because a preflight carries no key.
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=_CORS_EXPOSED,
        )
    # Around everything: no way out may leave a request unrecorded.
    return AccessLayer(
        app,
        log=parts.log,
        metrics=parts.metrics,
        clock=parts.clocks.monotonic,
        probe=HEALTHZ,
    )


def _forward(parts: _Parts) -> Forward:
    settings = parts.settings
    return Forward(
        policy=Policy(
            Limits(
                max_prompt_chars=settings.max_prompt_chars,
                max_schema_chars=settings.max_schema_chars,
                max_output_tokens=settings.max_output_tokens,
                max_choices=settings.max_choices,
                max_media_parts=settings.max_media_parts,
                output_overflow=settings.output_overflow,
                profile=settings.profile,
                engine=settings.engine,
                allow_fields=frozenset(settings.allow_fields),
                deny_fields=frozenset(settings.deny_fields),
                cache_salt=settings.cache_salt,
            )
        ),
        slots=parts.slots,
        buffers=parts.buffers,
        lifelines=parts.lifelines,
        upstream=parts.upstream,
        timeouts=Timeouts(
            body=settings.body_timeout_seconds,
            connect=settings.connect_timeout_seconds,
            first_byte=settings.first_byte_timeout_seconds,
            idle=settings.idle_timeout_seconds,
            total=settings.total_timeout_seconds,
        ),
        max_body_bytes=settings.max_body_bytes,
        max_response_bytes=settings.max_response_bytes,
        response_headers=frozenset(name.encode() for name in settings.response_headers),
        redact=settings.profile == "strict",
    )


class _DataPlane:
    """FastAPI's outermost user middleware: answers every request, so that no route is needed."""

    def __init__(self, app: ASGIApp, *, chain: ASGIApp) -> None:
        self._app = app
        self._chain = chain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._chain(scope, receive, send)
        elif scope["type"] == "websocket":
            # Nothing here speaks it, and nothing that would read its messages checks them.
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await self._app(scope, receive, send)


def _public(chain: ASGIApp) -> FastAPI:
    app = FastAPI(openapi_url=None, redirect_slashes=False, telemetry=admin.TELEMETRY_OFF)
    app.add_middleware(_DataPlane, chain=chain)
    return app


def _admin(parts: _Parts) -> FastAPI:
    started = parts.clocks.monotonic()

    def status() -> dict[str, object]:
        return {
            "version": __version__,
            "uptime_seconds": round(parts.clocks.monotonic() - started, 3),
            "in_flight": parts.lifelines.in_flight,
            "slots_in_use": parts.slots.in_flight,
            "queued": parts.slots.queued,
            "buffered_bytes": parts.buffers.leased_bytes,
        }

    settings = parts.settings
    app = admin.build(
        hosts=frozenset({settings.admin_host.lower(), *settings.admin_hosts}),
        readiness=parts.readiness,
        registry=parts.metrics.registry,
        status=status,
    )
    app.add_middleware(ErrorLayer)
    app.add_middleware(
        AccessLayer,
        log=parts.log,
        # Counted apart: whoever scrapes would always see one request in flight, his own.
        metrics=Metrics(CollectorRegistry(), version=__version__),
        clock=parts.clocks.monotonic,
        probe=admin.ADMIN,
    )
    return app


def _upstream_key(settings: Settings) -> bytes | None:
    key = settings.upstream_api_key
    return key.get_secret_value().encode() if key is not None else None


def _drained() -> ShuttingDown:
    return ShuttingDown(
        "This server is shutting down (PROXY_DRAIN_SECONDS). Try again soon.",
        retry_after_seconds=_RETRY_AFTER_SECONDS,
    )


def _name(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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


def run(settings: Settings) -> int:
    """Serves in this process until it is told to stop, and gives its exit status.

    Raises:
        ConfigError: The keys are not in order.
        ListenError: A port is not to be had.
    """
    store = key_store(settings)
    public, admin_socket = bind(settings)
    # A switch of the whole process, so only here, where the process is ours: a second series beside
    # each counter, of when it began, that nobody asks for.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    bulwark = build(settings, store, registry=CollectorRegistry(), log_stream=sys.stdout.buffer)
    return uvloop.run(bulwark.serve(public, admin_socket))
