"""Every series that the server has, all called ``bulwark_*``.

The labels are closed sets: rows of the endpoint table, statuses, words of ``Reason``. Nothing that
a client writes becomes a label, or a scanner could make series without end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Info

from proxy.context import RequestContext
from proxy.errors import Reason, Refusal
from proxy.telemetry.series import Distribution, Tally

# From a refusal to the longest generation that PROXY_TOTAL_TIMEOUT_SECONDS allows.
_DURATION_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800,
)  # fmt: skip
_NO_ENDPOINT = "none"


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is read when somebody looks, rather than counted while it happens."""

    slots_in_use: Callable[[], float]
    queued: Callable[[], float]
    buffered_bytes: Callable[[], float]
    kv_budget_tokens: Callable[[], float]
    kv_reserved_tokens: Callable[[], float]
    keys: Callable[[], float]
    keys_file_bad: Callable[[], float]
    redis_away: Callable[[], float]


class Metrics:
    """The series, in one registry.

    Args:
        registry: Where they are registered; its own, so that tests share no counters.
        version: Of the server.
    """

    def __init__(self, registry: CollectorRegistry, *, version: str) -> None:
        self.registry = registry
        self._requests = Tally(
            "bulwark_requests",
            "Requests that ended, by what the client was told and how it went.",
            ["endpoint", "status", "outcome"],
            registry,
        )
        self._refusals = Tally(
            "bulwark_refusals",
            "Requests that this server refused, by reason.",
            ["endpoint", "reason"],
            registry,
        )
        self._clamped = Tally(
            "bulwark_clamped_requests",
            "Requests whose output was bounded lower than asked.",
            ["endpoint"],
            registry,
        )
        self._in_flight = Gauge(
            "bulwark_requests_in_flight",
            "Requests begun and not ended.",
            registry=registry,
        )
        # Counted as a number, and read when somebody looks: the gauge's own count takes a lock.
        self._under_way = 0
        self._in_flight.set_function(lambda: self._under_way)
        self._duration = Distribution(
            "bulwark_request_duration_seconds",
            "From the head of a request to the last byte of its response.",
            bounds=_DURATION_BUCKETS,
            registry=registry,
            label="endpoint",
        )
        self._first_byte = Distribution(
            "bulwark_time_to_first_byte_seconds",
            "From the head of a request to the first byte of its response's body.",
            bounds=_DURATION_BUCKETS,
            registry=registry,
            label="endpoint",
        )
        self._queued = Distribution(
            "bulwark_queue_wait_seconds",
            "How long requests that reached the upstream had waited for a slot.",
            bounds=_DURATION_BUCKETS,
            registry=registry,
        )
        self._tokens = Tally(
            "bulwark_tokens",
            "Tokens, of requests whose use somebody has to know, and whether the engine said so.",
            ["kind", "source"],
            registry,
        )
        self._redis_failures = Counter(
            "bulwark_redis_failures",
            "Times that Redis did not answer in time, or not as it should.",
            registry=registry,
        )
        self._readings_ignored = Counter(
            "bulwark_engine_metrics_ignored",
            "Metrics pages of the engine that were not used, by reason.",
            ["reason"],
            registry=registry,
        )
        self._upstream = Gauge(
            "bulwark_upstream_state",
            "1 for the state that the upstream is in: starting, ready, saturated or down.",
            ["state"],
            registry=registry,
        )
        self._connections = Gauge(
            "bulwark_connections",
            "Connections of clients: busy with a request, or idle between two.",
            ["state"],
            registry=registry,
        )
        self._connections_refused = Counter(
            "bulwark_connections_refused",
            "Connections refused, or closed while idle, because there are too many, by reason.",
            ["reason"],
            registry=registry,
        )
        self._log_lines_dropped = Counter(
            "bulwark_log_lines_dropped",
            "Lines of the log that could not be written in time, or at all.",
            registry=registry,
        )
        # The queue's is without a label.
        self._waits = self._queued.of("")
        Info("bulwark_build", "The version of the server.", registry=registry).info(
            {"version": version}
        )

    def watch(self, gauges: Gauges) -> None:
        """Adds the gauges that are read from their owners."""
        for name, description, read in (
            ("bulwark_slots_in_use", "Requests at the upstream.", gauges.slots_in_use),
            ("bulwark_queue_length", "Requests that wait for a slot.", gauges.queued),
            ("bulwark_buffered_bytes", "Bytes of request bodies held.", gauges.buffered_bytes),
            (
                "bulwark_kv_budget_tokens",
                "Tokens that all requests at the upstream may need together; 0 is no bound.",
                gauges.kv_budget_tokens,
            ),
            (
                "bulwark_kv_reserved_tokens",
                "Tokens reserved by requests at the upstream.",
                gauges.kv_reserved_tokens,
            ),
            ("bulwark_keys", "Keys known, expired and disabled ones among them.", gauges.keys),
            (
                "bulwark_keys_file_bad",
                "1 while the key file cannot be used, so that its last good state is in force, or has no key.",
                gauges.keys_file_bad,
            ),
            (
                "bulwark_redis_away",
                "1 while limits are not counted in Redis although they should.",
                gauges.redis_away,
            ),
        ):
            Gauge(name, description, registry=self.registry).set_function(read)

    def watch_connections(self, states: Mapping[str, Callable[[], float]]) -> None:
        """Adds a gauge for each state that a connection may be in, a word of ours."""
        for state, read in states.items():
            self._connections.labels(state).set_function(read)

    def connection_refused(self, reason: str) -> None:
        """A connection was one too many, or idle and in the way; `reason` is a word of ours."""
        self._connections_refused.labels(reason).inc()

    def log_lines_lost(self, lines: int) -> None:
        """Lines that nobody will read."""
        self._log_lines_dropped.inc(lines)

    def request_began(self) -> None:
        """A request is in flight from now on."""
        self._under_way += 1

    def request_ended(self, context: RequestContext, *, ended: float) -> None:
        """A request is over, in whatever way; ``ended`` is on the clock of ``context.started``."""
        self._under_way -= 1
        endpoint = context.endpoint.name if context.endpoint is not None else _NO_ENDPOINT
        self._duration.of(endpoint).observe(ended - context.started)
        # Both have the same endpoints: of one that never sent a byte a zero is told, too.
        first_bytes = self._first_byte.of(endpoint)
        if context.first_byte:
            first_bytes.observe(context.first_byte - context.started)
        if context.upstream_status:
            self._waits.observe(context.queued_seconds)
        if context.clamped:
            self._clamped.add((endpoint,))
        if context.prompt_tokens is not None:
            source = "estimate" if context.usage_estimated else "engine"
            self._tokens.add(("prompt", source), context.prompt_tokens)
            self._tokens.add(("completion", source), context.completion_tokens or 0)
        self._count(endpoint, context.final_status, context.outcome)

    def refused_early(self, refusal: Refusal) -> None:
        """The server refused below ASGI what was no request yet."""
        self._count(_NO_ENDPOINT, refusal.status, refusal.reason)

    def redis_failed(self) -> None:
        """Redis did not answer."""
        self._redis_failures.inc()

    def reading_ignored(self, reason: str) -> None:
        """A page of the engine's was not used; `reason` is a word of ours."""
        self._readings_ignored.labels(reason).inc()

    def upstream_is(self, state: str) -> None:
        """The upstream is in this state, a word of ours, and in no other."""
        self._upstream.clear()
        self._upstream.labels(state).set(1)

    def _count(self, endpoint: str, status: int, outcome: Reason | None) -> None:
        if outcome is None:
            self._requests.add((endpoint, status, "ok"))
            return
        word = outcome.value
        self._requests.add((endpoint, status, word))
        if outcome.is_refusal:
            self._refusals.add((endpoint, word))
