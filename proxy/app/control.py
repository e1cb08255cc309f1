"""What the operator sees: the control plane, what it tells of, and the gauges."""

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from proxy import __version__, admin
from proxy.admin import Readiness
from proxy.app.parts import Parts
from proxy.middleware.access import AccessLayer
from proxy.middleware.errors import ErrorLayer
from proxy.telemetry.metrics import Gauges, RequestMetrics


def control_plane(parts: Parts, readiness: Readiness) -> FastAPI:
    """The application on the operator's listener."""
    started = parts.clocks.monotonic()

    def status() -> dict[str, object]:
        return {
            "version": __version__,
            "uptime_seconds": round(parts.clocks.monotonic() - started, 3),
            "in_flight": parts.lifelines.in_flight,
            "slots_in_use": parts.slots.in_flight,
            "queued": parts.slots.queued,
            "buffered_bytes": parts.buffers.leased_bytes,
            **details(parts),
        }

    settings = parts.settings
    app = admin.build(
        hosts=frozenset({settings.admin_host.lower(), *settings.admin_hosts}),
        readiness=readiness,
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


def details(parts: Parts) -> dict[str, object]:
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
    if parts.history is not None:
        told["usage_db_problem"] = parts.history.problem
    return told


def gauges(parts: Parts) -> Gauges:
    """What a scrape reads from its owners."""
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
        usage_db_bad=lambda: bool(parts.history and parts.history.problem),
    )
