"""Every series that the server has, all called ``bulwark_*``: one class for each thing they are of.

The labels are closed sets: rows of the endpoint table, statuses, words of ``Reason``. Nothing that
a client writes becomes a label, or a scanner could make series without end.
"""

from prometheus_client import CollectorRegistry, Counter, Info

from proxy.telemetry.metrics.connections import ConnectionMetrics
from proxy.telemetry.metrics.gauges import Gauges, watch
from proxy.telemetry.metrics.requests import RequestMetrics
from proxy.telemetry.metrics.upstream import UpstreamMetrics

__all__ = ["ConnectionMetrics", "Gauges", "Metrics", "RequestMetrics", "UpstreamMetrics"]


class Metrics:
    """The series, in one registry.

    Args:
        registry: Where they are registered; its own, so that tests share no counters.
        version: Of the server.

    Attributes:
        registry: As given.
        requests: What becomes of each request.
        upstream: What is known of the engine.
        connections: What becomes of connections of clients.
    """

    def __init__(self, registry: CollectorRegistry, *, version: str) -> None:
        self.registry = registry
        self.requests = RequestMetrics(registry)
        self._redis_failures = Counter(
            "bulwark_redis_failures",
            "Times that Redis did not answer in time, or not as it should.",
            registry=registry,
        )
        self.upstream = UpstreamMetrics(registry)
        self.connections = ConnectionMetrics(registry)
        self._log_lines_dropped = Counter(
            "bulwark_log_lines_dropped",
            "Lines of the log that could not be written in time, or at all.",
            registry=registry,
        )
        Info("bulwark_build", "The version of the server.", registry=registry).info(
            {"version": version}
        )

    def watch(self, gauges: Gauges) -> None:
        """Adds the gauges that are read from their owners."""
        watch(gauges, self.registry)

    def log_lines_lost(self, lines: int) -> None:
        """Lines that nobody will read."""
        self._log_lines_dropped.inc(lines)

    def redis_failed(self) -> None:
        """Redis did not answer."""
        self._redis_failures.inc()
