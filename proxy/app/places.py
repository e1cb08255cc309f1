"""How many connections each listener has places for."""

from proxy.config import Settings
from proxy.middleware.clients import ClientAddress
from proxy.server import descriptors
from proxy.server.connections import ConnectionLimits, Connections
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import ConnectionMetrics

# The admin listener's own: whoever fills the public one must not lock its operator out.
_ADMIN = ConnectionLimits(open=64, idle=32, told=8)


def of_clients(settings: Settings, log: Log, metrics: ConnectionMetrics) -> Connections:
    """Those of the public listener, which are counted."""
    places = Connections(
        _limits(settings, log),
        address_of=ClientAddress(settings.trusted_proxies, settings.client_ip_header).counted,
        on_event=metrics.refused,
    )
    metrics.watch({"busy": lambda: places.open - places.idle, "idle": lambda: places.idle})
    return places


def of_operators() -> Connections:
    """Those of the admin listener."""
    return Connections(_ADMIN)


def _limits(settings: Settings, log: Log) -> ConnectionLimits:
    """How many connections the public listener has, if the system has as many."""
    limits = ConnectionLimits(
        open=settings.max_connections,
        idle=settings.max_idle_connections,
        per_address=settings.max_connections_per_address,
    )
    # Requests without a body, which ask for a list, have as many places again; and no connection has
    # more than one request at a time.
    upstream = min(2 * settings.max_inflight, limits.open)
    clients = limits.open + limits.told + _ADMIN.open + _ADMIN.told
    allowed = descriptors.allow(descriptors.needed(clients, upstream))
    if not allowed.suffice:
        most = allowed.connections(upstream)
        limits = limits.within(most - _ADMIN.open - _ADMIN.told)
        log.server(
            "few_descriptors",
            level="warning",
            needed=allowed.needed,
            limit=allowed.limit,
            connections=limits.open,
        )
    return limits
