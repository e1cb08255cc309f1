"""From settings to everything that serves."""

from dataclasses import dataclass
from typing import BinaryIO

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import __version__, admin
from proxy.admin import Readiness
from proxy.admission.buffers import BufferBudget
from proxy.admission.slots import Slots
from proxy.app.clocks import Clocks
from proxy.app.server import Bulwark
from proxy.auth import Authenticator
from proxy.config import Settings
from proxy.endpoints import EndpointTable
from proxy.forward import Forward, Timeouts, Upstream
from proxy.lifeline import Lifelines
from proxy.middleware.access import AccessLayer
from proxy.middleware.auth import AuthLayer
from proxy.middleware.endpoint import HEALTHZ, EndpointLayer
from proxy.middleware.errors import ErrorLayer
from proxy.policy import Limits, Policy
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import Gauges, Metrics
from proxy.upstream import target as targets
from proxy.upstream import transport as transports
from proxy.upstream.probe import Probe

_POLICY_VIOLATION = 1008  # RFC 6455 §7.4.1
_CORS_EXPOSED = ("X-Request-Id", "Request-Id", "X-Bulwark-Clamped", "Retry-After")


def build(
    settings: Settings,
    authenticator: Authenticator,
    *,
    registry: CollectorRegistry,
    log_stream: BinaryIO,
    clocks: Clocks = Clocks(),  # noqa: B008 - frozen
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
    slots = _slots(settings, clocks)
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
            kv_budget_tokens=lambda: 0,
            kv_reserved_tokens=lambda: 0,
            keys=lambda: 0,
            keys_file_bad=lambda: 0,
            redis_away=lambda: 0,
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
            expose_headers=(*_CORS_EXPOSED, *settings.response_headers),
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
        listing_slots=_slots(settings, parts.clocks),
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
        keep_alive_seconds=settings.sse_keepalive_seconds,
        commit_seconds=settings.sse_commit_seconds,
    )


def _slots(settings: Settings, clocks: Clocks) -> Slots:
    return Slots(
        max_inflight=settings.max_inflight,
        queue_size=settings.queue_size,
        queue_timeout_seconds=settings.queue_timeout_seconds,
        clock=clocks.monotonic,
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
