"""What is known of the engine."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class UpstreamMetrics:
    """Its state, and what it said of itself that was of no use.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._readings_ignored = Counter(
            "bulwark_engine_metrics_ignored",
            "Metrics pages of the engine that were not used, by reason.",
            ["reason"],
            registry=registry,
        )
        self._state = Gauge(
            "bulwark_upstream_state",
            "1 for the state that the upstream is in: starting, ready, saturated or down.",
            ["state"],
            registry=registry,
        )

    def reading_ignored(self, reason: str) -> None:
        """A page of the engine's was not used; `reason` is a word of ours."""
        self._readings_ignored.labels(reason).inc()

    def state_is(self, state: str) -> None:
        """The upstream is in this state, a word of ours, and in no other."""
        self._state.clear()
        self._state.labels(state).set(1)
