"""From settings to everything that serves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import __version__, admin
from proxy.admin import Readiness
from proxy.admission.buffers import BufferBudget
from proxy.admission.estimates import Estimates
from proxy.admission.gate import Gate
from proxy.admission.kv import TokenBudget
from proxy.admission.rates import RateLimits
from proxy.admission.slots import Slots
from proxy.app import admission
from proxy.app.clocks import Clocks
from proxy.app.server import Bulwark
from proxy.auth import reload
from proxy.auth.guessing import Guessing
from proxy.auth.keys import KeyStore
from proxy.auth.reload import KeyFileWatch
from proxy.config import Settings
from proxy.cors import Cors
from proxy.endpoints import EndpointTable
from proxy.forward import Forward, Timeouts, Upstream
from proxy.lifeline import Lifelines
from proxy.middleware.access import AccessLayer
from proxy.middleware.admission import AdmissionLayer
from proxy.middleware.auth import AuthLayer
from proxy.middleware.clients import ClientAddress
from proxy.middleware.cors import CorsLayer
from proxy.middleware.endpoint import HEALTHZ, EndpointLayer
from proxy.middleware.errors import ErrorLayer
from proxy.policy import Limits, Policy
from proxy.telemetry.log import Log, LogLevel
from proxy.telemetry.metrics import Gauges, Metrics, RequestMetrics
from proxy.upstream import target as targets
from proxy.upstream import transport as transports
from proxy.upstream.monitor import Monitor
from proxy.upstream.states import State

_POLICY_VIOLATION = 1008  # RFC 6455 §7.4.1


def build(
    settings: Settings,
    keys: KeyStore,
    *,
    registry: CollectorRegistry,
    log_stream: BinaryIO,
    clocks: Clocks = Clocks(),  # noqa: B008 - frozen
    transport: httpx.AsyncBaseTransport | None = None,
    monitor_transport: httpx.AsyncBaseTransport | None = None,
) -> Bulwark:
    """Puts a server together.

    Args:
        settings: What the operator decided.
        keys: Who may ask; ``key_store`` makes them.
        registry: Where the metrics live.
        log_stream: Where the log goes.
        clocks: What time it is.
        transport: The way to the upstream; None takes our own.
        monitor_transport: Likewise, of the monitor, which must not wait behind requests.
    """
    target = targets.parse(settings.upstream_url)
    transport = transport or transports.build(target)
    monitor_transport = monitor_transport or transports.build(target)
    metrics = Metrics(registry, version=__version__)
    log = Log(
        log_stream,
        form=settings.log_format,
        level=settings.log_level,
        now=clocks.now,
        on_lost=metrics.log_lines_lost,
    )
    budget = admission.token_budget(settings)
    slots = admission.slots(settings, clocks, keys=keys.usable, budget=budget)
    listing_slots = admission.slots(settings, clocks, keys=keys.usable, budget=None)
    buffers = admission.buffers(settings, keys.usable)

    share_out = admission.sharing(settings, keys, (slots, listing_slots), buffers)
    watch = _watch(settings, keys, log, share_out)
    monitor = Monitor(
        monitor_transport,
        target,
        clock=clocks.monotonic,
        # SGLang's /health generates a token each time.
        health_path="/ready" if settings.engine == "sglang" else "/health",
        on_reading=admission.heeding(budget, slots, clocks),
        on_state=_telling(log, metrics),
        on_ignored=metrics.upstream.reading_ignored,
        on_fault=partial(_monitor_failed, log),
    )
    parts = _Parts(
        settings=settings,
        clocks=clocks,
        log=log,
        metrics=metrics,
        keys=keys,
        watch=watch,
        rates=admission.rate_limits(settings, clocks, log, metrics),
        budget=budget,
        slots=slots,
        listing_slots=listing_slots,
        buffers=buffers,
        lifelines=Lifelines(),
        cors=Cors(settings.cors_origins, relayed=settings.response_headers),
        upstream=Upstream(transport=transport, target=target, api_key=_upstream_key(settings)),
        readiness=Readiness(monitor, details=lambda: _details(parts)),
    )
    metrics.watch(_gauges(parts))
    return Bulwark(
        settings=settings,
        public=_Public(_chain(parts)),
        admin=_admin(parts),
        lifelines=parts.lifelines,
        readiness=parts.readiness,
        cors=parts.cors,
        metrics=metrics,
        log=log,
        attendants=[monitor.run, parts.rates.run, *([watch.run] if watch else [])],
        reload=watch.request if watch else lambda: log.server("nothing_to_reload"),
        closing=[transport.aclose, monitor_transport.aclose, parts.rates.aclose],
    )


def _monitor_failed(log: Log, exc: Exception) -> None:
    log.server("monitor_failed", level="error", fault=type(exc).__qualname__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is built once and handed to several."""

    settings: Settings
    clocks: Clocks
    log: Log
    metrics: Metrics
    keys: KeyStore
    watch: KeyFileWatch | None
    rates: RateLimits
    budget: TokenBudget | None
    slots: Slots
    listing_slots: Slots
    buffers: BufferBudget
    lifelines: Lifelines
    cors: Cors
    upstream: Upstream
    readiness: Readiness


def _watch(
    settings: Settings, keys: KeyStore, log: Log, share_out: Callable[[], None]
) -> KeyFileWatch | None:
    if settings.keys_file is None:
        return None

    def tell(event: str, about: Mapping[str, object]) -> None:
        well = event == reload.RELOADED and about["problem"] is None
        log.server(event, level="info" if well else "warning", **about)

    return KeyFileWatch(settings.keys_file, keys, on_event=tell, on_count=share_out)


def _telling(log: Log, metrics: Metrics) -> Callable[[State, str], None]:
    """What a change of the upstream's state is told to. Nobody has asked it yet: it is starting."""
    metrics.upstream.state_is(State.STARTING)

    def tell(state: State, reason: str) -> None:
        metrics.upstream.state_is(state)
        # Ready, and yet there is something to say: perhaps nobody's engine.
        well = state is State.SATURATED or (state.serves and not reason)
        level: LogLevel = "info" if well else "warning"
        log.server("upstream", level=level, state=state.value, reason=reason or None)

    return tell


def _details(parts: _Parts) -> dict[str, object]:
    """What ``/readyz`` and ``/status`` tell besides the engine's state."""
    budget, watch = parts.budget, parts.watch
    told: dict[str, object] = {
        "kv_budget": admin.budget(
            parts.settings.kv_budget_tokens,
            pool=budget.pool if budget else None,
            limit=budget.limit if budget else None,
            reserved=budget.reserved if budget else 0,
        ),
        "keys": {"known": len(parts.keys), "file_problem": watch.problem if watch else None},
    }
    if parts.settings.redis_url is not None:
        told["redis"] = "up" if parts.rates.redis_up else "away"
    return told


def _gauges(parts: _Parts) -> Gauges:
    budget, watch = parts.budget, parts.watch
    return Gauges(
        slots_in_use=lambda: parts.slots.in_flight,
        queued=lambda: parts.slots.queued,
        buffered_bytes=lambda: parts.buffers.leased_bytes,
        kv_budget_tokens=lambda: (budget.limit or 0) if budget else 0,
        kv_reserved_tokens=lambda: budget.reserved if budget else 0,
        keys=lambda: len(parts.keys),
        keys_file_bad=lambda: bool(watch and watch.problem),
        redis_away=lambda: not parts.rates.redis_up,
    )


def _chain(parts: _Parts) -> ASGIApp:
    """What a request passes. Built from the inside out; a request reads it from the bottom up."""
    settings = parts.settings
    app: ASGIApp = _forward(parts)
    # Before the body is read, and after it is known whose request it is.
    app = AdmissionLayer(app, rates=parts.rates)
    # Who asks, and only then whether there is anything to be had: no map for scanners.
    app = AuthLayer(app, authenticator=parts.keys, guessing=Guessing(clock=parts.clocks.monotonic))
    # Before auth, which needs to know whose dialect and whose credentials a route speaks.
    app = EndpointLayer(app, table=EndpointTable.named(settings.endpoints))
    # Around everything that may refuse.
    app = ErrorLayer(app)
    if parts.cors:
        # Around errors: a page may read a refusal, too.
        app = CorsLayer(app, cors=parts.cors)
    # Around everything: no way out may leave a request unrecorded.
    return AccessLayer(
        app,
        log=parts.log,
        metrics=parts.metrics.requests,
        clock=parts.clocks.monotonic,
        probe=HEALTHZ,
        client_address=ClientAddress(settings.trusted_proxies, settings.client_ip_header),
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
        gate=Gate(
            rates=parts.rates,
            slots=parts.slots,
            estimates=Estimates(media_tokens=settings.media_tokens),
            budget=parts.budget,
        ),
        listing_slots=parts.listing_slots,
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
        write_through=settings.write_through,
    )


class _Public(FastAPI):
    """The public application: the chain answers every request, so that no route is needed.

    In front of FastAPI's own layers, of which each takes a turn with every message of every request:
    they would answer for what our error layer catches, time what our log times, and limit bodies that
    our intake limits.
    """

    def __init__(self, chain: ASGIApp) -> None:
        super().__init__(openapi_url=None, redirect_slashes=False, telemetry=admin.TELEMETRY_OFF)
        self._chain = chain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._chain(scope, receive, send)
        elif scope["type"] == "websocket":
            # Nothing here speaks it, and nothing that would read its messages checks them.
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await super().__call__(scope, receive, send)


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
            **_details(parts),
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
        metrics=RequestMetrics(CollectorRegistry()),
        clock=parts.clocks.monotonic,
        probe=admin.ADMIN,
    )
    return app


def _upstream_key(settings: Settings) -> bytes | None:
    key = settings.upstream_api_key
    return key.get_secret_value().encode() if key is not None else None
