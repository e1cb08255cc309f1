"""What becomes of connections of clients."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge


class ConnectionMetrics:
    """How many there are, and how many there were no places for.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open = Gauge(
            "bulwark_connections",
            "Connections of clients: busy with a request, or idle between two.",
            ["state"],
            registry=registry,
        )
        self._refused = Counter(
            "bulwark_connections_refused",
            "Connections refused, or closed while idle, because there are too many, by reason.",
            ["reason"],
            registry=registry,
        )

    def watch(self, states: Mapping[str, Callable[[], float]]) -> None:
        """Adds a gauge for each state that a connection may be in, a word of ours."""
        for state, read in states.items():
            self._open.labels(state).set_function(read)

    def refused(self, reason: str) -> None:
        """A connection was one too many, or idle and in the way; `reason` is a word of ours."""
        self._refused.labels(reason).inc()
