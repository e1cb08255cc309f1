"""What becomes of each request."""

from prometheus_client import CollectorRegistry, Gauge

from proxy.context import RequestContext
from proxy.errors import Reason, Refusal
from proxy.telemetry.metrics.series import Distribution, Tally

# From a refusal to the longest generation that PROXY_TOTAL_TIMEOUT_SECONDS allows.
_DURATION_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800,
)  # fmt: skip
_NO_ENDPOINT = "none"


class RequestMetrics:
    """How each went, how long it took, and what it used.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
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
        # Counted as a number, and read when somebody looks: the gauge's own count takes a lock.
        self._under_way = 0
        Gauge(
            "bulwark_requests_in_flight", "Requests begun and not ended.", registry=registry
        ).set_function(lambda: self._under_way)
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
        # Without a label, so that there is one of them.
        self._queue_wait = Distribution(
            "bulwark_queue_wait_seconds",
            "How long requests that reached the upstream had waited for a slot.",
            bounds=_DURATION_BUCKETS,
            registry=registry,
        ).of("")
        self._tokens = Tally(
            "bulwark_tokens",
            "Tokens, of requests whose use somebody has to know, and whether the engine said so.",
            ["kind", "source"],
            registry,
        )

    def began(self) -> None:
        """A request is in flight from now on."""
        self._under_way += 1

    def ended(self, context: RequestContext, *, ended: float) -> None:
        """A request is over, in whatever way; ``ended`` is on the clock of ``context.started``."""
        self._under_way -= 1
        endpoint = context.endpoint.name if context.endpoint is not None else _NO_ENDPOINT
        self._duration.of(endpoint).observe(ended - context.started)
        # Both have the same endpoints: of one that never sent a byte a zero is told, too.
        first_bytes = self._first_byte.of(endpoint)
        if context.first_byte:
            first_bytes.observe(context.first_byte - context.started)
        if context.upstream_status:
            self._queue_wait.observe(context.queued_seconds)
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

    def _count(self, endpoint: str, status: int, outcome: Reason | None) -> None:
        if outcome is None:
            self._requests.add((endpoint, status, "ok"))
            return
        word = outcome.value
        self._requests.add((endpoint, status, word))
        if outcome.is_refusal:
            self._refusals.add((endpoint, word))
